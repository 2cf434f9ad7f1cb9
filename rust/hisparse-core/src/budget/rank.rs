//! What one rank holds of a model: its layers, and what a page of tokens costs in each of its pools.
//!
//! ```text
//!             page of 64 tokens (DeepSeek-V4: 256, so that a C4 page still has 64 rows)
//!  hot        ■■■■■■■■  main KV of sparse layers        device pool (N tokens) and host pool
//!  indexer    ■■        keys of layers that score       GPU at logical size, and host pool
//!  resident   ■         main KV that is never swapped   GPU at logical size, and host pool
//!  window     ■         sliding window, compressor      GPU, per seat
//! ```
//! `resident` is the dense layers of MiniMax M3 and the C128 rows of DeepSeek-V4.

use crate::budget::request::{LayerSpan, PlanRequest};
use crate::error::{Problem, Problems};
use crate::layout::{RowLayout, StrideAlign, index_dtype_beside, tokens_per_index_row};
use crate::limits::PAGE_TOKENS;
use crate::model::{Layer, Model, Shape};

/// Bytes of one page in each pool, all layers of the rank together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageBytes {
    /// Main KV of sparse layers.
    pub hot: u64,
    /// Indexer keys.
    pub indexer: u64,
    /// Main KV that stays on the GPU at logical size.
    pub resident: u64,
    /// Main KV of draft layers.
    pub draft_hot: u64,
    /// Indexer keys of draft layers.
    pub draft_indexer: u64,
}

impl PageBytes {
    /// Bytes that grow with the device pool.
    pub const fn device(&self) -> u64 {
        self.hot + self.draft_hot
    }

    /// Bytes on the GPU that grow with the logical size.
    pub const fn logical(&self) -> u64 {
        self.indexer + self.resident + self.draft_indexer
    }

    /// Bytes in the host pool, and on the GPU where everything stays there. A page is durable, or shareable, only
    /// when all that decoding needs of it is in host memory, so indexer keys and resident rows are copied too.
    pub const fn whole(&self) -> u64 {
        self.device() + self.logical()
    }
}

/// One rank's part of a model.
#[derive(Clone, Debug)]
pub struct Rank<'a> {
    /// The model.
    pub model: &'a Model,
    /// Its main layers.
    pub layers: &'a [Layer],
    /// Draft layers it holds.
    pub draft_layers: u64,
    /// Main KV of one token in one layer.
    pub main: RowLayout,
    /// One indexer key in one layer; how many tokens it stands for, [`tokens_per_index_row`] says.
    pub indexer: RowLayout,
    /// Tokens of one page.
    pub page_tokens: u64,
    /// Tokens that one main row of a sparse layer stands for.
    pub tokens_per_row: u64,
    /// What a page costs.
    pub page: PageBytes,
}

/// Rows of one page of the window pool, and of the page that holds a seat's newest rows.
pub const PAGE_ROWS: u64 = PAGE_TOKENS;

impl<'a> Rank<'a> {
    /// The part of `model` that the request's rank holds.
    ///
    /// # Errors
    /// A span outside the model, more stages than layers, heads that the ranks do not divide, a format that the family
    /// does not have; all together.
    pub fn new(model: &'a Model, request: &PlanRequest) -> Result<Self, Problems> {
        let mut problems = Problems::new();
        let mut noted = |problem: Problem| problems.push(problem);
        let main = RowLayout::main(model, request.kv_dtype, request.tp).map_err(&mut noted).ok();
        let indexer = RowLayout::indexer(model, index_dtype_beside(model, request.kv_dtype)).map_err(&mut noted).ok();
        let stages = stages(model, request).map_err(&mut noted).ok();
        let (Some(main), Some(indexer), Some(stages)) = (main, indexer, stages) else { return Err(problems) };
        let tokens_per_row = match model.shape {
            Shape::DeepseekV4 { .. } => Layer::INDEXED_RATIO,
            Shape::Mla { .. } | Shape::Mha { .. } => 1,
        };
        let ends_model = |to: usize| to == model.layers.len() || matches!(request.layers, LayerSpan::First(_));
        let rank = |(from, to): (usize, usize)| {
            let mut rank = Self {
                model,
                layers: &model.layers[from..to],
                draft_layers: if ends_model(to) { draft_layers(model, request) } else { 0 },
                main: main.clone(),
                indexer: indexer.clone(),
                page_tokens: PAGE_ROWS * tokens_per_row,
                tokens_per_row,
                page: PageBytes::default(),
            };
            rank.page = rank.page_bytes()?;
            Some(rank)
        };
        let ranks: Option<Vec<Self>> = stages.into_iter().map(rank).collect();
        let heaviest = ranks.and_then(|ranks| ranks.into_iter().rev().max_by_key(|rank| rank.page.whole()));
        heaviest.ok_or_else(|| Problems::one(too_large("config.json", &model.name)))
    }

    /// Layers of this rank for which `keep` holds.
    pub fn count(&self, keep: impl Fn(Layer) -> bool) -> u64 {
        self.layers.iter().fold(0, |count, layer| count + u64::from(keep(*layer)))
    }

