//! What a plan says: the JSON of `hisparse-svc plan`, field for field.
//!
//! ```text
//!  cell_bytes ─► device_tokens ─► logical_tokens ─► host_bytes
//!                     └─► seats        └─► max_request_tokens, max_req_len, side_buffer_tokens
//! ```

use serde::Serialize;

use crate::budget::rank::Rank;
use crate::budget::request::PlanRequest;
use crate::budget::{sglang, vllm};
use crate::layout::tokens_per_index_row;
use crate::model::Family;
use crate::platform::{Engine, KvDtype};

pub use crate::budget::number::Number;

/// A plan for one rank: what it keeps on its GPU, what its host pool holds, and how many requests run.
///
/// Bytes and tokens are of one rank and of the pool that its data-parallel replica uses, unless a field says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Whose allocation this describes.
    pub engine: Engine,
    /// The model planned for.
    pub model: PlanModel,
    /// Bytes of one row.
    pub layout: PlanLayout,
    /// Whether the host pool is in use.
    pub hisparse: bool,
    /// Tokens in one page.
    pub page_tokens: u64,
    /// Device memory the plan may use, in bytes.
    pub kv_bytes: u64,
    /// Logical tokens per device token.
    pub ratio: Number,
    /// Bytes per device token on the GPU (a fraction where the engine computes with one).
    pub cell_bytes: Number,
    /// Rows of main KV per layer that fit on the GPU.
    pub device_tokens: u64,
    /// Tokens that fit counting host memory: the capacity every length limit uses.
    pub logical_tokens: u64,
    /// Bytes of the host pool, pad page included.
    pub host_bytes: u64,
    /// Host memory of all pools of the deployment: data-parallel replicas, and ranks where each has its own copy.
    pub physical_host_bytes: u64,
    /// GPU rows one running request holds per layer, newest-row page not counted.
    pub hot_rows: u64,
    /// Requests that can run at once.
    pub seats: u64,
    /// Longest request that can ever be admitted, in tokens.
    pub max_request_tokens: u64,
    /// Longest prompt plus output the engine lets through, in tokens: `min(logical − 1, context length)` here. Longer
    /// rows of the table run 0 requests.
    pub max_req_len: u64,
    /// Tokens that per-token side buffers must be sized for.
    pub side_buffer_tokens: u64,
    /// Tokens of the sliding-window pool, all seats together, for models that have one.
    pub window_tokens: Option<u64>,
    /// Context below which a hot buffer takes more GPU memory than it saves, in tokens; none without a host pool.
    pub break_even_tokens: Option<u64>,
    /// Device memory by use.
    pub device_bytes: DeviceBytes,
    /// What stops one more request in the concurrency table, each limit once, shortest context first.
    pub binding: Vec<Binding>,
    /// What a reader should know, each a full sentence.
    pub warnings: Vec<String>,
    /// Requests at once for each context asked for. With an explicit host pool, or one chosen by `--auto`, each row is
    /// for pools split for its own length (and under `--auto`, hot rows chosen for it), so it never falls when GPU
    /// memory or host pool grows; the sizes above are one allocation, split for the longest context.
    pub concurrency: Vec<Concurrency>,
    /// Figures under SGLang's own names, for a plan of that engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sglang: Option<sglang::Detail>,
    /// Figures under vLLM's own names, for a plan of that engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vllm: Option<vllm::detail::Detail>,
}

/// The model of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanModel {
    /// Preset or folder name.
    pub name: String,
    /// Its family.
    pub family: Family,
    /// Main layers this rank holds.
    pub layers: u64,
    /// Those of them that have an indexer cache.
    pub indexer_layers: u64,
    /// Draft layers budgeted.
    pub draft_layers: u64,
    /// Tokens the indexer keeps per step.
    pub top_k: u64,
    /// Most rows that one query row attends to ([`crate::model::Model::picks_per_row`]); in no document.
    #[serde(skip)]
    pub picks_per_row: u64,
    /// Tokens that one indexer key stands for ([`tokens_per_index_row`]); in no document.
    #[serde(skip)]
    pub tokens_per_index_key: u64,
    /// Layers of each group that shares one top-k, in order ([`Rank::layer_groups`]): for an engine in this process, and
    /// in no document. Empty for vLLM, which has its own.
    #[serde(skip)]
    pub layer_groups: Vec<u64>,
}

impl PlanModel {
    /// What `rank` holds.
    pub fn of(rank: &Rank<'_>) -> Self {
        Self {
            name: rank.model.name.clone(),
            family: rank.model.family,
            layers: rank.layers.iter().fold(0, |count, _| count + 1),
            indexer_layers: rank.indexer_layers(),
            draft_layers: rank.draft_layers,
            top_k: rank.model.top_k,
            picks_per_row: rank.model.picks_per_row(),
            tokens_per_index_key: tokens_per_index_row(rank.model),
            layer_groups: rank.layer_groups(),
        }
    }
}

/// Bytes of one row, and of one indexer key, in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlanLayout {
    /// How main KV is stored.
    pub kv_dtype: KvDtype,
    /// Bytes of one row of main KV.
    pub row_bytes: u64,
    /// Bytes from one row to the next.
    pub row_stride: u64,
    /// Bytes of one indexer key with its scale.
    pub indexer_bytes: u64,
}

impl PlanLayout {
    /// The rows of `rank`.
    pub fn of(rank: &Rank<'_>, request: &PlanRequest) -> Self {
        Self {
            kv_dtype: request.kv_dtype,
            row_bytes: rank.main.row_bytes(),
            row_stride: rank.row_stride_bytes(),
            indexer_bytes: rank.indexer.row_bytes(),
        }
    }
}

/// Device memory by use, in bytes; formulas and units in `device_bytes.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceBytes {
    /// Hot rows of main KV.
    pub hot: u64,
    /// Indexer keys at logical size.
    pub indexer: u64,
    /// Per-seat state of the hot cache.
    pub tables: u64,
    /// Request position → host page.
    pub maps: u64,
    /// Buffers of one step at fixed addresses.
    pub side: u64,
    /// Draft layers.
    pub draft: u64,
    /// KV that has no host copy and stays on the GPU at full size.
    pub resident: u64,
}

impl DeviceBytes {
    /// Sum of all uses, or `None` on overflow.
    pub fn total(&self) -> Option<u64> {
        [self.hot, self.indexer, self.tables, self.maps, self.side, self.draft, self.resident]
            .iter()
            .try_fold(0_u64, |sum, bytes| sum.checked_add(*bytes))
    }
}

/// A limit that can bind; the names of `GetCapacity`'s pools, and two that are not pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Binding {
    /// Pages of the host pool.
    HostPages,
    /// Room for hot buffers.
    Seats,
    /// Indexer keys on the GPU.
    IndexerTokens,
    /// The engine's request slots (`--max-seqs`).
    RequestSlots,
    /// The sliding-window pool.
    WindowTokens,
    /// Rows of main KV on the GPU.
    DeviceTokens,
    /// The model's context length.
    Context,
}

/// Requests of one length that run at once, per data-parallel replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Concurrency {
    /// Tokens of each request.
    pub context: u64,
    /// Requests at once with everything on the GPU.
    pub baseline: u64,
    /// Requests at once with the host pool.
    pub hisparse: u64,
    /// Host bytes those requests need; 0 where the host pool brings nothing.
    pub host_bytes: u64,
    /// What stops one more.
    pub binding: Binding,
}
