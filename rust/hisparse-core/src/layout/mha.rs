//! Rows of multi-head attention: a key and a value for each KV head of the rank.

use super::row::{Arrangement, Part, RowLayout};
use crate::error::Problem;
use crate::platform::KvDtype;

/// The row of `kv_heads` heads of this width. FP8 has no scales here, so both FP8 names mean the same bytes.
pub(super) fn row(kv_heads: u64, head_dim: u64, dtype: KvDtype) -> Result<RowLayout, Problem> {
    let (name, format, element_bits) = match dtype {
        KvDtype::Bfloat16 => ("mha_bf16", "bf16", 16),
        KvDtype::Fp8E4m3 | KvDtype::Fp8Raw => ("mha_fp8", "e4m3", 8),
        KvDtype::Float32 => {
            let rule = "is no format of multi-head attention's rows";
            return Err(Problem::new("--kv-dtype", dtype.name(), rule, "use bfloat16 or fp8_e4m3"));
        }
    };
    let elements = kv_heads.saturating_mul(head_dim);
    let parts = ["key", "value"].map(|what| Part { what, format, elements, element_bits });
    RowLayout::new(name, parts.to_vec(), Arrangement::RowMajor)
}
