//! Core values as plain Python data, through the same serialisation as every JSON document of the product.

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use serde::Serialize;
use serde_json::Value;

/// The Python data that a JSON value stands for.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(truth) => truth.into_bound_py_any(py),
        Value::Number(number) => {
            if let Some(whole) = number.as_u64() {
                whole.into_bound_py_any(py)
            } else if let Some(whole) = number.as_i64() {
                whole.into_bound_py_any(py)
            } else {
                number.as_f64().into_bound_py_any(py)
            }
        }
        Value::String(text) => Ok(PyString::new(py, text).into_any()),
        Value::Array(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(to_python(py, item)?)?;
            }
            Ok(list.into_any())
        }
        Value::Object(object) => {
            let dict = PyDict::new(py);
            for (name, item) in object {
                dict.set_item(name, to_python(py, item)?)?;
            }
            Ok(dict.into_any())
        }
    }
}

/// A core value as one line of JSON, cut where it is long: what `repr` shows.
pub(crate) fn brief(value: &impl Serialize) -> String {
    const LONGEST: usize = 200;
    let text = serde_json::to_string(value).unwrap_or_default();
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

/// A core value as Python data.
pub(crate) fn serialised<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let value = serde_json::to_value(value).map_err(|error| PyValueError::new_err(error.to_string()))?;
    to_python(py, &value)
}

/// The word that a unit variant of a core enum is written as in JSON.
pub(crate) fn word(choice: &impl Serialize) -> String {
    match serde_json::to_value(choice) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    }
}

/// A core value as indented JSON.
pub(crate) fn json_text(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
