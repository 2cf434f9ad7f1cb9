//! One row of KV: its parts, and how the rows of a page lie.
//!
//! ```text
//!  row after row    [ a b ][ a b ][ a b ] …                        scales last    [ a ][ a ][ a ] … [ s ][ s ][ s ] … pad
//! ```

use serde::Serialize;

use crate::error::Problem;

/// One run of equal elements in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// What it holds: `latent`, `rotary`, `scale`, `key`, `value`, `pad`.
    pub what: &'static str,
    /// Number format of one element.
    pub format: &'static str,
    /// How many elements.
    pub elements: u64,
    /// Bits of one element.
    pub element_bits: u64,
}

/// How the rows of one page lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrangement {
    /// Row after row.
    RowMajor,
    /// The first `value_bytes` of every row, then the rest (scales) of every row, then padding to a multiple of
    /// `pad_bytes` (1: none).
    ScalesLast {
        /// Bytes of a row that stand in the first run.
        value_bytes: u64,
        /// What a page is padded to a multiple of, in bytes.
        pad_bytes: u64,
    },
}

/// What a row's start is aligned to where rows are stored one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StrideAlign {
    /// No space between rows.
    Packed,
    /// Rows start at multiples of 64 bytes.
    To64,
    /// Rows start at multiples of 128 bytes.
    To128,
}

impl StrideAlign {
    /// The alignment in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Packed => 1,
            Self::To64 => 64,
            Self::To128 => 128,
        }
    }
}

/// The layout of one row, in one layer and on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RowLayout {
    name: &'static str,
    parts: Vec<Part>,
    arrangement: Arrangement,
    row_bytes: u64,
}

impl RowLayout {
    /// Widest row accepted: 2^40 bytes, far above any model, far below what page arithmetic could overflow on.
    const MAX_ROW_BYTES: u64 = 1 << 40;

    pub(super) fn new(name: &'static str, parts: Vec<Part>, arrangement: Arrangement) -> Result<Self, Problem> {
        let bits =
            parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.elements.checked_mul(part.element_bits)?));
        match bits.map(|bits| bits.div_ceil(8)) {
            Some(row_bytes) if row_bytes <= Self::MAX_ROW_BYTES => Ok(Self { name, parts, arrangement, row_bytes }),
            _ => {
                Err(Problem::new(name, "too wide", "must be a row of at most 2^40 bytes", "check the config's widths"))
            }
        }
    }

    /// The layout's name, as in the table of `layout`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What the row is made of, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// How a page of it is arranged.
    pub const fn arrangement(&self) -> Arrangement {
        self.arrangement
    }

    /// Bytes of one row, padding inside the row included.
    pub const fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Bytes from one row's start to the next where rows are stored one after another.
    pub const fn stride_bytes(&self, align: StrideAlign) -> u64 {
        self.row_bytes.next_multiple_of(align.bytes())
    }

    /// Bytes of a page of `rows` rows in this layout's own arrangement; `None` on overflow.
    pub const fn page_bytes(&self, rows: u64) -> Option<u64> {
        let Some(bytes) = self.row_bytes.checked_mul(rows) else { return None };
        match self.arrangement {
            Arrangement::RowMajor => Some(bytes),
            Arrangement::ScalesLast { pad_bytes, .. } => bytes.checked_next_multiple_of(pad_bytes),
        }
    }

    /// Where a page's scales begin, in bytes from its start, if they stand apart from the values; `None` on overflow
    /// too.
    pub const fn scales_offset_bytes(&self, rows: u64) -> Option<u64> {
        match self.arrangement {
            Arrangement::RowMajor => None,
            Arrangement::ScalesLast { value_bytes, .. } => value_bytes.checked_mul(rows),
        }
    }
}

/// Blocks of `block` values that share a scale.
///
/// # Errors
/// When `width` is no multiple of `block`.
pub(super) fn scale_blocks(field: &str, width: u64, block: u64) -> Result<u64, Problem> {
    if width.is_multiple_of(block) {
        return Ok(width / block);
    }
    Err(Problem::new(
        field,
        width,
        format!("must be a multiple of {block}, the values that share a scale in FP8"),
        "use bfloat16 KV for this model",
    ))
}
