//! What this project does: sizes that are right by construction.
//!
//! ```text
//!  PlanRequest ─► checks ─► Rank (bytes a page) ─► SeatBytes ─► pools (ratio | host pool | auto | resident) ─► Plan
//! ```
//! Everything that is allocated on the GPU is inside the budget, and every length limit uses the logical size.

mod asked;
mod auto;
mod cell;
mod checks;
mod solve;
mod warnings;

use crate::budget::concurrency::{Baseline, Limits, bindings, contexts};
use crate::budget::device_bytes::{SeatBytes, device_bytes, host_bytes, padded_rows, window_rows};
use crate::budget::kv_bytes::kv_bytes;
use crate::budget::plan::{Binding, Concurrency, DeviceBytes, Number, Plan, PlanLayout, PlanModel};
use crate::budget::rank::{Rank, too_large};
use crate::budget::request::{HostSizing, PlanRequest};
use crate::error::Problems;
use crate::limits::{MAX_HOT_ROWS, MAX_SEQS};
use crate::model::{Model, Shape};
use crate::platform::Engine;
use crate::ratio::Ratio;
use asked::{longest_context, ratio_of};
use auto::Wish;
use cell::cell_of;
use checks::checked_hot_rows;
use solve::{Budget, Pools};

pub use cell::cell_bytes;

/// Plans what this project allocates.
///
/// # Errors
/// Every rule that request and model break together; a budget that admits nothing.
pub fn plan(model: &Model, request: &PlanRequest) -> Result<Plan, Problems> {
    let mut problems = Problems::new();
    let rank = Rank::new(model, request).map_err(|found| problems.extend(found)).ok();
    let hot_rows = checked_hot_rows(model, request).map_err(|problem| problems.push(problem)).ok();
    let device = kv_bytes(model, request).map_err(|problem| problems.push(problem)).ok();
    if let Some(problem) = rank.as_ref().and_then(|rank| checks::nothing_to_move(rank, request)) {
        problems.push(problem);
    }
    let (Some(rank), Some(hot_rows), Some((kv_bytes, note))) = (rank, hot_rows, device) else { return Err(problems) };
    let sized = problems.into_result(()).and_then(|()| Sized::new(&rank, request, hot_rows, kv_bytes))?;
    checks::fits_machine(&rank, request, sized.host_bytes, sized.host_copies(request))?;
    sized.plan(request, note)
}

/// A request whose pools are known.
struct Sized<'a> {
    rank: &'a Rank<'a>,
    kv_bytes: u64,
    max_seqs: u64,
    hot_rows: u64,
    seat: SeatBytes,
    pools: Pools,
    ratio: Number,
    device: DeviceBytes,
    host_bytes: u64,
}

impl<'a> Sized<'a> {
    fn new(rank: &'a Rank<'a>, request: &PlanRequest, hot_rows: u64, kv_bytes: u64) -> Result<Self, Problems> {
        let overflow = || Problems::one(too_large("--kv-bytes", kv_bytes));
        let max_seqs = request.max_seqs.unwrap_or(MAX_SEQS);
        let longest = rank.model.context_tokens.get();
        let seat_of = |hot_rows: u64| SeatBytes::new(rank, hot_rows, request.query_len(), longest).ok_or_else(overflow);
        let (hot_rows, pools) = if request.hisparse
            && let Some(HostSizing::Auto(most)) = request.sizing
        {
            choose(rank, request, most, kv_bytes, max_seqs)?
        } else {
            let budget = Budget { rank, seat: seat_of(hot_rows)?, hot_rows, max_seqs, kv_bytes };
            (hot_rows, pools(&budget, request)?)
        };
        let (pools, ratio) = settled(pools, request);
        let mut seat = seat_of(hot_rows)?;
        let mut host = host_bytes(rank, pools.logical_pages);
        if !request.hisparse {
            seat = SeatBytes { resident: seat.resident, ..SeatBytes::default() };
            host = Some(0);
        }
        let device = device_bytes(rank, &seat, pools.device_pages, pools.logical_pages, pools.seats);
        let (mut device, host_bytes) = device.zip(host).ok_or_else(overflow)?;
        if !request.hisparse {
            // Nothing is hot where everything is resident.
            device.resident += std::mem::take(&mut device.hot);
        }
        Ok(Self { rank, kv_bytes, max_seqs, hot_rows, seat, pools, ratio, device, host_bytes })
    }

    /// Host pools of one replica: ranks that hold different heads keep different rows.
    fn host_copies(&self, request: &PlanRequest) -> u64 {
        match self.rank.model.shape {
            Shape::Mla { .. } | Shape::DeepseekV4 { .. } => 1,
            Shape::Mha { kv_heads, .. } => request.tp.min(kv_heads),
        }
    }

