//! `hisparse_config` and the hot rows that follow from it.
//!
//! ```text
//!  query tokens q = speculative tokens + 1
//!  union rows   U = q × top_k          what one step can pick at most; the smallest legal buffer
//!  default      B = (q + 1) × top_k    U, and one more top_k of slack for the recency order
//!  B ≤ 32,768                          slots are signed 16-bit numbers
//! ```

use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::{Problem, Problems};
use crate::input::{nearest, shown, whole_number};
use crate::limits::MAX_HOT_ROWS;

use super::counted;

/// Keys that vLLM's `hisparse_config` has.
pub const CONFIG_KEYS: &[&str] = &["device_buffer_size", "eager_host_mirror"];

/// What `--attention-config '{"hisparse_config": {…}}'` says once vLLM has read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// Hot rows per request; `None` leaves them to the model and the draft depth.
    pub device_buffer_size: Option<u64>,
    /// Whether decode rows are copied to the host during the forward pass.
    pub eager_host_mirror: bool,
    /// What vLLM accepts here and `native` refuses, each a full sentence.
    pub warnings: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self { device_buffer_size: None, eager_host_mirror: true, warnings: Vec::new() }
    }
}

/// Reads `hisparse_config` as vLLM does, with what it coerces noted as a warning.
///
/// # Errors
/// Every key that is unknown or whose value vLLM refuses.
pub fn read_config(object: &Map<String, Value>) -> Result<Config, Problems> {
    let mut config = Config::default();
    let mut problems = Problems::new();
    for (key, value) in object {
        match key.as_str() {
            "device_buffer_size" => match buffer_rows(value, &mut config.warnings) {
                Ok(rows) => config.device_buffer_size = rows,
                Err(problem) => problems.push(problem),
            },
            "eager_host_mirror" => match mirror(value, &mut config.warnings) {
                Some(on) => config.eager_host_mirror = on,
                None => problems.push(Problem::new(key, shown(value), "must be true or false", "write true or false")),
            },
            _ => problems.push(Problem::new(
                key,
                shown(value),
                "is not a key of hisparse_config",
                match nearest(key, CONFIG_KEYS) {
                    Some(known) => format!("write {known}"),
                    None => format!("use one of {}", CONFIG_KEYS.join(", ")),
                },
            )),
        }
    }
    problems.into_result(config)
}

/// A positive whole number; `true` is read as 1 and digits in quotes as their number.
fn buffer_rows(value: &Value, warnings: &mut Vec<String>) -> Result<Option<u64>, Problem> {
    let number = match value {
        Value::Null => return Ok(None),
        Value::Bool(flag) => {
            warnings.push(format!("vLLM reads device_buffer_size={flag} as {}; native refuses it.", u8::from(*flag)));
            Some(i128::from(*flag))
        }
        Value::String(text) => {
            let number = text.trim().parse::<i128>().ok();
            if number.is_some() {
                warnings.push(format!("vLLM reads device_buffer_size=\"{text}\" as a number; native refuses text."));
            }
            number
        }
        _ => whole_number(value),
    };
    let field = "device_buffer_size";
    match number.map(u64::try_from) {
        Some(Ok(rows)) if rows > 0 => Ok(Some(rows)),
        Some(_) => Err(Problem::new(field, shown(value), "must be positive", "give a multiple of the page size")),
        None => Err(Problem::new(field, shown(value), "must be a whole number", "give a multiple of the page size")),
    }
}

/// `true` and `false`; 1 and 0 are read as these.
fn mirror(value: &Value, warnings: &mut Vec<String>) -> Option<bool> {
    if let Some(flag) = value.as_bool() {
        return Some(flag);
    }
    let flag = match whole_number(value)? {
        0 => false,
        1 => true,
        _ => return None,
    };
    warnings.push(format!("vLLM reads eager_host_mirror={value} as {flag}; native refuses a number."));
    Some(flag)
}

/// Hot rows of one request, settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HotRows {
    /// Rows the indexer picks per query token.
    pub top_k: u64,
    /// Rows of the hot buffer (`device_buffer_size`).
    pub hot_rows: u64,
    /// Most rows that one step's query tokens can pick together (`max_union_rows`).
    pub union_rows: u64,
}

