import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LeaseState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEASE_STATE_UNSPECIFIED: _ClassVar[LeaseState]
    LEASE_STATE_RESERVED: _ClassVar[LeaseState]
    LEASE_STATE_COMMITTED: _ClassVar[LeaseState]
    LEASE_STATE_QUARANTINED: _ClassVar[LeaseState]
    LEASE_STATE_RELEASED: _ClassVar[LeaseState]
LEASE_STATE_UNSPECIFIED: LeaseState
LEASE_STATE_RESERVED: LeaseState
LEASE_STATE_COMMITTED: LeaseState
LEASE_STATE_QUARANTINED: LeaseState
LEASE_STATE_RELEASED: LeaseState

class Extent(_message.Message):
    __slots__ = ("first_page", "page_count")
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    first_page: int
    page_count: int
    def __init__(self, first_page: _Optional[int] = ..., page_count: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("id", "request_id", "state", "epoch", "pages", "extents", "expire_time", "tenant", "shared_pages", "tokens")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SHARED_PAGES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    id: str
    request_id: str
    state: LeaseState
    epoch: int
    pages: int
    extents: _containers.RepeatedCompositeFieldContainer[Extent]
    expire_time: _timestamp_pb2.Timestamp
    tenant: str
    shared_pages: int
    tokens: int
    def __init__(self, id: _Optional[str] = ..., request_id: _Optional[str] = ..., state: _Optional[_Union[LeaseState, str]] = ..., epoch: _Optional[int] = ..., pages: _Optional[int] = ..., extents: _Optional[_Iterable[_Union[Extent, _Mapping]]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., tenant: _Optional[str] = ..., shared_pages: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("name", "numa_node", "total", "free", "reserved", "committed", "evictable", "scrubbing", "quarantined")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    EVICTABLE_FIELD_NUMBER: _ClassVar[int]
    SCRUBBING_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    name: str
    numa_node: int
    total: int
    free: int
    reserved: int
    committed: int
    evictable: int
    scrubbing: int
    quarantined: int
    def __init__(self, name: _Optional[str] = ..., numa_node: _Optional[int] = ..., total: _Optional[int] = ..., free: _Optional[int] = ..., reserved: _Optional[int] = ..., committed: _Optional[int] = ..., evictable: _Optional[int] = ..., scrubbing: _Optional[int] = ..., quarantined: _Optional[int] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("pool", "floor", "ceiling", "used")
    POOL_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    CEILING_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    pool: str
    floor: int
    ceiling: int
    used: int
    def __init__(self, pool: _Optional[str] = ..., floor: _Optional[int] = ..., ceiling: _Optional[int] = ..., used: _Optional[int] = ...) -> None: ...

class Capacity(_message.Message):
    __slots__ = ("epoch", "sequence", "observed_at", "pools", "largest_grant_tokens", "max_request_tokens", "draining", "largest_extent_pages")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_AT_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    LARGEST_GRANT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LARGEST_EXTENT_PAGES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    observed_at: _timestamp_pb2.Timestamp
    pools: _containers.RepeatedCompositeFieldContainer[Pool]
    largest_grant_tokens: int
    max_request_tokens: int
    draining: bool
    largest_extent_pages: int
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., observed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pools: _Optional[_Iterable[_Union[Pool, _Mapping]]] = ..., largest_grant_tokens: _Optional[int] = ..., max_request_tokens: _Optional[int] = ..., draining: bool = ..., largest_extent_pages: _Optional[int] = ...) -> None: ...

class Fit(_message.Message):
    __slots__ = ("tokens", "count", "binding", "reason")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    count: int
    binding: str
    reason: str
    def __init__(self, tokens: _Optional[int] = ..., count: _Optional[int] = ..., binding: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "reason", "message", "retry_delay", "binding")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    retry_delay: _duration_pb2.Duration
    binding: str
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., retry_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., binding: _Optional[str] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("field", "value", "rule", "remedy")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    field: str
    value: str
    rule: str
    remedy: str
    def __init__(self, field: _Optional[str] = ..., value: _Optional[str] = ..., rule: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...
