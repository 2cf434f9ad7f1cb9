//! What is asked of the validator, and the one strict reader of it.
//!
//! ```text
//!  {"engine": "native", "kv_dtype": "auto", "decode_backend": "flashmla_kv", …}  ──►  ValidateRequest
//!      key `kv_dtype`  ──►  problem field `--kv-dtype`
//! ```

use serde_json::{Map, Value};

use crate::backends::{Phase, auto_kv_dtype};
use crate::budget::read::flag;
use crate::error::Problems;
use crate::input::Fields;
use crate::limits::{DEFAULT_SM, MAX_CONTEXT_TOKENS, MAX_DIMENSION, MAX_RANKS, MAX_SM, MIN_SM};
use crate::platform::{Engine, KvDtype, Platform};

/// Keys of the map: first the command line's, in its order, then the flags of SGLang that its checks look at.
pub const KEYS: &[&str] = &[
    "engine",
    "hisparse_config",
    "platform",
    "sm",
    "kv_dtype",
    "prefill_backend",
    "decode_backend",
    "heads",
    "host_pool",
    "assume_memory",
    "context",
    "page_size",
    "disable_radix_cache",
    "enable_mixed_chunk",
    "speculative_num_steps",
    "speculative_num_draft_tokens",
    "speculative_eagle_topk",
    "pp_size",
];

/// The `auto` of `--kv-dtype`.
pub(super) const AUTO: &str = "auto";

/// A configuration to be checked; its names and numbers are still as the user wrote them where a check is about them.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidateRequest {
    /// Whose rules apply.
    pub engine: Engine,
    /// The text of `--hisparse-config`.
    pub hisparse_config: Option<String>,
    /// GPU software platform.
    pub platform: Platform,
    /// NVIDIA compute capability, major × 10 + minor; `None` where not given.
    pub sm: Option<u64>,
    /// KV type by name, or `auto`.
    pub kv_dtype: String,
    /// Backend of whole prompts, where named.
    pub prefill_backend: Option<String>,
    /// Backend of decode steps, where named.
    pub decode_backend: Option<String>,
    /// Query heads on one rank, where known.
    pub heads: Option<u64>,
    /// Bytes of the node's one host pool, which its ranks share.
    pub host_pool_bytes: Option<u64>,
    /// Bytes the machine can give: the least of what is available and what the cgroup leaves.
    pub machine_memory_bytes: Option<u64>,
    /// Longest request that must fit the host pool, in tokens; `None` means the model's own context.
    pub context_tokens: Option<u64>,
    /// Page size asked for, in tokens.
    pub page_tokens: Option<u64>,
    /// SGLang: whether `--disable-radix-cache` is given; `None` where not said.
    pub disable_radix_cache: Option<bool>,
    /// SGLang: whether prefill and decode may share a batch.
    pub enable_mixed_chunk: bool,
    /// SGLang: draft steps.
    pub speculative_num_steps: Option<u64>,
    /// SGLang: tokens verified at once, the newest included.
    pub speculative_num_draft_tokens: Option<u64>,
    /// SGLang: branches of the draft tree at each step.
    pub speculative_eagle_topk: Option<u64>,
    /// SGLang: pipeline stages.
    pub pp_size: u64,
}

impl Default for ValidateRequest {
    fn default() -> Self {
        Self {
            engine: Engine::Native,
            hisparse_config: None,
            platform: Platform::Cuda,
            sm: None,
            kv_dtype: AUTO.to_owned(),
            prefill_backend: None,
            decode_backend: None,
            heads: None,
            host_pool_bytes: None,
            machine_memory_bytes: None,
            context_tokens: None,
            page_tokens: None,
            disable_radix_cache: None,
            enable_mixed_chunk: false,
            speculative_num_steps: None,
            speculative_num_draft_tokens: None,
            speculative_eagle_topk: None,
            pp_size: 1,
        }
    }
}

