//! The one strict reader of a plan request.
//!
//! ```text
//!  {"kv_dtype": "fp8_e4m3", "ratio": 4, "hot_rows": 4100}
//!      key `hot_rows`  ──►  problem field `--hot-rows`     (one naming rule: `_` is `-`, `--` in front)
//! ```
//! Python's keyword arguments, the command line and gRPC all arrive as such a map. Nothing is accepted by accident: an
//! unknown key is a problem that names the nearest known one, and all problems of one map come back together.

use serde_json::{Map, Value};

use crate::budget::gpu::Gpu;
use crate::budget::request::{HostSizing, LayerSpan, PlanRequest};
use crate::error::Problems;
use crate::input::{Fields, whole_number};
use crate::limits::{
    MAX_CONTEXT_TOKENS, MAX_DRAFT_LAYERS, MAX_HOT_ROWS, MAX_LAYERS, MAX_NATIVE_SPECULATIVE_TOKENS, MAX_PLAN_CONTEXTS,
    MAX_PREFILL_CHUNK_TOKENS, MAX_RANKS, MAX_RATIO, MAX_SEQS, MAX_SM, MAX_SPECULATIVE_TOKENS, MIN_KV_BYTES, MIN_SM,
    PAGE_TOKENS,
};
use crate::platform::{Engine, KvDtype};
use crate::ratio::Ratio;

/// Keys of the map, in the order of the command line's help.
pub const KEYS: &[&str] = &[
    "engine",
    "platform",
    "sm",
    "kv_dtype",
    "hisparse",
    "ratio",
    "host_pool",
    "auto",
    "hot_rows",
    "page_size",
    "num_layers",
    "stage",
    "tp",
    "dp",
    "pp",
    "ep",
    "max_seqs",
    "mtp",
    "draft_layers",
    "gpu",
    "kv_bytes",
    "weights",
    "context",
    "share_host",
    "assume_memory",
    "swa_full_tokens_ratio",
    "chunked_prefill_size",
];

/// The flag that a key stands for: `hot_rows` is `--hot-rows`.
pub fn flag(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

impl PlanRequest {
    /// Reads a map of [`KEYS`]; `null` means absent.
    ///
    /// # Errors
    /// Every unknown key, wrong type, value out of range and contradiction, together.
    pub fn from_json(map: &Map<String, Value>) -> Result<Self, Problems> {
        let (request, problems) = Self::read(map);
        problems.into_result(request)
    }

    /// As [`PlanRequest::from_json`], with the default where a value is wrong, so that checking can go on.
    pub fn read(map: &Map<String, Value>) -> (Self, Problems) {
        let mut reader = Reader { fields: Fields::new(map, "") };
        let request = reader.request();
        let mut problems = Problems::new();
        for mut problem in reader.fields.finish() {
            if KEYS.contains(&problem.field.as_str()) {
                problem.field = flag(&problem.field);
            }
            problems.push(problem);
        }
        (request, problems)
    }
}

struct Reader<'a> {
    fields: Fields<'a>,
}

