"""`hisparse_svc.plan`: the question, argument by argument, handed to the core as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from hisparse_svc import _core
from hisparse_svc.planner.models import model_or_problems

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from hisparse_svc._core import Model, Plan

__all__ = ["plan"]


def plan(
    model: str | os.PathLike[str] | Model,
    *,
    engine: Literal["native", "sglang", "vllm"] | None = None,
    platform: Literal["cuda", "rocm"] | None = None,
    sm: int | None = None,
    kv_dtype: Literal["bfloat16", "fp8_e4m3", "fp8_raw", "float32"] | None = None,
    hisparse: bool | None = None,
    ratio: float | None = None,
    host_pool: int | str | None = None,
    auto: bool | None = None,
    hot_rows: int | None = None,
    page_size: int | None = None,
    num_layers: int | None = None,
    stage: str | None = None,
    tp: int | None = None,
    dp: int | None = None,
    pp: int | None = None,
    ep: bool | None = None,
    max_seqs: int | None = None,
    mtp: int | None = None,
    draft_layers: int | None = None,
    gpu: str | None = None,
    kv_bytes: int | str | None = None,
    weights: int | str | None = None,
    context: int | Sequence[int] | None = None,
    share_host: bool | None = None,
    assume_memory: int | str | None = None,
    swa_full_tokens_ratio: float | None = None,
    chunked_prefill_size: int | None = None,
) -> Plan:
    """Say what fits: bytes, tokens, seats and concurrency of a model on a GPU.

    ``None`` takes the default that ``docs/budgets.md`` lists. Sizes are bytes, or text such as ``"160GiB"``.

    Args:
        model: A preset's name, a ``config.json``, a folder that holds one, or a :class:`Model`.
        engine: Whose allocation to describe; the engines' own quirks included.
        platform: GPU software platform.
        sm: CUDA compute capability times ten: 90, 100, 120.
        kv_dtype: How main KV is stored.
        hisparse: Whether to use the host pool at all.
        ratio: Logical tokens per device token; excludes ``host_pool``.
        host_pool: Size of the host pool; excludes ``ratio``.
        auto: Choose hot rows and ratio for the most concurrency.
        hot_rows: GPU rows per running request and layer.
        page_size: Tokens in one page.
        num_layers: Plan for the first so many layers; excludes ``stage``.
        stage: Layers of one pipeline stage, as ``"0:39"``.
        tp: Tensor-parallel ranks.
        dp: Data-parallel replicas.
        pp: Pipeline stages.
        ep: Spread experts over all tensor and data ranks.
        max_seqs: Most requests at once the engine is set to.
        mtp: Speculative tokens per step.
        draft_layers: Draft layers to budget.
        gpu: A GPU by name, which gives ``kv_bytes``, ``sm`` and ``platform``.
        kv_bytes: GPU memory for KV on one rank.
        weights: Bytes of weights on one rank, where the planner does not know them.
        context: One context length or several, in tokens, for the concurrency table.
        share_host: All ranks of a replica share one host pool.
        assume_memory: Host memory that the pool must fit.
        swa_full_tokens_ratio: SGLang's window tokens per full token.
        chunked_prefill_size: SGLang's tokens of one prefill chunk.

    Returns:
        The plan; attributes and :meth:`Plan.to_dict` carry the same names as the JSON of ``hisparse-svc plan``.

    Raises:
        InvalidInput: Something in the model or the arguments is wrong; every problem together.

    Example:
        >>> import hisparse_svc
        >>> plan = hisparse_svc.plan("glm-5.2", kv_dtype="fp8_e4m3", ratio=4)
        >>> plan.cell_bytes
        62256
    """
    arguments = {name: value for name, value in locals().items() if name != "model" and value is not None}
    return plan_from(model, arguments)


def plan_from(model: str | os.PathLike[str] | Model, arguments: dict[str, Any]) -> Plan:
    """Plan from arguments that are plain data still, as the command line has them.

    Raises:
        InvalidInput: As :func:`plan`; an argument that :func:`plan` does not have is a problem too.
    """
    return _core.plan(arguments, model_or_problems(model))
