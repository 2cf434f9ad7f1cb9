//! Where vLLM takes the host pool's size from: `host_pool_gib` of the one HiSparse connector.
//!
//! ```text
//!  kv_connector: HiSparseConnector          ─► kv_connector_extra_config.host_pool_gib
//!  kv_connector: MultiConnector ─► connectors[] ─► the one HiSparseConnector among them, if any
//! ```

use serde_json::{Map, Value};

use crate::error::{Problem, Problems};
use crate::input::shown;

/// The connector that owns the host pool.
pub const CONNECTOR: &str = "HiSparseConnector";
const MULTI: &str = "MultiConnector";
const FIELD: &str = "host_pool_gib";

/// The host pool in GiB that a connector's configuration asks for; `None` where no HiSparse connector is configured.
///
/// # Errors
/// More than one HiSparse connector, and a size that is missing, no number, or not positive.
pub fn host_pool_gib(kv_connector: &str, extra_config: &Map<String, Value>) -> Result<Option<f64>, Problems> {
    match kv_connector {
        CONNECTOR => size(extra_config).map(Some),
        MULTI => {
            let mut sizes = members(extra_config).into_iter().map(|extra| extra.map_or_else(missing, size));
            match (sizes.next(), sizes.next()) {
                (None, _) => Ok(None),
                (Some(only), None) => only.map(Some),
                (Some(_), Some(_)) => Err(Problems::one(Problem::new(
                    "connectors",
                    format!("{} of {CONNECTOR}", sizes.count() + 2),
                    "may hold one HiSparse connector",
                    "keep one of them",
                ))),
            }
        }
        _ => Ok(None),
    }
}

/// The extra configuration of each HiSparse connector in a list of connectors.
fn members(extra_config: &Map<String, Value>) -> Vec<Option<&Map<String, Value>>> {
    let listed = extra_config.get("connectors").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    listed
        .iter()
        .filter(|member| member.get("kv_connector").and_then(Value::as_str) == Some(CONNECTOR))
        .map(|member| member.get("kv_connector_extra_config").and_then(Value::as_object))
        .collect()
}

fn missing() -> Result<f64, Problems> {
    Err(Problems::one(Problem::new(FIELD, "missing", "is required", "give the pool's size in GiB")))
}

/// A positive number; digits in quotes are read as theirs.
fn size(extra_config: &Map<String, Value>) -> Result<f64, Problems> {
    let Some(value) = extra_config.get(FIELD).filter(|value| !value.is_null()) else { return missing() };
    let number = match value {
        Value::String(text) => text.trim().parse::<f64>().ok(),
        _ => value.as_f64(),
    };
    match number {
        Some(gib) if gib.is_finite() && gib > 0.0 => Ok(gib),
        Some(_) => Err(Problems::one(Problem::new(FIELD, shown(value), "must be positive", "give a size in GiB"))),
        None => Err(Problems::one(Problem::new(FIELD, shown(value), "must be a number", "give a size in GiB"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_connector_that_is_not_hisparse_sizes_no_pool() {
        let extra = json!({"host_pool_gib": 64});
        assert_eq!(host_pool_gib("NixlConnector", extra.as_object().unwrap()), Ok(None));
    }

    #[test]
    fn a_size_that_is_no_number_is_refused() {
        for value in [json!("many"), json!("nan"), json!("inf"), json!([1]), json!(0), json!(null)] {
            let extra = json!({"host_pool_gib": value});
            assert!(host_pool_gib(CONNECTOR, extra.as_object().unwrap()).is_err(), "{value}");
        }
    }
}
