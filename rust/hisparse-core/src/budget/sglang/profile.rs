//! `plan --engine sglang`: what the engine will allocate, accept and admit, as the one plan type.
//!
//! ```text
//!  Rank ─► cell ─► N ─► pools, tables ─► Plan ─► warnings (quirks.rs)
//!     └─► V4: token bytes ─► pools ─► Plan
//! ```
//! What the engine refuses on purpose is a problem here too. What it accepts and fails on later is a plan with a warning.

use serde::Serialize;

use crate::budget::concurrency::{Limits, bindings, contexts};
use crate::budget::kv_bytes::kv_bytes;
use crate::budget::plan::{Binding, Concurrency, DeviceBytes, Number, Plan, PlanLayout, PlanModel};
use crate::budget::rank::{Rank, too_large};
use crate::budget::request::{HostSizing, PlanRequest};
use crate::budget::vllm::{floor_to_count, to_f64};
use crate::error::{Problem, Problems};
use crate::layout::RowLayout;
use crate::limits::{DEFAULT_TOP_K, MAX_SEQS, PAGE_TOKENS};
use crate::model::{Layer, Model, Shape};
use crate::platform::Engine;

use super::admission::LengthLimits;
use super::cell::{Cell, cell, page_tokens, ratio, stored_as};
use super::pools::{self, BuildError, Capacity};
use super::tables::{Refusal, Setting as TableSetting, Tables};
use super::{VERSION, quirks, v4};

/// Request slots that tables are counted for where `--max-seqs` is not given.
const ASSUMED_REQUEST_SLOTS: u64 = 256;

/// Figures under the engine's own names.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Detail {
    /// Release described.
    pub version: &'static str,
    /// `cell_size`, or `bytes_per_full_token` of DeepSeek-V4.
    pub cell_size: Number,
    /// `target_cell_size`: without draft layers.
    pub target_cell_size: Number,
    /// `indexer_cell_bytes`; negative under a negative ratio.
    pub indexer_cell_bytes: i64,
    /// `page_size` of the pools, whatever was asked for.
    pub page_size: u64,
    /// `max_total_num_tokens`.
    pub max_total_num_tokens: u64,
    /// `max_req_input_len`: inputs of this length are refused.
    pub max_req_input_len: u64,
    /// Rows of a request's buffer with its extra page.
    pub padded_buffer_size: u64,
    /// Scratch rows of a request under speculation.
    pub spec_scratch_capacity: u64,
    /// Bytes outside the engine's budget: tables, mapping, pad pages.
    pub unbudgeted_bytes: u64,
    /// Pools of DeepSeek-V4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v4: Option<V4Detail>,
}

/// Pools of DeepSeek-V4 under the engine's own names.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct V4Detail {
    /// Bytes per window token, all layers.
    pub bytes_per_swa_token: f64,
    /// Window tokens per full token.
    pub swa_full_tokens_ratio: f64,
    /// `swa_max_total_num_tokens`.
    pub swa_max_total_num_tokens: u64,
    /// `c4_max_total_num_tokens`.
    pub c4_max_total_num_tokens: f64,
    /// `c128_max_total_num_tokens`.
    pub c128_max_total_num_tokens: u64,
    /// `c4_state_pool_size`.
    pub c4_state_pool_size: u64,
}

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
    quirks::add(&mut plan, &rank, request, &profile.tables);
    Ok(plan)
}

/// The V4 configurator's inputs.
pub(super) fn v4_setting(rank: &Rank<'_>, request: &PlanRequest) -> v4::Setting {
    v4::Setting {
        ratio: ratio(request).0,
        window_ratio: request.swa_full_tokens_ratio.unwrap_or(v4::DEFAULT_WINDOW_RATIO),
        running_requests: request.max_seqs.unwrap_or(v4::DEFAULT_RUNNING_REQUESTS),
        drafts: rank.draft_layers > 0,
    }
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

struct Profile<'a> {
    rank: &'a Rank<'a>,
    request: &'a PlanRequest,
    kv_bytes: u64,
    tables: Tables,
    factor: f64,
    is_int: bool,
}

