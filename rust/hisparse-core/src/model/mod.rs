//! What a model's `config.json` says about its KV: shapes only, no weights.
//!
//! ```text
//!  config.json ──► family ──► shape (what a row is) + layers (who indexes, who reuses) ──► Model
//! ```
//! Two key styles occur, the checkpoint's and transformers' own; both give the same [`Model`]. [`Model::from_json_text`]
//! reads one.

use serde::Serialize;

use crate::units::Tokens;

mod config;
mod deepseek_v4;
mod dsa;
mod index_sharing;
mod minimax_m3;
pub mod presets;
pub mod sglang;
mod source;

pub use presets::preset;

/// A sparse-attention family whose KV this project knows to the byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// DeepSeek-V3.2: MLA with an indexer in every layer.
    DeepseekV32,
    /// GLM-5, 5.1, 5.2, 5.3: MLA, the indexer shared between layers in the later ones.
    GlmMoeDsa,
    /// DeepSeek-V4: compressed layers (C4, C128) and a sliding window.
    DeepseekV4,
    /// MiniMax M3: block-sparse multi-head attention with a K-only index.
    MinimaxM3,
    /// Some other model that carries the DSA fields.
    GenericDsa,
}

/// What one row of main KV is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// One latent vector and one rotary key, shared by all heads.
    Mla {
        /// Width of the latent vector (`kv_lora_rank`).
        kv_lora_rank: u64,
        /// Width of the rotary key (`qk_rope_head_dim`); 0 for models without one.
        qk_rope_head_dim: u64,
    },
    /// DeepSeek-V4's record: an FP8 part, a BF16 rotary part, scales.
    DeepseekV4 {
        /// Width of a head, rotary part included (`head_dim`).
        head_dim: u64,
        /// Width of the rotary part (`qk_rope_head_dim`).
        qk_rope_head_dim: u64,
        /// Tokens of the sliding window that every layer keeps.
        sliding_window_tokens: u64,
    },
    /// A key and a value per KV head.
    Mha {
        /// KV heads before tensor parallelism divides them.
        kv_heads: u64,
        /// Width of a head, the same for keys and values.
        head_dim: u64,
        /// Tokens of one block that the indexer picks.
        block_tokens: u64,
    },
}

/// How a layer attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Scores its own top-k: it has an indexer and an indexer cache.
    Indexed,
    /// Reuses the top-k of the nearest indexed layer before it.
    Shared,
    /// Attends to everything: its KV stays on the GPU at logical size.
    Dense,
    /// Keeps the sliding window alone (DeepSeek-V4, ratio 0).
    Window,
    /// Keeps one row per `ratio` tokens, and picks among them by an indexer where the ratio is 4.
    Compressed {
        /// Tokens per kept row.
        ratio: u64,
    },
    /// Linear attention: a state of fixed size per request, no rows at all.
    Linear,
}

impl Layer {
    /// Compression ratio of the DeepSeek-V4 layers that carry an indexer; the others attend to all their rows.
    pub const INDEXED_RATIO: u64 = 4;

    /// Whether the layer scores tokens itself, and so has an indexer cache.
    pub const fn has_indexer(self) -> bool {
        matches!(self, Self::Indexed | Self::Compressed { ratio: Self::INDEXED_RATIO })
    }

    /// Whether the layer reads a picked subset, so that its main KV may live in host memory.
    pub const fn is_sparse(self) -> bool {
        self.has_indexer() || matches!(self, Self::Shared)
    }
}

/// A model as the planner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Model {
    /// Preset or folder name, else the architecture's.
    pub name: String,
    /// Its family.
    pub family: Family,
    /// The config's first `architectures` entry, or empty.
    pub architecture: String,
    /// What a row is.
    pub shape: Shape,
    /// Main layers in order, without draft layers.
    pub layers: Vec<Layer>,
    /// Draft (next-token prediction) layers the checkpoint carries.
    pub draft_layers: u64,
    /// Query heads before tensor parallelism divides them.
    pub attention_heads: u64,
    /// Tokens the indexer keeps per step (blocks × block size where it picks blocks).
    pub top_k: u64,
    /// Most tokens attended to beside those: GLM-5.3-Flash's class adds the newest tokens, whose pool of keys is not full.
    pub tail_picks: u64,
    /// Width of an indexer key.
    pub index_head_dim: u64,
    /// Indexer heads.
    pub index_heads: u64,
    /// Tokens pooled into one indexer key; 1 for all but GLM-5.3-Flash's 4.
    pub index_pooling: u64,
    /// Longest position the model was made for.
    pub context_tokens: Tokens,
    /// What a reader of the plan should know, each a full sentence.
    pub warnings: Vec<String>,
}

impl Model {
    /// Layers for which `keep` holds.
    pub fn count_layers(&self, keep: impl Fn(Layer) -> bool) -> u64 {
        self.layers.iter().filter(|layer| keep(**layer)).fold(0, |count, _| count + 1)
    }

    /// Most rows that one query row attends to: what a step needs in the hot buffer, and the width of a row of picks.
    pub const fn picks_per_row(&self) -> u64 {
        self.top_k.saturating_add(self.tail_picks)
    }

    /// Layers that keep rows of main KV: all but linear ones.
    pub fn kv_layers(&self) -> u64 {
        self.count_layers(|layer| layer != Layer::Linear)
    }

    /// Layers with an indexer cache.
    pub fn indexer_layers(&self) -> u64 {
        self.count_layers(Layer::has_indexer)
    }

    /// Layers whose main KV may live in host memory.
    pub fn sparse_layers(&self) -> u64 {
        self.count_layers(Layer::is_sparse)
    }
}
