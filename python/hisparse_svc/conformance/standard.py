"""Health and reflection, as far as the suite speaks them: described here, so that it needs no further package.

Field numbers are those of `grpc/health/v1/health.proto` and `grpc/reflection/v1/reflection.proto`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool

Field = descriptor_pb2.FieldDescriptorProto
TEXT, BYTES, NUMBER = Field.TYPE_STRING, Field.TYPE_BYTES, Field.TYPE_INT32

STATUS = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
"""What a health answer's number means."""

HEALTH: dict[str, dict[str, tuple[int, Any]]] = {
    "HealthCheckRequest": {"service": (1, TEXT)},
    "HealthCheckResponse": {"status": (1, NUMBER)},  # an enum; on the wire a number like any other
}
REFLECTION: dict[str, dict[str, tuple[int, Any]]] = {
    "ServerReflectionRequest": {"host": (1, TEXT), "file_containing_symbol": (4, TEXT), "list_services": (7, TEXT)},
    "FileDescriptorResponse": {"file_descriptor_proto": (1, [BYTES])},
    "ServiceResponse": {"name": (1, TEXT)},
    "ListServiceResponse": {"service": (1, ["ServiceResponse"])},
    "ErrorResponse": {"error_code": (1, NUMBER), "error_message": (2, TEXT)},
    "ServerReflectionResponse": {
        "valid_host": (1, TEXT),
        "file_descriptor_response": (4, "FileDescriptorResponse"),
        "list_services_response": (6, "ListServiceResponse"),
        "error_response": (7, "ErrorResponse"),
    },
}


def _file(
    package: str, messages: dict[str, dict[str, tuple[int, Any]]], service: str, methods: list[tuple[str, str, str]]
) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            several = isinstance(kind, list)
            one = kind[0] if isinstance(kind, list) else kind
            added = message.field.add(name=field, number=number)
            added.label = Field.LABEL_REPEATED if several else Field.LABEL_OPTIONAL
            if isinstance(one, str):
                added.type, added.type_name = Field.TYPE_MESSAGE, f".{package}.{one}"
            else:
                added.type = one
    served = file.service.add(name=service)
    for name, request, answer in methods:
        served.method.add(name=name, input_type=f".{package}.{request}", output_type=f".{package}.{answer}")
    return file


_POOL = descriptor_pool.DescriptorPool()
"""A pool of its own: grpcio's packages for these describe the same names in the default one."""

_HEALTH_METHODS = [(name, "HealthCheckRequest", "HealthCheckResponse") for name in ("Check", "Watch")]
_REFLECTION_METHODS = [("ServerReflectionInfo", "ServerReflectionRequest", "ServerReflectionResponse")]

for _made in (
    _file("grpc.health.v1", HEALTH, "Health", _HEALTH_METHODS),
    _file("grpc.reflection.v1", REFLECTION, "ServerReflection", _REFLECTION_METHODS),
    _file("grpc.reflection.v1alpha", REFLECTION, "ServerReflection", _REFLECTION_METHODS),
):
    _POOL.Add(_made)

FILES = [
    _POOL.FindFileByName(f"{package}.proto")
    for package in ("grpc.health.v1", "grpc.reflection.v1", "grpc.reflection.v1alpha")
]
"""The descriptors, for `wire`."""

HEALTH_CHECK, HEALTH_WATCH = "grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"
REFLECT = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
REFLECT_ALPHA = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
