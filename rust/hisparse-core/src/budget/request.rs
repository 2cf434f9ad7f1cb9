//! What is asked of the planner; `read.rs` is the one way to make it from outside.

use crate::budget::gpu::Gpu;
use crate::limits::{DEFAULT_SM, PAGE_TOKENS};
use crate::platform::{Engine, KvDtype, Platform};
use crate::ratio::Ratio;

/// How large the host pool is to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HostSizing {
    /// Logical tokens per device token (SGLang's way).
    Ratio(Ratio),
    /// A ratio that only SGLang takes: 0, −1, 0.5. Read for `--engine sglang` alone.
    UncheckedRatio(f64),
    /// Bytes of the pool (vLLM's way).
    HostPool(u64),
    /// Chosen by the planner for the most requests at once, with a host pool of at most so many bytes.
    Auto(Option<u64>),
}

/// Which main layers a rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerSpan {
    /// All of them, split evenly over `--pp` stages where there are several.
    All,
    /// The first so many of the model.
    First(u64),
    /// From the first number up to, and without, the second.
    Stage(u64, u64),
}

/// A plan to be made; every value is within its own bounds, the model not yet considered.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRequest {
    /// Whose allocation to describe.
    pub engine: Engine,
    /// GPU software platform.
    pub platform: Platform,
    /// CUDA compute capability × 10.
    pub sm: u64,
    /// How main KV is stored.
    pub kv_dtype: KvDtype,
    /// Whether to use the host pool at all.
    pub hisparse: bool,
    /// Size of the host pool; `None` means the engine's default ratio.
    pub sizing: Option<HostSizing>,
    /// GPU rows per running request; `None` means (query length + 1) × top-k.
    pub hot_rows: Option<u64>,
    /// Page size asked for, in tokens.
    pub page_tokens: u64,
    /// Layers of this rank.
    pub layers: LayerSpan,
    /// Tensor-parallel ranks.
    pub tp: u64,
    /// Data-parallel replicas.
    pub dp: u64,
    /// Pipeline stages.
    pub pp: u64,
    /// Whether experts are spread over all tensor and data ranks.
    pub ep: bool,
    /// Requests at once the engine is set to; `None` means no limit of its own.
    pub max_seqs: Option<u64>,
    /// Speculative tokens per step; a verify step has one more query row.
    pub mtp: u64,
    /// Draft layers to budget; `None` means the model's own under `--mtp`, else none.
    pub draft_layers: Option<u64>,
    /// The GPU, where one is named.
    pub gpu: Option<&'static Gpu>,
    /// GPU memory for KV in bytes; goes before what the GPU would give.
    pub kv_bytes: Option<u64>,
    /// Weights of one rank in bytes, where the planner does not know them.
    pub weight_bytes: Option<u64>,
    /// Context lengths of the concurrency table, in tokens.
    pub contexts: Vec<u64>,
    /// Whether the ranks of a replica share one host pool.
    pub share_host: bool,
    /// Host memory of the node in bytes, where the plan must fit it.
    pub machine_memory_bytes: Option<u64>,
    /// SGLang: window tokens per full token of a sliding-window hybrid.
    pub swa_full_tokens_ratio: Option<f64>,
    /// SGLang: tokens of one prefill chunk.
    pub chunked_prefill_tokens: Option<u64>,
}

impl Default for PlanRequest {
    fn default() -> Self {
        Self {
            engine: Engine::Native,
            platform: Platform::Cuda,
            sm: DEFAULT_SM,
            kv_dtype: KvDtype::Fp8E4m3,
            hisparse: true,
            sizing: None,
            hot_rows: None,
            page_tokens: PAGE_TOKENS,
            layers: LayerSpan::All,
            tp: 1,
            dp: 1,
            pp: 1,
            ep: false,
            max_seqs: None,
            mtp: 0,
            draft_layers: None,
            gpu: None,
            kv_bytes: None,
            weight_bytes: None,
            contexts: Vec::new(),
            share_host: false,
            machine_memory_bytes: None,
            swa_full_tokens_ratio: None,
            chunked_prefill_tokens: None,
        }
    }
}

impl PlanRequest {
    /// Query rows of one verify step: the newest token and the speculative ones.
    pub fn query_len(&self) -> u64 {
        self.mtp + 1
    }
}
