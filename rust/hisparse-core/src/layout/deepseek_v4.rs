//! DeepSeek-V4's record. A page holds all values, then all scales, and is padded to whole values:
//!
//! ```text
//!  page of 64:  64 × [ 448 e4m3 | 64 bf16 ] = 36,864   64 × [ 7 ue8m0 | pad ] = 512   pad 64   → 37,440
//! ```

use super::row::{Arrangement, Part, RowLayout, scale_blocks};
use crate::error::Problem;
use crate::platform::KvDtype;

/// Values of the unrotated part that share one ue8m0 scale.
const SCALE_BLOCK: u64 = 64;

/// A row's scales are padded to a multiple of this many bytes.
const SCALE_ROW_BYTES: u64 = 8;

/// The row of a model with these widths.
pub(super) fn row(head_dim: u64, qk_rope_head_dim: u64, dtype: KvDtype) -> Result<RowLayout, Problem> {
    if dtype != KvDtype::Fp8E4m3 {
        let rule = "DeepSeek-V4 keeps its KV in its own FP8 record";
        return Err(Problem::new("--kv-dtype", dtype.name(), rule, "use fp8_e4m3"));
    }
    let Some(latent) = head_dim.checked_sub(qk_rope_head_dim) else {
        let rule = format!("must be at most head_dim, {head_dim}");
        return Err(Problem::new("qk_rope_head_dim", qk_rope_head_dim, rule, "check both widths"));
    };
    let scales = scale_blocks("head_dim less qk_rope_head_dim", latent, SCALE_BLOCK)?;
    let pad = scales.next_multiple_of(SCALE_ROW_BYTES) - scales;
    let parts = vec![
        Part { what: "latent", format: "e4m3", elements: latent, element_bits: 8 },
        Part { what: "rotary", format: "bf16", elements: qk_rope_head_dim, element_bits: 16 },
        Part { what: "scale", format: "ue8m0", elements: scales, element_bits: 8 },
        Part { what: "pad", format: "bytes", elements: pad, element_bits: 8 },
    ];
    let value_bytes = latent.saturating_add(qk_rope_head_dim.saturating_mul(2));
    RowLayout::new("dsv4", parts, Arrangement::ScalesLast { value_bytes, pad_bytes: value_bytes.max(1) })
}
