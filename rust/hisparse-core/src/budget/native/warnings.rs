//! What the reader of a native plan should know: where it loses, what it was bounded by, what an engine would do instead.

use crate::budget::concurrency::losing;
use crate::budget::plan::{Binding, Plan};
use crate::budget::rank::Rank;
use crate::budget::request::{HostSizing, PlanRequest};
use crate::budget::sglang;
use crate::model::{Layer, Shape};
use crate::size::show_size;
use crate::units::Bytes;

use super::asked::{longest_context, ratio_of};

/// Adds them to `plan`.
pub(super) fn add(plan: &mut Plan, rank: &Rank<'_>, request: &PlanRequest) {
    let mut notes = Vec::new();
    if request.hisparse {
        notes.extend(losing(&plan.concurrency));
        notes.extend(below_break_even(plan, request));
        notes.extend(sglang_cell(plan, rank, request));
        notes.extend(auto_choice(plan, request));
        notes.extend(host_pool_in_part(plan, rank, request));
        notes.extend(split_for(plan, rank, request));
    }
    notes.extend(short_of_context(plan, rank));
    notes.extend(beyond_context(rank, request));
    if rank.layers.iter().find(|layer| layer.is_sparse()) == Some(&Layer::Shared) {
        notes.push(
            "This stage starts with layers that reuse a top-k of the stage before: it must be sent along.".into(),
        );
    }
    if rank.model.index_pooling > 1 {
        notes.push(format!(
            "Indexer keys are counted as one per {} tokens; the keys of each request's last, incomplete pool are kept \
             beside them and are not counted.",
            rank.model.index_pooling
        ));
    }
    if rank.layers.contains(&Layer::Linear) {
        notes.push("Linear-attention layers keep a state per request that this plan does not count.".into());
    }
    plan.warnings.append(&mut notes);
}

fn below_break_even(plan: &Plan, request: &PlanRequest) -> Option<String> {
    let (shortest, even) = (request.contexts.iter().min()?, plan.break_even_tokens?);
    (*shortest < even).then(|| {
        format!(
            "Below {even} tokens a hot buffer takes more GPU memory than the request's own KV; {shortest} is below."
        )
    })
}

fn short_of_context(plan: &Plan, rank: &Rank<'_>) -> Option<String> {
    let context = rank.model.context_tokens.get();
    (plan.logical_tokens < context).then(|| {
        format!(
            "The longest request is {} tokens; the model was made for {context}, which needs {} of host and GPU pages.",
            plan.logical_tokens,
            show_size(Bytes::new(rank.pages(context).saturating_mul(rank.page.whole())))
        )
    })
}

fn beyond_context(rank: &Rank<'_>, request: &PlanRequest) -> Option<String> {
    let context = rank.model.context_tokens.get();
    let longest = request.contexts.iter().max().filter(|longest| **longest > context)?;
    Some(format!("A context of {longest} tokens is beyond the {context} positions that the model was made for."))
}

/// The largest difference to a stock engine, in bytes. DeepSeek-V4's cells do not compare: SGLang counts them per
/// logical token and with its window pool.
fn sglang_cell(plan: &Plan, rank: &Rank<'_>, request: &PlanRequest) -> Option<String> {
    if !matches!(request.sizing, None | Some(HostSizing::Ratio(_)))
        || matches!(rank.model.shape, Shape::DeepseekV4 { .. })
    {
        return None;
    }
    let same = PlanRequest { sizing: Some(HostSizing::Ratio(ratio_of(request))), ..request.clone() };
    let theirs = sglang::cell_bytes(rank, &same)?;
    (theirs != plan.cell_bytes).then(|| {
        format!(
            "SGLang {} budgets {theirs} bytes per device token for the same model at a ratio of {}, this plan {}; \
             --engine sglang says why.",
            sglang::VERSION,
            plan.ratio,
            plan.cell_bytes
        )
    })
}

fn auto_choice(plan: &Plan, request: &PlanRequest) -> Option<String> {
    let Some(HostSizing::Auto(_)) = request.sizing else { return None };
    // The longest length that runs is the one that the choice was made for.
    let longest = plan.concurrency.iter().filter(|row| row.binding != Binding::Context).max_by_key(|row| row.context);
    let served_by = match longest.map(|row| row.binding) {
        Some(Binding::Seats | Binding::IndexerTokens) => "GPU memory",
        Some(Binding::RequestSlots) => "--max-seqs",
        _ => "host memory",
    };
    Some(format!(
        "--auto chose {} hot rows and {} logical tokens per device token; {served_by} bounds it. Fewer hot rows mean \
         more misses: about 30 % of picks at one top-k, 13 % at two, 7 % at four (one published trace).",
        plan.hot_rows, plan.ratio
    ))
}

/// One allocation serves one length best; the table answers for each.
fn split_for(plan: &Plan, rank: &Rank<'_>, request: &PlanRequest) -> Option<String> {
    let chosen = match request.sizing {
        Some(HostSizing::HostPool(_)) => "the pools are split",
        Some(HostSizing::Auto(_)) => "hot rows are chosen and the pools split",
        _ => return None,
    };
    let tokens = longest_context(rank, request);
    let (longest, remedy) = if request.contexts.is_empty() {
        ("the model's context", "give --context")
    } else if plan.concurrency.len() > 1 {
        ("the longest --context", "give that --context alone")
    } else {
        return None;
    };
    Some(format!(
        "In this plan {chosen} for requests of {tokens} tokens, {longest}: {} seats and {} logical tokens. Each row of the \
         table is for pools split for its own length; {remedy} to plan for another one.",
        plan.seats, plan.logical_tokens
    ))
}

fn host_pool_in_part(plan: &Plan, rank: &Rank<'_>, request: &PlanRequest) -> Option<String> {
    let Some(HostSizing::HostPool(bytes)) = request.sizing else { return None };
    (bytes.saturating_sub(plan.host_bytes) > rank.page.whole()).then(|| {
        format!(
            "Of the host pool, {} are used: more logical tokens would need GPU memory for indexer keys, and so cost hot \
             buffers, without running more requests.",
            show_size(Bytes::new(plan.host_bytes))
        )
    })
}
