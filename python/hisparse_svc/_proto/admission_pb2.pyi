import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from hisparse_svc._proto import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AdmitRequest(_message.Message):
    __slots__ = ("request_id", "prompt_tokens", "generated_tokens", "max_new_tokens", "pages", "prefix_hashes", "tenant", "priority", "ttl", "wait", "validate_only", "epoch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASHES_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_tokens: int
    generated_tokens: int
    max_new_tokens: int
    pages: int
    prefix_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    tenant: str
    priority: int
    ttl: _duration_pb2.Duration
    wait: _duration_pb2.Duration
    validate_only: bool
    epoch: int
    def __init__(self, request_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., pages: _Optional[int] = ..., prefix_hashes: _Optional[_Iterable[bytes]] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., validate_only: bool = ..., epoch: _Optional[int] = ...) -> None: ...

class AdmitResponse(_message.Message):
    __slots__ = ("lease", "capacity", "repeated_request")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    REPEATED_REQUEST_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    capacity: _types_pb2.Capacity
    repeated_request: bool
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ..., capacity: _Optional[_Union[_types_pb2.Capacity, _Mapping]] = ..., repeated_request: bool = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("lease_id", "epoch", "tenant", "ttl")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    epoch: int
    tenant: str
    ttl: _duration_pb2.Duration
    def __init__(self, lease_id: _Optional[str] = ..., epoch: _Optional[int] = ..., tenant: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("lease_id", "epoch", "tenant", "tokens")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    epoch: int
    tenant: str
    tokens: int
    def __init__(self, lease_id: _Optional[str] = ..., epoch: _Optional[int] = ..., tenant: _Optional[str] = ..., tokens: _Optional[int] = ...) -> None: ...

class ExtendResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("lease_id", "epoch", "tenant", "ttl")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    epoch: int
    tenant: str
    ttl: _duration_pb2.Duration
    def __init__(self, lease_id: _Optional[str] = ..., epoch: _Optional[int] = ..., tenant: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("lease_id", "request_id", "tenant")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    request_id: str
    tenant: str
    def __init__(self, lease_id: _Optional[str] = ..., request_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("already_released", "quarantined")
    ALREADY_RELEASED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    already_released: bool
    quarantined: bool
    def __init__(self, already_released: bool = ..., quarantined: bool = ...) -> None: ...

class BatchAdmitRequest(_message.Message):
    __slots__ = ("requests", "partial")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[AdmitRequest]
    partial: bool
    def __init__(self, requests: _Optional[_Iterable[_Union[AdmitRequest, _Mapping]]] = ..., partial: bool = ...) -> None: ...

class BatchAdmitResult(_message.Message):
    __slots__ = ("lease", "refusal", "repeated_request")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    REPEATED_REQUEST_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    refusal: _types_pb2.Refusal
    repeated_request: bool
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ..., refusal: _Optional[_Union[_types_pb2.Refusal, _Mapping]] = ..., repeated_request: bool = ...) -> None: ...

class BatchAdmitResponse(_message.Message):
    __slots__ = ("results", "capacity")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[BatchAdmitResult]
    capacity: _types_pb2.Capacity
    def __init__(self, results: _Optional[_Iterable[_Union[BatchAdmitResult, _Mapping]]] = ..., capacity: _Optional[_Union[_types_pb2.Capacity, _Mapping]] = ...) -> None: ...

class GetLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "tenant")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    tenant: str
    def __init__(self, lease_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class GetLeaseResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ...) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ("tenant", "page_size", "page_token")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    page_size: int
    page_token: str
    def __init__(self, tenant: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("leases", "next_page_token")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[_types_pb2.Lease]
    next_page_token: str
    def __init__(self, leases: _Optional[_Iterable[_Union[_types_pb2.Lease, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
