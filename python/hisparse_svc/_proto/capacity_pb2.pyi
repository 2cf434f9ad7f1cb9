import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from hisparse_svc._proto import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetCapacityRequest(_message.Message):
    __slots__ = ("lengths", "tenant")
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    tenant: str
    def __init__(self, lengths: _Optional[_Iterable[int]] = ..., tenant: _Optional[str] = ...) -> None: ...

class GetCapacityResponse(_message.Message):
    __slots__ = ("epoch", "sequence", "observed_at", "pools", "largest_grant_tokens", "max_request_tokens", "draining", "largest_extent_pages", "fits", "quotas")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_AT_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    LARGEST_GRANT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LARGEST_EXTENT_PAGES_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    observed_at: _timestamp_pb2.Timestamp
    pools: _containers.RepeatedCompositeFieldContainer[_types_pb2.Pool]
    largest_grant_tokens: int
    max_request_tokens: int
    draining: bool
    largest_extent_pages: int
    fits: _containers.RepeatedCompositeFieldContainer[_types_pb2.Fit]
    quotas: _containers.RepeatedCompositeFieldContainer[_types_pb2.Quota]
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., observed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pools: _Optional[_Iterable[_Union[_types_pb2.Pool, _Mapping]]] = ..., largest_grant_tokens: _Optional[int] = ..., max_request_tokens: _Optional[int] = ..., draining: bool = ..., largest_extent_pages: _Optional[int] = ..., fits: _Optional[_Iterable[_Union[_types_pb2.Fit, _Mapping]]] = ..., quotas: _Optional[_Iterable[_Union[_types_pb2.Quota, _Mapping]]] = ...) -> None: ...

class WatchCapacityRequest(_message.Message):
    __slots__ = ("resume_token", "lengths", "tenant")
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    resume_token: bytes
    lengths: _containers.RepeatedScalarFieldContainer[int]
    tenant: str
    def __init__(self, resume_token: _Optional[bytes] = ..., lengths: _Optional[_Iterable[int]] = ..., tenant: _Optional[str] = ...) -> None: ...

class WatchCapacityResponse(_message.Message):
    __slots__ = ("epoch", "sequence", "snapshot", "sync", "delta", "resync", "fits", "resume_token")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    RESYNC_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    snapshot: _types_pb2.Capacity
    sync: WatchSync
    delta: CapacityDelta
    resync: WatchResync
    fits: _containers.RepeatedCompositeFieldContainer[_types_pb2.Fit]
    resume_token: bytes
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., snapshot: _Optional[_Union[_types_pb2.Capacity, _Mapping]] = ..., sync: _Optional[_Union[WatchSync, _Mapping]] = ..., delta: _Optional[_Union[CapacityDelta, _Mapping]] = ..., resync: _Optional[_Union[WatchResync, _Mapping]] = ..., fits: _Optional[_Iterable[_Union[_types_pb2.Fit, _Mapping]]] = ..., resume_token: _Optional[bytes] = ...) -> None: ...

class WatchSync(_message.Message):
    __slots__ = ("resumed",)
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    resumed: bool
    def __init__(self, resumed: bool = ...) -> None: ...

class WatchResync(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class CapacityDelta(_message.Message):
    __slots__ = ("observed_at", "pools", "largest_grant_tokens", "max_request_tokens", "draining", "largest_extent_pages")
    OBSERVED_AT_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    LARGEST_GRANT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LARGEST_EXTENT_PAGES_FIELD_NUMBER: _ClassVar[int]
    observed_at: _timestamp_pb2.Timestamp
    pools: _containers.RepeatedCompositeFieldContainer[_types_pb2.Pool]
    largest_grant_tokens: int
    max_request_tokens: int
    draining: bool
    largest_extent_pages: int
    def __init__(self, observed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pools: _Optional[_Iterable[_Union[_types_pb2.Pool, _Mapping]]] = ..., largest_grant_tokens: _Optional[int] = ..., max_request_tokens: _Optional[int] = ..., draining: bool = ..., largest_extent_pages: _Optional[int] = ...) -> None: ...
