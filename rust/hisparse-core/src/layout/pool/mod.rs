//! Where every row of a host pool lies: which segment, how far in, how far apart.
//!
//! ```text
//!  segment 0 │ region: layers 0–3  [page][row][layer 0‥3] │ region: layers 4–6  [page][row][layer 4‥6] │ …
//!  segment n │ region: keys of layer 0  [page][bytes]      │ region: keys of layer 4 │ …
//! ```
//! A region is one *group* of layers over all pages; layers that share an index miss the same tokens, so their rows lie
//! side by side and one token is one run of bytes. Index keys have regions of their own under the same page numbers. A
//! segment holds whole regions and is at most [`MAX_SEGMENT_BYTES`]; a group too long for one segment is cut into
//! the fewest equal parts that fit. The last page takes what must go nowhere; the ledger never grants it.
//!
//! Every offset is 64-bit: 32 bits wrap at 2 GiB, silently, on any real pool.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Arrangement, RowLayout};
use crate::error::{Problem, Problems};
use crate::limits::MAX_SEGMENT_BYTES;

mod groups;
mod shape;
mod wire;

use groups::groups;

pub use shape::PoolShape;

/// Regions begin at multiples of this, so that a device can register layer by layer: 4 KiB.
pub const REGION_ALIGN_BYTES: u64 = 4096;

/// What a region holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Main KV.
    Main,
    /// Index keys.
    Indexer,
}

impl std::fmt::Display for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Main => "main KV",
            Self::Indexer => "index keys",
        })
    }
}

/// One group of layers over all pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// What it holds.
    pub content: Content,
    /// Its layers, draft layers numbered on from the main ones.
    pub layers: Range<usize>,
    /// Segment it lies in.
    pub segment: usize,
    /// Where it begins there, in bytes.
    pub offset_bytes: u64,
    /// Bytes of one row in one layer, without the space to the next.
    pub row_bytes: u64,
    /// Rows of one page.
    pub page_rows: u64,
    /// From one page's start to the next, in bytes.
    pub page_pitch_bytes: u64,
    /// From one row's start to the next, all its layers between them, in bytes; 0 where a page is not row after row
    /// (its values come first, then its scales).
    pub row_pitch_bytes: u64,
    /// From one layer's row to the next layer's row of the same token, in bytes.
    pub layer_pitch_bytes: u64,
}

/// Where one layer's rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LayerView {
    /// Segment.
    pub segment: usize,
    /// Its first row there, in bytes.
    pub base_bytes: u64,
    /// Bytes of one row.
    pub row_bytes: u64,
    /// From one page's start to the next, in bytes.
    pub page_pitch_bytes: u64,
    /// From one row's start to the next, in bytes; 0 where a page is not row after row.
    pub row_pitch_bytes: u64,
    /// Rows of one page.
    pub page_rows: u64,
}

/// The layout of a whole pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolLayout {
    pages: u64,
    regions: Vec<Region>,
    segment_bytes: Vec<u64>,
}

impl PoolLayout {
    /// Lays a pool out.
    ///
    /// # Errors
    /// No page, a layer too long for a segment, or bytes beyond 64 bits.
    pub fn new(shape: &PoolShape<'_>) -> Result<Self, Problems> {
        if shape.pages == 0 {
            let rule = "must hold at least one page";
            return Err(Problems::one(Problem::new("--host-pool", 0, rule, "give a larger host pool")));
        }
        let mut layout = Self { pages: shape.pages, regions: Vec::new(), segment_bytes: Vec::new() };
        let drafts = usize::try_from(shape.draft_layers).map_err(|_| too_long(shape))?;
        for (layers, rows) in groups(shape, drafts) {
            layout.push_main(shape, layers, rows)?;
        }
        let keys = shape.page_tokens / shape.tokens_per_index_row.max(1);
        let draft_keys = std::iter::repeat_n(groups::drafts_have_rows(shape), drafts);
        let scored = shape.layers.iter().map(|layer| layer.has_indexer()).chain(draft_keys);
        for (layer, _) in scored.enumerate().filter(|(_, scored)| *scored) {
            let page_bytes = shape.indexer.page_bytes(keys).ok_or_else(|| too_long(shape))?;
            layout.push(shape, Content::Indexer, layer..layer + 1, shape.indexer, keys, page_bytes)?;
        }
        Ok(layout)
    }

    /// Pages, the last one included.
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// The page that takes what must go nowhere.
    pub const fn spare_page(&self) -> u64 {
        self.pages - 1
    }

    /// Its regions in the order they lie.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Its layer groups in the order of the layers, by which engines number them: rows that lie side by side.
    pub fn groups(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().filter(|region| region.content == Content::Main)
    }

    /// Sizes of its segments in bytes, in order.
    pub fn segment_bytes(&self) -> &[u64] {
        &self.segment_bytes
    }

    /// Bytes of all its segments together.
    pub fn total_bytes(&self) -> u64 {
        self.segment_bytes.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
    }

    /// Bytes that hold rows and keys: the planner's `host_bytes`. Segments add less than a page per region to it.
    pub fn payload_bytes(&self) -> u64 {
        self.regions.iter().fold(0, |sum, region| sum + region.page_pitch_bytes * self.pages)
    }

