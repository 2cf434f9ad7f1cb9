"""Faults that services had, or nearly had: each must be found by the cases it names."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import grpc
from google.rpc import error_details_pb2
from hisparse_svc._proto import admission_pb2, types_pb2

from tests.conformance.faulty import Fault, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

Code = grpc.StatusCode


def without(refusal: Refusal, kind: type[Any]) -> Refusal:
    """The refusal without its details of a type."""
    kept = [detail for detail in refusal.status.details if detail.TypeName() != kind.DESCRIPTOR.full_name]
    del refusal.status.details[:]
    refusal.status.details.extend(kept)
    return refusal


def reason(refusal: Refusal) -> str:
    info = error_details_pb2.ErrorInfo()
    for detail in refusal.status.details:
        if detail.TypeName() == info.DESCRIPTOR.full_name:
            detail.Unpack(info)
    return info.reason


class ReleaseOfTheUnknownFails(Fault):
    found_by = ("release.releasing_twice_succeeds", "release.releasing_what_never_was_succeeds")

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        del request
        if name == "Release" and answer.already_released:
            raise Refusal(Code.NOT_FOUND, "no such lease")
        return answer


class ReleaseForgetsToGiveBack(Fault):
    found_by = ("release.a_lease_is_given_back_by_its_id", "get_capacity.the_next_call_sees_what_a_call_changed")

    def instead(self, name: str, request: Any) -> Any:
        del request
        return admission_pb2.ReleaseResponse() if name == "Release" else None


class ReleaseIgnoresTheTenant(Fault):
    found_by = ("release.another_tenants_lease_is_left_alone",)

    def asked(self, name: str, request: Any) -> Any:
        if name == "Admit":
            self.seen["owner"] = request.tenant
        if name == "Release":
            request.tenant = self.seen.get("owner", request.tenant)
        return request


class RequestIdsAreIgnored(Fault):
    found_by = (
        "admit.the_same_request_is_granted_once",
        "admit.one_name_at_the_same_time_is_one_lease",
        "admit.a_request_id_with_other_parameters_is_refused",
    )

    def asked(self, name: str, request: Any) -> Any:
        if name == "Admit" and request.request_id:
            request.request_id = secrets.token_hex(8)
        return request


class AReusedNameGivesTheOldLease(Fault):
    found_by = ("admit.a_request_id_with_other_parameters_is_refused",)

    def refused(self, name: str, request: Any, refusal: Refusal) -> Any:
        del request
        if name == "Admit" and refusal.code is Code.ALREADY_EXISTS:
            return admission_pb2.AdmitResponse(repeated_request=True)
        return refusal


class AStaleEpochIsAccepted(Fault):
    found_by = (
        "commit.a_stale_epoch_is_refused_with_the_current_one",
        "renew.a_stale_epoch_is_refused_with_the_current_one",
        "extend.a_stale_epoch_is_refused_with_the_current_one",
    )

    def asked(self, name: str, request: Any) -> Any:
        if name in ("Commit", "Renew", "Extend") and request.epoch:
            request.epoch = self.seen["epoch"]
        return request

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        del request
        if name == "GetCapacity":
            self.seen["epoch"] = answer.epoch
        return answer


class BusyDoesNotSayWhen(Fault):
    found_by = ("admit_full.a_full_pool_is_busy", "admit_full.a_wait_runs_out_as_busy")

    def refused(self, name: str, request: Any, refusal: Refusal) -> Any:
        del name, request
        return without(refusal, error_details_pb2.RetryInfo)


class BusyDoesNotNameThePool(Fault):
    found_by = ("admit_full.a_full_pool_is_busy", "get_capacity.what_fits_is_what_is_granted")

    def refused(self, name: str, request: Any, refusal: Refusal) -> Any:
        del name, request
        return without(refusal, error_details_pb2.QuotaFailure)


class BusyHasNoCapacity(Fault):
    found_by = ("admit_full.a_full_pool_is_busy",)

    def refused(self, name: str, request: Any, refusal: Refusal) -> Any:
        del name, request
        return without(refusal, types_pb2.Capacity)


class NeverFitsLooksBusy(Fault):
    found_by = ("admit_input.too_long_ever_is_not_busy", "extend.beyond_the_longest_is_not_busy")

    def refused(self, name: str, request: Any, refusal: Refusal) -> Any:
        del name, request
        if reason(refusal) == "NEVER_FITS":
            refusal.code = Code.RESOURCE_EXHAUSTED
            refusal.status.code = Code.RESOURCE_EXHAUSTED.value[0]
        return refusal


class OnlyTheFirstMistakeIsTold(Fault):
    found_by = (
        "admit_input.everything_wrong_is_named_at_once",
        "batch_admit.everything_malformed_is_named_by_its_place",
    )

    def refused(self, name: str, request: Any, refusal: Refusal) -> Any:
        del name, request
        for detail in refusal.status.details:
            bad = error_details_pb2.BadRequest()
            if detail.Unpack(bad):
                del bad.field_violations[1:]
                detail.Pack(bad)
        return refusal


class DetailsBeyondTheirBound(Fault):
    found_by = ("admit.a_request_id_with_other_parameters_is_refused", "get_lease.a_released_lease_is_not_found")

    def refused(self, name: str, request: Any, refusal: Refusal) -> Any:
        del name, request
        for detail in refusal.status.details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                info.metadata["advice"] = "x" * 5_000
                detail.Pack(info)
        return refusal


class ADomainOfItsOwn(Fault):
    found_by = ("commit.a_released_lease_is_not_found",)

    def refused(self, name: str, request: Any, refusal: Refusal) -> Any:
        del name, request
        for detail in refusal.status.details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                info.domain = "example.com"
                detail.Pack(info)
        return refusal


class APoolDoesNotAddUp(Fault):
    found_by = ("get_capacity.every_pool_is_listed_in_order", "get_server_info.it_agrees_with_the_capacity")

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        del request
        if name == "GetCapacity" and self.seen.setdefault("first", answer) is not answer:
            answer.pools[0].free += 1
        return answer


class CapacityIsPolled(Fault):
    """It answers from a copy that is read once."""

    found_by = ("get_capacity.the_next_call_sees_what_a_call_changed", "admit.a_grant_moves_from_free_to_reserved")

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        del request
        if name == "GetCapacity" and not answer.fits:
            return self.seen.setdefault("copy", answer)
        return answer


class ValidateOnlyReserves(Fault):
    found_by = ("admit.validate_only_reserves_nothing",)

    def asked(self, name: str, request: Any) -> Any:
        if name == "Admit":
            request.validate_only = False
        return request


class OnlyThePromptIsReserved(Fault):
    found_by = ("admit.the_whole_length_is_granted",)

    def asked(self, name: str, request: Any) -> Any:
        if name == "Admit" and request.prompt_tokens:
            request.max_new_tokens = 0
        return request


class TtlsAreIgnored(Fault):
    found_by = ("admit.a_ttl_is_kept_to", "commit.a_ttl_is_kept_to", "renew.the_end_is_put_off")

    def asked(self, name: str, request: Any) -> Any:
        if name in ("Admit", "Commit", "Renew"):
            request.ClearField("ttl")
        return request


class ExpiredIsFree(Fault):
    """What runs out of time counts as free at once: a transfer may still write there."""

    found_by = ("admit.quarantined_pages_are_not_free",)

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        del request
        if name == "GetCapacity":
            for pool in answer.pools:
                pool.free, pool.quarantined = pool.free + pool.quarantined, 0
        return answer


class CommitDoesNothing(Fault):
    found_by = ("commit.a_reservation_becomes_use", "get_lease.it_is_what_the_last_call_made_of_it")

    def asked(self, name: str, request: Any) -> Any:
        if name == "Admit":
            self.seen["tenant"] = request.tenant
        return request

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        del request
        if name == "Admit":
            self.seen[answer.lease.id] = answer.lease
        return answer

    def instead(self, name: str, request: Any) -> Any:
        if name == "Commit" and request.lease_id in self.seen:
            lease = types_pb2.Lease()
            lease.CopyFrom(self.seen[request.lease_id])
            lease.state = types_pb2.LEASE_STATE_COMMITTED
            return admission_pb2.CommitResponse(lease=lease)
        return None


class ExtendAdds(Fault):
    """It takes the new length for a difference."""

    found_by = ("extend.a_lease_grows_in_place", "extend.growing_again_to_the_same_length_changes_nothing")

    def asked(self, name: str, request: Any) -> Any:
        if name == "Extend" and request.tokens:
            request.tokens += self.seen.get(request.lease_id, 0)
        return request

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        del request
        if name in ("Admit", "Extend"):
            self.seen[answer.lease.id] = answer.lease.tokens
        return answer


class ExtentsOverlap(Fault):
    found_by = ("admit.no_two_leases_share_a_page",)

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        del request
        if name == "Admit":
            for extent in answer.lease.extents:
                extent.first_page = 0
        return answer


class ABatchIsNotAtomic(Fault):
    found_by = ("batch_admit.one_refusal_undoes_the_others",)

    def asked(self, name: str, request: Any) -> Any:
        if name == "BatchAdmit":
            request.partial = True
        return request


class ABatchComesBackInAnotherOrder(Fault):
    found_by = ("batch_admit.all_are_granted_in_their_order", "batch_admit.partial_decides_on_each_by_itself")

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        del request
        if name == "BatchAdmit":
            turned = [*answer.results][1:] + [*answer.results][:1]
            del answer.results[:]
            answer.results.extend(turned)
        return answer


class AListBeginsAnewOnEveryPage(Fault):
    found_by = ("list_leases.pages_hold_each_lease_once",)

    def asked(self, name: str, request: Any) -> Any:
        if name == "ListLeases":
            request.page_token = ""
        return request


class AListShowsEveryTenant(Fault):
    found_by = ("list_leases.leases_come_in_order_of_their_grant",)

    def asked(self, name: str, request: Any) -> Any:
        if name == "ListLeases":
            request.tenant = ""
        return request


class AWatchHasNoSync(Fault):
    found_by = ("watch_capacity.a_watch_begins_with_everything", "watch_capacity.every_watcher_is_told")

    def told(self, name: str, answers: Iterator[Any]) -> Iterator[Any]:
        del name
        return (answer for answer in answers if not hasattr(answer, "sync") or answer.WhichOneof("event") != "sync")


class AWatchLosesAChange(Fault):
    """Every other delta names no pools."""

    found_by = ("watch_capacity.deltas_add_up_to_the_node",)

    def told(self, name: str, answers: Iterator[Any]) -> Iterator[Any]:
        del name
        for answer in answers:
            if hasattr(answer, "delta") and answer.HasField("delta"):
                del answer.delta.pools[:]
            yield answer


class FitsPromisesTooMuch(Fault):
    found_by = ("get_capacity.what_fits_is_what_is_granted",)

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        del request
        if name == "GetCapacity":
            for fit in answer.fits:
                fit.count += fit.count > 0
        return answer


class WhoeverComesFirstWaitsFirst(Fault):
    found_by = ("admit_full.the_higher_priority_goes_first",)

    def asked(self, name: str, request: Any) -> Any:
        if name == "Admit" and -100 <= request.priority <= 100:
            request.priority = 0
        return request


class AnyNameIsHealthy(Fault):
    found_by = ("health.a_name_of_nobody_is_not_found",)

    def asked(self, name: str, request: Any) -> Any:
        if name == "grpc.health.v1.Health/Check":
            request.service = ""
        return request


class DrainingIsBusy(Fault):
    """It cannot be told from a node that will have room again."""

    found_by = ("drain.nothing_new_is_granted",)

    def refused(self, name: str, request: Any, refusal: Refusal) -> Any:
        del name, request
        if reason(refusal) == "DRAINING":
            refusal.code = Code.RESOURCE_EXHAUSTED
            refusal.status.code = Code.RESOURCE_EXHAUSTED.value[0]
        return refusal
