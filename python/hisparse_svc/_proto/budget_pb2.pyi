from google.protobuf import struct_pb2 as _struct_pb2
from hisparse_svc._proto import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetBudgetRequest(_message.Message):
    __slots__ = ("model", "engine", "platform", "sm", "kv_dtype", "hisparse", "ratio", "host_pool", "auto", "hot_rows", "page_size", "num_layers", "stage", "tp", "dp", "pp", "ep", "max_seqs", "mtp", "draft_layers", "gpu", "kv_bytes", "weights", "context", "share_host", "assume_memory", "swa_full_tokens_ratio", "chunked_prefill_size")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    SM_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    HISPARSE_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    HOST_POOL_FIELD_NUMBER: _ClassVar[int]
    AUTO_FIELD_NUMBER: _ClassVar[int]
    HOT_ROWS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TP_FIELD_NUMBER: _ClassVar[int]
    DP_FIELD_NUMBER: _ClassVar[int]
    PP_FIELD_NUMBER: _ClassVar[int]
    EP_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQS_FIELD_NUMBER: _ClassVar[int]
    MTP_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LAYERS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SHARE_HOST_FIELD_NUMBER: _ClassVar[int]
    ASSUME_MEMORY_FIELD_NUMBER: _ClassVar[int]
    SWA_FULL_TOKENS_RATIO_FIELD_NUMBER: _ClassVar[int]
    CHUNKED_PREFILL_SIZE_FIELD_NUMBER: _ClassVar[int]
    model: str
    engine: str
    platform: str
    sm: int
    kv_dtype: str
    hisparse: bool
    ratio: float
    host_pool: int
    auto: bool
    hot_rows: int
    page_size: int
    num_layers: int
    stage: str
    tp: int
    dp: int
    pp: int
    ep: bool
    max_seqs: int
    mtp: int
    draft_layers: int
    gpu: str
    kv_bytes: int
    weights: int
    context: _containers.RepeatedScalarFieldContainer[int]
    share_host: bool
    assume_memory: int
    swa_full_tokens_ratio: float
    chunked_prefill_size: int
    def __init__(self, model: _Optional[str] = ..., engine: _Optional[str] = ..., platform: _Optional[str] = ..., sm: _Optional[int] = ..., kv_dtype: _Optional[str] = ..., hisparse: bool = ..., ratio: _Optional[float] = ..., host_pool: _Optional[int] = ..., auto: bool = ..., hot_rows: _Optional[int] = ..., page_size: _Optional[int] = ..., num_layers: _Optional[int] = ..., stage: _Optional[str] = ..., tp: _Optional[int] = ..., dp: _Optional[int] = ..., pp: _Optional[int] = ..., ep: bool = ..., max_seqs: _Optional[int] = ..., mtp: _Optional[int] = ..., draft_layers: _Optional[int] = ..., gpu: _Optional[str] = ..., kv_bytes: _Optional[int] = ..., weights: _Optional[int] = ..., context: _Optional[_Iterable[int]] = ..., share_host: bool = ..., assume_memory: _Optional[int] = ..., swa_full_tokens_ratio: _Optional[float] = ..., chunked_prefill_size: _Optional[int] = ...) -> None: ...

class GetBudgetResponse(_message.Message):
    __slots__ = ("model", "layout", "cell_bytes", "device_tokens", "logical_tokens", "host_bytes", "hot_rows", "seats", "max_request_tokens", "max_req_len", "side_buffer_tokens", "device_bytes", "binding", "warnings", "concurrency", "engine", "hisparse", "page_tokens", "kv_bytes", "ratio", "physical_host_bytes", "break_even_tokens")
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
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    HISPARSE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    BREAK_EVEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: BudgetModel
    layout: BudgetLayout
    cell_bytes: float
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
    engine: str
    hisparse: bool
    page_tokens: int
    kv_bytes: int
    ratio: float
    physical_host_bytes: int
    break_even_tokens: int
    def __init__(self, model: _Optional[_Union[BudgetModel, _Mapping]] = ..., layout: _Optional[_Union[BudgetLayout, _Mapping]] = ..., cell_bytes: _Optional[float] = ..., device_tokens: _Optional[int] = ..., logical_tokens: _Optional[int] = ..., host_bytes: _Optional[int] = ..., hot_rows: _Optional[int] = ..., seats: _Optional[int] = ..., max_request_tokens: _Optional[int] = ..., max_req_len: _Optional[int] = ..., side_buffer_tokens: _Optional[int] = ..., device_bytes: _Optional[_Union[DeviceBytes, _Mapping]] = ..., binding: _Optional[_Iterable[str]] = ..., warnings: _Optional[_Iterable[str]] = ..., concurrency: _Optional[_Iterable[_Union[Concurrency, _Mapping]]] = ..., engine: _Optional[str] = ..., hisparse: bool = ..., page_tokens: _Optional[int] = ..., kv_bytes: _Optional[int] = ..., ratio: _Optional[float] = ..., physical_host_bytes: _Optional[int] = ..., break_even_tokens: _Optional[int] = ...) -> None: ...