    /// Where a layer's rows or keys lie; `None` where the pool holds none of them.
    pub fn layer(&self, content: Content, layer: usize) -> Option<LayerView> {
        let region = self.regions.iter().find(|r| r.content == content && r.layers.contains(&layer))?;
        let before = u64::try_from(layer - region.layers.start).ok()?;
        Some(LayerView {
            segment: region.segment,
            base_bytes: region.offset_bytes + before * region.layer_pitch_bytes,
            row_bytes: region.row_bytes,
            page_pitch_bytes: region.page_pitch_bytes,
            row_pitch_bytes: region.row_pitch_bytes,
            page_rows: region.page_rows,
        })
    }

    /// The bytes of `pages` in each region, as (segment, range within it): what scrubbing must make zero.
    pub fn ranges_of(&self, pages: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> + '_ {
        let (start, end) = (pages.start.min(self.pages), pages.end.min(self.pages));
        self.regions.iter().filter(move |_| start < end).map(move |region| {
            let at = |page: u64| region.offset_bytes + page * region.page_pitch_bytes;
            (region.segment, at(start)..at(end))
        })
    }

    fn push_main(&mut self, shape: &PoolShape<'_>, layers: Range<usize>, rows: u64) -> Result<(), Problems> {
        let count = layers.len() as u64;
        let page_bytes = match shape.main.arrangement() {
            Arrangement::RowMajor => shape.main.stride_bytes(shape.align).checked_mul(rows),
            Arrangement::ScalesLast { .. } => shape.main.page_bytes(rows),
        };
        let page_bytes = page_bytes.and_then(|bytes| bytes.checked_mul(count)).ok_or_else(|| too_long(shape))?;
        // The fewest equal parts: one layer more in the first ones where the count does not divide.
        let most = self.most_layers(page_bytes / count.max(1));
        if most == 0 {
            return Err(too_long(shape));
        }
        let parts = layers.len().div_ceil(most);
        let (each, longer) = (layers.len() / parts, layers.len() % parts);
        let mut start = layers.start;
        for part in 0..parts {
            let end = start + each + usize::from(part < longer);
            let bytes = page_bytes / count * (end - start) as u64;
            self.push(shape, Content::Main, start..end, shape.main, rows, bytes)?;
            start = end;
        }
        Ok(())
    }

    /// Layers of `page_bytes` a page each that fit one segment.
    fn most_layers(&self, page_bytes: u64) -> usize {
        let layer_bytes = page_bytes.checked_mul(self.pages).filter(|bytes| *bytes > 0);
        layer_bytes.map_or(0, |bytes| usize::try_from(MAX_SEGMENT_BYTES / bytes).unwrap_or(usize::MAX))
    }

    fn push(
        &mut self,
        shape: &PoolShape<'_>,
        content: Content,
        layers: Range<usize>,
        row: &RowLayout,
        page_rows: u64,
        page_pitch_bytes: u64,
    ) -> Result<(), Problems> {
        let bytes = page_pitch_bytes
            .checked_mul(self.pages)
            .filter(|bytes| *bytes <= MAX_SEGMENT_BYTES)
            .ok_or_else(|| too_long(shape))?;
        let start = self.segment_bytes.last().map_or(u64::MAX, |end| end.next_multiple_of(REGION_ALIGN_BYTES));
        let offset_bytes = match (start.checked_add(bytes), self.segment_bytes.last_mut()) {
            (Some(end), Some(segment)) if end <= MAX_SEGMENT_BYTES => {
                *segment = end;
                start
            }
            _ => {
                self.segment_bytes.push(bytes);
                0
            }
        };
        let (layer_pitch_bytes, row_pitch_bytes) = match (row.arrangement(), content) {
            (Arrangement::RowMajor, Content::Main) => {
                let stride = row.stride_bytes(shape.align);
                (stride, stride * layers.len() as u64)
            }
            (Arrangement::RowMajor, Content::Indexer) => (row.row_bytes(), row.row_bytes()),
            (Arrangement::ScalesLast { .. }, _) => (page_pitch_bytes, 0),
        };
        let segment = self.segment_bytes.len() - 1;
        self.regions.push(Region {
            content,
            layers,
            segment,
            offset_bytes,
            row_bytes: row.row_bytes(),
            page_rows,
            page_pitch_bytes,
            row_pitch_bytes,
            layer_pitch_bytes,
        });
        Ok(())
    }
}

impl LayerView {
    /// Where row `row` of page `page` begins in its segment, in bytes; `None` where a page is not row after row, for a
    /// row beyond the page, and on overflow.
    pub fn row_bytes_at(&self, page: u64, row: u64) -> Option<u64> {
        if self.row_pitch_bytes == 0 || row >= self.page_rows {
            return None;
        }
        let page = page.checked_mul(self.page_pitch_bytes)?;
        self.base_bytes.checked_add(page)?.checked_add(row.checked_mul(self.row_pitch_bytes)?)
    }
}

fn too_long(shape: &PoolShape<'_>) -> Problems {
    let rule = "must leave each layer at most 64 GiB, one segment";
    let remedy = "give a smaller host pool, or split the model over more ranks";
    Problems::one(Problem::new("--host-pool", format!("{} pages", shape.pages), rule, remedy))
}

#[cfg(test)]
mod tests;