/// The default buffer: `(speculative tokens + 2) × top_k` rows; `None` on overflow.
pub const fn default_hot_rows(top_k: u64, speculative_tokens: u64) -> Option<u64> {
    match speculative_tokens.checked_add(2) {
        Some(factor) => factor.checked_mul(top_k),
        None => None,
    }
}

/// Settles the hot rows for a model's `top_k` and a draft depth; `device_buffer_size` as configured.
///
/// # Errors
/// A buffer below the union of one step's picks, or above [`MAX_HOT_ROWS`].
pub fn resolve(top_k: u64, speculative_tokens: u64, device_buffer_size: Option<u64>) -> Result<HotRows, Problems> {
    let query_tokens = speculative_tokens.checked_add(1);
    let union_rows =
        counted("speculative_tokens", speculative_tokens, query_tokens.and_then(|query| query.checked_mul(top_k)))?;
    let default = counted("speculative_tokens", speculative_tokens, default_hot_rows(top_k, speculative_tokens))?;
    let hot_rows = device_buffer_size.unwrap_or(default);

    let mut problems = Problems::new();
    if hot_rows < union_rows {
        problems.push(Problem::new(
            "device_buffer_size",
            hot_rows,
            format!("must hold every row that one step can pick: query tokens × top_k = {union_rows}"),
            if union_rows > MAX_HOT_ROWS {
                "use fewer speculative tokens".to_owned()
            } else {
                format!("give at least {union_rows}, or leave it out")
            },
        ));
    }
    if hot_rows > MAX_HOT_ROWS {
        problems.push(Problem::new(
            "device_buffer_size",
            hot_rows,
            format!("must be at most {MAX_HOT_ROWS}: slots are signed 16-bit numbers"),
            if device_buffer_size.is_some() { "give a smaller buffer" } else { "use fewer speculative tokens" },
        ));
    }
    problems.into_result(HotRows { top_k, hot_rows, union_rows })
}

/// The warning vLLM logs when a configured buffer is not a whole number of blocks; `None` when it is one.
pub fn padding_warning(hot_rows: u64, block_tokens: u64) -> Option<String> {
    let padding = hot_rows.checked_next_multiple_of(block_tokens)?.checked_sub(hot_rows)?;
    (padding > 0).then(|| {
        format!(
            "device_buffer_size={hot_rows} is no multiple of the {block_tokens}-token block: vLLM allocates {padding} \
             rows per hot group that it never uses; native refuses it."
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: &Value) -> Result<Config, Problems> {
        read_config(value.as_object().unwrap())
    }

    #[test]
    fn true_becomes_one_row_and_a_warning() {
        let config = read(&json!({"device_buffer_size": true})).unwrap();
        assert_eq!(config.device_buffer_size, Some(1));
        assert_eq!(config.warnings.len(), 1);
    }

    #[test]
    fn a_misspelt_key_names_its_neighbour() {
        let problems = read(&json!({"device_buffer_sise": 4096, "eager_host_mirror": 2})).unwrap_err();
        let remedies: Vec<_> = problems.iter().map(|problem| problem.remedy.as_str()).collect();
        assert_eq!(remedies, ["write device_buffer_size", "write true or false"]);
    }

    #[test]
    fn each_draft_token_adds_one_top_k() {
        let rows: Vec<_> = [0, 1, 2, 3, 4, 7].map(|depth| resolve(2048, depth, None).unwrap().hot_rows).into();
        assert_eq!(rows, [4096, 6144, 8192, 10_240, 12_288, 18_432]);
    }

    #[test]
    fn a_depth_beyond_the_slot_type_is_refused_both_ways() {
        assert!(resolve(2048, 15, None).is_err());
        assert!(resolve(2048, 15, Some(32_768)).is_ok());
        assert!(resolve(2048, 16, Some(32_768)).is_err());
        assert!(resolve(2048, u64::MAX, None).is_err());
    }

    #[test]
    fn rows_that_pad_a_block_are_said() {
        assert!(padding_warning(4100, 64).is_some_and(|text| text.contains("60 rows")));
        assert_eq!(padding_warning(4096, 64), None);
    }
}
