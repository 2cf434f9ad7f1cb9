import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from hisparse_svc._proto import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetOverviewRequest(_message.Message):
    __slots__ = ("lengths",)
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class GetOverviewResponse(_message.Message):
    __slots__ = ("capacity", "fits", "not_ready", "waiters", "sessions", "model", "version", "backing", "page_tokens", "uptime", "notes", "numa", "admits", "swap_in", "leases_total", "leases", "map")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    WAITERS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BACKING_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    NUMA_FIELD_NUMBER: _ClassVar[int]
    ADMITS_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_FIELD_NUMBER: _ClassVar[int]
    LEASES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    MAP_FIELD_NUMBER: _ClassVar[int]
    capacity: _types_pb2.Capacity
    fits: _containers.RepeatedCompositeFieldContainer[_types_pb2.Fit]
    not_ready: str
    waiters: int
    sessions: int
    model: str
    version: str
    backing: str
    page_tokens: int
    uptime: _duration_pb2.Duration
    notes: _containers.RepeatedScalarFieldContainer[str]
    numa: _containers.RepeatedCompositeFieldContainer[NumaShare]
    admits: AdmitHistory
    swap_in: _containers.RepeatedCompositeFieldContainer[SwapInTotals]
    leases_total: int
    leases: _containers.RepeatedCompositeFieldContainer[LeaseGlance]
    map: PageMap
    def __init__(self, capacity: _Optional[_Union[_types_pb2.Capacity, _Mapping]] = ..., fits: _Optional[_Iterable[_Union[_types_pb2.Fit, _Mapping]]] = ..., not_ready: _Optional[str] = ..., waiters: _Optional[int] = ..., sessions: _Optional[int] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., backing: _Optional[str] = ..., page_tokens: _Optional[int] = ..., uptime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ..., numa: _Optional[_Iterable[_Union[NumaShare, _Mapping]]] = ..., admits: _Optional[_Union[AdmitHistory, _Mapping]] = ..., swap_in: _Optional[_Iterable[_Union[SwapInTotals, _Mapping]]] = ..., leases_total: _Optional[int] = ..., leases: _Optional[_Iterable[_Union[LeaseGlance, _Mapping]]] = ..., map: _Optional[_Union[PageMap, _Mapping]] = ...) -> None: ...

class LeaseGlance(_message.Message):
    __slots__ = ("id", "state", "tokens", "pages", "shared_pages", "durable_pages", "extent_count", "extents", "age", "older", "expires_in")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SHARED_PAGES_FIELD_NUMBER: _ClassVar[int]
    DURABLE_PAGES_FIELD_NUMBER: _ClassVar[int]
    EXTENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    OLDER_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: _types_pb2.LeaseState
    tokens: int
    pages: int
    shared_pages: int
    durable_pages: int
    extent_count: int
    extents: _containers.RepeatedCompositeFieldContainer[_types_pb2.Extent]
    age: _duration_pb2.Duration
    older: bool
    expires_in: _duration_pb2.Duration
    def __init__(self, id: _Optional[str] = ..., state: _Optional[_Union[_types_pb2.LeaseState, str]] = ..., tokens: _Optional[int] = ..., pages: _Optional[int] = ..., shared_pages: _Optional[int] = ..., durable_pages: _Optional[int] = ..., extent_count: _Optional[int] = ..., extents: _Optional[_Iterable[_Union[_types_pb2.Extent, _Mapping]]] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., older: bool = ..., expires_in: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PageMap(_message.Message):
    __slots__ = ("pages_per_bucket", "free", "reserved", "committed", "evictable", "scrubbing", "quarantined", "lease")
    PAGES_PER_BUCKET_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    EVICTABLE_FIELD_NUMBER: _ClassVar[int]
    SCRUBBING_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    pages_per_bucket: int
    free: _containers.RepeatedScalarFieldContainer[int]
    reserved: _containers.RepeatedScalarFieldContainer[int]
    committed: _containers.RepeatedScalarFieldContainer[int]
    evictable: _containers.RepeatedScalarFieldContainer[int]
    scrubbing: _containers.RepeatedScalarFieldContainer[int]
    quarantined: _containers.RepeatedScalarFieldContainer[int]
    lease: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pages_per_bucket: _Optional[int] = ..., free: _Optional[_Iterable[int]] = ..., reserved: _Optional[_Iterable[int]] = ..., committed: _Optional[_Iterable[int]] = ..., evictable: _Optional[_Iterable[int]] = ..., scrubbing: _Optional[_Iterable[int]] = ..., quarantined: _Optional[_Iterable[int]] = ..., lease: _Optional[_Iterable[int]] = ...) -> None: ...

class AdmitHistory(_message.Message):
    __slots__ = ("step", "most_steps", "series")
    STEP_FIELD_NUMBER: _ClassVar[int]
    MOST_STEPS_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    step: _duration_pb2.Duration
    most_steps: int
    series: _containers.RepeatedCompositeFieldContainer[AdmitSeries]
    def __init__(self, step: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., most_steps: _Optional[int] = ..., series: _Optional[_Iterable[_Union[AdmitSeries, _Mapping]]] = ...) -> None: ...

class AdmitSeries(_message.Message):
    __slots__ = ("result", "reason", "total", "counts")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    result: str
    reason: str
    total: int
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, result: _Optional[str] = ..., reason: _Optional[str] = ..., total: _Optional[int] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class SwapInTotals(_message.Message):
    __slots__ = ("layer_group", "hit_rows", "miss_rows")
    LAYER_GROUP_FIELD_NUMBER: _ClassVar[int]
    HIT_ROWS_FIELD_NUMBER: _ClassVar[int]
    MISS_ROWS_FIELD_NUMBER: _ClassVar[int]
    layer_group: str
    hit_rows: int
    miss_rows: int
    def __init__(self, layer_group: _Optional[str] = ..., hit_rows: _Optional[int] = ..., miss_rows: _Optional[int] = ...) -> None: ...

class NumaShare(_message.Message):
    __slots__ = ("node", "bytes")
    NODE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    node: int
    bytes: int
    def __init__(self, node: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...