impl ValidateRequest {
    /// Reads a map of [`KEYS`]; `null` means absent.
    ///
    /// # Errors
    /// Every unknown key, wrong type and value out of range, together.
    pub fn from_json(map: &Map<String, Value>) -> Result<Self, Problems> {
        let (request, problems) = Self::read(map);
        problems.into_result(request)
    }

    /// As [`ValidateRequest::from_json`], with the default where a value is wrong, so that checking can go on.
    pub fn read(map: &Map<String, Value>) -> (Self, Problems) {
        let mut fields = Fields::new(map, "");
        fields.only(KEYS);
        let default = Self::default();
        let request = Self {
            engine: fields.choice("engine").unwrap_or(default.engine),
            hisparse_config: fields.text("hisparse_config").map(str::to_owned),
            platform: fields.choice("platform").unwrap_or(default.platform),
            sm: fields.whole("sm", MIN_SM, MAX_SM),
            kv_dtype: fields.text("kv_dtype").map_or(default.kv_dtype, str::to_owned),
            prefill_backend: fields.text("prefill_backend").map(str::to_owned),
            decode_backend: fields.text("decode_backend").map(str::to_owned),
            heads: fields.whole("heads", 1, MAX_DIMENSION),
            host_pool_bytes: fields.size("host_pool", 1),
            machine_memory_bytes: fields.size("assume_memory", 1),
            context_tokens: fields.whole("context", 1, MAX_CONTEXT_TOKENS),
            page_tokens: fields.whole("page_size", 1, MAX_DIMENSION),
            disable_radix_cache: fields.flag("disable_radix_cache"),
            enable_mixed_chunk: fields.flag("enable_mixed_chunk").unwrap_or(default.enable_mixed_chunk),
            speculative_num_steps: fields.whole("speculative_num_steps", 0, MAX_DIMENSION),
            speculative_num_draft_tokens: fields.whole("speculative_num_draft_tokens", 0, MAX_DIMENSION),
            speculative_eagle_topk: fields.whole("speculative_eagle_topk", 0, MAX_DIMENSION),
            pp_size: fields.whole("pp_size", 1, MAX_RANKS).unwrap_or(default.pp_size),
        };
        let mut problems = Problems::new();
        for mut problem in fields.finish() {
            if KEYS.contains(&problem.field.as_str()) {
                problem.field = flag(&problem.field);
            }
            problems.push(problem);
        }
        (request, problems)
    }

    /// The backend named for a phase.
    pub(super) fn backend(&self, phase: Phase) -> Option<&str> {
        match phase {
            Phase::Prefill => self.prefill_backend.as_deref(),
            Phase::Decode => self.decode_backend.as_deref(),
        }
    }

    /// The compute capability, or the default one.
    pub(super) fn sm_or_default(&self) -> u64 {
        self.sm.unwrap_or(DEFAULT_SM)
    }

    /// The KV type by its own name, after `auto`; `None` for an unknown name.
    pub(super) fn known_kv_dtype(&self) -> Option<KvDtype> {
        if self.kv_dtype == AUTO {
            return Some(auto_kv_dtype(self.platform, self.sm_or_default()));
        }
        self.kv_dtype.parse().ok()
    }

    /// The key that sets the draft depth, and its value as given.
    pub(super) fn draft_depth(&self) -> (&'static str, u64) {
        match (self.speculative_num_draft_tokens, self.speculative_num_steps) {
            (Some(tokens), _) => ("speculative_num_draft_tokens", tokens),
            (None, steps) => ("speculative_num_steps", steps.unwrap_or(0)),
        }
    }

    /// Tokens of one request that are verified in one step: 1 without drafts.
    pub(super) fn query_tokens(&self) -> u64 {
        let of_steps = self.speculative_num_steps.map(|steps| steps + 1);
        self.speculative_num_draft_tokens.or(of_steps).unwrap_or(1).max(1)
    }
}
