//! Where a mapping is cut for registration with a device, which the engine's process does chunk by chunk.
//!
//! ```text
//!  ├──── segment ─────────────────────────────┤      cuts: where layers begin
//!  ├─ chunk ─┼─ chunk ─┼─ chunk ─┼─ chunk ────┤      each at most so long, and ending at a cut where one is near
//! ```
//! One call over 512 GiB fails, a long one holds the driver's lock against every other process, and some kernels pin at
//! most 2 GiB at once. Cuts and chunks are whole pages, because no page can be registered twice.

use std::ops::Range;

use hisparse_core::layout::pool::PoolLayout;

use crate::map::PAGE_BYTES;

/// The chunks of each segment in turn, as (segment, bytes of it): at most `most_bytes` each, ending where a group of
/// layers does where one ends near enough.
pub fn chunks_of(layout: &PoolLayout, most_bytes: u64) -> Vec<(usize, Range<u64>)> {
    let of_segment = |(segment, bytes): (usize, &u64)| {
        let regions = layout.regions().iter().filter(|region| region.segment == segment);
        let cuts: Vec<u64> = regions.map(|region| region.offset_bytes).collect();
        chunks(*bytes, &cuts, most_bytes).into_iter().map(move |chunk| (segment, chunk)).collect::<Vec<_>>()
    };
    layout.segment_bytes().iter().enumerate().flat_map(of_segment).collect()
}

/// Cuts `total` bytes into chunks of at most `most_bytes`, at least a page: each ends at the last cut (rising, whole
/// pages) within reach, or where none is, at the limit itself.
fn chunks(total: u64, cuts: &[u64], most_bytes: u64) -> Vec<Range<u64>> {
    const PAGE: u64 = PAGE_BYTES as u64;
    let most = (most_bytes - most_bytes % PAGE).max(PAGE);
    let mut chunks = Vec::new();
    let mut start = 0;
    while start < total {
        let limit = start.saturating_add(most).min(total);
        let cut = cuts.iter().rev().copied().find(|cut| (start + 1..=limit).contains(cut));
        let end = if limit == total { total } else { cut.unwrap_or(limit) };
        chunks.push(start..end);
        start = end;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    fn in_pages(total: u64, cuts: &[u64], most: u64) -> Vec<Range<u64>> {
        let cuts: Vec<u64> = cuts.iter().map(|cut| cut * PAGE).collect();
        let cut = chunks(total * PAGE, &cuts, most * PAGE);
        cut.into_iter().map(|chunk| chunk.start / PAGE..chunk.end / PAGE).collect()
    }

    #[test]
    fn chunks_end_where_layers_do() {
        assert_eq!(in_pages(100, &[0, 30, 60, 90], 64), [0..60, 60..100]);
        assert_eq!(in_pages(100, &[], 64), [0..64, 64..100]);
        assert_eq!(chunks(0, &[], 64), Vec::<Range<u64>>::new());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 256 }, ..ProptestConfig::default() })]
        #[test]
        fn chunks_cover_everything_once_and_no_page_twice(
            total in 0_u64..10_000_000, mut cuts in proptest::collection::vec(0_u64..3_000, 0..20), most in 0_u64..5_000_000,
        ) {
            cuts.sort_unstable();
            let cuts: Vec<u64> = cuts.into_iter().map(|cut| cut * PAGE).collect();
            let mut end = 0;
            for chunk in chunks(total, &cuts, most) {
                prop_assert_eq!(chunk.start, end);
                prop_assert!(chunk.start % PAGE == 0 && chunk.end > chunk.start);
                prop_assert!(chunk.end - chunk.start <= most.max(PAGE));
                end = chunk.end;
            }
            prop_assert_eq!(end, total);
        }
    }
}
