//! What this project takes: the backend table with every column, the strict configuration, pages of 64, and draft
//! depths that the multi-token swap-in has. Nothing is left to fail later.

use serde_json::json;

use super::host_pool::holds_longest;
use super::outcome::{Outcome, Resolved};
use super::request::{AUTO, ValidateRequest};
use crate::backends::{Backend, Phase, Situation, TABLE, check, has_choice, resolve};
use crate::budget::read::flag;
use crate::error::{Problem, Problems};
use crate::hisparse_config::{Against, HisparseConfig};
use crate::input::nearest;
use crate::layout::RowLayout;
use crate::limits::{DEFAULT_TOP_K, MAX_NATIVE_SPECULATIVE_TOKENS, MIN_DRAFT_TOP_K, PAGE_TOKENS};
use crate::model::{Family, Model};
use crate::platform::{KvDtype, Platform};

/// Tokens of one request verified at once: the newest and its drafts.
const MOST_QUERY_TOKENS: u64 = MAX_NATIVE_SPECULATIVE_TOKENS + 1;

pub(super) fn validate(request: &ValidateRequest, model: Option<&Result<Model, Problems>>) -> Outcome {
    let mut native = Native { request, model: None, problems: Problems::new(), warnings: Vec::new() };
    match model {
        Some(Ok(model)) => native.model = Some(model),
        Some(Err(refused)) => native.problems.extend(refused.clone()),
        None => {}
    }
    let resolved = native.resolve();
    (resolved, native.problems, native.warnings)
}

struct Native<'a> {
    request: &'a ValidateRequest,
    model: Option<&'a Model>,
    problems: Problems,
    warnings: Vec<String>,
}

