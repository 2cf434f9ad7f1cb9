import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from hisparse_svc._proto import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PublishRequest(_message.Message):
    __slots__ = ("lease_id", "epoch", "first_page_index", "hashes")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    epoch: int
    first_page_index: int
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, lease_id: _Optional[str] = ..., epoch: _Optional[int] = ..., first_page_index: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("durable_pages",)
    DURABLE_PAGES_FIELD_NUMBER: _ClassVar[int]
    durable_pages: int
    def __init__(self, durable_pages: _Optional[int] = ...) -> None: ...

class ReclaimRequest(_message.Message):
    __slots__ = ("engine_id", "token")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    token: bytes
    def __init__(self, engine_id: _Optional[str] = ..., token: _Optional[bytes] = ...) -> None: ...

class ReclaimResponse(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[ReclaimedLease]
    def __init__(self, leases: _Optional[_Iterable[_Union[ReclaimedLease, _Mapping]]] = ...) -> None: ...

class ReclaimedLease(_message.Message):
    __slots__ = ("lease", "durable_tokens")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    durable_tokens: int
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ..., durable_tokens: _Optional[int] = ...) -> None: ...

class ReportUsageRequest(_message.Message):
    __slots__ = ("usage", "swap_in", "exposed", "steps")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    usage: _containers.RepeatedCompositeFieldContainer[LeaseUsage]
    swap_in: _containers.RepeatedCompositeFieldContainer[SwapInUsage]
    exposed: _duration_pb2.Duration
    steps: int
    def __init__(self, usage: _Optional[_Iterable[_Union[LeaseUsage, _Mapping]]] = ..., swap_in: _Optional[_Iterable[_Union[SwapInUsage, _Mapping]]] = ..., exposed: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., steps: _Optional[int] = ...) -> None: ...

class SwapInUsage(_message.Message):
    __slots__ = ("layer_group", "hit_rows", "miss_rows", "copied_bytes")
    LAYER_GROUP_FIELD_NUMBER: _ClassVar[int]
    HIT_ROWS_FIELD_NUMBER: _ClassVar[int]
    MISS_ROWS_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    layer_group: int
    hit_rows: int
    miss_rows: int
    copied_bytes: int
    def __init__(self, layer_group: _Optional[int] = ..., hit_rows: _Optional[int] = ..., miss_rows: _Optional[int] = ..., copied_bytes: _Optional[int] = ...) -> None: ...

class LeaseUsage(_message.Message):
    __slots__ = ("lease_id", "tokens", "hit_rows", "miss_rows")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_ROWS_FIELD_NUMBER: _ClassVar[int]
    MISS_ROWS_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    tokens: int
    hit_rows: int
    miss_rows: int
    def __init__(self, lease_id: _Optional[str] = ..., tokens: _Optional[int] = ..., hit_rows: _Optional[int] = ..., miss_rows: _Optional[int] = ...) -> None: ...

class ReportUsageResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
