//! What discovery found: a value, or the reason why there is none. Discovery never fails.

use std::fmt;

use serde::Serialize;

/// A fact about the machine, or why it is not known. In JSON the bare value, or `{"unknown": "reason"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Finding<T> {
    /// Found.
    Known(T),
    /// Not found, and why.
    Unknown {
        /// The reason, as a phrase: `cannot read /proc/meminfo: …`.
        unknown: String,
    },
}

impl<T> Finding<T> {
    /// Nothing found, because of `reason`.
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown { unknown: reason.into() }
    }

    /// The value, where there is one.
    pub const fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown { .. } => None,
        }
    }

    /// Applies `f` to a value and keeps a reason as it is.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Finding<U> {
        match self {
            Self::Known(value) => Finding::Known(f(value)),
            Self::Unknown { unknown } => Finding::Unknown { unknown },
        }
    }
}

impl<T> From<Result<T, String>> for Finding<T> {
    fn from(result: Result<T, String>) -> Self {
        match result {
            Ok(value) => Self::Known(value),
            Err(reason) => Self::unknown(reason),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Finding<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(value) => fmt::Display::fmt(value, f),
            Self::Unknown { unknown } => write!(f, "unknown ({unknown})"),
        }
    }
}
