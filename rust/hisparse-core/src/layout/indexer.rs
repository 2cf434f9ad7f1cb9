//! Rows of the indexer cache: the keys it scores, and their scales.
//!
//! ```text
//!  page of 64, FP8:  64 × 128 B of keys = 8,192   64 × 4 B of scales = 256   → 8,448
//! ```

use super::row::{Arrangement, Part, RowLayout, scale_blocks};
use crate::error::Problem;
use crate::model::{Model, Shape};
use crate::platform::{IndexDtype, KvDtype};

/// Key values that share 4 bytes of scale.
const SCALE_BLOCK: u64 = 128;

/// The format of index keys beside main KV of `dtype`.
pub const fn dtype_beside(model: &Model, dtype: KvDtype) -> IndexDtype {
    match dtype {
        KvDtype::Float32 => IndexDtype::Float32,
        KvDtype::Bfloat16 | KvDtype::Fp8E4m3 | KvDtype::Fp8Raw => default_dtype(model),
    }
}

/// The format that the model's engines keep index keys in unless told otherwise.
pub const fn default_dtype(model: &Model) -> IndexDtype {
    match model.shape {
        Shape::Mla { .. } | Shape::DeepseekV4 { .. } => IndexDtype::Fp8,
        Shape::Mha { .. } => IndexDtype::Bfloat16,
    }
}

/// The row of `model`'s indexer.
pub(super) fn row(model: &Model, dtype: IndexDtype) -> Result<RowLayout, Problem> {
    let width = model.index_head_dim;
    let quantised = !matches!(model.shape, Shape::Mha { .. });
    let key = |format, element_bits| Part { what: "key", format, elements: width, element_bits };
    let scaled = |name, key: Part, format, value_bytes| {
        let scales = scale_blocks("index_head_dim", width, SCALE_BLOCK)?;
        let scale = Part { what: "scale", format, elements: scales, element_bits: 32 };
        RowLayout::new(name, vec![key, scale], Arrangement::ScalesLast { value_bytes, pad_bytes: 1 })
    };
    match dtype {
        IndexDtype::Fp8 if quantised => scaled("indexer_fp8", key("e4m3", 8), "f32", width),
        IndexDtype::Fp4 if quantised => scaled("indexer_fp4", key("e2m1", 4), "packed", width / 2),
        IndexDtype::Float32 if quantised => RowLayout::new("indexer_f32", vec![key("f32", 32)], Arrangement::RowMajor),
        IndexDtype::Bfloat16 if !quantised => {
            RowLayout::new("indexer_bf16", vec![key("bf16", 16)], Arrangement::RowMajor)
        }
        _ => {
            let known = if quantised { "fp8, fp4 or float32" } else { "bfloat16" };
            let rule = format!("is no format of {}'s indexer keys", model.name);
            Err(Problem::new("index dtype", dtype.name(), rule, format!("use {known}")))
        }
    }
}
