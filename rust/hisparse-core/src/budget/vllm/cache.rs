//! A model's cache as vLLM's HiSparse sees it: one row, one indexer key, and which layers lead.
//!
//! ```text
//!  Model + KV type ──► row 576 | 656 | 1152 B, indexer 132 B, F F F S S S F …, one more F per draft layer
//! ```

use crate::error::{Problem, Problems};
use crate::layout::{RowLayout, default_index_dtype};
use crate::limits::MAX_LAYERS;
use crate::model::{Family, Layer, Model, Shape};
use crate::platform::KvDtype;

use super::groups::Geometry;

/// Rows are copied in vectors of this many bytes, so their size must be a multiple of it.
pub const ROW_ALIGNMENT_BYTES: u64 = 16;

/// What blocks are made of, for one model and KV type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    row_bytes: u64,
    indexer_bytes: u64,
    leads: Vec<bool>,
    draft_layers: usize,
}

impl Cache {
    /// The cache of `model`'s first `layers` layers and of `draft_layers` that each have an indexer of their own, on one
    /// of `tp` tensor-parallel ranks; all ranks hold the same rows.
    ///
    /// # Errors
    /// A family or a layer that vLLM refuses or that has no recorded answer, widths a row cannot have, and heads that `tp` does not divide.
    pub fn of(model: &Model, dtype: KvDtype, tp: u64, layers: usize, draft_layers: usize) -> Result<Self, Problems> {
        let mut problems = refused_layers(model);
        let row = RowLayout::main(model, dtype, tp).map_err(|problem| problems.push(problem));
        let indexer = RowLayout::indexer(model, default_index_dtype(model)).map_err(|problem| problems.push(problem));
        if let Ok(row) = &row
            && !row.row_bytes().is_multiple_of(ROW_ALIGNMENT_BYTES)
        {
            problems.push(Problem::new(
                "--kv-dtype",
                dtype,
                format!("gives rows of {} bytes, vLLM needs a multiple of {ROW_ALIGNMENT_BYTES}", row.row_bytes()),
                "use another KV type",
            ));
        }
        if draft_layers as u64 > MAX_LAYERS {
            problems.push(Problem::new(
                "--draft-layers",
                draft_layers,
                format!("must be at most {MAX_LAYERS}"),
                "give a smaller number",
            ));
        }
        let (Ok(row), Ok(indexer), true) = (row, indexer, problems.is_empty()) else { return Err(problems) };
        let mut leads: Vec<bool> = model.layers.iter().take(layers).map(|layer| layer.has_indexer()).collect();
        leads.extend(std::iter::repeat_n(true, draft_layers));
        Ok(Self { row_bytes: row.row_bytes(), indexer_bytes: indexer.row_bytes(), leads, draft_layers })
    }

    /// Main layers, draft layers not counted.
    pub fn main_layers(&self) -> u64 {
        self.main().len() as u64
    }

    /// Main layers with an indexer.
    pub fn indexed_layers(&self) -> u64 {
        self.main().iter().filter(|leads| **leads).count() as u64
    }

    fn main(&self) -> &[bool] {
        &self.leads[..self.leads.len() - self.draft_layers]
    }

    /// Its shape with blocks of `block_tokens`.
    pub fn geometry(&self, block_tokens: u64) -> Geometry<'_> {
        Geometry { row_bytes: self.row_bytes, indexer_bytes: self.indexer_bytes, leads: &self.leads, block_tokens }
    }
}

fn refused_layers(model: &Model) -> Problems {
    let mut problems = Problems::new();
    let mut refuse = |value: String, rule: &str, remedy: &str| {
        problems.push(Problem::new("model", value, rule, remedy));
    };
    if model.family == Family::DeepseekV4 {
        refuse(
            model.name.clone(),
            "is DeepSeek V4, which vLLM's HiSparse refuses",
            "plan it with --engine native or sglang",
        );
    } else if !matches!(model.shape, Shape::Mla { .. }) {
        refuse(model.name.clone(), "has no MLA layer for HiSparse", "plan it with --no-hisparse");
    } else if let Some(layer) = model.layers.iter().find(|layer| !matches!(layer, Layer::Indexed | Layer::Shared)) {
        refuse(
            format!("{} with {layer:?} layers", model.name),
            "mixes layer kinds for which vLLM's answer is not recorded",
            "plan it with --engine native",
        );
    } else if model.index_pooling != 1 {
        refuse(
            format!("{} with {} tokens per indexer key", model.name, model.index_pooling),
            "pools indexer keys, for which vLLM's answer is not recorded",
            "plan it with --engine native",
        );
    }
    problems
}
