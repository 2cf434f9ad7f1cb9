//! Shared memory of the resolver: what it needs per thread block, and what each GPU generation has.
//!
//! ```text
//!  4 × ( 2(U+1)  hash keys and values     U union rows
//!      + 3⌈B/32⌉ chunk offsets            B hot rows
//!      + 7 )     counters
//!  + 2 × B       recency order, 16-bit
//! ```

use crate::error::{Problem, Problems};

use super::config::HotRows;
use super::counted;

/// Bytes of shared memory one resolver block needs.
///
/// # Errors
/// Overflow, where the rows are absurd.
pub fn resolver_bytes(rows: HotRows) -> Result<u64, Problems> {
    let words = || {
        let hash = rows.union_rows.checked_add(1)?.checked_mul(2)?;
        let chunks = rows.hot_rows.div_ceil(32).checked_mul(3)?;
        let words = hash.checked_add(chunks)?.checked_add(7)?;
        words.checked_mul(4)?.checked_add(rows.hot_rows.checked_mul(2)?)
    };
    counted("device_buffer_size", rows.hot_rows, words())
}

/// Largest shared memory a thread block may opt into on compute capability `sm` (major × 10 + minor), in bytes.
/// `None` where the generation is not known here. Source: the CUDA programming guide's table of compute capabilities.
pub const fn device_limit_bytes(sm: u64) -> Option<u64> {
    let kib = match sm {
        75 => 64,
        80 | 87 => 163,
        86 | 89 | 120 | 121 => 99,
        90 | 100 | 101 | 103 | 110 => 227,
        _ => return None,
    };
    Some(kib * 1024)
}

/// Whether the resolver runs within `limit_bytes` of shared memory per thread block.
///
/// # Errors
/// A need above the limit.
pub fn check(rows: HotRows, limit_bytes: u64) -> Result<(), Problems> {
    let needed = resolver_bytes(rows)?;
    if needed <= limit_bytes {
        return Ok(());
    }
    Err(Problems::one(Problem::new(
        "device_buffer_size",
        rows.hot_rows,
        format!(
            "the resolver needs {needed} bytes of shared memory per block for it and {} picked rows, the device \
             has {limit_bytes}",
            rows.union_rows
        ),
        "use fewer speculative tokens or a smaller buffer",
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::vllm::config::resolve;

    #[test]
    fn sm120_stops_at_three_draft_tokens() {
        let limit = device_limit_bytes(120).unwrap();
        assert!(check(resolve(2048, 3, None).unwrap(), limit).is_ok());
        assert!(check(resolve(2048, 4, None).unwrap(), limit).is_err());
    }

    #[test]
    fn the_need_grows_as_published() {
        let needs: Vec<_> =
            [0, 1, 2, 3, 4, 7].map(|depth| resolver_bytes(resolve(2048, depth, None).unwrap()).unwrap()).into();
        assert_eq!(needs, [26_148, 47_396, 68_644, 89_892, 111_140, 174_884]);
    }
}
