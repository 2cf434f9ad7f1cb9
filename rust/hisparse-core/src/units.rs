//! Quantities that must not be mixed up: each has its own type, and arithmetic on them is checked.
//!
//! ```text
//!  Tokens ──ceil(÷64)──► Pages ──× page bytes──► Bytes
//!  Rows: tokens of one layer (what a hot buffer holds)
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $unit:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Nothing.
            pub const ZERO: Self = Self(0);

            /// Wraps a bare number of this unit.
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The bare number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// Sum, or `None` on overflow.
            #[must_use]
            pub const fn checked_add(self, other: Self) -> Option<Self> {
                match self.0.checked_add(other.0) {
                    Some(value) => Some(Self(value)),
                    None => None,
                }
            }

            /// Difference, or `None` below zero.
            #[must_use]
            pub const fn checked_sub(self, other: Self) -> Option<Self> {
                match self.0.checked_sub(other.0) {
                    Some(value) => Some(Self(value)),
                    None => None,
                }
            }

            /// Product with a bare count, or `None` on overflow.
            #[must_use]
            pub const fn checked_mul(self, count: u64) -> Option<Self> {
                match self.0.checked_mul(count) {
                    Some(value) => Some(Self(value)),
                    None => None,
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{}", $unit), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

quantity!(
    /// Bytes of memory.
    Bytes,
    " B"
);
quantity!(
    /// Tokens of context.
    Tokens,
    " tokens"
);
quantity!(
    /// Rows: one token's KV in one layer.
    Rows,
    " rows"
);
quantity!(
    /// Pages: runs of 64 rows, same number in every layer.
    Pages,
    " pages"
);

impl Tokens {
    /// Pages that hold this many tokens, the last one perhaps in part.
    pub const fn to_pages(self, page_tokens: u64) -> Pages {
        Pages(self.0.div_ceil(page_tokens))
    }
}

impl Pages {
    /// Tokens these pages can hold, or `None` on overflow.
    pub const fn to_tokens(self, page_tokens: u64) -> Option<Tokens> {
        match self.0.checked_mul(page_tokens) {
            Some(value) => Some(Tokens(value)),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_page_counts_as_a_whole_one() {
        assert_eq!(Tokens::new(0).to_pages(64), Pages::new(0));
        assert_eq!(Tokens::new(1).to_pages(64), Pages::new(1));
        assert_eq!(Tokens::new(64).to_pages(64), Pages::new(1));
        assert_eq!(Tokens::new(65).to_pages(64), Pages::new(2));
    }

    #[test]
    fn overflow_is_none_and_never_a_wrap() {
        assert_eq!(Bytes::new(u64::MAX).checked_add(Bytes::new(1)), None);
        assert_eq!(Pages::new(u64::MAX / 2).to_tokens(64), None);
        assert_eq!(Rows::new(1).checked_sub(Rows::new(2)), None);
    }
}