impl Native<'_> {
    fn resolve(&mut self) -> Resolved {
        self.platform();
        let kv_dtype = self.kv_dtype();
        let backend = |this: &mut Self, phase| kv_dtype.and_then(|kv_dtype| this.backend(phase, kv_dtype));
        let (prefill_backend, decode_backend) = (backend(self, Phase::Prefill), backend(self, Phase::Decode));
        self.page();
        self.indexer();
        let config = self.config();
        self.drafts(config.top_k);
        if let (Some(model), Some(kv_dtype)) = (self.model, kv_dtype) {
            self.problems
                .extend(holds_longest(self.request, model, kv_dtype).map_or_else(Problems::new, Problems::one));
        }
        Resolved {
            prefill_backend,
            decode_backend,
            hot_rows: json!(config.hot_rows),
            ratio: json!(config.ratio),
            top_k: json!(config.top_k),
            kv_dtype: kv_dtype.map(|kv_dtype| kv_dtype.name().to_owned()),
            page_size: Some(PAGE_TOKENS),
        }
    }

    fn platform(&mut self) {
        if let (Platform::Rocm, Some(sm)) = (self.request.platform, self.request.sm) {
            self.warnings.push(format!("--sm {sm} numbers NVIDIA GPUs and has no effect on rocm."));
        }
        let ignored = [
            ("disable_radix_cache", self.request.disable_radix_cache.is_some()),
            ("enable_mixed_chunk", self.request.enable_mixed_chunk),
        ];
        for (key, _) in ignored.into_iter().filter(|(_, given)| *given) {
            self.warnings.push(format!("{} is SGLang's and has no effect on native.", flag(key)));
        }
    }

    /// The KV type by name, or what `auto` stands for with this family; a type the family's rows do not have is refused.
    fn kv_dtype(&mut self) -> Option<KvDtype> {
        let given = self.request.kv_dtype.as_str();
        let family = self.model.map(|model| model.family);
        let kv_dtype = match (given, family) {
            (AUTO, Some(Family::DeepseekV4)) => Some(KvDtype::Fp8E4m3),
            (AUTO, Some(Family::MinimaxM3)) => Some(KvDtype::Bfloat16),
            _ => self.request.known_kv_dtype(),
        };
        let Some(kv_dtype) = kv_dtype else {
            let choices = format!("use one of {AUTO}, {}", KvDtype::NAMES.join(", "));
            let remedy = match nearest(given, KvDtype::NAMES) {
                Some(near) => format!("{choices} (did you mean {near}?)"),
                None => choices,
            };
            self.problems.push(Problem::new(flag("kv_dtype"), given, "must be a known KV type", remedy));
            return None;
        };
        if let Some(model) = self.model
            && let Err(problem) = RowLayout::main(model, kv_dtype, 1)
        {
            self.problems.push(problem);
            return None;
        }
        Some(kv_dtype)
    }

    fn backend(&mut self, phase: Phase, kv_dtype: KvDtype) -> Option<Backend> {
        let named = self.request.backend(phase);
        let family = self.model.map(|model| model.family);
        if let Some(family) = family.filter(|family| !has_choice(*family)) {
            if let Some(name) = named {
                let rule = format!("has no choice for {}, whose attention is its engine's own", family_name(family));
                self.problems.push(Problem::new(phase.flag(), name, rule, "leave it out"));
            }
            return None;
        }
        let here = Situation {
            platform: self.request.platform,
            sm: self.request.sm_or_default(),
            kv_dtype,
            family,
            phase,
            heads: self.request.heads,
            index_pooling: self.model.map_or(1, |model| model.index_pooling),
        };
        let Some(name) = named else {
            let resolved = resolve(&here);
            if resolved.is_none() {
                // Any name gives the same remedy; the first of the table stands for all.
                if let Err(problem) = check(Backend::ALL[0].name(), &here) {
                    let rule = "has no backend to resolve to".to_owned();
                    self.problems.push(Problem { value: "missing".to_owned(), rule, ..problem });
                }
            }
            if resolved == Some(Backend::Reference) {
                self.warnings.push(format!("{phase} resolves to reference: plain torch, correct and slow."));
            }
            return resolved;
        };
        match check(name, &here) {
            Ok(backend) => {
                self.doubts(backend, &here);
                Some(backend)
            }
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }

    /// What is not known to work although nothing speaks against it.
    fn doubts(&mut self, backend: Backend, here: &Situation) {
        let row = TABLE.iter().find(|row| row.backend == backend && row.platform == here.platform);
        let Some(row) = row.filter(|row| !row.is_sure(here)) else { return };
        let instead = resolve(here).map_or("none", Backend::name);
        self.warnings.push(if row.has_code_for(here) {
            format!("{} {backend} is for GLM alone, and no model was given.", here.phase.flag())
        } else {
            format!(
                "{} {backend}: its published builds carry no code for SM{}; native's own choice is {instead}.",
                here.phase.flag(),
                here.sm
            )
        });
    }

    /// The session of the Python package, whose indexer it is, refuses such a model too.
    fn indexer(&mut self) {
        let pooling = self.model.map_or(1, |model| model.index_pooling);
        if pooling > 1 {
            self.warnings.push(format!(
                "native's indexer scores a key of each token, so its decode session refuses a model that pools {pooling} \
                 tokens into one; its pool keeps the KV of such a model for an engine with an indexer of its own."
            ));
        }
    }

    fn page(&mut self) {
        if let Some(page) = self.request.page_tokens.filter(|page| *page != PAGE_TOKENS) {
            let rule = format!("must be {PAGE_TOKENS}, the one page size of every pool");
            self.problems.push(Problem::new(
                flag("page_size"),
                page,
                rule,
                format!("use {PAGE_TOKENS}, or leave it out"),
            ));
        }
    }

    fn config(&mut self) -> HisparseConfig {
        // A depth that is refused anyway says nothing about the buffer.
        let query_tokens = Some(self.request.query_tokens()).filter(|tokens| *tokens <= MOST_QUERY_TOKENS).unwrap_or(1);
        let against = Against {
            model_top_k: self.model.map(|model| model.top_k),
            tail_picks: self.model.map_or(0, |model| model.tail_picks),
            query_tokens,
        };
        let (config, problems) = HisparseConfig::read(self.request.hisparse_config.as_deref(), against);
        self.problems.extend(problems);
        config
    }

    /// Draft depth, checked here and not when the first batch is built.
    fn drafts(&mut self, top_k: Option<u64>) {
        if let Some(width) = self.request.speculative_eagle_topk.filter(|width| *width > 1) {
            let rule = "must be 1: the swap-in follows one branch of drafts";
            self.problems.push(Problem::new(flag("speculative_eagle_topk"), width, rule, "use 1"));
        }
        let query_tokens = self.request.query_tokens();
        if query_tokens == 1 {
            return;
        }
        let most = MAX_NATIVE_SPECULATIVE_TOKENS;
        let (key, value) = self.request.draft_depth();
        let (rule, remedy) = match self.request.speculative_num_draft_tokens {
            Some(_) => (
                format!("must be 2 to {MOST_QUERY_TOKENS} tokens verified at once, the newest included"),
                format!("use 2 to {MOST_QUERY_TOKENS}"),
            ),
            None => (format!("must be 1 to {most} draft steps, each of one token"), format!("use 1 to {most}")),
        };
        if query_tokens > MOST_QUERY_TOKENS {
            self.problems.push(Problem::new(flag(key), value, rule, remedy));
        }
        let top_k = top_k.unwrap_or(DEFAULT_TOP_K);
        if top_k < MIN_DRAFT_TOP_K {
            let rule = format!("needs a model that attends to {MIN_DRAFT_TOP_K} tokens or more, not {top_k}");
            self.problems.push(Problem::new(flag(key), value, rule, "leave drafts out"));
        }
    }
}

fn family_name(family: Family) -> String {
    serde_json::to_value(family).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}
