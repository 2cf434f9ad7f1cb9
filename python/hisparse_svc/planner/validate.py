"""`hisparse_svc.validate`: a configuration, handed to the core as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from hisparse_svc import _core
from hisparse_svc.planner.models import model_or_problems

if TYPE_CHECKING:
    import os

    from hisparse_svc._core import Model, Validation

__all__ = ["validate"]


def validate(
    model: str | os.PathLike[str] | Model | None = None,
    *,
    engine: Literal["native", "sglang", "vllm"] | None = None,
    hisparse_config: str | Mapping[str, Any] | None = None,
    platform: Literal["cuda", "rocm"] | None = None,
    sm: int | None = None,
    kv_dtype: str | None = None,
    prefill_backend: str | None = None,
    decode_backend: str | None = None,
    heads: int | None = None,
    host_pool: int | str | None = None,
    assume_memory: int | str | None = None,
    context: int | None = None,
    page_size: int | None = None,
    disable_radix_cache: bool | None = None,
    enable_mixed_chunk: bool | None = None,
    speculative_num_steps: int | None = None,
    speculative_num_draft_tokens: int | None = None,
    speculative_eagle_topk: int | None = None,
    pp_size: int | None = None,
) -> Validation:
    """Check a configuration: backends, hot buffer, ratio, host pool; all of it together.

    Nothing is raised for a configuration that is wrong: the answer says so. ``None`` takes the default.

    Args:
        model: A preset's name, a ``config.json``, a folder that holds one, or a :class:`Model`; without one the bare
            backend table answers.
        engine: Whose rules apply.
        hisparse_config: The engine's JSON, as text or as a mapping.
        platform: GPU software platform.
        sm: CUDA compute capability times ten: 90, 100, 120.
        kv_dtype: How main KV is stored, or ``"auto"``.
        prefill_backend: Attention backend of prompts; resolved where not given.
        decode_backend: Attention backend of decode steps; resolved where not given.
        heads: Query heads on one rank.
        host_pool: Size of the node's host pool, measured against this machine.
        assume_memory: Memory to measure the pool against instead.
        context: Longest request in tokens, which the pool must be able to hold.
        page_size: Tokens in one page.
        disable_radix_cache: SGLang's flag.
        enable_mixed_chunk: SGLang's flag.
        speculative_num_steps: SGLang's draft steps.
        speculative_num_draft_tokens: SGLang's tokens verified at once.
        speculative_eagle_topk: SGLang's branches of the draft tree.
        pp_size: SGLang's pipeline stages.

    Returns:
        The verdict; its attributes carry the names of the JSON of ``hisparse-svc validate``.

    Example:
        >>> import hisparse_svc
        >>> hisparse_svc.validate("glm-5.2", sm=90, kv_dtype="fp8_e4m3").resolved.decode_backend
        'flashmla_kv'
    """
    arguments = {name: value for name, value in locals().items() if name != "model" and value is not None}
    if isinstance(hisparse_config, Mapping):
        try:
            arguments["hisparse_config"] = json.dumps(dict(hisparse_config))
        except (TypeError, ValueError, RecursionError):  # not plain data: the core names each value that is not
            arguments["hisparse_config"] = dict(hisparse_config)
    return validate_from(model, arguments)


def validate_from(model: str | os.PathLike[str] | Model | None, arguments: dict[str, Any]) -> Validation:
    """Validate arguments that are plain data still, as the command line has them."""
    return _core.validate(arguments, None if model is None else model_or_problems(model))
