//! Rows of multi-head latent attention: one latent vector and one rotary key for all heads.

use super::row::{Arrangement, Part, RowLayout, scale_blocks};
use crate::error::Problem;
use crate::platform::KvDtype;

/// Values of the latent vector that share one fp32 scale (FlashMLA's record).
const SCALE_BLOCK: u64 = 128;

/// The row of a model with these widths.
pub(super) fn row(kv_lora_rank: u64, qk_rope_head_dim: u64, dtype: KvDtype) -> Result<RowLayout, Problem> {
    let latent = |format, element_bits| Part { what: "latent", format, elements: kv_lora_rank, element_bits };
    let rotary = |format, element_bits| Part { what: "rotary", format, elements: qk_rope_head_dim, element_bits };
    let (name, parts) = match dtype {
        KvDtype::Bfloat16 => ("mla_bf16", vec![latent("bf16", 16), rotary("bf16", 16)]),
        KvDtype::Fp8E4m3 => {
            let scales = scale_blocks("kv_lora_rank", kv_lora_rank, SCALE_BLOCK)?;
            let scale = Part { what: "scale", format: "f32", elements: scales, element_bits: 32 };
            ("mla_fp8", vec![latent("e4m3", 8), scale, rotary("bf16", 16)])
        }
        KvDtype::Fp8Raw => ("mla_fp8_raw", vec![latent("e4m3", 8), rotary("e4m3", 8)]),
        KvDtype::Float32 => ("mla_f32", vec![latent("f32", 32), rotary("f32", 32)]),
    };
    RowLayout::new(name, parts, Arrangement::RowMajor)
}