class BudgetModel(_message.Message):
    __slots__ = ("name", "family", "layers", "indexer_layers", "top_k", "draft_layers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    INDEXER_LAYERS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LAYERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    family: str
    layers: int
    indexer_layers: int
    top_k: int
    draft_layers: int
    def __init__(self, name: _Optional[str] = ..., family: _Optional[str] = ..., layers: _Optional[int] = ..., indexer_layers: _Optional[int] = ..., top_k: _Optional[int] = ..., draft_layers: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("model", "engine", "hisparse_config", "platform", "sm", "kv_dtype", "prefill_backend", "decode_backend", "heads", "host_pool", "assume_memory", "context", "page_size", "disable_radix_cache", "enable_mixed_chunk", "speculative_num_steps", "speculative_num_draft_tokens", "speculative_eagle_topk", "pp_size")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    HISPARSE_CONFIG_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    SM_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_BACKEND_FIELD_NUMBER: _ClassVar[int]
    DECODE_BACKEND_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    HOST_POOL_FIELD_NUMBER: _ClassVar[int]
    ASSUME_MEMORY_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    DISABLE_RADIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    ENABLE_MIXED_CHUNK_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_EAGLE_TOPK_FIELD_NUMBER: _ClassVar[int]
    PP_SIZE_FIELD_NUMBER: _ClassVar[int]
    model: str
    engine: str
    hisparse_config: str
    platform: str
    sm: int
    kv_dtype: str
    prefill_backend: str
    decode_backend: str
    heads: int
    host_pool: int
    assume_memory: int
    context: int
    page_size: int
    disable_radix_cache: bool
    enable_mixed_chunk: bool
    speculative_num_steps: int
    speculative_num_draft_tokens: int
    speculative_eagle_topk: int
    pp_size: int
    def __init__(self, model: _Optional[str] = ..., engine: _Optional[str] = ..., hisparse_config: _Optional[str] = ..., platform: _Optional[str] = ..., sm: _Optional[int] = ..., kv_dtype: _Optional[str] = ..., prefill_backend: _Optional[str] = ..., decode_backend: _Optional[str] = ..., heads: _Optional[int] = ..., host_pool: _Optional[int] = ..., assume_memory: _Optional[int] = ..., context: _Optional[int] = ..., page_size: _Optional[int] = ..., disable_radix_cache: bool = ..., enable_mixed_chunk: bool = ..., speculative_num_steps: _Optional[int] = ..., speculative_num_draft_tokens: _Optional[int] = ..., speculative_eagle_topk: _Optional[int] = ..., pp_size: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("prefill_backend", "decode_backend", "hot_rows", "ratio", "top_k", "kv_dtype", "page_size")
    PREFILL_BACKEND_FIELD_NUMBER: _ClassVar[int]
    DECODE_BACKEND_FIELD_NUMBER: _ClassVar[int]
    HOT_ROWS_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    prefill_backend: str
    decode_backend: str
    hot_rows: _struct_pb2.Value
    ratio: _struct_pb2.Value
    top_k: _struct_pb2.Value
    kv_dtype: str
    page_size: int
    def __init__(self, prefill_backend: _Optional[str] = ..., decode_backend: _Optional[str] = ..., hot_rows: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., ratio: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., top_k: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., kv_dtype: _Optional[str] = ..., page_size: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[BudgetModel]
    def __init__(self, models: _Optional[_Iterable[_Union[BudgetModel, _Mapping]]] = ...) -> None: ...
