//! What `native` allocates on one GPU, to the byte: the only place where these formulas stand. `HotCache`,
//! `DecodeSession` and the host pool's maps are sized by them.
//!
//! ```text
//!  grows with     hot  = n × page.hot              n: pages of the device pool
//!  the pools  indexer  = m × page.indexer          m: logical pages
//!            resident  = m × page.resident
//!               draft  = n × page.draft_hot + m × page.draft_indexer
//!  grows with  tables  = s × (groups × word × hot rows + state)         word: slot and token, 4 bytes where both fit, else 8
//!  the seats     maps  = s × page number i32 × pages of the longest request
//!                side  = s × (picks, rows, misses of one step)
//!            resident += s × (window rows, compressor rings)         DeepSeek-V4
//! ```
//! All sizes are bytes; `s` is seats, a hot buffer of `hot_rows` has one more page for the newest rows (*padded*).

use crate::budget::compressor;
use crate::budget::plan::DeviceBytes;
use crate::budget::rank::{PAGE_ROWS, Rank};
use crate::model::{Layer, Shape};

const I32_BYTES: u64 = 4;
const I64_BYTES: u64 = 8;

/// Sequence length (i64), mapped pages (i32) and first newest token (i32) of a seat.
const SEAT_STATE_BYTES: u64 = I64_BYTES + 2 * I32_BYTES;

/// Bytes that one seat costs beside its hot rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeatBytes {
    /// Hot-cache state: which token each row holds, in the order of use, and where the request stands.
    pub tables: u64,
    /// Position → host page.
    pub maps: u64,
    /// Picks, slots and miss plan of one step.
    pub side: u64,
    /// Sliding window and compressor state.
    pub resident: u64,
}

impl SeatBytes {
    /// The bytes of a seat with `hot_rows` rows, for requests of at most `longest_tokens`, verifying `query_len` rows a
    /// step; `None` on overflow.
    pub fn new(rank: &Rank<'_>, hot_rows: u64, query_len: u64, longest_tokens: u64) -> Option<Self> {
        let words = hot_rows.checked_mul(word_bytes(hot_rows, longest_tokens))?;
        let picks = rank.model.picks_per_row().checked_mul(query_len)?;
        // Picked tokens and found rows per query row; then, for the union of the rows, token and hot row of every
        // possible miss; their count, and the seat.
        let side = picks.checked_mul(4 * I32_BYTES)?.checked_add(2 * I32_BYTES)?;
        Some(Self {
            tables: rank.groups().checked_mul(words)?.checked_add(SEAT_STATE_BYTES)?,
            maps: rank.pages(longest_tokens).checked_mul(I32_BYTES)?,
            side,
            resident: window_bytes(rank, query_len)?.checked_add(compressor_bytes(rank, query_len > 1)?)?,
        })
    }

    /// All of it.
    pub fn total(&self) -> Option<u64> {
        self.tables.checked_add(self.maps)?.checked_add(self.side)?.checked_add(self.resident)
    }
}

/// Bytes of the word that names a hot slot and the token in it: 4 where `log2 hot_rows + log2 longest_tokens` is at most
/// 32, which holds for 4,096 hot rows and a million tokens, else 8. An empty slot has the highest token there is.
pub const fn word_bytes(hot_rows: u64, longest_tokens: u64) -> u64 {
    if numbering_bits(hot_rows) + numbering_bits(longest_tokens) <= u32::BITS { I32_BYTES } else { I64_BYTES }
}

/// Bits that number this many things, at least one.
const fn numbering_bits(count: u64) -> u32 {
    let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
    if bits == 0 { 1 } else { bits }
}

/// Rows a seat takes from the device pool: its hot rows and a page for the newest ones; `None` on overflow.
pub const fn padded_rows(hot_rows: u64) -> Option<u64> {
    hot_rows.checked_add(PAGE_ROWS)
}

/// Everything on the GPU for these pages of device pool, logical pages and seats; `None` on overflow.
pub fn device_bytes(
    rank: &Rank<'_>,
    seat: &SeatBytes,
    device_pages: u64,
    logical_pages: u64,
    seats: u64,
) -> Option<DeviceBytes> {
    let page = &rank.page;
    Some(DeviceBytes {
        hot: device_pages.checked_mul(page.hot)?,
        indexer: logical_pages.checked_mul(page.indexer)?,
        tables: seats.checked_mul(seat.tables)?,
        maps: seats.checked_mul(seat.maps)?,
        side: seats.checked_mul(seat.side)?,
        draft: device_pages.checked_mul(page.draft_hot)?.checked_add(logical_pages.checked_mul(page.draft_indexer)?)?,
        resident: logical_pages.checked_mul(page.resident)?.checked_add(seats.checked_mul(seat.resident)?)?,
    })
}

/// Bytes of a host pool of this many usable pages: one more stands in for rows that must go nowhere.
pub fn host_bytes(rank: &Rank<'_>, logical_pages: u64) -> Option<u64> {
    logical_pages.checked_add(1)?.checked_mul(rank.page.whole())
}

/// Window rows of one seat in each layer: the window and the rows of one step, whole pages, and one page more because a
/// window rarely starts on a page. `None` on overflow, 0 for models without a window.
pub fn window_rows(rank: &Rank<'_>, query_len: u64) -> Option<u64> {
    let Shape::DeepseekV4 { sliding_window_tokens, .. } = rank.model.shape else { return Some(0) };
    sliding_window_tokens.checked_add(query_len)?.div_ceil(PAGE_ROWS).checked_add(1)?.checked_mul(PAGE_ROWS)
}

/// Every KV layer and draft layer keeps its window.
fn window_bytes(rank: &Rank<'_>, query_len: u64) -> Option<u64> {
    let pages = window_rows(rank, query_len)? / PAGE_ROWS;
    let layers = rank.kv_layers().checked_add(rank.draft_layers)?;
    layers.checked_mul(rank.main.page_bytes(PAGE_ROWS)?)?.checked_mul(pages)
}

fn compressor_bytes(rank: &Rank<'_>, drafts: bool) -> Option<u64> {
    let Shape::DeepseekV4 { head_dim, .. } = rank.model.shape else { return Some(0) };
    let c4 = compressor::c4_entry_bytes(head_dim, rank.model.index_head_dim)?
        .checked_mul(compressor::c4_ring_entries(drafts))?
        .checked_mul(rank.indexer_layers())?;
    let c128_layers = rank.count(|layer| matches!(layer, Layer::Compressed { .. }) && !layer.has_indexer());
    let c128 = compressor::c128_entry_bytes(head_dim)?
        .checked_mul(compressor::c128_ring_entries(drafts))?
        .checked_mul(c128_layers)?;
    c4.checked_add(c128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_four_bytes_while_slot_and_token_fit() {
        for (hot_rows, longest_tokens, bytes) in [
            (4_096, 65_536, 4),
            (4_096, 1 << 20, 4),
            (4_096, (1 << 20) + 1, 8),
            (4_160, 1 << 20, 8),
            (8_192, 1 << 19, 4),
            (32_768, 1 << 17, 4),
            (32_768, 163_840, 8),
            (64, 1, 4),
        ] {
            assert_eq!(word_bytes(hot_rows, longest_tokens), bytes, "{hot_rows} {longest_tokens}");
        }
    }
}
