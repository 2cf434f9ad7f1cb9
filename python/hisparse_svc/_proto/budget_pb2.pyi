from hisparse_svc._proto import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetBudgetRequest(_message.Message):
    __slots__ = ("model", "engine", "platform", "sm", "kv_dtype", "ratio", "host_pool_bytes", "hot_rows", "page_size", "num_layers", "tp", "dp", "pp", "max_seqs", "gpu", "kv_bytes", "contexts", "share_host", "no_hisparse")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    SM_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    HOST_POOL_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOT_ROWS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    TP_FIELD_NUMBER: _ClassVar[int]
    DP_FIELD_NUMBER: _ClassVar[int]
    PP_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    SHARE_HOST_FIELD_NUMBER: _ClassVar[int]
    NO_HISPARSE_FIELD_NUMBER: _ClassVar[int]
    model: str
    engine: str
    platform: str
    sm: int
    kv_dtype: str
    ratio: str
    host_pool_bytes: int
    hot_rows: int
    page_size: int
    num_layers: int
    tp: int
    dp: int
    pp: int
    max_seqs: int
    gpu: str
    kv_bytes: int
    contexts: _containers.RepeatedScalarFieldContainer[int]
    share_host: bool
    no_hisparse: bool
    def __init__(self, model: _Optional[str] = ..., engine: _Optional[str] = ..., platform: _Optional[str] = ..., sm: _Optional[int] = ..., kv_dtype: _Optional[str] = ..., ratio: _Optional[str] = ..., host_pool_bytes: _Optional[int] = ..., hot_rows: _Optional[int] = ..., page_size: _Optional[int] = ..., num_layers: _Optional[int] = ..., tp: _Optional[int] = ..., dp: _Optional[int] = ..., pp: _Optional[int] = ..., max_seqs: _Optional[int] = ..., gpu: _Optional[str] = ..., kv_bytes: _Optional[int] = ..., contexts: _Optional[_Iterable[int]] = ..., share_host: bool = ..., no_hisparse: bool = ...) -> None: ...

class GetBudgetResponse(_message.Message):
    __slots__ = ("model", "layout", "cell_bytes", "device_tokens", "logical_tokens", "host_bytes", "hot_rows", "seats", "max_request_tokens", "max_req_len", "side_buffer_tokens", "device_bytes", "binding", "warnings", "concurrency")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    CELL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGICAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOT_ROWS_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQ_LEN_FIELD_NUMBER: _ClassVar[int]
    SIDE_BUFFER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    model: BudgetModel
    layout: BudgetLayout
    cell_bytes: int
    device_tokens: int
    logical_tokens: int
    host_bytes: int
    hot_rows: int
    seats: int
    max_request_tokens: int
    max_req_len: int
    side_buffer_tokens: int
    device_bytes: DeviceBytes
    binding: _containers.RepeatedScalarFieldContainer[str]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    concurrency: _containers.RepeatedCompositeFieldContainer[Concurrency]
    def __init__(self, model: _Optional[_Union[BudgetModel, _Mapping]] = ..., layout: _Optional[_Union[BudgetLayout, _Mapping]] = ..., cell_bytes: _Optional[int] = ..., device_tokens: _Optional[int] = ..., logical_tokens: _Optional[int] = ..., host_bytes: _Optional[int] = ..., hot_rows: _Optional[int] = ..., seats: _Optional[int] = ..., max_request_tokens: _Optional[int] = ..., max_req_len: _Optional[int] = ..., side_buffer_tokens: _Optional[int] = ..., device_bytes: _Optional[_Union[DeviceBytes, _Mapping]] = ..., binding: _Optional[_Iterable[str]] = ..., warnings: _Optional[_Iterable[str]] = ..., concurrency: _Optional[_Iterable[_Union[Concurrency, _Mapping]]] = ...) -> None: ...

class BudgetModel(_message.Message):
    __slots__ = ("name", "family", "layers", "indexer_layers", "top_k")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    INDEXER_LAYERS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    name: str
    family: str
    layers: int
    indexer_layers: int
    top_k: int
    def __init__(self, name: _Optional[str] = ..., family: _Optional[str] = ..., layers: _Optional[int] = ..., indexer_layers: _Optional[int] = ..., top_k: _Optional[int] = ...) -> None: ...

