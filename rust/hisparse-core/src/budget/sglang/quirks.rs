//! Sentences of `warnings[]`: where SGLang differs from what this project does, each with its figures.

use crate::budget::plan::Plan;
use crate::budget::rank::Rank;
use crate::budget::request::{HostSizing, PlanRequest};
use crate::budget::{concurrency, native};
use crate::limits::PAGE_TOKENS;
use crate::model::{Family, Layer, Shape};
use crate::platform::{Engine, KvDtype, Platform};
use crate::size::show_size;
use crate::units::Bytes;

use super::VERSION;
use super::tables::{LARGEST_SLOT, Tables};

/// `num_reserved_decode_tokens` where none is set.
const RESERVED_DECODE_TOKENS: u64 = 512;

/// What a plan leaves out of the engine's recorded behaviour, and why. Shown in the docs beside the profile.
pub const NOT_PLANNED: &[(&str, &str)] = &[
    ("configuration parser", "misspelt keys and text numbers are a matter of `validate`"),
    ("backend allow-list", "backends are a matter of `validate`; a plan says only what they change in bytes"),
    ("index patterns read as all-full", "a short or lower-case pattern is refused when the config.json is read"),
    ("shared-index prefetch", "it moves the same bytes earlier and allocates nothing"),
];

/// Adds them to `plan`.
pub(super) fn add(plan: &mut Plan, rank: &Rank<'_>, request: &PlanRequest, tables: &Tables) {
    let mut notes: Vec<String> = Vec::new();
    notes.extend(page_size(plan, request));
    notes.extend(raw_records(plan, rank, request));
    notes.extend(pooled_keys(rank));
    if request.hisparse {
        notes.extend(concurrency::losing(&plan.concurrency));
        notes.extend(ratio(plan, rank, request));
        notes.extend(index_sharing(plan, rank, request));
        notes.extend(length_limits(plan, rank));
        notes.push(stall(plan, tables));
        notes.extend(growth(plan, tables));
        notes.extend(buffer(plan));
        notes.extend(drafts(plan, rank));
        notes.extend(unbudgeted(plan));
        notes.extend(backends(rank, request));
        notes.extend(host_copies(plan, rank, request));
        notes.extend(native_cell(plan, rank, request));
    }
    plan.warnings.append(&mut notes);
}

fn shown(bytes: u64) -> String {
    show_size(Bytes::new(bytes))
}

fn page_size(plan: &Plan, request: &PlanRequest) -> Option<String> {
    (request.page_tokens != plan.page_tokens && request.page_tokens != PAGE_TOKENS).then(|| {
        format!(
            "SGLang changes a page size of {} to {} without a word; native refuses any but {PAGE_TOKENS}.",
            request.page_tokens, plan.page_tokens
        )
    })
}

fn raw_records(plan: &Plan, rank: &Rank<'_>, request: &PlanRequest) -> Option<String> {
    let raw = matches!(rank.model.shape, Shape::Mla { .. })
        && request.kv_dtype == KvDtype::Fp8E4m3
        && plan.layout.kv_dtype == KvDtype::Fp8Raw;
    let why = if request.platform == Platform::Rocm { "on HIP" } else { "on SM100 with HiSparse off" };
    raw.then(|| format!("SGLang stores FP8 rows raw {why}: {} bytes, without scales.", plan.layout.row_bytes))
}

/// What SGLang's pools of such a model take is in no recorded answer of it; its cell is.
fn pooled_keys(rank: &Rank<'_>) -> Option<String> {
    let tokens = rank.model.index_pooling;
    (tokens > 1).then(|| {
        format!(
            "SGLang budgets an indexer key for each token of a model that pools {tokens} tokens into one, and so does \
             this plan of it; what its pools then allocate is not recorded. Native counts one per {tokens} tokens."
        )
    })
}

fn ratio(plan: &Plan, rank: &Rank<'_>, request: &PlanRequest) -> Option<String> {
    let (factor, is_int) = super::cell::ratio(request);
    if matches!(rank.model.shape, Shape::DeepseekV4 { .. }) {
        return (!is_int).then(|| {
            format!("SGLang keeps float token counts for DeepSeek-V4 at a ratio of {factor}; native has whole ones.")
        });
    }
    let what = if !is_int {
        "passes sizing, then raises TypeError when the pools are built"
    } else if factor < 0.0 {
        "raises the token count, then fails with RuntimeError when the pools are built"
    } else if factor == 0.0 {
        "builds an empty pool: nothing is ever admitted"
    } else {
        return None;
    };
    Some(format!(
        "SGLang does not check the ratio: {factor} {what} ({} tokens here). Native takes numbers from 1.",
        plan.device_tokens
    ))
}

fn index_sharing(plan: &Plan, rank: &Rank<'_>, request: &PlanRequest) -> Option<String> {
    let shared = rank.count(|layer| layer == Layer::Shared);
    if shared == 0 {
        return None;
    }
    let off = super::cell_bytes(rank, &PlanRequest { hisparse: false, ..request.clone() })?;
    let layers = match rank.kv_layers() {
        1 => "the one layer".to_owned(),
        all => format!("all {all} layers"),
    };
    Some(format!(
        "SGLang loses index sharing when HiSparse is on: it budgets an indexer in {layers} instead of {}, {} bytes per \
         device token; without HiSparse it budgets {off}.",
        rank.indexer_layers(),
        plan.cell_bytes
    ))
}

