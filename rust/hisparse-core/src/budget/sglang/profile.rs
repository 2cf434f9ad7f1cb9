//! `plan --engine sglang`: what the engine will allocate, accept and admit, as the one plan type.
//!
//! ```text
//!  Rank ─► cell ─► N ─► pools, tables ─► Plan ─► warnings (quirks.rs)
//!     └─► V4: token bytes ─► pools ─► Plan
//! ```
//! What the engine refuses on purpose is a problem here too. What it accepts and fails on later is a plan with a warning.

use crate::budget::concurrency::{Baseline, Limits, bindings, contexts};
use crate::budget::kv_bytes::kv_bytes;
use crate::budget::plan::{Binding, Concurrency, DeviceBytes, Number, Plan, PlanLayout, PlanModel};
use crate::budget::rank::{Rank, too_large};
use crate::budget::request::{HostSizing, PlanRequest};
use crate::budget::vllm::floor_to_count;
use crate::error::{Problem, Problems};
use crate::layout::RowLayout;
use crate::limits::{DEFAULT_TOP_K, MAX_SEQS, PAGE_TOKENS};
use crate::model::{Model, Shape};
use crate::platform::Engine;
use crate::size::show_size;
use crate::units::Bytes;

use super::admission::LengthLimits;
use super::cell::{page_tokens, ratio, stored_as};
use super::detail::Detail;
use super::quirks;
use super::tables::{Refusal, Setting as TableSetting, Tables};

/// Host memory that the engine leaves free (10 GiB).
const HOST_RESERVE_BYTES: u64 = 10 << 30;

/// Request slots that tables are counted for where `--max-seqs` is not given.
const ASSUMED_REQUEST_SLOTS: u64 = 256;

/// Plans what the engine does.
///
/// # Errors
/// Everything it refuses on purpose, together; numbers beyond 64 bits.
pub fn plan(model: &Model, request: &PlanRequest) -> Result<Plan, Problems> {
    let mut problems = Problems::new();
    // Rows as the engine stores them, so that layout and budget agree.
    let stored = PlanRequest { kv_dtype: stored_as(request), ..request.clone() };
    let rank = Rank::new(model, &stored).map_err(|found| problems.extend(found)).ok();
    let device = kv_bytes(model, request).map_err(|problem| problems.push(problem)).ok();
    let tables = tables(model, request).map_err(|problem| problems.push(problem)).ok();
    if matches!(request.sizing, Some(HostSizing::HostPool(_))) {
        let rule = "is not how SGLang sizes its host pool";
        problems.push(Problem::new("--host-pool", "given", rule, "use --ratio, or --engine native"));
    }
    let v4 = matches!(model.shape, Shape::DeepseekV4 { .. });
    let (factor, is_int) = ratio(request);
    if v4 && factor < 1.0 {
        problems.push(Problem::new("--ratio", factor, "must be at least 1 for DeepSeek-V4", "use 1 or more"));
    }
    let (Some(rank), Some((kv_bytes, note)), Some(tables)) = (rank, device, tables) else { return Err(problems) };
    problems.into_result(())?;
    let profile = Profile { rank: &rank, request: &stored, kv_bytes, tables, factor, is_int };
    let overflow = || Problems::one(too_large("--kv-bytes", kv_bytes));
    let mut plan = if v4 { profile.v4_plan()? } else { profile.dsa_plan().ok_or_else(overflow)?? };
    plan.warnings.extend(model.warnings.iter().cloned().chain(note));
    fits_machine(&plan, request)?;
    quirks::add(&mut plan, &rank, request, &profile.tables);
    Ok(plan)
}

/// The engine keeps 10 GiB of the host free, and counts a pool per tensor-parallel rank.
fn fits_machine(plan: &Plan, request: &PlanRequest) -> Result<(), Problems> {
    let Some(machine) = request.machine_memory_bytes else { return Ok(()) };
    let pools = plan.host_bytes.saturating_mul(request.tp);
    let needed = pools.saturating_add(HOST_RESERVE_BYTES);
    if pools == 0 || needed <= machine {
        return Ok(());
    }
    let shown = |bytes: u64| show_size(Bytes::new(bytes));
    let rule = format!(
        "needs {} of host memory on {} ranks and SGLang's reserve of {}; the machine allows {}",
        shown(pools),
        request.tp,
        shown(HOST_RESERVE_BYTES),
        shown(machine)
    );
    Err(Problems::one(Problem::new("--ratio", plan.ratio, rule, "use a smaller ratio, or less --kv-bytes")))
}

fn tables(model: &Model, request: &PlanRequest) -> Result<Tables, Problem> {
    // The default is twice the configuration's top-k, whatever the model's is.
    let buffer_rows = if request.hisparse { request.hot_rows.unwrap_or(2 * DEFAULT_TOP_K) } else { 0 };
    if request.hisparse && buffer_rows < model.top_k {
        let rule = format!("must be at least top_k, {}", model.top_k);
        return Err(Problem::new("--hot-rows", buffer_rows, rule, format!("use {} or more", model.top_k)));
    }
    let setting = TableSetting {
        layers: model.kv_layers(),
        request_slots: request.max_seqs.unwrap_or(ASSUMED_REQUEST_SLOTS),
        context_tokens: model.context_tokens.get(),
        buffer_rows,
        top_k: model.top_k,
        page_tokens: buffer_page_tokens(model, request),
        draft_tokens: if request.hisparse && request.mtp > 0 { request.query_len() } else { 0 },
    };
    Tables::new(&setting).map_err(|refusal| match refusal {
        Refusal::BufferNotWholePages => {
            let rule = format!("must be a multiple of {}; SGLang finds out only in its coordinator", setting.page_tokens);
            Problem::new("--hot-rows", buffer_rows, rule, "use 4096 or 6144")
        }
        Refusal::DraftDepth => {
            let rule = "must verify 2 to 4 tokens a step, with a top-k of 1,024 or more; SGLang passes it at start-up and \
                        refuses it in its coordinator";
            Problem::new("--mtp", request.mtp, rule, "use 1 to 3 speculative tokens, or --no-hisparse")
        }
        Refusal::Overflow => too_large("--max-seqs", setting.request_slots),
    })
}

