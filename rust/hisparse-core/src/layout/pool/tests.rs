//! Totals, grouping, cutting, and that no two rows ever share a byte.

use super::*;
use crate::layout::{StrideAlign, tokens_per_index_row};
use crate::model::{Layer, Model, Shape, preset};
use crate::platform::{IndexDtype, KvDtype, LayerGroups};

struct Case {
    model: Model,
    main: RowLayout,
    indexer: RowLayout,
}

impl Case {
    fn new(name: &str, dtype: KvDtype) -> Self {
        let model = preset(name).unwrap();
        let main = RowLayout::main(&model, dtype, 1).unwrap();
        let indexer = RowLayout::indexer(&model, crate::layout::default_index_dtype(&model)).unwrap();
        Self { model, main, indexer }
    }

    fn shape(&self, pages: u64) -> PoolShape<'_> {
        let tokens_per_row =
            if matches!(self.model.shape, Shape::DeepseekV4 { .. }) { Layer::INDEXED_RATIO } else { 1 };
        PoolShape {
            layers: &self.model.layers,
            draft_layers: 0,
            main: &self.main,
            indexer: &self.indexer,
            page_tokens: 64 * tokens_per_row,
            tokens_per_row,
            tokens_per_index_row: tokens_per_index_row(&self.model),
            pages,
            align: StrideAlign::Packed,
            groups: LayerGroups::Auto,
        }
    }
}

fn glm() -> Case {
    Case::new("glm-5.2", KvDtype::Fp8E4m3)
}

#[test]
fn glm_5_2_costs_what_the_formula_says() {
    let case = glm();
    let layout = PoolLayout::new(&case.shape(1001)).unwrap();
    let (layers, indexers) = (case.model.kv_layers(), case.model.indexer_layers());
    assert_eq!((layers, indexers), (78, 21));
    // (logical pages + the spare one) × 64 × (row × L + indexer × Li)
    assert_eq!(layout.payload_bytes(), 1001 * 64 * (656 * 78 + 132 * 21));
    assert_eq!(layout.spare_page(), 1000);
    let padding = layout.segment_bytes().iter().sum::<u64>() - layout.payload_bytes();
    assert!(padding < REGION_ALIGN_BYTES * layout.regions().len() as u64, "{padding} B between regions");
}

#[test]
fn layers_that_share_an_index_lie_side_by_side() {
    let case = glm();
    let layout = PoolLayout::new(&case.shape(10)).unwrap();
    let group = layout.regions().iter().find(|r| r.content == Content::Main && r.layers.len() == 4).unwrap();
    assert_eq!((group.row_pitch_bytes, group.page_pitch_bytes), (4 * 656, 64 * 4 * 656));
    let views: Vec<LayerView> = group.layers.clone().map(|layer| layout.layer(Content::Main, layer).unwrap()).collect();
    for (i, pair) in views.windows(2).enumerate() {
        assert_eq!(pair[1].base_bytes - pair[0].base_bytes, 656, "layers {i} and the next");
    }
    let first = &case.model.layers[group.layers.start];
    assert!(first.has_indexer(), "a group begins with the layer that scores: {first:?}");
    assert!(case.model.layers[group.layers.start + 1..group.layers.end].iter().all(|l| *l == Layer::Shared));
}

#[test]
fn without_groups_every_layer_is_a_region_of_the_same_total() {
    let case = glm();
    let off = PoolLayout::new(&PoolShape { groups: LayerGroups::Off, ..case.shape(10) }).unwrap();
    let auto = PoolLayout::new(&case.shape(10)).unwrap();
    assert_eq!(off.payload_bytes(), auto.payload_bytes());
    assert!(off.regions().iter().all(|region| region.layers.len() == 1));
    assert_eq!(off.regions().len(), 78 + 21);
    assert_eq!(off.layer(Content::Main, 5).unwrap().row_pitch_bytes, 656);
}

#[test]
fn no_byte_belongs_to_two_regions_and_none_lies_outside_its_segment() {
    for (name, dtype) in [
        ("glm-5.2", KvDtype::Fp8E4m3),
        ("glm-5.2", KvDtype::Bfloat16),
        ("deepseek-v3.2", KvDtype::Fp8E4m3),
        ("deepseek-v4-flash", KvDtype::Fp8E4m3),
        ("minimax-m3", KvDtype::Bfloat16),
    ] {
        let case = Case::new(name, dtype);
        for align in [StrideAlign::Packed, StrideAlign::To64, StrideAlign::To128] {
            for pages in [1, 7, 30_000] {
                let layout = PoolLayout::new(&PoolShape { align, draft_layers: 1, ..case.shape(pages) }).unwrap();
                let mut ends = vec![0; layout.segment_bytes().len()];
                for region in layout.regions() {
                    let at = format!("{name} {align:?} {pages} pages: {region:?}");
                    assert!(region.offset_bytes >= ends[region.segment], "overlap in {at}");
                    assert_eq!(region.offset_bytes % REGION_ALIGN_BYTES, 0, "{at}");
                    ends[region.segment] = region.offset_bytes + region.page_pitch_bytes * pages;
                }
                assert_eq!(ends, layout.segment_bytes(), "{name}");
                assert!(ends.iter().all(|bytes| *bytes <= MAX_SEGMENT_BYTES));
            }
        }
    }
}

