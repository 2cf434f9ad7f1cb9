"""Admit, what is malformed or too much: every field at fault is named, and nothing breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hisparse_svc._proto import admission_pb2
from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import Skipped, check, equal
from hisparse_svc.conformance.laws import kept_by_refusal
from hisparse_svc.conformance.server import Code
from hisparse_svc.conformance.wire import Refused

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server

MOST = 2**64 - 1


@case("refusals")
def too_long_ever_is_not_busy(server: Server) -> None:
    """Longer than any grant is NEVER_FITS, with the limit and its value, and without a time to try again."""
    refused = server.refused(
        "Admit",
        Code.FAILED_PRECONDITION,
        "NEVER_FITS",
        **server.asked(prompt_tokens=server.max_request_tokens, max_new_tokens=1),
    )
    told = dict(refused.info.metadata)
    check({"limit", "value", "asked"} <= set(told), f"NEVER_FITS must name limit, value and asked: {told}")
    equal(told["value"], str(server.max_request_tokens), f"value of {told['limit']}")
    equal(refused.retry_s, None, "RetryInfo of what can never be granted")


@case("refusals")
def the_longest_is_no_malformed_length(server: Server) -> None:
    """The longest request of the node is granted, or busy, but never refused for its length."""
    try:
        server.call("Admit", **server.asked(prompt_tokens=server.max_request_tokens, validate_only=True))
    except Refused as refused:
        kept_by_refusal(refused)
        if unable := server.missing(["unbounded"]):
            raise Skipped(unable) from None
        equal(refused.code, Code.RESOURCE_EXHAUSTED, "code for the longest request")


@case("refusals")
def tokens_and_pages_exclude_each_other(server: Server) -> None:
    """Either is given, not both."""
    server.invalid("Admit", "pages", **server.asked() | {"pages": 1})


@case("refusals")
def a_request_for_nothing_is_malformed(server: Server) -> None:
    """Neither tokens nor pages."""
    server.invalid("Admit", "prompt_tokens", **server.asked(prompt_tokens=0))


@case("refusals")
def everything_wrong_is_named_at_once(server: Server) -> None:
    """Four fields at fault are four violations of one answer."""
    wrong = server.asked(prompt_tokens=0, tenant="t" * 65, priority=101, ttl={"seconds": -1})
    server.invalid("Admit", "prompt_tokens", "tenant", "priority", "ttl", **wrong)


@case("refusals")
def counts_beyond_reason_are_refused(server: Server) -> None:
    """The largest numbers of the wire neither wrap nor break anything."""
    for fields in (
        {"prompt_tokens": MOST},
        {"prompt_tokens": 1, "max_new_tokens": MOST},
        {"prompt_tokens": MOST, "generated_tokens": MOST, "max_new_tokens": MOST},
        {"pages": MOST},
        {"pages": MOST // 64 + 2},
    ):
        try:
            answer = server.call("Admit", **server.asked(prompt_tokens=0) | fields)
        except Refused as refused:
            kept_by_refusal(refused)
            check(refused.code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION), f"{fields}: {refused}")
        else:
            check(False, f"{fields} was granted as {answer.lease.tokens} tokens")


@case("refusals")
def a_request_id_has_its_bounds(server: Server) -> None:
    """128 bytes are taken, 129 are not, and bytes count, not letters."""
    server.lease(request_id="r" * 128)
    server.invalid("Admit", "request_id", **server.asked(request_id="r" * 129))
    server.invalid("Admit", "request_id", **server.asked(request_id="é" * 65))


@case("refusals")
def control_characters_in_names_are_refused(server: Server) -> None:
    """What would break a line of a log, or a terminal, is no name."""
    for text in ("a\nb", "a\0b", "\x1b[2J"):
        server.invalid("Admit", "request_id", **server.asked(request_id=text))
        server.invalid("Admit", "tenant", **server.asked(tenant=text))


@case("refusals")
def a_priority_has_its_bounds(server: Server) -> None:
    """From -100 to 100."""
    for priority in (-100, 100):
        server.lease(priority=priority)
    for priority in (-101, 101, 2**31 - 1):
        server.invalid("Admit", "priority", **server.asked(priority=priority))


@case("refusals")
def a_ttl_has_its_bounds(server: Server) -> None:
    """None, negative, crooked and too long times are malformed."""
    bad: list[dict[str, Any]] = [{}, {"seconds": -1}, {"nanos": -1}, {"seconds": 3_601}, {"seconds": 2**62}]
    for ttl in bad:
        server.invalid("Admit", "ttl", **server.asked(ttl=ttl))
    server.lease(ttl={"seconds": 3_600})


@case("refusals")
def a_wait_has_its_bounds(server: Server) -> None:
    """Negative and too long waits are malformed."""
    for wait in ({"seconds": -1}, {"seconds": 601}):
        server.invalid("Admit", "wait", **server.asked(wait=wait))


@case("refusals")
def a_hash_is_32_bytes(server: Server) -> None:
    """A hash of another length is named by its place."""
    asked = server.asked(pages=3, prefix_hashes=[bytes(32), bytes(31)])
    refused = server.refused("Admit", Code.INVALID_ARGUMENT, **asked)
    check("prefix_hashes[1]" in refused.fields, f"must name prefix_hashes[1]: {refused.fields}")


@case("refusals")
def more_hashes_than_full_pages_are_refused(server: Server) -> None:
    """A partial page has no hash."""
    asked = server.asked(prompt_tokens=2 * server.page_tokens - 1, prefix_hashes=[bytes(32), bytes(32)])
    server.invalid("Admit", "prefix_hashes", **asked)


@case("whole-length")
def an_unknown_prefix_costs_the_whole_length(server: Server) -> None:
    """Hashes that nobody published share nothing."""
    lease = server.lease(pages=2, prefix_hashes=[b"\x5a" * 32, b"\xa5" * 32])
    equal((lease.pages, lease.shared_pages), (2, 0), "pages and shared_pages")


@case("refusals")
def bytes_that_are_no_message_are_refused(server: Server) -> None:
    """What cannot be decoded is an error of that call alone."""
    for junk in (b"\xff" * 16, b"\x0a\x7fshort", b"\x08" + b"\xff" * 11):
        try:
            server.wire.call("Admit", junk)
        except Refused as refused:
            check(refused.code in (Code.INVALID_ARGUMENT, Code.INTERNAL), f"{junk!r}: {refused}")
        else:
            check(False, f"{junk!r} was taken for an AdmitRequest")
    server.lease()


@case("refusals")
def fields_of_a_later_version_are_ignored(server: Server) -> None:
    """A field that the service does not know does not matter."""
    known = admission_pb2.AdmitRequest(**server.asked(request_id="from the future")).SerializeToString()
    answer = server.wire.call("Admit", known + b"\xfa\x7f\x03new")
    equal(answer.lease.request_id, "from the future", "request_id")
    server.release(answer.lease)


@case("refusals")
def a_message_too_large_is_refused(server: Server) -> None:
    """Beyond the bound of a message the call fails, and the connection lives on."""
    size = server.limits.get("max_received_bytes", 4 << 20)
    try:
        server.wire.call("Admit", b"\x0a" + _length(size + 1) + b"r" * (size + 1))
    except Refused as refused:
        check(refused.code in (Code.OUT_OF_RANGE, Code.RESOURCE_EXHAUSTED), f"{size + 1} bytes: {refused}")
    else:
        check(False, f"a request id of {size + 1} bytes was taken")
    server.lease()


def _length(number: int) -> bytes:
    """A varint."""
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])
