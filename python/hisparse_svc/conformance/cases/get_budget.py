"""GetBudget: what fits, computed and never measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import Skipped, check, equal
from hisparse_svc.conformance.server import Code
from hisparse_svc.conformance.wire import Refused

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server

PLAN: dict[str, Any] = {"model": "glm-5.2", "kv_bytes": 20 << 30, "host_pool": 160 << 30, "context": [32_768, 131_072]}
GLM_5_2_LAYERS = 78


@case("planner")
def the_same_question_has_the_same_answer(server: Server) -> None:
    """Twice the same plan, whatever the node holds."""
    first = server.call("GetBudget", **PLAN)
    server.lease()
    equal(server.call("GetBudget", **PLAN), first, "the answer")


@case("planner")
def the_parts_of_a_budget_fit_together(server: Server) -> None:
    """Sizes within their pools, one row per context, and a longer context never fits more often."""
    plan = server.call("GetBudget", **PLAN)
    equal(plan.model.layers, GLM_5_2_LAYERS, "layers of glm-5.2")
    check(0 < plan.host_bytes <= PLAN["host_pool"], f"host_bytes of {plan.host_bytes}")
    check(plan.logical_tokens >= plan.device_tokens > 0, "logical_tokens below device_tokens")
    check(plan.logical_tokens % plan.page_tokens == 0, "logical_tokens are whole pages")
    equal([row.context for row in plan.concurrency], PLAN["context"], "contexts")
    counts = [row.hisparse for row in plan.concurrency]
    check(counts == sorted(counts, reverse=True), f"requests by rising context: {counts}")


@case("planner")
def the_node_itself_is_the_plan_it_runs(server: Server) -> None:
    """Without a model it is this node: its longest request and its pages."""
    try:
        plan = server.call("GetBudget")
    except Refused as refused:
        equal(refused.code, Code.INVALID_ARGUMENT, "code of a node without a plan")
        raise Skipped("the node was not started from a plan") from None
    equal(plan.max_request_tokens, server.max_request_tokens, "max_request_tokens")
    equal(plan.logical_tokens // plan.page_tokens, server.amounts("total")["host_pages"], "pages of the plan")


@case("planner", needs=["idle"])
def an_empty_node_fits_what_its_plan_says(server: Server) -> None:
    """As many requests of each context as the plan's concurrency, or as there are seats and slots."""
    try:
        rows = server.call("GetBudget").concurrency
    except Refused as refused:
        equal(refused.code, Code.INVALID_ARGUMENT, "code of a node without a plan")
        raise Skipped("the node was not started from a plan") from None
    total = server.amounts("total")
    most = min(total["seats"], total["request_slots"])
    fits = server.capacity(*(row.context for row in rows)).fits
    planned = {row.context: min(row.hisparse, most) for row in rows}
    equal({fit.tokens: fit.count for fit in fits}, planned, "requests that fit, by context")


@case("planner")
def the_node_itself_takes_no_other_field(server: Server) -> None:
    """Fields without a model contradict each other."""
    server.refused("GetBudget", Code.INVALID_ARGUMENT, kv_bytes=1 << 30)


@case("refusals")
def everything_wrong_is_named_at_once(server: Server) -> None:
    """An engine, a GPU and a KV type that do not exist are three violations of one answer."""
    wrong = {**PLAN, "engine": "none", "kv_dtype": "float3", "gpu": "nobody's"}
    refused = server.refused("GetBudget", Code.INVALID_ARGUMENT, **wrong)
    check(len(refused.fields) >= 3, f"must name engine, kv_dtype and gpu: {refused.fields}")


@case("isolation")
def a_path_is_no_model(server: Server) -> None:
    """The service reads no file for a caller."""
    for path in ("/etc/passwd", "../config.json", "/proc/self/environ"):
        refused = server.refused("GetBudget", Code.INVALID_ARGUMENT, model=path)
        check("root:" not in refused.text, f"the refusal shows what is in {path}")


@case("refusals")
def a_model_that_is_no_json_is_refused(server: Server) -> None:
    """Broken and absurd configurations are malformed, and nothing breaks."""
    for model in ("{", "{}", '{"num_hidden_layers": 1e400}', "[" * 2_000, "nobody's model"):
        server.refused("GetBudget", Code.INVALID_ARGUMENT, model=model)


@case("refusals")
def sizes_beyond_reason_are_refused(server: Server) -> None:
    """The largest numbers of the wire wrap nothing."""
    for field in ("kv_bytes", "host_pool", "hot_rows", "tp", "max_seqs"):
        server.refused("GetBudget", Code.INVALID_ARGUMENT, **{**PLAN, field: 2**64 - 1})
