//! Which attention kernels may read the rows, where. One table answers the resolver, the check, the error text
//! and the docs, so that none of them can offer what another refuses.
//!
//! ```text
//!                      ┌─► resolve   the first row that is sure to work here
//!  Situation ─► TABLE ─┼─► check     the row of the backend that the user named, or why not and what instead
//!                      ├─► sglang    the same rows seen by platform and KV type alone, as SGLang 0.5.23 does
//!                      └─► TABLE     itself, printed by the docs
//! ```

mod check;
mod resolve;
pub mod sglang;
mod table;

pub use check::{allowed, check};
pub use resolve::resolve;
pub use table::{Heads, Row, TABLE};

use crate::model::Family;
use crate::platform::{KvDtype, Platform, choice};

choice!(
    /// A sparse attention kernel family, by the name that engines give it.
    Backend {
        /// FlashMLA's sparse kernel over BF16 rows.
        FlashmlaSparse = "flashmla_sparse",
        /// FlashMLA's decode kernel over 656-byte FP8 rows.
        FlashmlaKv = "flashmla_kv",
        /// flashinfer's packed FP8 kernel for consumer Blackwell.
        FlashinferSparseMla = "flashinfer_sparse_mla",
        /// TileLang kernels on AMD.
        Tilelang = "tilelang",
        /// AMD's own kernels.
        Aiter = "aiter",
        /// Triton kernels: SGLang's on AMD, this project's everywhere.
        Triton = "triton",
        /// Plain torch, slow and obvious, also without a GPU.
        Reference = "reference",
    }
);

choice!(
    /// What attention is being computed for; a backend may differ between the two.
    Phase {
        /// Whole prompts.
        Prefill = "prefill",
        /// One step of generation.
        Decode = "decode",
    }
);

impl Phase {
    /// The flag that names this phase's backend.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Prefill => "--prefill-backend",
            Self::Decode => "--decode-backend",
        }
    }
}

/// All that decides whether a backend may be used. What is `None` is not known and rules nothing out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// GPU software platform.
    pub platform: Platform,
    /// NVIDIA compute capability, major × 10 + minor; without meaning on ROCm.
    pub sm: u64,
    /// How main KV is stored.
    pub kv_dtype: KvDtype,
    /// Model family.
    pub family: Option<Family>,
    /// Prefill or decode.
    pub phase: Phase,
    /// Query heads on one rank.
    pub heads: Option<u64>,
    /// Tokens pooled into one indexer key; 1 where each token has its own.
    pub index_pooling: u64,
}

/// Whether a family's attention is chosen from the table. The others (DeepSeek-V4, MiniMax M3) bring one
/// attention path of their own, and engines leave both backend fields empty for them.
pub const fn has_choice(family: Family) -> bool {
    match family {
        Family::DeepseekV32 | Family::GlmMoeDsa | Family::GenericDsa => true,
        Family::DeepseekV4 | Family::MinimaxM3 => false,
    }
}

/// The KV type that `auto` stands for: FP8 from SM100 on, BF16 before and on ROCm.
pub const fn auto_kv_dtype(platform: Platform, sm: u64) -> KvDtype {
    match platform {
        Platform::Cuda if sm >= 100 => KvDtype::Fp8E4m3,
        Platform::Cuda | Platform::Rocm => KvDtype::Bfloat16,
    }
}

/// The remedy that offers these backends.
pub fn use_one_of(backends: &[Backend]) -> String {
    let names: Vec<_> = backends.iter().map(|backend| backend.name()).collect();
    let one_of = if names.len() > 1 { "one of " } else { "" };
    format!("use {one_of}{}", names.join(", "))
}
