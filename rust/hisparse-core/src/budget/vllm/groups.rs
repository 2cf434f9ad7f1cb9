//! Layers packed into cache groups, and the one block size that all GPU groups share.
//!
//! ```text
//!  layers   F   F   F S S S   F S S S  …          F leads (has an indexer), S reuses its leader's picks
//!  units   [F] [F] [F S S S] [F S S S] …          a leader with its followers is never split
//!  groups  [F   F] [F S S S] [F S S S] …          as many units as fit in one indexer page
//!
//!  indexer page = leaders × indexer bytes × block tokens
//!  GPU block    = the largest group's page, rounded up to whole hot pages
//! ```
//! The rounding is a quirk with a price: one draft layer takes GLM-5.2's FP8 block from 184,320 to 221,184 bytes.

use serde::Serialize;

use crate::error::{Problem, Problems};

use super::counted;

/// The shape of a sparse-MLA cache, as far as blocks depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Geometry<'a> {
    /// Bytes of one token's main KV in one layer.
    pub row_bytes: u64,
    /// Bytes of one token's indexer key in one leading layer.
    pub indexer_bytes: u64,
    /// Per layer, draft layers included: whether it has its own indexer.
    pub leads: &'a [bool],
    /// Tokens of one block.
    pub block_tokens: u64,
}

/// Cache groups and what their blocks cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Groups {
    /// Layers of each hot group; as many resident groups pair with them.
    pub hot_group_layers: Vec<u64>,
    /// Layers with main KV, over all groups.
    pub layers: u64,
    /// Bytes of one layer's block: the page of every hot and resident layer, and of every host layer.
    pub hot_page_bytes: u64,
    /// Bytes of all indexers' keys for one block.
    pub indexer_page_bytes: u64,
    /// Bytes of one block of the shared GPU pool.
    pub gpu_block_bytes: u64,
    /// Bytes of one host block: every layer's rows.
    pub host_block_bytes: u64,
}

impl Groups {
    /// Hot groups; the resident groups are as many.
    pub fn hot_groups(&self) -> u64 {
        // A group has a layer, and layers were counted in 64 bits.
        self.hot_group_layers.len() as u64
    }

    /// All groups: the host source, the indexer, and the pairs.
    pub fn total(&self) -> u64 {
        self.hot_groups().saturating_mul(2).saturating_add(2)
    }

    /// Bytes of one block in the same engine without HiSparse: every layer's rows and every indexer's keys.
    pub fn baseline_block_bytes(&self) -> Option<u64> {
        self.host_block_bytes.checked_add(self.indexer_page_bytes)
    }

    /// Bytes per GPU block that no indexer key ever uses: what rounding and packing cost.
    pub fn unused_by_indexer_bytes(&self) -> u64 {
        self.gpu_block_bytes.saturating_sub(self.indexer_page_bytes)
    }
}

/// Packs the layers as vLLM does.
///
/// # Errors
/// No layer, no leading layer, an empty row or block, or numbers that overflow.
pub fn pack(geometry: Geometry<'_>) -> Result<Groups, Problems> {
    let Geometry { row_bytes, indexer_bytes, leads, block_tokens } = geometry;
    check_shape(geometry)?;
    let indexed_layers = leads.iter().filter(|leads| **leads).count() as u64;
    let layers = leads.len() as u64;
    let hot_page_bytes = counted("block_size", block_tokens, row_bytes.checked_mul(block_tokens))?;
    let indexer_page_bytes = counted(
        "block_size",
        block_tokens,
        indexer_bytes.checked_mul(block_tokens).and_then(|page| page.checked_mul(indexed_layers)),
    )?;
    let host_block_bytes = counted("num_hidden_layers", layers, hot_page_bytes.checked_mul(layers))?;

    let hot_group_layers = fill(&units(leads), indexer_page_bytes / hot_page_bytes);
    let largest = hot_group_layers.iter().copied().max().unwrap_or(0);
    // `largest` is at most `layers`, whose product was checked above.
    let largest_group_bytes = hot_page_bytes * largest;
    let gpu_block_bytes = counted(
        "block_size",
        block_tokens,
        indexer_page_bytes.max(largest_group_bytes).checked_next_multiple_of(hot_page_bytes),
    )?;
    Ok(Groups { hot_group_layers, layers, hot_page_bytes, indexer_page_bytes, gpu_block_bytes, host_block_bytes })
}

