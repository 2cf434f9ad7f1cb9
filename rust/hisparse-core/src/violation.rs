//! A rule that was found broken; `invariants` names the rules.

use serde::Serialize;

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{rule}: {detail}")]
pub struct Violation {
    /// Name of the rule, as in this file's picture.
    pub rule: &'static str,
    /// What was found.
    pub detail: String,
}

/// `detail` is made only where the rule does not hold.
pub(crate) fn holds(rule: &'static str, ok: bool, detail: impl FnOnce() -> String) -> Result<(), Violation> {
    if ok { Ok(()) } else { Err(Violation { rule, detail: detail() }) }
}
