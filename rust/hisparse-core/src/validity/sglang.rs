//! What SGLang 0.5.23 takes, in the order of its start-up: resolution, HiSparse's checks, the backend list. What it
//! takes and native would not comes back as warnings.
//!
//! ```text
//!  KV type ─► backends ─► draft tree ─► model, prefix cache, mixed chunks ─► list of backends ─► config (at pool sizing)
//!                └ GLM with FP8 on SM120/121 leaves early: the two checks on the way do not see it
//! ```

use serde_json::{Value, json};

use super::native;
use super::outcome::{Outcome, Resolved};
use super::request::{AUTO, ValidateRequest};
use crate::backends::sglang::{allowed, default_of_list, is_sm12x_glm, known_kv_dtype, resolve};
use crate::backends::{Backend, Phase, has_choice, use_one_of};
use crate::budget::read::flag;
use crate::error::{Problem, Problems};
use crate::hisparse_config::{FIELD, upstream};
use crate::limits::PAGE_TOKENS;
use crate::model::{Family, Model};
use crate::platform::{KvDtype, Platform};

/// Rules of the start-up, in the words of this project; each is one refusal of the engine.
pub mod rules {
    /// The KV type of a DSA model.
    pub const KV_DTYPE: &str = "must be bfloat16 or fp8_e4m3 for a DSA model";
    /// TileLang with FP8 rows on CUDA.
    pub const TILELANG_FP8: &str = "keeps FP8 rows on CUDA in a layout that excludes HiSparse";
    /// A draft tree of several branches needs pages of one token.
    pub const WIDE_TREE_PAGE: &str = "must be 1 where a page holds more than one token";
    /// A draft tree of several branches.
    pub const WIDE_TREE: &str = "must be 1 with HiSparse";
    /// Triton's SGLang kernels.
    pub const ROCM_ONLY: &str = "runs on rocm only";
    /// The prefix cache.
    pub const RADIX: &str = "must be given: HiSparse excludes the prefix cache";
    /// Mixed batches.
    pub const MIXED_CHUNK: &str = "excludes HiSparse";
    /// The list of backends.
    pub const NOT_LISTED: &str = "is not in SGLang's HiSparse list for this platform and KV type";
}

pub(super) fn validate(request: &ValidateRequest, model: Option<&Result<Model, Problems>>) -> Outcome {
    let known = model.and_then(|model| model.as_ref().ok());
    let mut startup = Startup { request, family: known.map(|model| model.family), problems: Problems::new() };
    let mut warnings = Vec::new();
    if let Some(Err(refused)) = model {
        startup.problems.extend(refused.clone());
    }
    let mut resolved = startup.resolve();
    let mut problems = startup.problems;
    startup_notes(request, known, &resolved, &mut warnings);
    configure(request, known, &mut resolved, &mut problems);
    warn_where_native_differs(request, model, &resolved, &problems, &mut warnings);
    (resolved, problems, warnings)
}

struct Startup<'a> {
    request: &'a ValidateRequest,
    family: Option<Family>,
    problems: Problems,
}