    fn cell_bytes(&self, request: &PlanRequest) -> Option<Number> {
        match request.sizing {
            Some(HostSizing::HostPool(_) | HostSizing::Auto(_)) if request.hisparse => {
                cell_of(self.rank, self.pools.logical_pages, self.pools.device_pages).map(Number::Whole)
            }
            _ => cell_bytes(self.rank, request),
        }
    }

    fn plan(&self, request: &PlanRequest, note: Option<String>) -> Result<Plan, Problems> {
        let overflow = || Problems::one(too_large("--kv-bytes", self.kv_bytes));
        let (rank, model) = (self.rank, self.rank.model);
        let logical_tokens = self.pools.logical_pages.checked_mul(rank.page_tokens).ok_or_else(overflow)?;
        let copies = self.host_copies(request).checked_mul(request.dp).and_then(|n| n.checked_mul(request.pp));
        let concurrency = self.concurrency(request);
        let mut plan = Plan {
            engine: Engine::Native,
            model: PlanModel::of(rank),
            layout: PlanLayout::of(rank, request),
            hisparse: request.hisparse,
            page_tokens: rank.page_tokens,
            kv_bytes: self.kv_bytes,
            ratio: self.ratio,
            cell_bytes: self.cell_bytes(request).ok_or_else(overflow)?,
            device_tokens: self.pools.device_pages.checked_mul(rank.page_tokens).ok_or_else(overflow)?,
            logical_tokens,
            host_bytes: self.host_bytes,
            physical_host_bytes: copies.and_then(|copies| self.host_bytes.checked_mul(copies)).ok_or_else(overflow)?,
            hot_rows: if request.hisparse { self.hot_rows } else { 0 },
            seats: self.pools.seats,
            max_request_tokens: logical_tokens,
            max_req_len: self.max_req_len(logical_tokens),
            side_buffer_tokens: logical_tokens.checked_add(rank.page_tokens).ok_or_else(overflow)?,
            window_tokens: window_rows(rank, request.query_len())
                .filter(|rows| *rows > 0 && request.hisparse)
                .and_then(|rows| rows.checked_mul(self.pools.seats)),
            break_even_tokens: self.break_even_tokens(request),
            device_bytes: self.device,
            binding: bindings(&concurrency),
            warnings: model.warnings.clone(),
            concurrency,
            sglang: None,
            vllm: None,
        };
        plan.warnings.extend(note);
        warnings::add(&mut plan, rank, request);
        Ok(plan)
    }

    fn concurrency(&self, request: &PlanRequest) -> Vec<Concurrency> {
        let page = &self.rank.page;
        let logical_binding = if request.hisparse { Binding::HostPages } else { Binding::DeviceTokens };
        let limits = Limits {
            baseline: Baseline { total: self.kv_bytes, per_page: page.whole(), per_request: self.seat.resident },
            logical_pages: self.pools.logical_pages,
            logical_binding,
            seats: if request.hisparse { self.pools.seats } else { u64::MAX },
            max_seqs: self.max_seqs,
            page_tokens: self.rank.page_tokens,
            host_page_bytes: page.whole(),
            context_tokens: self.rank.model.context_tokens.get(),
            max_req_len: self.max_req_len(self.pools.logical_pages.saturating_mul(self.rank.page_tokens)),
            length_binding: logical_binding,
        };
        let split = self.split(request);
        let row = |context: &u64| match &split {
            Some((budget, host_pages)) => {
                let requests = budget.requests(*host_pages, *context);
                limits.row_of(*context, (requests, budget.requests_binding(*host_pages, *context, requests)))
            }
            None if request.hisparse => limits.row(*context),
            None => {
                let row = limits.row(*context);
                let runs = if *context > limits.max_req_len { 0 } else { row.baseline };
                Concurrency { baseline: runs, hisparse: runs, host_bytes: 0, ..row }
            }
        };
        contexts(self.rank.model, &request.contexts).iter().map(row).collect()
    }

    /// What rows of the table split anew for their own length: the GPU's budget and the pages of the host pool. `None`
    /// where a ratio sets the split. Under `--auto` the hot buffer is chosen for each row too, and the smallest runs
    /// most.
    fn split(&self, request: &PlanRequest) -> Option<(Budget<'_>, u64)> {
        if !request.hisparse {
            return None;
        }
        let (hot_rows, bytes) = match request.sizing {
            Some(HostSizing::HostPool(bytes)) => (self.hot_rows, bytes),
            Some(HostSizing::Auto(most)) => {
                (*auto_hot_rows(self.rank, request).start(), auto_host_bytes(request, most))
            }
            _ => return None,
        };
        let longest = self.rank.model.context_tokens.get();
        let seat = SeatBytes::new(self.rank, hot_rows, request.query_len(), longest)?;
        let budget = Budget { rank: self.rank, seat, hot_rows, max_seqs: self.max_seqs, kv_bytes: self.kv_bytes };
        Some((budget, usable_pages(self.rank, bytes)))
    }

