//! State of DeepSeek-V4's compressors: running sums from which the rows of compressed layers are made.
//!
//! ```text
//!  C4    ring of 8 entries (16 with drafts), each: overlapping key and score sums of head and indexer, fp32
//!  C128  ring of 128 entries (256 with drafts), each: key and score sums of the head, fp32
//! ```
//! Widths and rings are those of the engines, whose budgets count the same bytes.

const F32_BYTES: u64 = 4;

/// Sums of one entry: of keys, and of their scores.
const SUMS: u64 = 2;

/// Windows of a C4 layer overlap by one, so each of its entries is kept for two.
const OVERLAP: u64 = 2;

/// Bytes of one ring entry of a C4 layer, its indexer's compressor included.
pub const fn c4_entry_bytes(head_dim: u64, index_head_dim: u64) -> Option<u64> {
    match head_dim.checked_add(index_head_dim) {
        Some(width) => width.checked_mul(OVERLAP * SUMS * F32_BYTES),
        None => None,
    }
}

/// Bytes of one ring entry of a C128 layer.
pub const fn c128_entry_bytes(head_dim: u64) -> Option<u64> {
    head_dim.checked_mul(SUMS * F32_BYTES)
}

/// Ring entries of a C4 layer, per request.
pub const fn c4_ring_entries(drafts: bool) -> u64 {
    if drafts { 16 } else { 8 }
}

/// Ring entries of a C128 layer, per request.
pub const fn c128_ring_entries(drafts: bool) -> u64 {
    if drafts { 256 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_as_wide_as_the_engines_count_them() {
        assert_eq!(c4_entry_bytes(512, 128), Some(10_240));
        assert_eq!(c128_entry_bytes(512), Some(4_096));
    }
}