/// Rows of the page that a buffer is padded by. DeepSeek-V4 pads its C4 rows, not its public pages.
fn buffer_page_tokens(model: &Model, request: &PlanRequest) -> u64 {
    match model.shape {
        Shape::DeepseekV4 { .. } => PAGE_TOKENS,
        Shape::Mla { .. } | Shape::Mha { .. } => page_tokens(model, request),
    }
}

/// A request settled into the engine's terms.
pub(super) struct Profile<'a> {
    pub(super) rank: &'a Rank<'a>,
    pub(super) request: &'a PlanRequest,
    pub(super) kv_bytes: u64,
    pub(super) tables: Tables,
    pub(super) factor: f64,
    pub(super) is_int: bool,
}

impl Profile<'_> {
    /// Requests whose whole buffers fit.
    pub(super) fn seats(&self, device_rows: u64) -> u64 {
        let most = self.request.max_seqs.unwrap_or(MAX_SEQS);
        if !self.request.hisparse {
            return most.min(device_rows / PAGE_TOKENS);
        }
        most.min(device_rows / (self.tables.padded_rows + self.tables.scratch_rows))
    }

    /// The plan of these sizes.
    pub(super) fn assemble(&self, sizes: &Sizes) -> Result<Plan, Problems> {
        let (rank, request) = (self.rank, self.request);
        let overflow = || Problems::one(too_large("--kv-bytes", self.kv_bytes));
        let context = rank.model.context_tokens.get();
        let lengths = LengthLimits::new(sizes.device_tokens, sizes.logical_tokens, context, sizes.page);
        let limits = Limits {
            baseline: Baseline { total: sizes.baseline_tokens / sizes.page, per_page: 1, per_request: 0 },
            logical_pages: if sizes.starts { sizes.logical_tokens / sizes.page } else { 0 },
            logical_binding: if request.hisparse { Binding::HostPages } else { Binding::DeviceTokens },
            seats: sizes.seats,
            max_seqs: request.max_seqs.unwrap_or(MAX_SEQS),
            page_tokens: sizes.page,
            host_page_bytes: sizes.host_token_bytes.checked_mul(sizes.page).ok_or_else(overflow)?,
            // The engine lets through one token less than the context.
            context_tokens: context.saturating_sub(1),
            max_req_len: lengths.max_req_len,
            length_binding: Binding::DeviceTokens,
        };
        let row = |asked: &u64| limits.row(*asked);
        let concurrency: Vec<Concurrency> = contexts(rank.model, &request.contexts).iter().map(row).collect();
        let copies = request.tp.checked_mul(request.dp).and_then(|copies| copies.checked_mul(request.pp));
        let row_bytes = RowLayout::main(rank.model, request.kv_dtype, request.tp).map_err(Problems::one)?.row_bytes();
        Ok(Plan {
            engine: Engine::Sglang,
            model: PlanModel::of(rank),
            layout: PlanLayout { row_bytes, row_stride: row_bytes, ..PlanLayout::of(rank, request) },
            hisparse: request.hisparse,
            page_tokens: sizes.page,
            kv_bytes: self.kv_bytes,
            ratio: if self.is_int && self.factor >= 0.0 {
                Number::Whole(floor_to_count(self.factor))
            } else {
                Number::Float(self.factor)
            },
            cell_bytes: sizes.cell_bytes,
            device_tokens: sizes.device_tokens,
            logical_tokens: sizes.logical_tokens,
            host_bytes: sizes.host_bytes,
            physical_host_bytes: copies.and_then(|copies| sizes.host_bytes.checked_mul(copies)).ok_or_else(overflow)?,
            hot_rows: if request.hisparse {
                self.tables.padded_rows - buffer_page_tokens(rank.model, request)
            } else {
                0
            },
            seats: sizes.seats,
            max_request_tokens: lengths.max_token_pool_size,
            max_req_len: lengths.max_req_len,
            side_buffer_tokens: sizes.logical_tokens.checked_add(sizes.page).ok_or_else(overflow)?,
            window_tokens: sizes.detail.v4.map(|v4| v4.swa_max_total_num_tokens),
            break_even_tokens: request.hisparse.then(|| self.tables.padded_rows * rank.tokens_per_row),
            device_bytes: sizes.device_bytes,
            binding: bindings(&concurrency),
            warnings: Vec::new(),
            concurrency,
            sglang: Some(Detail { max_req_input_len: lengths.max_req_input_len, ..sizes.detail.clone() }),
            vllm: None,
        })
    }
}

/// What the two configurators give.
pub(super) struct Sizes {
    pub(super) page: u64,
    /// Whether the engine comes as far as to serve: it sizes pools at ratios with which it cannot build them.
    pub(super) starts: bool,
    pub(super) cell_bytes: Number,
    pub(super) device_tokens: u64,
    pub(super) logical_tokens: u64,
    pub(super) host_bytes: u64,
    pub(super) host_token_bytes: u64,
    pub(super) seats: u64,
    pub(super) baseline_tokens: u64,
    pub(super) device_bytes: DeviceBytes,
    pub(super) detail: Detail,
}