impl Reader<'_> {
    fn request(&mut self) -> PlanRequest {
        self.fields.only(KEYS);
        let default = PlanRequest::default();
        let gpu = self.gpu();
        let engine = self.fields.choice("engine").unwrap_or(default.engine);
        let platform = self.fields.choice("platform").or(gpu.map(|gpu| gpu.platform)).unwrap_or(default.platform);
        if let Some(gpu) = gpu.filter(|gpu| gpu.platform != platform) {
            self.fields.problem(
                "platform",
                format!("does not match --gpu {gpu}"),
                format!("use {} or leave it out", gpu.platform),
            );
        }
        if self.fields.raw("gpu").is_none() && self.fields.raw("weights").is_some() {
            self.fields.problem("weights", "has no effect without --gpu", "give --gpu, or leave it out");
        }
        let hisparse = self.fields.flag("hisparse").unwrap_or(default.hisparse);
        PlanRequest {
            engine,
            platform,
            sm: self.fields.whole("sm", MIN_SM, MAX_SM).or(gpu.map(|gpu| gpu.sm)).unwrap_or(default.sm),
            kv_dtype: self.kv_dtype(engine).unwrap_or(default.kv_dtype),
            hisparse,
            sizing: self.sizing(engine, hisparse),
            hot_rows: self.fields.whole("hot_rows", 1, most_hot_rows(engine)),
            page_tokens: self.page_tokens(engine),
            layers: self.layers(),
            tp: self.fields.whole("tp", 1, MAX_RANKS).unwrap_or(default.tp),
            dp: self.fields.whole("dp", 1, MAX_RANKS).unwrap_or(default.dp),
            pp: self.fields.whole("pp", 1, MAX_RANKS).unwrap_or(default.pp),
            ep: self.fields.flag("ep").unwrap_or(default.ep),
            max_seqs: self.fields.whole("max_seqs", 1, MAX_SEQS),
            mtp: self.fields.whole("mtp", 0, most_speculative_tokens(engine)).unwrap_or(default.mtp),
            draft_layers: self.fields.whole("draft_layers", 0, MAX_DRAFT_LAYERS),
            gpu,
            kv_bytes: self.fields.size("kv_bytes", MIN_KV_BYTES),
            weight_bytes: self.fields.size("weights", 1),
            contexts: self.contexts(),
            share_host: self.fields.flag("share_host").unwrap_or(default.share_host),
            machine_memory_bytes: self.fields.size("assume_memory", 1),
            swa_full_tokens_ratio: self.window_ratio(),
            chunked_prefill_tokens: self.fields.whole("chunked_prefill_size", 1, MAX_PREFILL_CHUNK_TOKENS),
        }
    }

    fn kv_dtype(&mut self, engine: Engine) -> Option<KvDtype> {
        let dtype = self.fields.choice("kv_dtype")?;
        if dtype == KvDtype::Float32 && engine != Engine::Native {
            self.fields.problem("kv_dtype", "is for --engine native", "use bfloat16 or fp8_e4m3");
            return None;
        }
        Some(dtype)
    }

    fn gpu(&mut self) -> Option<&'static Gpu> {
        let gpu = Gpu::by_name(self.fields.text("gpu")?);
        if gpu.is_none() {
            let remedy = format!("use one of {}, or give --kv-bytes", Gpu::names());
            self.fields.problem("gpu", "must be a known GPU", remedy);
        }
        gpu
    }

    fn sizing(&mut self, engine: Engine, hisparse: bool) -> Option<HostSizing> {
        let ratio = self.ratio(engine);
        let host_pool = self.fields.size("host_pool", 1);
        let auto = self.fields.flag("auto").unwrap_or(false);
        if self.fields.raw("ratio").is_some() && self.fields.raw("host_pool").is_some() {
            self.fields.problem("ratio", "excludes --host-pool", "give one of the two: each sizes the host pool");
        }
        if auto && self.fields.raw("ratio").is_some() {
            self.fields.problem("ratio", "excludes --auto", "leave it out: --auto chooses the ratio");
        }
        if auto && engine != Engine::Native {
            self.fields.problem("auto", "is for --engine native", "leave it out, or plan with --engine native");
        }
        if !hisparse {
            for key in ["ratio", "host_pool", "auto", "hot_rows"] {
                if self.fields.raw(key).is_some_and(|value| *value != Value::Bool(false)) {
                    self.fields.problem(
                        key,
                        "has no meaning without HiSparse",
                        "leave it out, or leave out --no-hisparse",
                    );
                }
            }
        }
        match (auto, host_pool) {
            (true, most) => Some(HostSizing::Auto(most)),
            (false, Some(bytes)) => Some(HostSizing::HostPool(bytes)),
            (false, None) => ratio,
        }
    }

    fn ratio(&mut self, engine: Engine) -> Option<HostSizing> {
        let value = self.fields.raw("ratio")?;
        if let Some(ratio) = Ratio::from_json(value) {
            return Some(HostSizing::Ratio(ratio));
        }
        if let (Engine::Sglang, Some(unchecked)) = (engine, value.as_f64())
            && unchecked < 1.0
        {
            return Some(HostSizing::UncheckedRatio(unchecked));
        }
        let rule = format!("must be a number from 1 to {MAX_RATIO}, with at most six decimal places");
        self.fields.problem("ratio", rule, "give logical tokens per device token, as 4 or 2.5");
        None
    }

    fn page_tokens(&mut self, engine: Engine) -> u64 {
        let Some(page) = self.fields.whole("page_size", 1, 1 << 16) else { return PAGE_TOKENS };
        // SGLang takes these and changes them to 64 on CUDA without a word; its planner says so.
        let sglang_takes = engine == Engine::Sglang && matches!(page, 1 | 32 | 128 | 256);
        if page != PAGE_TOKENS && !sglang_takes {
            self.fields.problem(
                "page_size",
                format!("must be {PAGE_TOKENS}"),
                format!("use {PAGE_TOKENS}, or leave it out"),
            );
        }
        page
    }

    fn layers(&mut self) -> LayerSpan {
        let first = self.fields.whole("num_layers", 1, MAX_LAYERS);
        let Some(value) = self.fields.raw("stage") else {
            return first.map_or(LayerSpan::All, LayerSpan::First);
        };
        if self.fields.raw("num_layers").is_some() {
            self.fields.problem("stage", "excludes --num-layers", "give one of the two");
        }
        let span = value.as_str().and_then(|text| {
            let (from, to) = text.split_once(':')?;
            Some((from.trim().parse::<u64>().ok()?, to.trim().parse::<u64>().ok()?))
        });
        match span {
            Some((from, to)) if from < to && to <= MAX_LAYERS => LayerSpan::Stage(from, to),
            _ => {
                self.fields.problem("stage", "must be A:B with A below B", "write 0:39 for layers 0 to 38");
                LayerSpan::All
            }
        }
    }

    /// One length or a list of them.
    fn contexts(&mut self) -> Vec<u64> {
        let Some(value) = self.fields.raw("context") else { return Vec::new() };
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let in_range = |value: &Value| {
            whole_number(value).and_then(|n| u64::try_from(n).ok()).filter(|n| (1..=MAX_CONTEXT_TOKENS).contains(n))
        };
        if values.len() > MAX_PLAN_CONTEXTS {
            let rule = format!("must be at most {MAX_PLAN_CONTEXTS} lengths");
            self.fields.problem("context", rule, "plan the rest in another call");
            return Vec::new();
        }
        let contexts: Vec<u64> = values.iter().filter_map(in_range).collect();
        if contexts.len() < values.len() {
            let rule = format!("must be lengths from 1 to {MAX_CONTEXT_TOKENS} tokens");
            self.fields.problem("context", rule, "write 131072 for 128K");
        }
        contexts
    }

    fn window_ratio(&mut self) -> Option<f64> {
        let value = self.fields.raw("swa_full_tokens_ratio")?;
        let ratio = value.as_f64().filter(|ratio| *ratio > 0.0 && *ratio <= 1.0);
        if ratio.is_none() {
            self.fields.problem("swa_full_tokens_ratio", "must be above 0 and at most 1", "leave it out for 0.1");
        }
        ratio
    }
}

