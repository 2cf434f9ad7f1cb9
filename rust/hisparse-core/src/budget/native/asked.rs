//! What a request asks of pools, with what stands in where it does not say.

use crate::budget::rank::Rank;
use crate::budget::request::{HostSizing, PlanRequest};
use crate::ratio::Ratio;

/// Logical tokens per device token.
pub(super) fn ratio_of(request: &PlanRequest) -> Ratio {
    match request.sizing {
        Some(HostSizing::Ratio(ratio)) => ratio,
        _ => Ratio::DEFAULT,
    }
}

/// Longest request that pools are sized for: of the contexts asked for, else the model's own, which none may pass.
pub(super) fn longest_context(rank: &Rank<'_>, request: &PlanRequest) -> u64 {
    let longest = rank.model.context_tokens.get();
    request.contexts.iter().copied().max().unwrap_or(longest).min(longest)
}
