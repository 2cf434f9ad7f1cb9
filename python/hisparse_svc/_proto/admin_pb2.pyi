import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from hisparse_svc._proto import overview_pb2 as _overview_pb2
from hisparse_svc._proto import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DrainRequest(_message.Message):
    __slots__ = ("resume", "wait")
    RESUME_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    resume: bool
    wait: _duration_pb2.Duration
    def __init__(self, resume: bool = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("leases", "capacity", "empty")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    leases: int
    capacity: _types_pb2.Capacity
    empty: bool
    def __init__(self, leases: _Optional[int] = ..., capacity: _Optional[_Union[_types_pb2.Capacity, _Mapping]] = ..., empty: bool = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "epoch", "model", "backing", "page_tokens", "host_bytes", "addresses", "start_time", "uptime", "draining", "waiters", "limits", "segments", "notes")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BACKING_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    WAITERS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    version: str
    epoch: int
    model: str
    backing: str
    page_tokens: int
    host_bytes: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    start_time: _timestamp_pb2.Timestamp
    uptime: _duration_pb2.Duration
    draining: bool
    waiters: int
    limits: _containers.ScalarMap[str, int]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., epoch: _Optional[int] = ..., model: _Optional[str] = ..., backing: _Optional[str] = ..., page_tokens: _Optional[int] = ..., host_bytes: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., uptime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., draining: bool = ..., waiters: _Optional[int] = ..., limits: _Optional[_Mapping[str, int]] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("bytes", "backing", "page_bytes", "placement", "placed_by", "node_percent")
    class NodePercentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BACKING_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    PLACED_BY_FIELD_NUMBER: _ClassVar[int]
    NODE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    backing: str
    page_bytes: int
    placement: str
    placed_by: str
    node_percent: _containers.ScalarMap[int, int]
    def __init__(self, bytes: _Optional[int] = ..., backing: _Optional[str] = ..., page_bytes: _Optional[int] = ..., placement: _Optional[str] = ..., placed_by: _Optional[str] = ..., node_percent: _Optional[_Mapping[int, int]] = ...) -> None: ...

class DumpRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DumpResponse(_message.Message):
    __slots__ = ("capacity", "leases")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    capacity: _types_pb2.Capacity
    leases: _containers.RepeatedCompositeFieldContainer[_types_pb2.Lease]
    def __init__(self, capacity: _Optional[_Union[_types_pb2.Capacity, _Mapping]] = ..., leases: _Optional[_Iterable[_Union[_types_pb2.Lease, _Mapping]]] = ...) -> None: ...