fn check_shape(geometry: Geometry<'_>) -> Result<(), Problems> {
    let mut problems = Problems::new();
    if !geometry.leads.contains(&true) || geometry.indexer_bytes == 0 || geometry.row_bytes == 0 {
        problems.push(Problem::new(
            "model",
            format!("{} layers", geometry.leads.len()),
            "needs sparse-MLA rows and indexer keys in at least one layer",
            "use a model with an indexer, or turn HiSparse off",
        ));
    }
    if geometry.block_tokens == 0 {
        problems.push(Problem::new("block_size", 0, "must be at least 1", "use 64"));
    }
    problems.into_result(())
}

/// Layers of each leader with its followers. Layers before the first leader start a unit of their own.
fn units(leads: &[bool]) -> Vec<u64> {
    let mut units: Vec<u64> = Vec::new();
    for leads in leads {
        match units.last_mut() {
            Some(unit) if !leads => *unit += 1,
            _ => units.push(1),
        }
    }
    units
}

/// Units put into groups in order, a group closed when the next unit would exceed `capacity` layers. A unit larger
/// than that gets a group of its own.
fn fill(units: &[u64], capacity: u64) -> Vec<u64> {
    let mut groups: Vec<u64> = Vec::new();
    for unit in units {
        match groups.last_mut() {
            Some(group) if *group + unit <= capacity => *group += unit,
            _ => groups.push(*unit),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GLM-5.2 and 5.3: three leading layers, then one in four.
    fn glm(draft_layers: usize) -> Vec<bool> {
        let mut leads: Vec<bool> = (0..78).map(|layer| layer < 3 || layer % 4 == 2).collect();
        leads.extend(std::iter::repeat_n(true, draft_layers));
        leads
    }

    fn packed(row_bytes: u64, leads: &[bool]) -> Groups {
        pack(Geometry { row_bytes, indexer_bytes: 132, leads, block_tokens: 64 }).unwrap()
    }

    #[test]
    fn glm_has_twenty_hot_groups_and_the_published_blocks() {
        let fp8 = packed(576, &glm(0));
        assert_eq!((fp8.hot_groups(), fp8.total()), (20, 42));
        assert_eq!(fp8.gpu_block_bytes, 184_320);
        assert_eq!(fp8.host_block_bytes, 2_875_392);
        assert_eq!(fp8.baseline_block_bytes(), Some(3_052_800));
        assert_eq!(fp8.baseline_block_bytes().map(|block| block / 64), Some(78 * 576 + 21 * 132));

        let bf16 = packed(1152, &glm(0));
        assert_eq!(bf16.gpu_block_bytes, 294_912);
        assert_eq!((bf16.host_block_bytes, bf16.baseline_block_bytes()), (5_750_784, Some(5_928_192)));
    }

    #[test]
    fn one_draft_layer_rounds_the_block_up_a_fifth() {
        assert_eq!(packed(576, &glm(1)).gpu_block_bytes, 221_184);
    }

    #[test]
    fn the_scaled_record_rounds_v32_above_its_indexer_page() {
        let groups = packed(656, &[true; 61]);
        assert_eq!((groups.indexer_page_bytes, groups.gpu_block_bytes), (515_328, 545_792));
        assert_eq!(groups.hot_group_layers, [12, 12, 12, 12, 12, 1]);
    }

    #[test]
    fn two_layers_waste_over_half_of_each_indexer_block() {
        let groups = packed(576, &[true; 2]);
        assert!(groups.unused_by_indexer_bytes() * 2 > groups.gpu_block_bytes);
    }

    #[test]
    fn a_model_without_an_indexer_is_refused() {
        for leads in [&[][..], &[false, false]] {
            let geometry = Geometry { row_bytes: 576, indexer_bytes: 132, leads, block_tokens: 64 };
            assert!(pack(geometry).is_err(), "{leads:?}");
        }
    }

    #[test]
    fn absurd_widths_are_an_error() {
        let geometry = Geometry { row_bytes: u64::MAX / 2, indexer_bytes: 132, leads: &[true], block_tokens: 64 };
        assert!(pack(geometry).is_err());
    }
}
