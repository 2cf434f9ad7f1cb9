//! Whether the host pool is the right size: small enough for the machine, large enough for one longest request.
//!
//! ```text
//!  whole pages of the longest request + one pad page  ≤  --host-pool  ≤  what the machine can give
//! ```
//! The pool counts once a node: its ranks map the same memory.

use super::request::ValidateRequest;
use crate::budget::device_bytes::host_bytes;
use crate::budget::rank::Rank;
use crate::budget::read::flag;
use crate::budget::request::PlanRequest;
use crate::error::{Problem, Problems};
use crate::model::Model;
use crate::platform::KvDtype;
use crate::size::show_size;
use crate::units::Bytes;

/// A pool above what the caller says the machine can give.
pub(super) fn fits_machine(request: &ValidateRequest) -> Problems {
    let mut problems = Problems::new();
    if let (Some(pool), Some(limit)) = (request.host_pool_bytes, request.machine_memory_bytes)
        && pool > limit
    {
        let limit = show_size(Bytes::new(limit));
        problems.push(Problem::new(
            flag("host_pool"),
            show_size(Bytes::new(pool)),
            format!("must fit the {limit} this machine can give; the pool counts once a node, not once a rank"),
            format!("use {limit} or less"),
        ));
    }
    problems
}

/// A pool that cannot hold one longest request: the context asked for, else the model's.
pub(super) fn holds_longest(request: &ValidateRequest, model: &Model, kv_dtype: KvDtype) -> Option<Problem> {
    let pool = request.host_pool_bytes?;
    let longest_tokens = request.context_tokens.unwrap_or(model.context_tokens.get());
    let plan = PlanRequest { kv_dtype, platform: request.platform, ..PlanRequest::default() };
    let rank = Rank::new(model, &plan).ok()?; // what is wrong with the shape is reported by the KV type's check
    let needed = host_bytes(&rank, rank.pages(longest_tokens));
    if needed.is_some_and(|needed| needed <= pool) {
        return None;
    }
    let (size, remedy) = match needed {
        Some(bytes) => (show_size(Bytes::new(bytes)), format!("give {bytes} bytes or more")),
        None => ("more bytes than 64 bits count".to_owned(), "use a model with a shorter context".to_owned()),
    };
    Some(Problem::new(
        flag("host_pool"),
        show_size(Bytes::new(pool)),
        format!("must hold one longest request: {longest_tokens} tokens of {kv_dtype} KV need {size}"),
        format!("{remedy}, or --context N where no request is longer than N tokens"),
    ))
}