    /// Longest prompt plus output let through: below the logical size, and within the model's context.
    fn max_req_len(&self, logical_tokens: u64) -> u64 {
        logical_tokens.saturating_sub(1).min(self.rank.model.context_tokens.get())
    }

    /// Context below which a seat costs more GPU memory than the request's own KV would.
    fn break_even_tokens(&self, request: &PlanRequest) -> Option<u64> {
        let page = &self.rank.page;
        if !request.hisparse || page.device() == 0 {
            return None;
        }
        // A sliding window is needed either way.
        let beside = self.seat.total()? - self.seat.resident;
        let rows = padded_rows(self.hot_rows)?.checked_mul(self.rank.tokens_per_row)?;
        rows.checked_add(beside.div_ceil(page.device()).checked_mul(self.rank.page_tokens)?)
    }
}

fn number(ratio: Ratio) -> Number {
    if ratio.denominator() == 1 { Number::Whole(ratio.numerator()) } else { Number::Float(ratio.to_f64()) }
}

/// Pools in a proportion that `--ratio` takes, and that proportion.
fn settled(pools: Pools, request: &PlanRequest) -> (Pools, Number) {
    match request.sizing {
        _ if !request.hisparse => (pools, Number::Whole(1)),
        None | Some(HostSizing::Ratio(_)) => (pools, number(ratio_of(request))),
        Some(_) => {
            let of_pools = Ratio::between(pools.logical_pages, pools.device_pages);
            let sized = of_pools.and_then(|ratio| Some((ratio, ratio.scale_floor(pools.device_pages)?)));
            match sized {
                Some((ratio, logical_pages)) => (Pools { logical_pages, ..pools }, number(ratio)),
                None => (pools, Number::quotient(pools.logical_pages, pools.device_pages)),
            }
        }
    }
}

/// Hot rows that `--auto` chooses from.
fn auto_hot_rows(rank: &Rank<'_>, request: &PlanRequest) -> std::ops::RangeInclusive<u64> {
    request.hot_rows.map_or_else(|| checks::least_hot_rows(rank.model, request)..=MAX_HOT_ROWS, |rows| rows..=rows)
}

/// The largest host pool that `--auto` may choose, in bytes.
fn auto_host_bytes(request: &PlanRequest, most: Option<u64>) -> u64 {
    most.or(request.machine_memory_bytes).unwrap_or(crate::limits::MAX_MEMORY_BYTES)
}

/// Usable pages of a host pool of this size, the pad page apart.
fn usable_pages(rank: &Rank<'_>, bytes: u64) -> u64 {
    (bytes / rank.page.whole().max(1)).saturating_sub(1)
}

fn pools(budget: &Budget<'_>, request: &PlanRequest) -> Result<Pools, Problems> {
    if !request.hisparse {
        let pools = budget.resident(budget.rank.pages(longest_context(budget.rank, request)));
        return if pools.device_pages > 0 { Ok(pools) } else { Err(Problems::one(checks::not_one_page(budget))) };
    }
    let pools = match request.sizing {
        Some(HostSizing::HostPool(bytes)) => {
            let host_pages = usable_pages(budget.rank, bytes);
            if host_pages < budget.seat_pages() {
                return Err(Problems::one(checks::host_pool_too_small(budget, bytes)));
            }
            budget.by_host_pool(host_pages, longest_context(budget.rank, request))
        }
        _ => budget.by_ratio(ratio_of(request)),
    };
    if pools.seats > 0 { Ok(pools) } else { Err(Problems::one(checks::not_one_seat(budget, request))) }
}

/// Hot rows and pools under `--auto`.
fn choose(
    rank: &Rank<'_>,
    request: &PlanRequest,
    most_host_bytes: Option<u64>,
    kv_bytes: u64,
    max_seqs: u64,
) -> Result<(u64, Pools), Problems> {
    let wish = Wish {
        rank,
        kv_bytes,
        host_pages: usable_pages(rank, auto_host_bytes(request, most_host_bytes)),
        max_seqs,
        query_len: request.query_len(),
        context_tokens: longest_context(rank, request),
        hot_rows: auto_hot_rows(rank, request),
    };
    wish.choose().ok_or_else(|| Problems::one(checks::not_one_request(&wish)))
}
