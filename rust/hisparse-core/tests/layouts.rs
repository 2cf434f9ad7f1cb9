//! Row and page sizes of today's models, to the byte, and what holds for every width.

use hisparse_core::layout::{
    RowLayout, StrideAlign, default_index_dtype, heads_per_rank, index_dtype_beside, tokens_per_index_row,
};
use hisparse_core::model::{Family, Layer, Model, Shape};
use hisparse_core::platform::{IndexDtype, KvDtype};
use hisparse_core::units::Tokens;
use proptest::prelude::*;

fn model(shape: Shape, index_head_dim: u64) -> Model {
    Model {
        name: "test".to_owned(),
        family: Family::GenericDsa,
        architecture: String::new(),
        shape,
        layers: vec![Layer::Indexed],
        draft_layers: 0,
        attention_heads: 64,
        top_k: 2048,
        tail_picks: 0,
        index_head_dim,
        index_heads: 32,
        index_pooling: 1,
        context_tokens: Tokens::new(1 << 20),
        warnings: Vec::new(),
    }
}

const MLA: Shape = Shape::Mla { kv_lora_rank: 512, qk_rope_head_dim: 64 };
const V4: Shape = Shape::DeepseekV4 { head_dim: 512, qk_rope_head_dim: 64, sliding_window_tokens: 128 };
const M3: Shape = Shape::Mha { kv_heads: 4, head_dim: 128, block_tokens: 128 };

fn main_row(shape: Shape, dtype: KvDtype, tp: u64) -> RowLayout {
    RowLayout::main(&model(shape, 128), dtype, tp).expect("the test gives a shape with a layout")
}

#[test]
fn rows_have_the_bytes_of_the_table() {
    for (shape, dtype, tp, name, bytes) in [
        (MLA, KvDtype::Bfloat16, 1, "mla_bf16", 1152),
        (MLA, KvDtype::Fp8E4m3, 1, "mla_fp8", 656),
        (MLA, KvDtype::Fp8E4m3, 8, "mla_fp8", 656),
        (MLA, KvDtype::Fp8Raw, 1, "mla_fp8_raw", 576),
        (MLA, KvDtype::Float32, 1, "mla_f32", 2304),
        (V4, KvDtype::Fp8E4m3, 1, "dsv4", 584),
        (M3, KvDtype::Bfloat16, 1, "mha_bf16", 2048),
        (M3, KvDtype::Bfloat16, 4, "mha_bf16", 512),
        (M3, KvDtype::Fp8E4m3, 4, "mha_fp8", 256),
    ] {
        let row = main_row(shape, dtype, tp);
        assert_eq!((row.name(), row.row_bytes()), (name, bytes), "{shape:?} {dtype:?} tp {tp}");
    }
    for (shape, dtype, name, bytes) in [
        (MLA, IndexDtype::Fp8, "indexer_fp8", 132),
        (V4, IndexDtype::Fp8, "indexer_fp8", 132),
        (MLA, IndexDtype::Fp4, "indexer_fp4", 68),
        (M3, IndexDtype::Bfloat16, "indexer_bf16", 256),
        (MLA, IndexDtype::Float32, "indexer_f32", 512),
    ] {
        let row = RowLayout::indexer(&model(shape, 128), dtype).unwrap();
        assert_eq!((row.name(), row.row_bytes()), (name, bytes), "{shape:?} {dtype:?}");
    }
    assert_eq!([MLA, V4, M3].map(|shape| default_index_dtype(&model(shape, 128)).name()), ["fp8", "fp8", "bfloat16"]);
    let beside = [KvDtype::Float32, KvDtype::Bfloat16].map(|dtype| index_dtype_beside(&model(MLA, 128), dtype).name());
    assert_eq!(beside, ["float32", "fp8"]);
}

#[test]
fn a_page_holds_values_then_scales_then_padding() {
    let v4 = main_row(V4, KvDtype::Fp8E4m3, 1);
    assert_eq!((v4.scales_offset_bytes(64), v4.page_bytes(64)), (Some(36_864), Some(37_440)));
    let index = RowLayout::indexer(&model(MLA, 128), IndexDtype::Fp8).unwrap();
    assert_eq!((index.scales_offset_bytes(64), index.page_bytes(64)), (Some(8_192), Some(8_448)));
    let fp4 = RowLayout::indexer(&model(MLA, 128), IndexDtype::Fp4).unwrap();
    assert_eq!((fp4.scales_offset_bytes(64), fp4.page_bytes(64)), (Some(4_096), Some(4_352)));
    let mla = main_row(MLA, KvDtype::Fp8E4m3, 1);
    assert_eq!((mla.scales_offset_bytes(64), mla.page_bytes(64)), (None, Some(41_984)));
    assert_eq!(mla.page_bytes(u64::MAX), None);
}

#[test]
fn strides_round_a_row_up() {
    let row = main_row(MLA, KvDtype::Fp8E4m3, 1);
    let strides = [StrideAlign::Packed, StrideAlign::To64, StrideAlign::To128].map(|align| row.stride_bytes(align));
    assert_eq!(strides, [656, 704, 768]);
    assert_eq!(main_row(MLA, KvDtype::Bfloat16, 1).stride_bytes(StrideAlign::To128), 1152);
}

#[test]
fn kv_heads_replicate_when_ranks_outnumber_them() {
    let m3 = model(M3, 128);
    let per_rank = [1, 2, 4, 8, 16].map(|tp| {
        let heads = heads_per_rank(&m3, tp).unwrap();
        (heads.query, heads.kv)
    });
    assert_eq!(per_rank, [(64, 4), (32, 2), (16, 1), (8, 1), (4, 1)]);
}