fn length_limits(plan: &Plan, rank: &Rank<'_>) -> Option<String> {
    let logical = plan.logical_tokens.min(rank.model.context_tokens.get()).saturating_sub(1);
    (plan.max_req_len < logical).then(|| {
        format!(
            "SGLang limits lengths by its device pool: max_req_len is {} although {} tokens fit; inputs of {} tokens and \
             more are refused and new tokens clamped. Native's limit is {logical}.",
            plan.max_req_len,
            plan.logical_tokens,
            plan.max_req_len.saturating_sub(5)
        )
    })
}

fn stall(plan: &Plan, tables: &Tables) -> String {
    if plan.seats == 0 {
        return format!(
            "SGLang starts and admits nothing, with no error: its device pool of {} rows is smaller than one buffer of {}. \
             Native refuses such a budget.",
            plan.device_tokens,
            tables.padded_rows + tables.scratch_rows
        );
    }
    let most = plan.logical_tokens.saturating_sub(RESERVED_DECODE_TOKENS);
    format!(
        "A request of more than {most} tokens (capacity less a reserve of {RESERVED_DECODE_TOKENS}) passes SGLang's ceiling \
         check, is never admitted, and holds up all behind it; native refuses it at once."
    )
}

fn growth(plan: &Plan, tables: &Tables) -> Option<String> {
    let short = plan.device_tokens / PAGE_TOKENS;
    (short > plan.seats && plan.seats > 0).then(|| {
        format!(
            "SGLang does not reserve growth: requests shorter than {} rows hold fewer slots than they come to need, and when \
             more than {} of them grow, its process ends with RuntimeError; a jump past the buffer skips growth and reads slot 0 as \
             the newest. Native reserves the whole buffer.",
            plan.hot_rows,
            plan.device_tokens / tables.padded_rows.max(1)
        )
    })
}

fn buffer(plan: &Plan) -> Option<String> {
    (plan.hot_rows > LARGEST_SLOT + 1).then(|| {
        format!(
            "SGLang accepts a buffer of {} rows and its 16-bit recency entries wrap silently; native refuses more than {}.",
            plan.hot_rows,
            LARGEST_SLOT + 1
        )
    })
}

fn drafts(plan: &Plan, rank: &Rank<'_>) -> Option<String> {
    let detail = plan.sglang.as_ref()?;
    let drafts = rank.draft_layers;
    if drafts == 0 {
        return None;
    }
    Some(match rank.model.shape {
        Shape::DeepseekV4 { .. } => {
            format!("SGLang charges DeepSeek-V4 one draft layer, however many there are ({drafts} here).")
        }
        Shape::Mha { .. } => format!(
            "SGLang applies the ratio twice to MiniMax M3's draft layers: {} bytes per device token with {drafts}, {} \
             without.",
            detail.cell_size, detail.target_cell_size
        ),
        Shape::Mla { .. } => format!(
            "SGLang keeps draft KV wholly on the GPU, at N × r: {} bytes per device token with {drafts} draft layer(s), {} \
             without. Native gives draft layers hot rows like any other.",
            detail.cell_size, detail.target_cell_size
        ),
    })
}

fn unbudgeted(plan: &Plan) -> Option<String> {
    let bytes = plan.sglang.as_ref()?.unbudgeted_bytes;
    (bytes > 0).then(|| {
        format!(
            "SGLang leaves {} out of its budget: the logical mapping ({}), the coordinator's tables ({}) and a pad page per \
             pool; the host's pad page can be handed to requests. Native budgets all it allocates.",
            shown(bytes),
            shown(plan.device_bytes.maps),
            shown(plan.device_bytes.tables)
        )
    })
}

fn backends(rank: &Rank<'_>, request: &PlanRequest) -> Option<String> {
    let sm12 = request.platform == Platform::Cuda && request.sm / 10 == 12;
    (sm12 && request.kv_dtype == KvDtype::Fp8E4m3 && rank.model.family == Family::DeepseekV32).then(|| {
        "SGLang's allow-list ignores the architecture: DeepSeek-V3.2 in FP8 resolves to flashmla_kv on SM120, and only GLM \
         gets that architecture's backend."
            .to_owned()
    })
}

/// One host pool per rank, where the ranks could share one.
fn host_copies(plan: &Plan, rank: &Rank<'_>, request: &PlanRequest) -> Option<String> {
    let shared = if request.share_host { " --share-host changes nothing here." } else { "" };
    (request.tp > 1 && !matches!(rank.model.shape, Shape::Mha { .. })).then(|| {
        format!(
            "SGLang keeps an identical host pool on each of the {} tensor-parallel ranks, {} in all; native keeps one for \
             all ranks of a node.{shared}",
            request.tp,
            shown(plan.physical_host_bytes)
        )
    })
}

/// What native would budget for the same model and ratio.
fn native_cell(plan: &Plan, rank: &Rank<'_>, request: &PlanRequest) -> Option<String> {
    let comparable = matches!(request.sizing, None | Some(HostSizing::Ratio(_)));
    if !comparable || matches!(rank.model.shape, Shape::DeepseekV4 { .. }) {
        return None;
    }
    let (factor, _) = super::cell::ratio(request);
    let sizing = match request.sizing {
        None => Some(HostSizing::Ratio(crate::ratio::Ratio::whole(crate::limits::CONFIG_RATIO)?)),
        sizing => sizing,
    };
    let same = PlanRequest { engine: Engine::Native, sizing, kv_dtype: plan.layout.kv_dtype, ..request.clone() };
    let native = native::cell_bytes(rank, &same)?;
    (native != plan.cell_bytes).then(|| {
        format!(
            "SGLang {VERSION} budgets {} bytes per device token at a ratio of {factor}; native budgets {native}.",
            plan.cell_bytes
        )
    })
}