impl Profile<'_> {
    /// DSA and M3. `None` on overflow.
    fn dsa_plan(&self) -> Option<Result<Plan, Problems>> {
        let page = page_tokens(self.rank.model, self.request);
        let cell = cell(self.rank, self.request)?;
        let Some(cell_bytes) = u64::try_from(cell.with_drafts).ok().filter(|bytes| *bytes > 0) else {
            let rule = "makes a token cost nothing or less";
            return Some(Err(Problems::one(Problem::new("--ratio", self.factor, rule, "use 1 or more"))));
        };
        let device_tokens = self.kv_bytes / cell_bytes / page * page;
        let layers = self.rank.kv_layers();
        let shape = pools::Shape {
            layers,
            row_bytes: cell.row_bytes,
            indexer_bytes: self.rank.indexer.row_bytes(),
            page_tokens: page,
        };
        let built = Capacity::new(shape, device_tokens, self.factor, self.is_int);
        if built == Err(BuildError::Overflow) {
            return None;
        }
        let logical_tokens = floor_to_count(to_f64(device_tokens) * self.factor);
        let device_bytes = self.device_bytes(&cell, built.ok(), device_tokens)?;
        let budgeted = u128::from(cell_bytes) * u128::from(device_tokens);
        let unbudgeted = u128::from(device_bytes.total()?).saturating_sub(budgeted);
        let host_bytes = match built {
            Ok(capacity) if self.request.hisparse => capacity.host_tokens.checked_mul(self.host_row_bytes(&cell)?)?,
            _ => 0,
        };
        let detail = self.detail(&cell, page, device_tokens, u64::try_from(unbudgeted).ok()?);
        Some(self.assemble(&Sizes {
            page,
            cell_bytes: Number::Whole(cell_bytes),
            device_tokens,
            logical_tokens,
            host_bytes,
            host_token_bytes: self.host_row_bytes(&cell)?,
            seats: self.seats(device_tokens),
            baseline_tokens: self.baseline_tokens()?,
            device_bytes,
            detail,
        }))
    }

    /// DeepSeek-V4: `N` is the logical size, and the C4 pool shrinks by the ratio.
    fn v4_plan(&self) -> Result<Plan, Problems> {
        let overflow = || Problems::one(too_large("--kv-bytes", self.kv_bytes));
        let setting = v4_setting(self.rank, self.request);
        let bytes = v4::token_bytes(self.rank, &setting).ok_or_else(overflow)?;
        let Some(pools) = v4::pools(&bytes, &setting, self.kv_bytes) else {
            let rule = format!(
                "leaves no page of window after {} bytes of compressor state; SGLang refuses to start",
                floor_to_count(bytes.fixed)
            );
            return Err(Problems::one(Problem::new(
                "--kv-bytes",
                self.kv_bytes,
                rule,
                "give more, or lower --max-seqs",
            )));
        };
        let off = v4::Setting { ratio: 1.0, ..setting };
        let baseline = v4::token_bytes(self.rank, &off).and_then(|bytes| v4::pools(&bytes, &off, self.kv_bytes));
        let c4_rows = floor_to_count(pools.c4);
        let layers = self.rank.indexer_layers();
        let page_bytes = self.rank.main.page_bytes(crate::budget::rank::PAGE_ROWS).ok_or_else(overflow)?;
        let host_page_bytes = page_bytes.checked_mul(layers).ok_or_else(overflow)?;
        let pages = (pools.full / Layer::INDEXED_RATIO).div_ceil(crate::budget::rank::PAGE_ROWS);
        let rows = to_f64(c4_rows) * to_f64(page_bytes) / to_f64(crate::budget::rank::PAGE_ROWS);
        let keys = pools.full / Layer::INDEXED_RATIO * self.rank.indexer.row_bytes();
        let hot = floor_to_count(rows * to_f64(layers));
        let indexer = keys.checked_mul(layers).ok_or_else(overflow)?;
        let resident =
            floor_to_count(bytes.full * to_f64(pools.full) + bytes.fixed).saturating_sub(hot).saturating_sub(indexer);
        let device_bytes = DeviceBytes {
            hot,
            indexer,
            resident,
            tables: if self.request.hisparse { self.tables.gpu_bytes } else { 0 },
            ..DeviceBytes::default()
        };
        let detail = Detail {
            version: VERSION,
            cell_size: Number::Float(bytes.full),
            target_cell_size: Number::Float(bytes.full),
            indexer_cell_bytes: i64::try_from(layers * self.rank.indexer.row_bytes() / Layer::INDEXED_RATIO)
                .unwrap_or(i64::MAX),
            page_size: v4::PAGE_TOKENS,
            max_total_num_tokens: pools.full,
            max_req_input_len: 0,
            padded_buffer_size: self.tables.padded_rows,
            spec_scratch_capacity: self.tables.scratch_rows,
            unbudgeted_bytes: device_bytes.tables,
            v4: Some(V4Detail {
                bytes_per_swa_token: bytes.window,
                swa_full_tokens_ratio: setting.window_ratio,
                swa_max_total_num_tokens: pools.window,
                c4_max_total_num_tokens: pools.c4,
                c128_max_total_num_tokens: pools.c128,
                c4_state_pool_size: pools.c4_state,
            }),
        };
        self.assemble(&Sizes {
            page: v4::PAGE_TOKENS,
            cell_bytes: Number::Float(bytes.full),
            device_tokens: pools.full,
            logical_tokens: pools.full,
            host_bytes: if self.request.hisparse {
                pages.checked_mul(host_page_bytes).ok_or_else(overflow)?
            } else {
                0
            },
            host_token_bytes: host_page_bytes / v4::PAGE_TOKENS,
            seats: self.seats(c4_rows),
            baseline_tokens: baseline.map_or(0, |pools| pools.full),
            device_bytes,
            detail,
        })
    }

    fn seats(&self, device_rows: u64) -> u64 {
        let most = self.request.max_seqs.unwrap_or(MAX_SEQS);
        if !self.request.hisparse {
            return most.min(device_rows / PAGE_TOKENS);
        }
        most.min(device_rows / (self.tables.padded_rows + self.tables.scratch_rows))
    }

    /// Host bytes of one token: the rows that leave the GPU, without indexer keys.
    fn host_row_bytes(&self, cell: &Cell) -> Option<u64> {
        self.rank.sparse_layers().checked_mul(cell.row_bytes)
    }

    fn device_bytes(&self, cell: &Cell, built: Option<Capacity>, device_tokens: u64) -> Option<DeviceBytes> {
        let Some(capacity) = built else { return Some(DeviceBytes::default()) };
        let (rank, hisparse) = (self.rank, self.request.hisparse);
        let padded = |tokens: u64| tokens.checked_add(page_tokens(rank.model, self.request));
        let dense = rank.count(|layer| layer == Layer::Dense);
        let sparse_bytes = padded(device_tokens)?.checked_mul(cell.row_bytes)?.checked_mul(rank.sparse_layers())?;
        let dense_bytes = padded(capacity.logical_tokens)?.checked_mul(cell.row_bytes)?.checked_mul(dense)?;
        let indexers = if hisparse && dense == 0 { rank.kv_layers() } else { rank.indexer_layers() };
        let draft_cell = u64::try_from(cell.with_drafts.checked_sub(cell.target)?).ok()?;
        Some(DeviceBytes {
            hot: if hisparse { sparse_bytes } else { 0 },
            indexer: capacity.device_index_bytes.checked_div(rank.kv_layers())?.checked_mul(indexers)?,
            tables: if hisparse { self.tables.gpu_bytes.checked_add(self.tables.spec_gpu_bytes)? } else { 0 },
            maps: if hisparse { capacity.mapping_bytes } else { 0 },
            side: 0,
            draft: draft_cell.checked_mul(device_tokens)?,
            resident: dense_bytes.checked_add(if hisparse { 0 } else { sparse_bytes })?,
        })
    }

    /// Tokens without HiSparse.
    fn baseline_tokens(&self) -> Option<u64> {
        let off = PlanRequest { hisparse: false, ..self.request.clone() };
        let cell = cell(self.rank, &off)?;
        let page = page_tokens(self.rank.model, &off);
        Some(self.kv_bytes.checked_div(u64::try_from(cell.with_drafts).ok()?)? / page * page)
    }

    fn detail(&self, cell: &Cell, page: u64, device_tokens: u64, unbudgeted_bytes: u64) -> Detail {
        let whole = |bytes: i64| Number::Whole(u64::try_from(bytes).unwrap_or(0));
        Detail {
            version: VERSION,
            cell_size: whole(cell.with_drafts),
            target_cell_size: whole(cell.target),
            indexer_cell_bytes: cell.indexer,
            page_size: page,
            max_total_num_tokens: device_tokens,
            max_req_input_len: 0,
            padded_buffer_size: self.tables.padded_rows,
            spec_scratch_capacity: self.tables.scratch_rows,
            unbudgeted_bytes,
            v4: None,
        }
    }

    fn assemble(&self, sizes: &Sizes) -> Result<Plan, Problems> {
        let (rank, request) = (self.rank, self.request);
        let overflow = || Problems::one(too_large("--kv-bytes", self.kv_bytes));
        let context = rank.model.context_tokens.get();
        let lengths = LengthLimits::new(sizes.device_tokens, sizes.logical_tokens, context, sizes.page);
        let limits = Limits {
            baseline_pages: sizes.baseline_tokens / sizes.page,
            logical_pages: sizes.logical_tokens / sizes.page,
            logical_binding: if request.hisparse { Binding::HostPages } else { Binding::DeviceTokens },
            seats: sizes.seats,
            max_seqs: request.max_seqs.unwrap_or(MAX_SEQS),
            page_tokens: sizes.page,
            host_page_bytes: sizes.host_token_bytes.checked_mul(sizes.page).ok_or_else(overflow)?,
        };
        let row = |asked: &u64| refuse_long(limits.row(*asked), lengths.max_req_len, context);
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
struct Sizes {
    page: u64,
    cell_bytes: Number,
    device_tokens: u64,
    logical_tokens: u64,
    host_bytes: u64,
    host_token_bytes: u64,
    seats: u64,
    baseline_tokens: u64,
    device_bytes: DeviceBytes,
    detail: Detail,
}

/// A request above the engine's length limit never runs, whatever the pools hold.
fn refuse_long(row: Concurrency, max_req_len: u64, context_tokens: u64) -> Concurrency {
    if row.context <= max_req_len {
        return row;
    }
    let binding = if row.context >= context_tokens { Binding::Context } else { Binding::DeviceTokens };
    if row.context == context_tokens && max_req_len + 1 == context_tokens {
        // The model's whole context, as people write it: one token less runs.
        return row;
    }
    Concurrency { hisparse: 0, host_bytes: 0, binding, ..row }
}
