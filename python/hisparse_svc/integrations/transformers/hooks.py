"""Where a model calls this package: the same places in every version of transformers from 5.17 on.

::

    layer    pre-hook                      the layer begins; its attention function is told of the pass's cache
     5.17      expand_kv(latents) ─ tap      latents to the cache; in decode K and V are not made
               cache.update(K, V)            nothing left to do
     5.18 on   cache.update(latents)         latents to the cache
               expand_kv(latents) ─ tap      in decode K and V are not made

Whichever is called first has the latents. A model that is given another cache runs as if nothing were hooked.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from hisparse_svc.integrations.transformers import attention
from hisparse_svc.integrations.transformers.cache import HostCache

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["cache_argument", "hook", "mask_argument"]

_CACHE_ARGUMENTS = ("cache", "past_key_values")
"""What models call the argument, the newer name first: 5.24 takes both."""


class _LatentTap:
    """Stands before a layer's `expand_kv`.

    Attributes:
        cache: The cache of the pass under way, where it is one of ours.
    """

    def __init__(self, module: Any) -> None:
        self._expand, self._layer = module.expand_kv, module.layer_idx
        self.cache: HostCache | None = None

    def __call__(self, latent: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        if self.cache is not None:
            if not self.cache.taken:
                latent, rope = self.cache.store(self._layer, latent, rope)
            if self.cache.decoding:
                return latent, rope
        expanded: tuple[Tensor, Tensor] = self._expand(latent, rope)
        return expanded


def hook(model: Any) -> None:
    """Let a model's layers call this package; twice is no error.

    Args:
        model: A model of one of the families, of transformers.
    """
    attention.register()
    model.set_attn_implementation(attention.NAME)
    for layer in model.model.layers:
        module = layer.self_attn
        if not isinstance(module.expand_kv, _LatentTap):
            module.expand_kv = _LatentTap(module)
            module.register_forward_pre_hook(_begin, with_kwargs=True)


def cache_argument(model: Any, cache: HostCache) -> dict[str, HostCache]:
    """Give a cache as the keyword argument by which this version of a model, and its `generate`, takes one."""
    known = inspect.signature(model.forward).parameters
    return {next(name for name in _CACHE_ARGUMENTS if name in known): cache}


def mask_argument(model: Any, mask: Tensor) -> dict[str, dict[str, Tensor]]:
    """Give a mask that is complete as the keyword argument of a model's forward: by type of layer."""
    return {"attention_mask": dict.fromkeys(model.config.layer_types, mask)}


def _begin(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Before a layer's attention: its tap and its attention function learn which cache of ours the pass has, if any."""
    given = next((named[name] for name in _CACHE_ARGUMENTS if named.get(name) is not None), None)
    cache = module.expand_kv.cache = given if isinstance(given, HostCache) else None
    if cache is None:
        return arguments, named
    cache.enter()
    return arguments, {**named, attention.CACHE_KEYWORD: cache}