impl Startup<'_> {
    fn resolve(&mut self) -> Resolved {
        let page = self.page_tokens();
        let mut resolved =
            Resolved { kv_dtype: Some(self.request.kv_dtype.clone()), page_size: Some(page), ..Resolved::default() };
        match self.family {
            Some(family) if has_choice(family) => self.dsa(family, &mut resolved),
            None => self.bare(&mut resolved),
            Some(_) => self.combinations(page),
        }
        resolved
    }

    /// Tokens of a page after SGLang has set it, whatever was asked for.
    fn page_tokens(&self) -> u64 {
        match (self.family, self.request.platform) {
            (Some(Family::DeepseekV4), _) => 256,
            (Some(Family::MinimaxM3), _) => 128,
            (_, Platform::Cuda) => PAGE_TOKENS,
            (_, Platform::Rocm) => 1,
        }
    }

    /// A DSA model: the whole way.
    fn dsa(&mut self, family: Family, resolved: &mut Resolved) {
        let page = self.page_tokens();
        let kv_dtype = match self.request.kv_dtype.as_str() {
            "bf16" => Some(KvDtype::Bfloat16),
            AUTO => self.request.known_kv_dtype(),
            text => known_kv_dtype(text),
        };
        let Some(kv_dtype) = kv_dtype else {
            self.refuse("kv_dtype", &self.request.kv_dtype, rules::KV_DTYPE, "use auto, bfloat16 or fp8_e4m3");
            self.combinations(page);
            return;
        };
        resolved.kv_dtype = Some(kv_dtype.name().to_owned());
        let (platform, sm) = (self.request.platform, self.request.sm_or_default());
        let leaves_early = is_sm12x_glm(platform, sm, kv_dtype, family);
        let on_the_way = platform == Platform::Cuda && !leaves_early;
        let mut refused = Vec::new();
        for phase in Phase::ALL {
            if on_the_way && kv_dtype == KvDtype::Fp8E4m3 && self.request.backend(*phase) == Some("tilelang") {
                self.refuse_backend(*phase, rules::TILELANG_FP8, platform, Some(kv_dtype));
                refused.push(*phase);
            }
        }
        self.wide_tree(page, true);
        for phase in Phase::ALL {
            if on_the_way && self.request.backend(*phase) == Some("triton") {
                self.refuse_backend(*phase, rules::ROCM_ONLY, platform, Some(kv_dtype));
                refused.push(*phase);
            }
        }
        self.combinations(page);
        let default = resolve(platform, sm, kv_dtype, family);
        for phase in Phase::ALL.iter().filter(|phase| !refused.contains(phase)) {
            let backend = self.listed(*phase, platform, Some(kv_dtype), default);
            *slot(resolved, *phase) = backend;
        }
    }

    /// No model: the list alone, by the KV type as it is written.
    fn bare(&mut self, resolved: &mut Resolved) {
        let (platform, kv_dtype) = (self.request.platform, known_kv_dtype(&self.request.kv_dtype));
        let page = self.page_tokens();
        self.wide_tree(page, true);
        self.combinations(page);
        for phase in Phase::ALL {
            *slot(resolved, *phase) = self.listed(*phase, platform, kv_dtype, default_of_list(platform, kv_dtype));
        }
    }

    fn listed(
        &mut self,
        phase: Phase,
        platform: Platform,
        kv_dtype: Option<KvDtype>,
        default: Option<Backend>,
    ) -> Option<Backend> {
        let Some(name) = self.request.backend(phase) else { return default };
        let found = name.parse().ok().filter(|backend| allowed(platform, kv_dtype).contains(backend));
        if found.is_none() {
            self.refuse_backend(phase, rules::NOT_LISTED, platform, kv_dtype);
        }
        found
    }

    /// Several branches of drafts: refused early where a page holds more than one token, else by HiSparse's own check.
    fn wide_tree(&mut self, page: u64, early: bool) {
        let Some(width) = self.request.speculative_eagle_topk.filter(|width| *width > 1) else { return };
        match (early, page > 1) {
            (true, true) => self.refuse("speculative_eagle_topk", width, rules::WIDE_TREE_PAGE, "use 1"),
            (false, false) => self.refuse("speculative_eagle_topk", width, rules::WIDE_TREE, "use 1"),
            (true, false) | (false, true) => {}
        }
    }

    /// Features that exclude HiSparse.
    fn combinations(&mut self, page: u64) {
        if self.request.disable_radix_cache == Some(false) {
            self.refuse("disable_radix_cache", false, rules::RADIX, "add it");
        }
        self.wide_tree(page, false);
        if self.request.enable_mixed_chunk {
            self.refuse("enable_mixed_chunk", true, rules::MIXED_CHUNK, "leave it out");
        }
    }

    fn refuse(&mut self, key: &str, value: impl std::fmt::Display, rule: &str, remedy: &str) {
        self.problems.push(Problem::new(flag(key), value, rule, remedy));
    }

    fn refuse_backend(&mut self, phase: Phase, rule: &str, platform: Platform, kv_dtype: Option<KvDtype>) {
        let remedy = use_one_of(&allowed(platform, kv_dtype));
        let name = self.request.backend(phase).unwrap_or_default();
        self.problems.push(Problem::new(phase.flag(), name, rule, remedy));
    }
}

