"""BatchAdmit: several decisions with nothing in between, all or nothing unless asked otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import check, equal
from hisparse_svc.conformance.server import Code

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server


def ids(server: Server) -> list[str]:
    """Leases that the run's tenant holds."""
    return [lease.id for lease in server.call("ListLeases", tenant=server.tenant, page_size=1000).leases]


@case("atomic")
def all_are_granted_in_their_order(server: Server) -> None:
    """One result per request, and the node after the last."""
    requests = [server.asked(pages=1 + turn) for turn in range(3)]
    answer = server.batch(requests)
    got = [(result.lease.request_id, result.lease.pages) for result in answer.results]
    equal(got, [(request["request_id"], 1 + turn) for turn, request in enumerate(requests)], "leases in their order")
    equal(ids(server), [result.lease.id for result in answer.results], "leases of the tenant")
    check(answer.HasField("capacity"), "the answer must carry the capacity")


@case("atomic")
def one_refusal_undoes_the_others(server: Server) -> None:
    """Where one request can never fit, the call fails as that one would have, names it, and nothing is held."""
    requests = [server.asked(), server.asked(prompt_tokens=server.max_request_tokens + 1), server.asked()]
    refused = server.refused("BatchAdmit", Code.FAILED_PRECONDITION, "NEVER_FITS", requests=requests)
    equal(refused.info.metadata["request"], "1", "place of the refused request in the details")
    equal(ids(server), [], "leases after a refused batch")


@case("atomic", needs=["idle"])
def a_batch_that_does_not_fit_leaves_the_pools_as_they_were(server: Server) -> None:
    """Requests of which each fits alone, but not all together."""
    before = server.capacity()
    (fit,) = server.capacity(server.max_request_tokens).fits
    requests = [server.asked(prompt_tokens=server.max_request_tokens) for _ in range(min(fit.count, 255) + 1)]
    server.refused("BatchAdmit", Code.RESOURCE_EXHAUSTED, "POOL_BUSY", requests=requests)
    equal(server.books(), server.books(before), "pools after a refused batch")


@case("refusals")
def partial_decides_on_each_by_itself(server: Server) -> None:
    """With `partial` a refusal stands in its place, as the call alone would give it, and the others are granted."""
    requests = [server.asked(), server.asked(prompt_tokens=server.max_request_tokens + 1), server.asked()]
    results = server.batch(requests, partial=True).results
    equal([result.WhichOneof("outcome") for result in results], ["lease", "refusal", "lease"], "outcomes")
    refusal = results[1].refusal
    equal((refusal.code, refusal.reason), (Code.FAILED_PRECONDITION.value[0], "NEVER_FITS"), "code and reason")
    check(refusal.message and not refusal.HasField("retry_delay"), "NEVER_FITS needs a message and no retry_delay")
    equal(len(ids(server)), 2, "leases held")


@case("idempotent")
def a_repeated_batch_grants_nothing_new(server: Server) -> None:
    """The same request ids give the same leases."""
    requests = [server.asked() for _ in range(3)]
    first, again = (server.batch(requests).results for _ in range(2))
    equal([result.lease.id for result in again], [result.lease.id for result in first], "leases")
    check(all(result.repeated_request for result in again), "repeated_request of every result")
    equal(len(ids(server)), 3, "leases held")


@case("idempotent")
def one_name_twice_in_a_batch_is_one_lease(server: Server) -> None:
    """The second is a repetition of the first."""
    results = server.batch([server.asked(request_id="double")] * 2).results
    equal(results[1].lease.id, results[0].lease.id, "lease of the second")
    equal([result.repeated_request for result in results], [False, True], "repeated_request")


@case("atomic")
def a_refused_batch_keeps_what_was_held_before(server: Server) -> None:
    """A request that had its lease already keeps it, when a batch that names it again is refused."""
    asked = server.asked(request_id="held before")
    lease = server.granted("Admit", [asked], **asked).lease
    requests = [asked, server.asked(), server.asked(prompt_tokens=server.max_request_tokens + 1)]
    server.refused("BatchAdmit", Code.FAILED_PRECONDITION, "NEVER_FITS", requests=requests)
    equal(ids(server), [lease.id], "leases after the refused batch")


@case("idempotent")
def one_name_with_two_lengths_in_a_batch_is_refused(server: Server) -> None:
    """The second contradicts the first: REQUEST_ID_REUSED, and neither is held."""
    requests = [server.asked(pages=pages, request_id="torn") for pages in (1, 2)]
    server.refused("BatchAdmit", Code.ALREADY_EXISTS, "REQUEST_ID_REUSED", requests=requests)
    equal(ids(server), [], "leases after the refused batch")


@case("refusals")
def everything_malformed_is_named_by_its_place(server: Server) -> None:
    """Two requests at fault are two violations, and nothing is decided."""
    wrong: list[dict[str, Any]] = [
        server.asked(),
        server.asked(prompt_tokens=0),
        server.asked(priority=1000),
        server.asked(wait={"seconds": 1}),
    ]
    wanted = ("requests[1].prompt_tokens", "requests[2].priority", "requests[3].wait")
    server.invalid("BatchAdmit", *wanted, requests=wrong)
    equal(ids(server), [], "leases after a malformed batch")


@case("refusals")
def a_batch_has_its_bounds(server: Server) -> None:
    """None, and more than 256."""
    server.invalid("BatchAdmit", "requests", requests=[])
    server.invalid("BatchAdmit", "requests", requests=[server.asked()] * 257)
