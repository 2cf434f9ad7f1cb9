"""grpc.reflection: what is served, for tools that have no .proto files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import check, equal
from hisparse_svc.conformance.standard import REFLECT, REFLECT_ALPHA
from hisparse_svc.conformance.wire import METHODS, Refused

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server

SERVICES = {f"hisparse.v1.{name}Service" for name in ("Capacity", "Admission", "Budget", "Admin")}
NOT_FOUND = 5


@case("standard")
def every_service_is_listed(server: Server) -> None:
    """The four of the interface, and health."""
    check(set(server.services) >= SERVICES, f"services not listed: {SERVICES - set(server.services)}")
    check("grpc.health.v1.Health" in server.services, "health is not listed")


@case("standard")
def both_versions_say_the_same(server: Server) -> None:
    """v1alpha, which older tools speak, lists what v1 lists of ours."""
    listed = server.wire.talk(REFLECT_ALPHA, list_services="*").list_services_response.service
    ours = {name for name in server.services if name.startswith("hisparse.")}
    equal({service.name for service in listed if service.name.startswith("hisparse.")}, ours, "services by v1alpha")


@case("standard")
def every_method_is_described(server: Server) -> None:
    """A service's file has each method that this suite calls."""
    for service in sorted(SERVICES):
        answer = server.wire.talk(REFLECT, file_containing_symbol=service)
        described = {
            f"/{file.package}.{each.name}/{method.name}"
            for text in answer.file_descriptor_response.file_descriptor_proto
            for file in [descriptor_pb2.FileDescriptorProto.FromString(text)]
            for each in file.service
            for method in each.method
        }
        wanted = {method.path for method in METHODS.values() if method.path.startswith(f"/{service}/")}
        check(wanted <= described, f"methods of {service} that are not described: {wanted - described}")


@case("standard")
def a_symbol_of_nobody_is_an_error(server: Server) -> None:
    """NOT_FOUND, in an answer as the protocol has it, or as the status of the call as some libraries do it."""
    try:
        answer = server.wire.talk(REFLECT, file_containing_symbol="nobody.v1.NoService")
    except Refused as refused:
        equal(refused.code.value[0], NOT_FOUND, "code")
    else:
        equal(answer.error_response.error_code, NOT_FOUND, "error_code")