/// SGLang takes buffers whose slot numbers its tables cannot hold; its planner says so.
fn most_hot_rows(engine: Engine) -> u64 {
    match engine {
        Engine::Sglang => 2 * MAX_HOT_ROWS,
        Engine::Native | Engine::Vllm => MAX_HOT_ROWS,
    }
}

/// Native plans are for this project's own swap-in; vLLM documents deeper drafts, and SGLang's depth is judged late.
fn most_speculative_tokens(engine: Engine) -> u64 {
    match engine {
        Engine::Native => MAX_NATIVE_SPECULATIVE_TOKENS,
        Engine::Sglang | Engine::Vllm => MAX_SPECULATIVE_TOKENS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: &Value) -> Result<PlanRequest, Problems> {
        PlanRequest::from_json(value.as_object().unwrap())
    }

    fn fields_refused(value: &Value) -> Vec<String> {
        read(value).map_or_else(|problems| problems.into_iter().map(|p| p.field).collect(), |_| Vec::new())
    }

    #[test]
    fn nothing_said_means_the_defaults() {
        assert_eq!(read(&json!({})), Ok(PlanRequest::default()));
        assert_eq!(read(&json!({"ratio": null, "gpu": null})), Ok(PlanRequest::default()));
    }

    #[test]
    fn every_kind_of_value_is_read() {
        let request = read(&json!({
            "engine": "sglang", "gpu": "b200", "kv_dtype": "bfloat16", "ratio": 2.5, "hot_rows": 4096, "stage": "0:39",
            "tp": 8, "ep": true, "mtp": 3, "kv_bytes": "20GiB", "context": [8192, 131_072], "share_host": true
        }))
        .unwrap();
        assert_eq!((request.engine, request.sm, request.kv_bytes), (Engine::Sglang, 100, Some(20 << 30)));
        assert_eq!(request.layers, LayerSpan::Stage(0, 39));
        assert_eq!(request.contexts, [8192, 131_072]);
        assert_eq!(request.query_len(), 4);
    }

    #[test]
    fn all_problems_come_back_together_under_the_names_of_flags() {
        let refused = fields_refused(&json!({
            "hot_row": 4096, "hot_rows": true, "ratio": "4", "page_size": 48, "mtp": 8, "kv_dtype": "int4",
            "gpu": "h300", "kv_bytes": "lots", "context": [0], "stage": "39:0", "tp": 0, "swa_full_tokens_ratio": 2
        }));
        for field in [
            "hot_row",
            "--hot-rows",
            "--ratio",
            "--page-size",
            "--mtp",
            "--kv-dtype",
            "--gpu",
            "--kv-bytes",
            "--context",
            "--stage",
            "--tp",
            "--swa-full-tokens-ratio",
        ] {
            assert!(refused.iter().any(|name| name == field), "{field} is not among {refused:?}");
        }
        assert_eq!(refused.len(), 12, "{refused:?}");
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let problems = read(&json!({"hot_row": 4096})).unwrap_err();
        assert_eq!(problems.iter().next().unwrap().remedy, "did you mean hot_rows?");
    }

    #[test]
    fn a_ratio_below_one_is_refused_except_where_sglang_takes_it() {
        for ratio in [json!(0), json!(-1), json!(0.5)] {
            assert_eq!(fields_refused(&json!({"ratio": ratio})), ["--ratio"], "{ratio}");
            let taken = read(&json!({"engine": "sglang", "ratio": ratio})).unwrap();
            assert!(matches!(taken.sizing, Some(HostSizing::UncheckedRatio(_))), "{ratio}");
        }
        for ratio in [json!("NaN"), json!(true), json!([4]), json!(1e9)] {
            assert_eq!(fields_refused(&json!({"engine": "sglang", "ratio": ratio})), ["--ratio"], "{ratio}");
        }
    }

    #[test]
    fn two_ways_to_size_the_host_pool_exclude_each_other() {
        assert_eq!(fields_refused(&json!({"ratio": 4, "host_pool": "160GiB"})), ["--ratio"]);
        assert_eq!(fields_refused(&json!({"ratio": 4, "auto": true})), ["--ratio"]);
        assert_eq!(fields_refused(&json!({"hisparse": false, "ratio": 4})), ["--ratio"]);
    }

    #[test]
    fn what_would_change_nothing_is_refused() {
        assert_eq!(fields_refused(&json!({"weights": "80GiB"})), ["--weights"]);
        assert_eq!(fields_refused(&json!({"weights": "80GiB", "gpu": "h200"})), Vec::<String>::new());
        for sm in [0, 9] {
            assert_eq!(fields_refused(&json!({"sm": sm})), ["--sm"], "{sm}");
        }
    }

    #[test]
    fn absurd_numbers_are_refused_and_never_wrap() {
        let refused = fields_refused(&json!({
            "context": 1e12, "kv_bytes": u64::MAX, "host_pool": 1e300, "hot_rows": -4096, "max_seqs": 1e18
        }));
        assert_eq!(refused.len(), 5, "{refused:?}");
    }
}
