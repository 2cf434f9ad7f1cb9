"""Validate: whether a configuration works, and everything wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import check, equal
from hisparse_svc.conformance.server import Code

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server

GOOD = {"model": "glm-5.2", "engine": "native", "kv_dtype": "fp8_e4m3"}


@case("planner")
def a_good_configuration_is_valid(server: Server) -> None:
    """It has no problems, and says what the engine would run with."""
    verdict = server.call("Validate", **GOOD)
    equal((verdict.valid, [problem.rule for problem in verdict.problems]), (True, []), "valid and problems")
    check(verdict.HasField("resolved"), "a valid configuration must be resolved")


@case("planner")
def a_bad_one_is_an_answer_with_every_problem(server: Server) -> None:
    """A wrong configuration is what was asked about, no wrong call: all its problems, each with what to do."""
    verdict = server.call("Validate", **GOOD, prefill_backend="nobody's", host_pool=1_000)
    check(not verdict.valid and len(verdict.problems) >= 2, f"valid={verdict.valid}, {len(verdict.problems)} problems")
    whole = all(problem.field and problem.rule and problem.remedy for problem in verdict.problems)
    check(whole, f"a problem without words: {verdict.problems}")


@case("planner")
def the_same_question_has_the_same_answer(server: Server) -> None:
    """A pure function of the request."""
    equal(server.call("Validate", **GOOD), server.call("Validate", **GOOD), "the answer")


@case("isolation")
def a_path_is_no_model(server: Server) -> None:
    """The service reads no file for a caller."""
    refused = None
    try:
        refused = server.call("Validate", model="/etc/passwd")
    except Exception as failure:  # refused as malformed, or answered as a problem
        equal(getattr(failure, "code", None), Code.INVALID_ARGUMENT, "code for a path")
    check(refused is None or not refused.valid, "a path was read as a model")
