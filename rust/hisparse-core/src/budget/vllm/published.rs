//! The published concurrency table: GLM-5.3 on nodes of eight GPUs, recomputed rather than copied.
//!
//! ```text
//!            8×H200 B=4096   8×H200 MTP3   8×B200   8×B300      16×H200 wide-EP
//!  8K … 1M     baseline → HiSparse (least host memory)
//! ```
//! Every constant that the published calculator fixes for this model and these GPUs is here, and nowhere else.

use serde::Serialize;

pub use crate::budget::concurrency::CONTEXTS_TOKENS;
use crate::budget::gpu::Gpu;
use crate::error::{Problem, Problems};
use crate::limits::PAGE_TOKENS;
use crate::model::Model;
use crate::model::presets::preset;
use crate::platform::KvDtype;

use super::cache::Cache;
use super::calculator::{Answer, Blocks, Node, Terms, Weights, answer, break_even_context_tokens};
use super::config::default_hot_rows;
use super::counted;
use super::groups::pack;

/// GLM-5.3's weights as the published calculator counts them.
pub const GLM_5_3_WEIGHTS: Weights = Weights { shared_gib: 19.556, routed_experts_gib: 684.167 };

/// Share of GPU memory that the engine may use.
pub const UTILISATION: f64 = 0.92;

/// GiB per GPU that neither weights nor KV may use.
pub const RESERVE_GIB: f64 = 15.0;

/// Buffers of the sweep at 128K on eight H200.
pub const SWEEP_HOT_ROWS: [u64; 5] = [2_048, 4_096, 6_144, 8_192, 10_240];

/// The model of the table: the preset `glm-5.3`.
///
/// # Errors
/// None while the preset is bundled.
pub fn model() -> Result<Model, Problems> {
    preset("glm-5.3")
}

/// The model's blocks. The published page's FP8 is [`KvDtype::Fp8Raw`].
///
/// # Errors
/// None with the bundled preset.
pub fn blocks(model: &Model, dtype: KvDtype) -> Result<Blocks, Problems> {
    let cache = Cache::of(model, dtype, 1, model.layers.len(), 0)?;
    let groups = pack(cache.geometry(PAGE_TOKENS))?;
    counted("--page-size", PAGE_TOKENS, Blocks::of(&groups, PAGE_TOKENS))
}

/// One column of the table: a node and a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Column {
    /// Heading.
    pub name: &'static str,
    /// Name of its GPUs, as [`Gpu::by_name`] has it.
    pub gpu: &'static str,
    /// Data-parallel replicas.
    pub data_parallel: u64,
    /// Tensor-parallel ranks of each.
    pub tensor_parallel: u64,
    /// Draft tokens per step.
    pub speculative_tokens: u64,
}

/// The columns, the wide expert-parallel one last.
pub const COLUMNS: [Column; 5] = [
    Column { name: "8×H200 TP8", gpu: "h200", data_parallel: 1, tensor_parallel: 8, speculative_tokens: 0 },
    Column { name: "8×H200 TP8, MTP3", gpu: "h200", data_parallel: 1, tensor_parallel: 8, speculative_tokens: 3 },
    Column { name: "8×B200 TP8", gpu: "b200", data_parallel: 1, tensor_parallel: 8, speculative_tokens: 0 },
    Column { name: "8×B300 TP8", gpu: "b300", data_parallel: 1, tensor_parallel: 8, speculative_tokens: 0 },
    Column { name: "16×H200 DP16", gpu: "h200", data_parallel: 16, tensor_parallel: 1, speculative_tokens: 0 },
];

impl Column {
    /// Its node with GLM-5.3 on it, experts spread over all ranks.
    ///
    /// # Errors
    /// A GPU that is not known.
    pub fn node(&self) -> Result<Node, Problems> {
        let gpu = Gpu::by_name(self.gpu).ok_or_else(|| {
            Problems::one(Problem::new("gpu", self.gpu, "is no known GPU", format!("use one of {}", Gpu::names())))
        })?;
        Ok(Node {
            gpu_bytes: gpu.memory_bytes,
            utilisation: UTILISATION,
            reserve_gib: RESERVE_GIB,
            weights: GLM_5_3_WEIGHTS,
            data_parallel: self.data_parallel,
            tensor_parallel: self.tensor_parallel,
            expert_parallel: true,
            kv_bytes: None,
        })
    }

    /// Its answers, one per context of [`CONTEXTS_TOKENS`].
    ///
    /// # Errors
    /// None with the constants of this file.
    pub fn answers(&self, model: &Model, blocks: &Blocks) -> Result<Vec<Answer>, Problems> {
        let rows = default_hot_rows(model.top_k, self.speculative_tokens);
        let terms = Terms::new(counted("speculative_tokens", self.speculative_tokens, rows)?);
        let node = self.node()?;
        CONTEXTS_TOKENS.iter().map(|context| answer(&node, blocks, &terms, *context)).collect()
    }
}

/// The whole table: each column with its answers.
///
/// # Errors
/// None with the constants of this file.
pub fn table(dtype: KvDtype) -> Result<Vec<(Column, Vec<Answer>)>, Problems> {
    let model = model()?;
    let blocks = blocks(&model, dtype)?;
    COLUMNS.iter().map(|column| Ok((*column, column.answers(&model, &blocks)?))).collect()
}

/// One buffer of the sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sweep {
    /// Hot rows per request.
    pub hot_rows: u64,
    /// Requests of 128K on eight H200.
    pub requests: u64,
    /// Context in tokens below which the buffer costs more than it saves.
    pub break_even_context_tokens: u64,
}

/// What the buffer's size costs, by [`SWEEP_HOT_ROWS`].
///
/// # Errors
/// None with the constants of this file.
pub fn sweep() -> Result<Vec<Sweep>, Problems> {
    let (node, blocks) = (COLUMNS[0].node()?, blocks(&model()?, KvDtype::Fp8Raw)?);
    let context_tokens = 131_072;
    SWEEP_HOT_ROWS
        .iter()
        .map(|hot_rows| {
            let terms = Terms::new(*hot_rows);
            let break_even = break_even_context_tokens(&blocks, &terms)?;
            Ok(Sweep {
                hot_rows: *hot_rows,
                requests: answer(&node, &blocks, &terms, context_tokens)?.hisparse,
                break_even_context_tokens: counted("hot_rows", hot_rows, break_even)?,
            })
        })
        .collect()
}
