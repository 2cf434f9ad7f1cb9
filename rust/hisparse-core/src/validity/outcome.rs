//! What the checks of an engine come to.

use serde::Serialize;
use serde_json::Value;

use crate::backends::Backend;
use crate::error::Problems;

/// What the configuration comes to; `null` where it could not be decided.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Resolved {
    /// Backend of whole prompts; `null` too for a family that brings its own attention.
    pub prefill_backend: Option<Backend>,
    /// Backend of decode steps.
    pub decode_backend: Option<Backend>,
    /// Hot rows per request, as the engine holds them: SGLang may hold text or a float.
    pub hot_rows: Value,
    /// Host-to-device ratio, as the engine holds it.
    pub ratio: Value,
    /// Tokens attended per step.
    pub top_k: Value,
    /// KV type after `auto`.
    pub kv_dtype: Option<String>,
    /// Tokens of a page.
    pub page_size: Option<u64>,
}

/// What one engine's checks come to.
pub(super) type Outcome = (Resolved, Problems, Vec<String>);