class BudgetLayout(_message.Message):
    __slots__ = ("kv_dtype", "row_bytes", "row_stride", "indexer_bytes")
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    ROW_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROW_STRIDE_FIELD_NUMBER: _ClassVar[int]
    INDEXER_BYTES_FIELD_NUMBER: _ClassVar[int]
    kv_dtype: str
    row_bytes: int
    row_stride: int
    indexer_bytes: int
    def __init__(self, kv_dtype: _Optional[str] = ..., row_bytes: _Optional[int] = ..., row_stride: _Optional[int] = ..., indexer_bytes: _Optional[int] = ...) -> None: ...

class DeviceBytes(_message.Message):
    __slots__ = ("hot", "indexer", "tables", "maps", "side", "draft", "resident")
    HOT_FIELD_NUMBER: _ClassVar[int]
    INDEXER_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    MAPS_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    hot: int
    indexer: int
    tables: int
    maps: int
    side: int
    draft: int
    resident: int
    def __init__(self, hot: _Optional[int] = ..., indexer: _Optional[int] = ..., tables: _Optional[int] = ..., maps: _Optional[int] = ..., side: _Optional[int] = ..., draft: _Optional[int] = ..., resident: _Optional[int] = ...) -> None: ...

class Concurrency(_message.Message):
    __slots__ = ("context", "baseline", "hisparse", "host_bytes", "binding")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    HISPARSE_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    context: int
    baseline: int
    hisparse: int
    host_bytes: int
    binding: str
    def __init__(self, context: _Optional[int] = ..., baseline: _Optional[int] = ..., hisparse: _Optional[int] = ..., host_bytes: _Optional[int] = ..., binding: _Optional[str] = ...) -> None: ...

class ValidateRequest(_message.Message):
    __slots__ = ("model", "engine", "hisparse_config", "platform", "sm", "kv_dtype", "prefill_backend", "decode_backend", "heads", "host_pool_bytes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    HISPARSE_CONFIG_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    SM_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_BACKEND_FIELD_NUMBER: _ClassVar[int]
    DECODE_BACKEND_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    HOST_POOL_BYTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    engine: str
    hisparse_config: str
    platform: str
    sm: int
    kv_dtype: str
    prefill_backend: str
    decode_backend: str
    heads: int
    host_pool_bytes: int
    def __init__(self, model: _Optional[str] = ..., engine: _Optional[str] = ..., hisparse_config: _Optional[str] = ..., platform: _Optional[str] = ..., sm: _Optional[int] = ..., kv_dtype: _Optional[str] = ..., prefill_backend: _Optional[str] = ..., decode_backend: _Optional[str] = ..., heads: _Optional[int] = ..., host_pool_bytes: _Optional[int] = ...) -> None: ...

class ValidateResponse(_message.Message):
    __slots__ = ("valid", "resolved", "problems", "warnings")
    VALID_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    valid: bool
    resolved: ResolvedConfig
    problems: _containers.RepeatedCompositeFieldContainer[_types_pb2.Problem]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, valid: bool = ..., resolved: _Optional[_Union[ResolvedConfig, _Mapping]] = ..., problems: _Optional[_Iterable[_Union[_types_pb2.Problem, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class ResolvedConfig(_message.Message):
    __slots__ = ("prefill_backend", "decode_backend", "hot_rows", "ratio", "top_k")
    PREFILL_BACKEND_FIELD_NUMBER: _ClassVar[int]
    DECODE_BACKEND_FIELD_NUMBER: _ClassVar[int]
    HOT_ROWS_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    prefill_backend: str
    decode_backend: str
    hot_rows: int
    ratio: str
    top_k: int
    def __init__(self, prefill_backend: _Optional[str] = ..., decode_backend: _Optional[str] = ..., hot_rows: _Optional[int] = ..., ratio: _Optional[str] = ..., top_k: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[BudgetModel]
    def __init__(self, models: _Optional[_Iterable[_Union[BudgetModel, _Mapping]]] = ...) -> None: ...