#[test]
fn rows_of_all_layers_tile_a_region_exactly() {
    let case = glm();
    let layout = PoolLayout::new(&case.shape(3)).unwrap();
    let region = &layout.regions()[0];
    let mut starts: Vec<u64> = Vec::new();
    for layer in region.layers.clone() {
        let view = layout.layer(Content::Main, layer).unwrap();
        for (page, row) in (0..3).flat_map(|page| (0..64).map(move |row| (page, row))) {
            starts.push(view.row_bytes_at(page, row).unwrap());
        }
        assert_eq!(view.row_bytes_at(0, 64), None, "a page has 64 rows");
    }
    starts.sort_unstable();
    let expected: Vec<u64> = (0..starts.len() as u64).map(|i| region.offset_bytes + i * 656).collect();
    assert_eq!(starts, expected);
}

#[test]
fn a_group_too_long_for_a_segment_is_cut_into_equal_parts() {
    let case = glm();
    let pages = 1_000_000;
    let layout = PoolLayout::new(&case.shape(pages)).unwrap();
    // One layer takes 42 GB, a group of four 168 GB: one layer a segment.
    assert!(layout.regions().iter().filter(|r| r.content == Content::Main).all(|region| region.layers.len() == 1));
    let half = PoolLayout::new(&case.shape(500_000)).unwrap();
    let lengths = |len| half.regions().iter().filter(|r| r.content == Content::Main && r.layers.len() == len).count();
    // 21 GB a layer: three would fit, but two and two are equal; the two layers that share nothing stay alone.
    assert_eq!((lengths(1), lengths(2), lengths(3), lengths(4)), (2, 38, 0, 0));
    assert_eq!(half.payload_bytes(), 500_000 * 64 * (656 * 78 + 132 * 21));
}

#[test]
fn offsets_beyond_two_and_four_gibibytes_do_not_wrap() {
    let case = glm();
    let layout = PoolLayout::new(&case.shape(300_000)).unwrap();
    let view = layout.layer(Content::Main, 77).unwrap();
    let last = view.row_bytes_at(299_999, 63).unwrap();
    assert!(last > 1 << 35, "{last}");
    assert!(last + 656 <= layout.segment_bytes()[view.segment]);
    assert_eq!(view.row_bytes_at(u64::MAX, 0), None);
}

#[test]
fn a_layer_longer_than_a_segment_and_an_empty_pool_are_refused() {
    let case = glm();
    for pages in [0, 2_000_000, u64::MAX] {
        let refusal = PoolLayout::new(&case.shape(pages)).unwrap_err();
        assert!(refusal.to_string().starts_with("--host-pool is "), "{refusal}");
    }
}

#[test]
fn pages_are_scrubbed_in_every_region() {
    let case = glm();
    let layout = PoolLayout::new(&case.shape(100)).unwrap();
    let bytes: u64 = layout.ranges_of(10..13).map(|(_, range)| range.end - range.start).sum();
    assert_eq!(bytes, 3 * 64 * (656 * 78 + 132 * 21));
    assert_eq!(layout.ranges_of(99..200).map(|(_, r)| r.end - r.start).sum::<u64>(), bytes / 3, "cut at the end");
    assert_eq!(layout.ranges_of(5..5).count(), 0);
}

#[test]
fn formats_with_scales_apart_have_pages_and_no_row_pitch() {
    let case = Case::new("deepseek-v4-flash", KvDtype::Fp8E4m3);
    let layout = PoolLayout::new(&case.shape(10)).unwrap();
    let indexed = case.model.layers.iter().position(|layer| layer.has_indexer()).unwrap();
    let view = layout.layer(Content::Main, indexed).unwrap();
    assert_eq!((view.page_rows, view.page_pitch_bytes, view.row_pitch_bytes), (64, 37_440, 0));
    assert_eq!(view.row_bytes_at(0, 0), None);
    assert!(RowLayout::indexer(&case.model, IndexDtype::Fp8).is_ok());
    let window = case.model.layers.iter().position(|layer| *layer == Layer::Window);
    assert!(window.is_none_or(|layer| layout.layer(Content::Main, layer).is_none()));
}

#[test]
fn a_layout_survives_being_sent_and_a_tampered_one_is_refused() {
    for name in ["glm-5.2", "deepseek-v4-flash"] {
        let case = Case::new(name, KvDtype::Fp8E4m3);
        let layout = PoolLayout::new(&case.shape(100)).unwrap();
        let sent = serde_json::to_value(&layout).unwrap();
        assert_eq!(serde_json::from_value::<PoolLayout>(sent.clone()).unwrap(), layout);
        for (path, value) in [
            ("/pages", 0),
            ("/pages", u64::MAX),
            ("/regions/0/offset_bytes", u64::MAX),
            ("/regions/0/layer_pitch_bytes", u64::MAX),
            ("/regions/0/row_bytes", 1 << 40),
            ("/regions/0/page_pitch_bytes", 1),
            ("/regions/0/segment", 99),
            ("/regions/0/layers/end", 0),
            ("/segment_bytes/0", 0),
            ("/segment_bytes/0", 1 << 40),
        ] {
            let mut tampered = sent.clone();
            *tampered.pointer_mut(path).unwrap() = value.into();
            assert!(serde_json::from_value::<PoolLayout>(tampered).is_err(), "{name}: {path} = {value}");
        }
    }
}
