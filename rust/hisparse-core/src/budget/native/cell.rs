//! Bytes per device token: what a token of the device pool takes on the GPU, with the logical tokens that come with it.

use crate::budget::number::Number;
use crate::budget::rank::Rank;
use crate::budget::request::PlanRequest;
use crate::ratio::Ratio;

use super::asked::ratio_of;

/// Bytes per device token on the GPU at the request's ratio, rounded up to a whole one; `None` on overflow.
pub fn cell_bytes(rank: &Rank<'_>, request: &PlanRequest) -> Option<Number> {
    let ratio = if request.hisparse { ratio_of(request) } else { Ratio::ONE };
    cell_of(rank, ratio.numerator(), ratio.denominator()).map(Number::Whole)
}

/// Bytes per device token with `logical` tokens for every `device` ones.
pub(super) fn cell_of(rank: &Rank<'_>, logical: u64, device: u64) -> Option<u64> {
    let page = &rank.page;
    let bytes = u128::from(page.device()) * u128::from(device) + u128::from(page.logical()) * u128::from(logical);
    u64::try_from(bytes.div_ceil(u128::from(device.max(1)) * u128::from(rank.page_tokens))).ok()
}
