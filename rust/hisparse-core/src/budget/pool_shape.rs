//! From what a plan budgets to what a host pool lays out: the same rank, the same bytes.

use serde_json::{Map, Value};

use crate::budget::Plan;
use crate::budget::rank::Rank;
use crate::budget::request::PlanRequest;
use crate::error::Problems;
use crate::layout::StrideAlign;
use crate::layout::pool::{PoolLayout, PoolShape};
use crate::layout::tokens_per_index_row;
use crate::model::Model;
use crate::platform::LayerGroups;

/// Lays out the host pool of the rank that `plan` is the answer for; `map` is what was asked then.
///
/// # Errors
/// What the planner would refuse, and a pool too large to be laid out.
pub fn pool_layout_of_map(
    model: &Model,
    map: &Map<String, Value>,
    plan: &Plan,
    align: StrideAlign,
    groups: LayerGroups,
) -> Result<PoolLayout, Problems> {
    let request = PlanRequest::read(map);
    let request = request.1.into_result(request.0)?;
    let rank = Rank::new(model, &request)?;
    PoolLayout::new(&rank.pool_shape(plan.logical_tokens / plan.page_tokens.max(1), align, groups))
}

impl Rank<'_> {
    /// What this rank's host pool holds: `logical_pages` that can be granted, and one more for what must go nowhere.
    /// Overflow is left to the layout, which refuses that many pages.
    pub fn pool_shape(&self, logical_pages: u64, align: StrideAlign, groups: LayerGroups) -> PoolShape<'_> {
        PoolShape {
            layers: self.layers,
            draft_layers: self.draft_layers,
            main: &self.main,
            indexer: &self.indexer,
            page_tokens: self.page_tokens,
            tokens_per_row: self.tokens_per_row,
            tokens_per_index_row: tokens_per_index_row(self.model),
            pages: logical_pages.saturating_add(1),
            align,
            groups,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::device_bytes::host_bytes;
    use crate::budget::request::LayerSpan;
    use crate::layout::pool::Content;
    use crate::model::presets;
    use crate::platform::KvDtype;

    #[test]
    fn a_pool_holds_the_planners_bytes_for_every_model_format_and_rank() {
        let mut seen = 0;
        for preset in presets::ALL {
            let name = preset.name;
            let model = presets::preset(name).unwrap();
            for kv_dtype in KvDtype::ALL.iter().copied() {
                for (layers, mtp, tp) in
                    [(LayerSpan::All, 0, 1), (LayerSpan::All, 2, 2), (LayerSpan::Stage(3, 9), 1, 1)]
                {
                    let request = PlanRequest { kv_dtype, layers, tp, mtp, ..PlanRequest::default() };
                    // Formats that a family does not have are the planner's to refuse.
                    let Ok(rank) = Rank::new(&model, &request) else { continue };
                    for pages in [1, 12_345] {
                        let case = format!("{name} {kv_dtype} {layers:?} mtp {mtp} tp {tp} {pages} pages");
                        let shape = rank.pool_shape(pages, StrideAlign::Packed, LayerGroups::Auto);
                        let layout = PoolLayout::new(&shape).unwrap_or_else(|e| panic!("{case}: {e}"));
                        assert_eq!(Some(layout.payload_bytes()), host_bytes(&rank, pages), "{case}");
                        seen += 1;
                    }
                }
            }
        }
        assert!(seen > 60, "only {seen} cases were laid out");
    }

    #[test]
    fn the_pool_of_a_plan_has_its_pages_and_its_bytes() {
        let model = presets::preset("glm-5.2").unwrap();
        let asked = serde_json::json!({"kv_bytes": "20GiB", "host_pool": "1GiB"});
        let asked = asked.as_object().unwrap();
        let plan = crate::budget::plan_of_map(Ok(&model), asked).unwrap();
        let layout = pool_layout_of_map(&model, asked, &plan, StrideAlign::Packed, LayerGroups::Auto).unwrap();
        assert_eq!(layout.spare_page() * plan.page_tokens, plan.logical_tokens);
        assert_eq!(layout.payload_bytes(), plan.host_bytes);
    }

    #[test]
    fn layer_groups_are_the_hot_cache_plans() {
        let model = presets::preset("glm-5.2").unwrap();
        for layers in [LayerSpan::All, LayerSpan::Stage(4, 20)] {
            let request = PlanRequest { layers, mtp: 1, ..PlanRequest::default() };
            let rank = Rank::new(&model, &request).unwrap();
            let layout = PoolLayout::new(&rank.pool_shape(10, StrideAlign::Packed, LayerGroups::Auto)).unwrap();
            let main = layout.regions().iter().filter(|region| region.content == Content::Main).count();
            assert_eq!(main as u64, rank.groups(), "{layers:?}");
            let of_layers: Vec<u64> = layout
                .regions()
                .iter()
                .filter(|region| region.content == Content::Main && region.layers.end <= rank.layers.len())
                .map(|region| region.layers.len() as u64)
                .collect();
            assert_eq!(of_layers, rank.layer_groups(), "{layers:?}");
        }
    }

    #[test]
    fn a_number_of_pages_beyond_64_bits_is_refused() {
        let model = presets::preset("glm-5.2").unwrap();
        let request = PlanRequest::default();
        let rank = Rank::new(&model, &request).unwrap();
        assert!(PoolLayout::new(&rank.pool_shape(u64::MAX, StrideAlign::Packed, LayerGroups::Off)).is_err());
    }
}