#[test]
fn ranks_that_do_not_divide_the_heads_are_refused() {
    for tp in [0, 3, 5, 128] {
        let problem = heads_per_rank(&model(MLA, 128), tp).unwrap_err();
        assert_eq!(problem.field, "--tp", "tp {tp}: {problem}");
        assert_eq!(problem.remedy, "use one of 1, 2, 4, 8, 16, 32, 64", "tp {tp}");
    }
}

#[test]
fn ranks_that_split_a_kv_head_unevenly_are_refused() {
    let twelve = Model { attention_heads: 12, ..model(M3, 128) };
    let problem = heads_per_rank(&twelve, 6).unwrap_err();
    assert_eq!(problem.rule, "must divide the 4 KV heads, or be a multiple of them");
}

#[test]
fn what_has_no_layout_is_refused() {
    let odd = model(Shape::Mla { kv_lora_rank: 500, qk_rope_head_dim: 64 }, 96);
    assert_eq!(RowLayout::main(&odd, KvDtype::Fp8E4m3, 1).unwrap_err().field, "kv_lora_rank");
    for shape in [V4, M3] {
        assert!(RowLayout::main(&model(shape, 128), KvDtype::Float32, 1).is_err(), "{shape:?}");
    }
    assert_eq!(RowLayout::indexer(&odd, IndexDtype::Fp8).unwrap_err().field, "index_head_dim");
    assert_eq!(RowLayout::main(&odd, KvDtype::Bfloat16, 1).unwrap().row_bytes(), 1128);
    assert_eq!(RowLayout::main(&model(V4, 128), KvDtype::Bfloat16, 1).unwrap_err().field, "--kv-dtype");
    assert!(RowLayout::indexer(&model(M3, 128), IndexDtype::Fp8).is_err());
    assert!(RowLayout::indexer(&model(MLA, 128), IndexDtype::Bfloat16).is_err());
    let huge = model(Shape::Mha { kv_heads: u64::MAX, head_dim: u64::MAX, block_tokens: 1 }, 128);
    assert!(RowLayout::main(&huge, KvDtype::Bfloat16, 1).is_err());
}

#[test]
fn an_index_row_stands_for_pooled_or_compressed_tokens() {
    let pooled = Model { index_pooling: 4, ..model(MLA, 128) };
    assert_eq!([&model(MLA, 128), &pooled, &model(V4, 128)].map(tokens_per_index_row), [1, 4, 4]);
}

proptest! {
    #[test]
    fn a_wider_row_is_never_smaller(latent in 1_u64..64, rope in 0_u64..512, heads in 1_u64..64, more in 0_u64..8) {
        let mla = |blocks, rope| Shape::Mla { kv_lora_rank: blocks * 128, qk_rope_head_dim: rope };
        for &dtype in KvDtype::ALL {
            let narrow = main_row(mla(latent, rope), dtype, 1);
            prop_assert!(main_row(mla(latent + more, rope), dtype, 1).row_bytes() >= narrow.row_bytes());
            prop_assert!(main_row(mla(latent, rope + more), dtype, 1).row_bytes() >= narrow.row_bytes());
            if dtype == KvDtype::Float32 {
                continue; // of MLA rows alone
            }
            let mha = |kv_heads| Shape::Mha { kv_heads, head_dim: latent, block_tokens: 64 };
            prop_assert!(main_row(mha(heads + more), dtype, 1).row_bytes() >= main_row(mha(heads), dtype, 1).row_bytes());
        }
    }

    #[test]
    fn a_stride_holds_its_row_and_a_page_its_rows(latent in 1_u64..64, rope in 0_u64..512, rows in 0_u64..10_000) {
        let row = main_row(Shape::Mla { kv_lora_rank: latent * 128, qk_rope_head_dim: rope }, KvDtype::Fp8E4m3, 1);
        for align in [StrideAlign::Packed, StrideAlign::To64, StrideAlign::To128] {
            let stride = row.stride_bytes(align);
            prop_assert!(stride >= row.row_bytes() && stride < row.row_bytes() + align.bytes());
            prop_assert_eq!(stride % align.bytes(), 0);
        }
        let v4 = Shape::DeepseekV4 { head_dim: latent * 64 + rope, qk_rope_head_dim: rope, sliding_window_tokens: 1 };
        let record = main_row(v4, KvDtype::Fp8E4m3, 1);
        let page = record.page_bytes(rows).unwrap();
        prop_assert!(page >= rows * record.row_bytes());
    }

    #[test]
    fn no_width_overflows(a in any::<u64>(), b in any::<u64>(), tp in any::<u64>(), rows in any::<u64>()) {
        for shape in [
            Shape::Mla { kv_lora_rank: a, qk_rope_head_dim: b },
            Shape::DeepseekV4 { head_dim: a, qk_rope_head_dim: b, sliding_window_tokens: a },
            Shape::Mha { kv_heads: a, head_dim: b, block_tokens: a },
        ] {
            let model = Model { attention_heads: b, ..model(shape, a) };
            for row in KvDtype::ALL.iter().filter_map(|dtype| RowLayout::main(&model, *dtype, tp).ok()) {
                let _ = (row.page_bytes(rows), row.scales_offset_bytes(rows), row.stride_bytes(StrideAlign::To128));
            }
            for dtype in IndexDtype::ALL {
                let _ = RowLayout::indexer(&model, *dtype);
            }
        }
    }
}
