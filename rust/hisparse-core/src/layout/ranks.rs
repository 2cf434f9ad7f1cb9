//! What tensor parallelism leaves of the heads on one rank.
//!
//! ```text
//!  64 query heads, 4 KV heads     tp 2 → 32, 2      tp 4 → 16, 1      tp 8 → 8, 1 (each KV head on two ranks)
//! ```

use serde::Serialize;

use crate::error::Problem;
use crate::model::{Model, Shape};

/// Heads of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RankHeads {
    /// Query heads.
    pub query: u64,
    /// KV heads; 1 where all heads share one latent row, which every rank holds.
    pub kv: u64,
}

/// Divides the heads of `model` over `tp` ranks. KV heads replicate when there are more ranks than heads.
///
/// # Errors
/// When `tp` is 0, does not divide the query heads, or neither divides the KV heads nor is a multiple of them.
pub fn heads_per_rank(model: &Model, tp: u64) -> Result<RankHeads, Problem> {
    let query = model.attention_heads;
    if tp == 0 || !query.is_multiple_of(tp) {
        return Err(refusal(tp, format!("must divide the {query} attention heads"), query));
    }
    let kv = match model.shape {
        Shape::Mla { .. } | Shape::DeepseekV4 { .. } => 1,
        Shape::Mha { kv_heads, .. } if kv_heads.is_multiple_of(tp) => kv_heads / tp,
        Shape::Mha { kv_heads, .. } if kv_heads > 0 && tp.is_multiple_of(kv_heads) => 1,
        Shape::Mha { kv_heads, .. } => {
            return Err(refusal(tp, format!("must divide the {kv_heads} KV heads, or be a multiple of them"), query));
        }
    };
    Ok(RankHeads { query: query / tp, kv })
}

fn refusal(tp: u64, rule: String, heads: u64) -> Problem {
    let sizes: Vec<String> = [1, 2, 4, 8, 16, 32, 64]
        .into_iter()
        .filter(|size| heads.is_multiple_of(*size))
        .map(|size: u64| size.to_string())
        .collect();
    Problem::new("--tp", tp, rule, format!("use one of {}", sizes.join(", ")))
}
