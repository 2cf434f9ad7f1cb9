//! A layout that came from another process: believed only after every number in it has been checked.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::{PoolLayout, Region};
use crate::limits::MAX_SEGMENT_BYTES;

/// A layout as it is sent, nothing of it checked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    pages: u64,
    regions: Vec<Region>,
    segment_bytes: Vec<u64>,
}

impl<'de> Deserialize<'de> for PoolLayout {
    fn deserialize<D: Deserializer<'de>>(sent: D) -> Result<Self, D::Error> {
        Self::try_from(Unchecked::deserialize(sent)?).map_err(D::Error::custom)
    }
}

impl TryFrom<Unchecked> for PoolLayout {
    type Error = String;

    fn try_from(sent: Unchecked) -> Result<Self, String> {
        if sent.pages == 0 {
            return Err("the layout has no pages".into());
        }
        if sent.segment_bytes.iter().any(|bytes| !(1..=MAX_SEGMENT_BYTES).contains(bytes)) {
            return Err("a segment is empty or longer than 64 GiB".into());
        }
        for region in &sent.regions {
            let segment = sent.segment_bytes.get(region.segment).copied();
            let fits = end_of(region, sent.pages).zip(segment).is_some_and(|(end, segment)| end <= segment);
            if !fits || region.layers.is_empty() || !rows_fit(region) {
                return Err(format!("a region does not lie within its segment: {region:?}"));
            }
        }
        Ok(Self { pages: sent.pages, regions: sent.regions, segment_bytes: sent.segment_bytes })
    }
}

fn end_of(region: &Region, pages: u64) -> Option<u64> {
    region.page_pitch_bytes.checked_mul(pages)?.checked_add(region.offset_bytes)
}

/// Whether all layers, and the last row of the last of them, end within a page.
fn rows_fit(region: &Region) -> bool {
    let layers = region.layers.len() as u64;
    let all_layers = region.layer_pitch_bytes.checked_mul(layers);
    let last_layer = all_layers.and_then(|all| all.checked_sub(region.layer_pitch_bytes));
    let last_row = region.row_pitch_bytes.checked_mul(region.page_rows.saturating_sub(1));
    let end = last_layer.zip(last_row).and_then(|(layer, row)| layer.checked_add(row)?.checked_add(region.row_bytes));
    [all_layers, end].into_iter().all(|bytes| bytes.is_some_and(|bytes| bytes <= region.page_pitch_bytes))
}