    /// Layers whose main KV may live in host memory.
    pub fn sparse_layers(&self) -> u64 {
        self.count(Layer::is_sparse)
    }

    /// Layers with an indexer cache.
    pub fn indexer_layers(&self) -> u64 {
        self.count(Layer::has_indexer)
    }

    /// Layers that keep rows of main KV.
    pub fn kv_layers(&self) -> u64 {
        self.count(|layer| layer != Layer::Linear)
    }

    /// Groups of layers that share one top-k, and so one hot-cache plan: each indexed layer with the layers that reuse
    /// it; layers before the stage's first indexed one; each draft layer.
    pub fn groups(&self) -> u64 {
        let headless = self.layers.iter().find(|layer| layer.is_sparse()) == Some(&Layer::Shared);
        self.indexer_layers() + u64::from(headless) + if self.drafts_are_sparse() { self.draft_layers } else { 0 }
    }

    /// Main layers of each of those groups, in the order of the layers.
    pub fn layer_groups(&self) -> Vec<u64> {
        let mut groups: Vec<u64> = Vec::new();
        for layer in self.layers.iter().filter(|layer| layer.is_sparse()) {
            match groups.last_mut() {
                Some(layers) if *layer == Layer::Shared => *layers += 1,
                _ => groups.push(1),
            }
        }
        groups
    }

    /// Whether draft layers pick a subset, as MLA and M3 drafts do. DeepSeek-V4's keep the window alone.
    pub const fn drafts_are_sparse(&self) -> bool {
        !matches!(self.model.shape, Shape::DeepseekV4 { .. })
    }

    /// Bytes from one main row to the next.
    pub const fn row_stride_bytes(&self) -> u64 {
        self.main.stride_bytes(StrideAlign::Packed)
    }

    /// Pages that hold this many tokens.
    pub const fn pages(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.page_tokens)
    }

    fn page_bytes(&self) -> Option<PageBytes> {
        let row_page = self.main.page_bytes(PAGE_ROWS)?;
        let index_page = self.indexer.page_bytes(self.page_tokens / tokens_per_index_row(self.model))?;
        let sparse_drafts = if self.drafts_are_sparse() { self.draft_layers } else { 0 };
        let resident = self.layers.iter().try_fold(0_u64, |sum, layer| {
            let bytes = match *layer {
                Layer::Dense => row_page,
                Layer::Compressed { ratio } if !layer.has_indexer() => {
                    self.main.page_bytes((self.page_tokens / ratio.max(1)).max(1))?
                }
                _ => 0,
            };
            sum.checked_add(bytes)
        })?;
        let page = PageBytes {
            hot: self.sparse_layers().checked_mul(row_page)?,
            indexer: self.indexer_layers().checked_mul(index_page)?,
            resident,
            draft_hot: sparse_drafts.checked_mul(row_page)?,
            draft_indexer: sparse_drafts.checked_mul(index_page)?,
        };
        [page.hot, page.indexer, page.resident, page.draft_hot, page.draft_indexer]
            .iter()
            .try_fold(0_u64, |sum, bytes| sum.checked_add(*bytes))
            .map(|_| page)
    }
}

/// Draft layers to budget: what was asked for; under `--mtp` the checkpoint's own, at least one; else none.
pub fn draft_layers(model: &Model, request: &PlanRequest) -> u64 {
    request.draft_layers.unwrap_or(if request.mtp > 0 { model.draft_layers.max(1) } else { 0 })
}

/// The problem that a number makes byte counts overflow.
pub fn too_large(field: &str, value: impl std::fmt::Display) -> Problem {
    Problem::new(field, value, "leads to byte counts beyond 64 bits", "give a smaller number")
}

/// Layers `from..to` of the ranks to choose from: the whole model, its first layers, a stage by number, or each of `--pp`
/// equal stages, of which the one whose page takes the most bytes limits all; the first of several such.
fn stages(model: &Model, request: &PlanRequest) -> Result<Vec<(usize, usize)>, Problem> {
    let all = model.layers.len();
    let within = |layers: u64| usize::try_from(layers).ok().filter(|count| *count <= all);
    match request.layers {
        LayerSpan::First(count) => within(count).map(|to| vec![(0, to)]).ok_or_else(|| {
            Problem::new("--num-layers", count, format!("must be at most the model's {all} layers"), "give fewer")
        }),
        LayerSpan::Stage(from, to) => within(from).zip(within(to)).map(|stage| vec![stage]).ok_or_else(|| {
            let rule = format!("must lie within the model's {all} layers");
            Problem::new("--stage", format!("{from}:{to}"), rule, format!("end at {all} at most"))
        }),
        LayerSpan::All => {
            let stages = usize::try_from(request.pp).ok().filter(|stages| (1..=all).contains(stages));
            let Some(stages) = stages else {
                let rule = format!("must be at most the model's {all} layers");
                return Err(Problem::new("--pp", request.pp, rule, "use fewer stages"));
            };
            let bound = |stage: usize| all * stage / stages;
            Ok((0..stages).map(|stage| (bound(stage), bound(stage + 1))).collect())
        }
    }
}
