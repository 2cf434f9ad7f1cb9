//! How a shared host pool is cut into pinned registrations.
//!
//! ```text
//!  |layer 0: block block … |layer 1: block block … | … |alignment|
//!  |──── ≤ 256 GiB ────|──── ≤ 256 GiB ────|── rest ──|
//!                      └ a page boundary that is a block boundary too
//! ```
//! A batched copy refuses a descriptor that spans two registrations, so no layer's block may be cut.

use std::ops::Range;

use crate::error::{Problem, Problems};

/// Bytes of an operating-system page.
pub const OS_PAGE_BYTES: u64 = 4096;

/// Largest single registration, in bytes; drivers fail on 512 GiB and more.
pub const MAX_CHUNK_BYTES: u64 = 256 << 30;

/// Most registrations a pool is cut into here; beyond it the chunk limit is a mistake.
pub const MAX_REGISTRATIONS: usize = 65_536;

/// One layer's part of the pool.
struct Tensor {
    start: u64,
    end: u64,
    block_bytes: u64,
}

/// Byte ranges to register, in order, that cover `blocks` × `stride_bytes`. `tensor_bytes` lists the layers' sizes.
///
/// # Errors
/// A pool that is no whole number of pages, a chunk below one, a layer that is no whole number of blocks, layers
/// larger than the pool, a block that no chunk can hold, or more than [`MAX_REGISTRATIONS`] ranges.
pub fn ranges(
    tensor_bytes: &[u64],
    blocks: u64,
    stride_bytes: u64,
    max_chunk_bytes: u64,
) -> Result<Vec<Range<u64>>, Problems> {
    let mut problems = Problems::new();
    let total = blocks.checked_mul(stride_bytes).filter(|total| *total > 0).unwrap_or_else(|| {
        problem(&mut problems, "num_blocks", blocks, "times the stride must be a size from 1 to 2^64");
        OS_PAGE_BYTES
    });
    if !total.is_multiple_of(OS_PAGE_BYTES) {
        problem(&mut problems, "host_block_stride", stride_bytes, "times the blocks must be a whole number of pages");
    }
    if max_chunk_bytes < OS_PAGE_BYTES {
        problem(&mut problems, "max_chunk_bytes", max_chunk_bytes, "must span at least one page");
    }
    let (tensors, end) = lay_out(tensor_bytes, blocks, &mut problems);
    if end > total {
        problem(&mut problems, "tensor_sizes", end, "must not exceed the pool");
    }
    problems.into_result(())?;

    let mut cut: Vec<Range<u64>> = Vec::new();
    let mut start = 0;
    while total - start > max_chunk_bytes {
        let next = last_boundary(&tensors, end, start, start + max_chunk_bytes);
        let Some(next) = next.filter(|_| cut.len() < MAX_REGISTRATIONS) else {
            let mut problems = Problems::new();
            problem(&mut problems, "max_chunk_bytes", max_chunk_bytes, "is too small for one host block or this pool");
            return Err(problems);
        };
        cut.push(start..next);
        start = next;
    }
    cut.push(start..total);
    Ok(cut)
}

fn problem(problems: &mut Problems, field: &str, value: u64, rule: &str) {
    problems.push(Problem::new(field, value, rule, "use the sizes that the pool was planned with"));
}

/// The layers one after another, and where the last one ends.
fn lay_out(tensor_bytes: &[u64], blocks: u64, problems: &mut Problems) -> (Vec<Tensor>, u64) {
    let mut tensors = Vec::with_capacity(tensor_bytes.len());
    let mut start = 0_u64;
    for bytes in tensor_bytes {
        if blocks == 0 || bytes % blocks != 0 {
            problem(problems, "tensor_sizes", *bytes, "must be a whole number of blocks");
            continue;
        }
        let Some(end) = start.checked_add(*bytes) else {
            problem(problems, "tensor_sizes", *bytes, "must add up to less than 2^64");
            break;
        };
        tensors.push(Tensor { start, end, block_bytes: bytes / blocks });
        start = end;
    }
    (tensors, start)
}

/// The largest page boundary in `lower+1..=upper` that cuts no block.
fn last_boundary(tensors: &[Tensor], tensors_end: u64, lower: u64, upper: u64) -> Option<u64> {
    // Behind the last layer there is nothing to cut.
    let page = upper - upper % OS_PAGE_BYTES;
    if page >= tensors_end && page > lower {
        return Some(page);
    }
    tensors.iter().rev().find_map(|tensor| {
        let reach = upper.min(tensor.end).checked_sub(tensor.start)?;
        let last = reach.checked_div(tensor.block_bytes)?;
        // Block boundaries meet page boundaries with a period of at most a page's bytes.
        (0..=last)
            .rev()
            .take(usize::try_from(OS_PAGE_BYTES).unwrap_or(usize::MAX))
            .map(|block| tensor.start + block * tensor.block_bytes)
            .take_while(|boundary| *boundary > lower)
            .find(|boundary| boundary.is_multiple_of(OS_PAGE_BYTES))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_pool_is_one_registration() {
        let cut = ranges(&[36_864_000; 4], 1000, 147_456, MAX_CHUNK_BYTES).unwrap();
        assert_eq!((cut.len(), cut[0].clone()), (1, 0..147_456_000));
    }

    #[test]
    fn a_cut_falls_on_a_page_and_between_blocks() {
        let (each, blocks, stride) = (5_286_163_456, 125_909, 3_276_800);
        let cut = ranges(&[each; 78], blocks, stride, MAX_CHUNK_BYTES).unwrap();
        assert_eq!(cut, [0..274_877_812_736, 274_877_812_736..412_578_611_200]);
        assert_eq!(cut[0].end % OS_PAGE_BYTES, 0);
        assert_eq!(cut[0].end % each % (each / blocks), 0);
    }

    #[test]
    fn nonsense_is_refused_without_a_panic() {
        for (tensors, blocks, stride, chunk) in [
            (&[][..], 0, 4096, 8192),
            (&[4096], 0, 0, 0),
            (&[u64::MAX, u64::MAX], 1, u64::MAX, u64::MAX),
            (&[0, 0], u64::MAX, 4096, 4096),
            (&[], 1 << 40, 4096, 4096),
        ] {
            assert!(ranges(tensors, blocks, stride, chunk).is_err(), "{tensors:?} {blocks} {stride} {chunk}");
        }
    }
}
