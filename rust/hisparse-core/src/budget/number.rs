//! A figure of a plan: a whole number, or the float that an engine computes with.

use std::fmt;

use serde::Serialize;

/// A count that is whole, except where an engine computes with a float.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Number {
    /// Exact.
    Whole(u64),
    /// As the engine's own float has it.
    Float(f64),
}

impl Number {
    /// `dividend / divisor`, whole where it is; 0 by 0 is 0.
    #[allow(clippy::cast_precision_loss)] // a display figure: page counts are far below 2^52
    pub fn quotient(dividend: u64, divisor: u64) -> Self {
        match dividend.checked_rem(divisor) {
            None => Self::Whole(0),
            Some(0) => Self::Whole(dividend / divisor),
            Some(_) => Self::Float(dividend as f64 / divisor as f64),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => fmt::Display::fmt(number, f),
            Self::Float(number) => fmt::Display::fmt(number, f),
        }
    }
}

impl From<u64> for Number {
    fn from(whole: u64) -> Self {
        Self::Whole(whole)
    }
}
