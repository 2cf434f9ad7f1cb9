//! The published concurrency table: GLM-5.3 on nodes of eight GPUs, recomputed rather than copied.
//!
//! ```text
//!            8×H200 B=4096   8×H200 MTP3   8×B200   8×B300      16×H200 wide-EP
//!  8K … 1M     baseline → HiSparse (least host memory)
//! ```
//! Every constant that the published calculator fixes for this model and these GPUs is here, and nowhere else.

use serde::Serialize;

use crate::budget::gpu::Gpu;
use crate::error::{Problem, Problems};

use super::calculator::{Answer, Blocks, Node, Terms, Weights, answer, break_even_context_tokens};
use super::config::default_hot_rows;
use super::counted;
use super::groups::{Geometry, pack};

/// GLM-5.3's weights as the published calculator counts them.
pub const GLM_5_3_WEIGHTS: Weights = Weights { shared_gib: 19.556, routed_experts_gib: 684.167 };

/// Share of GPU memory that the engine may use.
pub const UTILISATION: f64 = 0.92;

/// GiB per GPU that neither weights nor KV may use.
pub const RESERVE_GIB: f64 = 15.0;

/// Rows that GLM-5.3's indexer picks.
pub const GLM_5_3_TOP_K: u64 = 2_048;

const GLM_5_3_LAYERS: usize = 78;
const BLOCK_TOKENS: u64 = 64;
const INDEXER_BYTES: u64 = 132;

/// The table's contexts: 8K to 1M, doubling.
pub const CONTEXTS_TOKENS: [u64; 8] = [8_192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576];

/// Buffers of the sweep at 128K on eight H200.
pub const SWEEP_HOT_ROWS: [u64; 5] = [2_048, 4_096, 6_144, 8_192, 10_240];

/// How the published page stores main KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kv {
    /// 576 bytes a row, no scales.
    Fp8,
    /// 1,152 bytes a row.
    Bf16,
}

impl Kv {
    const fn row_bytes(self) -> u64 {
        match self {
            Self::Fp8 => 576,
            Self::Bf16 => 1_152,
        }
    }
}

/// Which GLM-5.3 layers have an indexer: three at the start, then the last of every four; 21 of 78.
pub fn glm_5_3_leads() -> Vec<bool> {
    (0..GLM_5_3_LAYERS).map(|layer| layer < 3 || layer % 4 == 2).collect()
}

/// GLM-5.3's blocks.
///
/// # Errors
/// None with the constants of this file; the type is that of [`pack`].
pub fn glm_5_3_blocks(kv: Kv) -> Result<Blocks, Problems> {
    let groups = pack(Geometry {
        row_bytes: kv.row_bytes(),
        indexer_bytes: INDEXER_BYTES,
        leads: &glm_5_3_leads(),
        block_tokens: BLOCK_TOKENS,
    })?;
    counted("block_size", BLOCK_TOKENS, Blocks::of(&groups, BLOCK_TOKENS))
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
    pub fn answers(&self, kv: Kv) -> Result<Vec<Answer>, Problems> {
        let rows = default_hot_rows(GLM_5_3_TOP_K, self.speculative_tokens);
        let terms = Terms::new(counted("speculative_tokens", self.speculative_tokens, rows)?);
        let (node, blocks) = (self.node()?, glm_5_3_blocks(kv)?);
        CONTEXTS_TOKENS.iter().map(|context| answer(&node, &blocks, &terms, *context)).collect()
    }
}

/// The whole table: each column with its answers.
///
/// # Errors
/// None with the constants of this file.
pub fn table(kv: Kv) -> Result<Vec<(Column, Vec<Answer>)>, Problems> {
    COLUMNS.iter().map(|column| Ok((*column, column.answers(kv)?))).collect()
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
    let (node, blocks) = (COLUMNS[0].node()?, glm_5_3_blocks(Kv::Fp8)?);
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
