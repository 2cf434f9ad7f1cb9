"""One model's KV in host memory: the session that decodes it, and the service whose leases it lives under.

::

    HostKv.embedded(model, …)   a node in this process           ┐
    HostKv.over(model, pool)    a service that an engine attached ┴──► HostKv ── request(…) ──► HostCache ──► generate

Rows and index keys lie in the service's own pool, as its `kv_dtype` says: BF16 or FP8, and fp32 for tests whose
arithmetic shall be exact.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import hisparse_svc
from hisparse_svc.engine.decode_session import DecodeSession
from hisparse_svc.engine.decode_shape import DecodeShape
from hisparse_svc.engine.host_copy import HostCopy
from hisparse_svc.engine.host_pool import HostPool
from hisparse_svc.engine.layer_step import Overlap
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.integrations.transformers.cache import HostCache, read_rows
from hisparse_svc.integrations.transformers.hooks import hook
from hisparse_svc.integrations.transformers.shapes import check_model, config_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from torch import Tensor

    from hisparse_svc.client import Client
    from hisparse_svc.engine import Running

__all__ = ["HostKv"]


class HostKv:
    """A hooked model and the session that it decodes through.

    Attributes:
        model: The model, whose attention is now this package's.
        session: The session.
        client: Who admits.
        on_attention: Called with layer, queries, new rows as stored and output of each decode step's attention.
        on_picks: Called with layer, requests and picks, `i32 [request, 1, top_k]`, of each decode step and layer that
            has an indexer; -1 says none.

    Example:
        >>> kv = HostKv.embedded(model, hot_rows=256, host_pool="64MiB", kv_bytes="16MiB")  # doctest: +SKIP
        >>> model.generate(ids, cache=kv.request(ids.shape[1], 64), max_new_tokens=64)  # doctest: +SKIP
    """

    def __init__(self, model: Any, session: DecodeSession, client: Client) -> None:
        """Hook a model; `embedded` and `over` make the session too.

        Args:
            model: A model of transformers.
            session: A session of its shape.
            client: A client of the service whose leases the session commits.

        Raises:
            InvalidInput: The kernels cannot read what this model stores, or the session is of another shape.
        """
        check_model(model)
        top_k = session.shape.geometry.top_k
        if (found := model.config.index_topk) != top_k:
            problem = Problem("index_topk", str(found), f"must be {top_k}, the session's", "plan for this model")
            raise InvalidInput([problem])
        hook(model)
        self.model = model
        self.session = session
        self.client = client
        self.on_attention: Callable[[int, Tensor, Tensor, Tensor], None] | None = None
        self.on_picks: Callable[[int, Sequence[Running], Tensor], None] | None = None
        self._swapped = torch.zeros((), dtype=torch.int64, device=session.memory.cache.device)
        self._pool: HostPool | None = None

    @staticmethod
    def embedded(model: Any, **settings: Any) -> HostKv:
        """Start a node in this process for the model; it ends with `close`.

        Args:
            model: A model of transformers, on its device.
            settings: Those of `HostPool.embedded`, without the model. Where not given, `kv_dtype` is `float32` for
                a model in float32, and the service's default for others.

        Raises:
            InvalidInput: Everything wrong with the model or the settings.
        """
        check_model(model)
        if model.dtype is torch.float32:
            settings = {"kv_dtype": "float32", **settings}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(config_json(model), encoding="utf-8")
            pool = HostPool.embedded(model=str(path), **settings)
        try:
            kv = HostKv.over(model, pool, pool.node.plan if pool.node else None)
        except BaseException:
            pool.close()
            raise
        kv._pool = pool
        return kv

    @staticmethod
    def over(model: Any, pool: HostPool, plan: Any, *, overlap: Overlap = Overlap.PREFETCH) -> HostKv:
        """Decode over a service's pool.

        Args:
            model: A model of transformers, on its device.
            pool: The pool, attached as writer; it is registered where the model is on a GPU.
            plan: The plan that the service runs with; it says how rows and index keys are stored.
            overlap: What of the swap-in to hide.

        Raises:
            InvalidInput: The kernels cannot read what this model stores.
        """
        check_model(model)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(config_json(model), encoding="utf-8")
            shape = DecodeShape.of_plan(plan, hisparse_svc.load_model(str(path)))
        if model.device.type == "cuda":
            pool.register(device=model.device.index or 0)
        session = DecodeSession(shape, HostCopy.of_pool(pool), model.device, leases=pool.client, overlap=overlap)
        return HostKv(model, session, pool.client)

    def request(self, prompt_tokens: int, max_new_tokens: int) -> HostCache:
        """Reserve what one request needs and give it a seat; its cache is what `generate` takes.

        Args:
            prompt_tokens: Tokens of the prompt.
            max_new_tokens: Most tokens it may produce.

        Returns:
            The cache; closing it, or leaving its block, releases the lease.

        Raises:
            HiSparseError: The service refuses.
            InvalidInput: No free seat.
        """
        held = self.client.admit(prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens)
        try:
            return HostCache(self, [self.session.join(held.lease)])
        except BaseException:
            held.release()
            raise

    def read_rows(self, request: Running, layer: int, tokens: int) -> Tensor:
        """Read a request's first rows of one layer from host memory, as numbers on the device, `f32 [token, 576]`.

        Args:
            request: Whose.
            layer: Which layer.
            tokens: How many; all of them must be in host memory, as prefilled ones are.
        """
        device = self.session.memory.cache.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # kernels write host memory behind torch's back
        group, place = self.session.shape.place(layer)
        return read_rows(self.session.memory.host.rows[group].view[:, :, place], request.pages, tokens, device)

    def count_swaps(self, counts: Tensor, layers: int) -> None:
        """Add a step's missing rows, each of which was copied for so many layers."""
        self._swapped += counts.sum() * layers

    @property
    def swapped_rows(self) -> int:
        """Rows copied from host memory so far."""
        return int(self._swapped)

    def close(self) -> None:
        """End the embedded node, where there is one; nothing decodes any more."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> HostKv:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
