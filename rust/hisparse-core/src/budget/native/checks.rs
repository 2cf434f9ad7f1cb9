//! What a native plan refuses, and what to do about it.

use crate::budget::device_bytes::host_bytes;
use crate::budget::native::asked::ratio_of;
use crate::budget::native::auto::Wish;
use crate::budget::native::solve::Budget;
use crate::budget::rank::{PAGE_ROWS, Rank};
use crate::budget::request::{HostSizing, PlanRequest};
use crate::error::{Problem, Problems};
use crate::hisparse_config::{default_hot_rows, step_picks};
use crate::limits::MAX_HOT_ROWS;
use crate::model::Model;
use crate::ratio::Ratio;
use crate::size::show_size;
use crate::units::Bytes;

fn shown(bytes: u64) -> String {
    show_size(Bytes::new(bytes))
}

/// Fewest hot rows: every row that the step's query rows can pick must be in the buffer at once.
pub(super) fn least_hot_rows(model: &Model, request: &PlanRequest) -> u64 {
    step_picks(model.picks_per_row(), request.query_len()).max(1).next_multiple_of(PAGE_ROWS)
}

/// Hot rows of the request, or their default: one more pick than the fewest, so that a step's misses evict no hit.
pub(super) fn checked_hot_rows(model: &Model, request: &PlanRequest) -> Result<u64, Problem> {
    if !request.hisparse {
        return Ok(0);
    }
    let least = least_hot_rows(model, request);
    let picks = match request.query_len() {
        1 => format!("{} picks of the one query row", model.picks_per_row()),
        rows => format!("{} picks of each of {rows} query rows", model.picks_per_row()),
    };
    if least > MAX_HOT_ROWS {
        let rule = format!("needs {least} hot rows for {picks}, above the largest buffer of {MAX_HOT_ROWS}");
        return Err(Problem::new("--mtp", request.mtp, rule, "use fewer speculative tokens"));
    }
    let default = default_hot_rows(model.top_k, model.tail_picks, request.query_len());
    let Some(rows) = request.hot_rows else { return Ok(default) };
    if rows < least {
        let rule = format!("must be at least {least}: the {picks}");
        return Err(Problem::new("--hot-rows", rows, rule, format!("use {least} or more; {default} is the default")));
    }
    if !rows.is_multiple_of(PAGE_ROWS) {
        let below = (rows / PAGE_ROWS * PAGE_ROWS).max(least);
        let above = rows.next_multiple_of(PAGE_ROWS).min(MAX_HOT_ROWS);
        let rule = format!("must be a multiple of {PAGE_ROWS}, the rows of a page");
        return Err(Problem::new("--hot-rows", rows, rule, format!("use {below} or {above}")));
    }
    Ok(rows)
}

/// A rank without sparse layers has nothing that a host pool could take.
pub(super) fn nothing_to_move(rank: &Rank<'_>, request: &PlanRequest) -> Option<Problem> {
    if rank.page.whole() == 0 {
        let rule = "keep no rows of KV at all";
        return Some(Problem::new("layers of this rank", rank.layers.len(), rule, "choose other layers with --stage"));
    }
    (request.hisparse && rank.page.device() == 0).then(|| {
        let rule = "pick no rows, so a host pool has nothing to take from them";
        Problem::new("layers of this rank", rank.layers.len(), rule, "choose other layers, or plan with --no-hisparse")
    })
}

/// Not one page fits the GPU.
pub(super) fn not_one_page(budget: &Budget<'_>) -> Problem {
    let page = budget.rank.page.whole();
    let rule = format!("admits nothing: one page of {} tokens takes {}", budget.rank.page_tokens, shown(page));
    Problem::new("--kv-bytes", budget.kv_bytes, rule, format!("give at least {page} bytes"))
}

/// Not one hot buffer fits the GPU.
pub(super) fn not_one_seat(budget: &Budget<'_>, request: &PlanRequest) -> Problem {
    let ratio = match request.sizing {
        None | Some(HostSizing::Ratio(_)) => ratio_of(request),
        Some(_) => Ratio::ONE,
    };
    let logical_pages = ratio.scale_floor(budget.seat_pages());
    let least = logical_pages.and_then(|pages| budget.least_bytes(pages)).unwrap_or(u64::MAX);
    let rule = format!(
        "admits nothing: one request needs a hot buffer of {} rows and {PAGE_ROWS} for its newest, with indexer keys of \
         {} logical tokens, {} or more of GPU memory",
        budget.hot_rows,
        logical_pages.unwrap_or(u64::MAX).saturating_mul(budget.rank.page_tokens),
        shown(least)
    );
    let remedy = "give more device memory, fewer --hot-rows or a smaller --ratio";
    match (request.kv_bytes, request.sizing, request.gpu) {
        (None, Some(HostSizing::Ratio(ratio)), _) => {
            let rule = format!("{rule}, and there are {}", shown(budget.kv_bytes));
            Problem::new("--ratio", ratio, rule, remedy)
        }
        (None, _, Some(gpu)) => {
            let rule = format!("leaves {} for KV and so {rule}", shown(budget.kv_bytes));
            Problem::new("--gpu", gpu, rule, remedy)
        }
        _ => Problem::new("--kv-bytes", budget.kv_bytes, rule, remedy),
    }
}

/// The host pool is smaller than one hot buffer.
pub(super) fn host_pool_too_small(budget: &Budget<'_>, bytes: u64) -> Problem {
    let least = host_bytes(budget.rank, budget.seat_pages()).unwrap_or(u64::MAX);
    let rule = format!("admits nothing: it must hold at least the tokens of one hot buffer, {}", shown(least));
    Problem::new("--host-pool", bytes, rule, format!("give at least {least} bytes, or fewer --hot-rows"))
}

/// `--auto` found no way to run one request of the wished length.
pub(super) fn not_one_request(wish: &Wish<'_>) -> Problem {
    let rule = format!("cannot run one request of {} tokens, whatever the hot buffer", wish.context_tokens);
    let remedy = "give more device memory or host memory, or a shorter --context";
    Problem::new("--auto", "true", rule, remedy)
}

/// The host pool, of so many bytes, must fit the machine as often as ranks hold different rows.
pub(super) fn fits_machine(
    rank: &Rank<'_>,
    request: &PlanRequest,
    host_bytes: u64,
    copies: u64,
) -> Result<(), Problems> {
    let Some(machine) = request.machine_memory_bytes else { return Ok(()) };
    let needed = host_bytes.saturating_mul(copies);
    if needed <= machine {
        return Ok(());
    }
    let (field, value) = match request.sizing {
        Some(HostSizing::HostPool(bytes)) => ("--host-pool", bytes.to_string()),
        Some(HostSizing::Ratio(ratio)) => ("--ratio", ratio.to_string()),
        _ => ("--ratio", crate::limits::DEFAULT_RATIO.to_string()),
    };
    let rule = format!("needs {} of host memory, and the machine allows {}", shown(needed), shown(machine));
    let remedy = format!("use --host-pool {} or less", machine / copies.max(1) / rank.page.whole() * rank.page.whole());
    Err(Problems::one(Problem::new(field, value, rule, remedy)))
}