fn slot(resolved: &mut Resolved, phase: Phase) -> &mut Option<Backend> {
    match phase {
        Phase::Prefill => &mut resolved.prefill_backend,
        Phase::Decode => &mut resolved.decode_backend,
    }
}

/// The configuration as the engine reads it when it sizes the pools, long after start-up.
fn configure(request: &ValidateRequest, model: Option<&Model>, resolved: &mut Resolved, problems: &mut Problems) {
    match upstream::read(request.hisparse_config.as_deref()) {
        Ok(config) => {
            resolved.hot_rows = config.get("device_buffer_size").clone();
            resolved.ratio = config.get("host_to_device_ratio").clone();
            resolved.top_k = model.map_or_else(|| config.get("top_k").clone(), |model| json!(model.top_k));
        }
        Err(refusal) => {
            let field = refusal.key().map_or_else(|| FIELD.to_owned(), |key| format!("{FIELD}.{key}"));
            let text = request.hisparse_config.as_deref().unwrap_or_default();
            let rule = format!("{} ({}, raised when the pools are sized)", refusal.rule(), refusal.error_type());
            problems.push(Problem::new(field, crate::input::shown(&Value::from(text)), rule, "correct the text"));
        }
    }
}

fn startup_notes(request: &ValidateRequest, model: Option<&Model>, resolved: &Resolved, warnings: &mut Vec<String>) {
    if request.disable_radix_cache.is_none() {
        warnings.push("SGLang also wants --disable-radix-cache with HiSparse.".to_owned());
    }
    if let (Some(asked), Some(page)) = (request.page_tokens, resolved.page_size)
        && asked != page
    {
        warnings.push(format!("SGLang changes --page-size {asked} to {page} here without saying so."));
    }
    if request.kv_dtype != AUTO && known_kv_dtype(&request.kv_dtype).is_none() && model.is_none() {
        warnings.push(format!(
            "SGLang's backend check does not know --kv-dtype {}, and takes every backend of the platform.",
            request.kv_dtype
        ));
    }
    if request.pp_size > 1 {
        warnings.push("SGLang turns the prefetch of shared-index layers off under pipeline parallelism.".to_owned());
    }
    if let Some(model) = model {
        if model.family == Family::GenericDsa {
            warnings.push(format!("SGLang knows models by architecture, and may not know {}.", model.architecture));
        }
        if !has_choice(model.family) {
            for phase in Phase::ALL.iter().filter(|phase| request.backend(**phase).is_some()) {
                warnings.push(format!("{} has no effect on {} in SGLang.", phase.flag(), model.name));
            }
        }
    }
}

/// Native's view of what the engine resolved to, as warnings, without what the engine refuses itself.
fn warn_where_native_differs(
    request: &ValidateRequest,
    model: Option<&Result<Model, Problems>>,
    resolved: &Resolved,
    refused: &Problems,
    warnings: &mut Vec<String>,
) {
    if model.is_some_and(Result::is_err) {
        return;
    }
    let settled = ValidateRequest {
        // An `auto` that is settled is judged as what it became; a name of the user's is judged as written.
        kv_dtype: match &resolved.kv_dtype {
            Some(settled) if model.is_some() && request.kv_dtype == AUTO => settled.clone(),
            _ => request.kv_dtype.clone(),
        },
        prefill_backend: resolved.prefill_backend.map(|backend| backend.name().to_owned()),
        decode_backend: resolved.decode_backend.map(|backend| backend.name().to_owned()),
        disable_radix_cache: None,
        enable_mixed_chunk: false,
        page_tokens: None,     // said by `startup_notes`
        host_pool_bytes: None, // SGLang's pool follows from the ratio
        ..request.clone()
    };
    let (_, problems, doubts) = native::validate(&settled, model);
    let is_refused = |field: &str| refused.iter().any(|problem| field.starts_with(&problem.field));
    for problem in problems.iter().filter(|problem| !is_refused(&problem.field)) {
        let Problem { field, value, rule, remedy } = problem;
        warnings.push(format!("SGLang takes {field} = {value}, native refuses it: {rule}; {remedy}."));
    }
    warnings.extend(doubts);
}
