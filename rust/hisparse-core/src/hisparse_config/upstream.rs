//! What SGLang 0.5.23 makes of the text, value for value: an optional key takes whatever stands there, the buffer
//! defaults to twice the top-k in Python's sense of twice (`"2048"` gives `"20482048"`), and only two rules are checked.
//!
//! ```text
//!  text ──► JSON? object? ──► top_k × 2 ──► buffer < top_k? ──► block size an integer in 1..=1024? ──► values
//!             ValueError  Type/AttributeError     ValueError or TypeError      ValueError
//! ```

use std::cmp::Ordering;

use serde_json::{Map, Number, Value, json};

use super::json;
use crate::limits::{CONFIG_RATIO, DEFAULT_TOP_K, MAX_BLOCK_THREADS};

/// Threads of a swap-in block where the text gives none.
const DEFAULT_BLOCK_THREADS: u64 = 960;

/// Why the engine stops at a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The text is not JSON.
    NotJson,
    /// The buffer is smaller than the top-k.
    BufferBelowTopK,
    /// The block size is no plain integer.
    BlockNotInteger,
    /// The block size is outside 1 to 1024.
    BlockOutOfRange,
    /// No check at all: Python itself fails with a `TypeError`.
    TypeError,
    /// No check at all: Python itself fails with an `AttributeError`.
    AttributeError,
}

impl Refusal {
    /// Whether the engine means to refuse; otherwise it merely falls over.
    pub const fn is_deliberate(self) -> bool {
        !matches!(self, Self::TypeError | Self::AttributeError)
    }

    /// Class of the Python exception.
    pub const fn error_type(self) -> &'static str {
        match self {
            Self::TypeError => "TypeError",
            Self::AttributeError => "AttributeError",
            Self::NotJson | Self::BufferBelowTopK | Self::BlockNotInteger | Self::BlockOutOfRange => "ValueError",
        }
    }

    /// The key at fault, where one is.
    pub const fn key(self) -> Option<&'static str> {
        match self {
            Self::BufferBelowTopK => Some("device_buffer_size"),
            Self::BlockNotInteger | Self::BlockOutOfRange => Some("swap_in_block_size"),
            Self::NotJson | Self::TypeError | Self::AttributeError => None,
        }
    }

    /// The rule that is broken.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::NotJson => "must be JSON",
            Self::BufferBelowTopK => "must be at least top_k",
            Self::BlockNotInteger => "must be a plain integer",
            Self::BlockOutOfRange => "must be from 1 to 1024",
            Self::TypeError => "makes SGLang fail with a TypeError, not a check",
            Self::AttributeError => "makes SGLang fail with an AttributeError, not a check",
        }
    }
}

/// The values as the engine holds them; numbers that JSON cannot write stand as `{"non_finite": "inf"}`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config(Map<String, Value>);

impl Config {
    /// One value; `Null` where the engine has none.
    pub fn get(&self, key: &str) -> &Value {
        self.0.get(key).unwrap_or(&Value::Null)
    }

    /// All of them, in the engine's order.
    pub fn values(&self) -> &Map<String, Value> {
        &self.0
    }
}

/// What the engine makes of `text`; `None` is the empty object.
///
/// # Errors
/// The first reason it stops at.
pub fn read(text: Option<&str>) -> Result<Config, Refusal> {
    let mut given = match json::parse(text.unwrap_or("{}")) {
        Err(_) => return Err(Refusal::NotJson),
        Ok(Value::Object(object)) => object,
        Ok(Value::Array(_)) => return Err(Refusal::TypeError),
        Ok(_) => return Err(Refusal::AttributeError),
    };
    let mut take = |key: &str, default: Value| given.shift_remove(key).unwrap_or(default);
    let top_k = take("top_k", json!(DEFAULT_TOP_K));
    let doubled = twice(&top_k).ok_or(Refusal::TypeError)?;
    let buffer = take("device_buffer_size", doubled);
    if is_less(&buffer, &top_k).ok_or(Refusal::TypeError)? {
        return Err(Refusal::BufferBelowTopK);
    }
    let ratio = take("host_to_device_ratio", json!(CONFIG_RATIO));
    let block = take("swap_in_block_size", json!(DEFAULT_BLOCK_THREADS));
    if !(block.is_u64() || block.is_i64()) {
        return Err(Refusal::BlockNotInteger);
    }
    if !block.as_u64().is_some_and(|threads| (1..=MAX_BLOCK_THREADS).contains(&threads)) {
        return Err(Refusal::BlockOutOfRange);
    }
    let mut values = Map::new();
    values.insert("top_k".to_owned(), top_k);
    values.insert("device_buffer_size".to_owned(), buffer);
    values.insert("host_to_device_ratio".to_owned(), ratio);
    values.insert("swap_in_block_size".to_owned(), block);
    for key in ["algorithm", "backend", "page_size", "min_sparse_prompt_len"] {
        values.insert(key.to_owned(), take(key, Value::Null));
    }
    values.insert("sparse_extra_config".to_owned(), Value::Object(given));
    Ok(Config(values))
}

/// Python's `2 * value`; `None` is a `TypeError`.
fn twice(value: &Value) -> Option<Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(flag) => json!(2 * u64::from(*flag)),
        Value::Number(number) => Value::Number(twice_number(number)?),
        Value::String(text) => json!(text.repeat(2)),
        Value::Array(items) => Value::Array([items.as_slice(), items].concat()),
        Value::Object(_) => return json::non_finite(value).map(|_| value.clone()),
    })
}

fn twice_number(number: &Number) -> Option<Number> {
    let whole = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from)).map(|whole| whole * 2);
    if let Some(whole) = whole {
        let back = i64::try_from(whole).map(Number::from).or_else(|_| u64::try_from(whole).map(Number::from));
        if let Ok(exact) = back {
            return Some(exact);
        }
    }
    // Past 64 bits Python keeps the integer exact; the nearest double is close enough for a message.
    Number::from_f64(number.as_f64()? * 2.0)
}

/// Python's `left < right`; `None` is a `TypeError`.
fn is_less(left: &Value, right: &Value) -> Option<bool> {
    match (left, right) {
        (Value::String(left), Value::String(right)) => Some(left < right),
        (Value::Array(left), Value::Array(right)) => {
            let differing = left.iter().zip(right).find(|(left, right)| !is_equal(left, right));
            differing.map_or(Some(left.len() < right.len()), |(left, right)| is_less(left, right))
        }
        _ => Some(compare_numbers(left, right)? == Compared::Ordered(Ordering::Less)),
    }
}

fn is_equal(left: &Value, right: &Value) -> bool {
    left == right || compare_numbers(left, right) == Some(Compared::Ordered(Ordering::Equal))
}

/// How two numbers stand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Compared {
    Ordered(Ordering),
    /// One is NaN: every comparison is false.
    Unordered,
}

/// The order of two numbers (booleans are numbers); `None` where one is no number.
fn compare_numbers(left: &Value, right: &Value) -> Option<Compared> {
    let whole = |value: &Value| match value {
        Value::Bool(flag) => Some(i128::from(*flag)),
        other => other.as_i64().map(i128::from).or(other.as_u64().map(i128::from)),
    };
    if let (Some(left), Some(right)) = (whole(left), whole(right)) {
        return Some(Compared::Ordered(left.cmp(&right)));
    }
    let number = |value: &Value| match value {
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        other => other.as_f64().or_else(|| json::non_finite(other)),
    };
    Some(number(left)?.partial_cmp(&number(right)?).map_or(Compared::Unordered, Compared::Ordered))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(text: &str) -> Result<Value, Refusal> {
        read(Some(text)).map(|config| config.get("device_buffer_size").clone())
    }

    #[test]
    fn twice_is_pythons() {
        assert_eq!(buffer(r#"{"top_k": "2048"}"#), Ok(json!("20482048")));
        assert_eq!(buffer(r#"{"top_k": true}"#), Ok(json!(2)));
        assert_eq!(buffer(r#"{"top_k": 512.5}"#), Ok(json!(1025.0)));
        assert_eq!(buffer(r#"{"top_k": [1]}"#), Ok(json!([1, 1])));
        assert_eq!(buffer(r#"{"top_k": NaN}"#), Ok(json!({"non_finite": "nan"})));
        assert_eq!(buffer(r#"{"top_k": {}}"#), Err(Refusal::TypeError));
    }

    #[test]
    fn less_is_pythons() {
        assert_eq!(buffer(r#"{"device_buffer_size": "4096"}"#), Err(Refusal::TypeError));
        assert_eq!(buffer(r#"{"device_buffer_size": null}"#), Err(Refusal::TypeError));
        assert_eq!(buffer(r#"{"top_k": "b", "device_buffer_size": "a"}"#), Err(Refusal::BufferBelowTopK));
        assert_eq!(buffer(r#"{"top_k": [1, 2], "device_buffer_size": [true, 1]}"#), Err(Refusal::BufferBelowTopK));
        assert_eq!(buffer(r#"{"device_buffer_size": -Infinity}"#), Err(Refusal::BufferBelowTopK));
        assert_eq!(buffer(r#"{"device_buffer_size": NaN}"#), Ok(json!({"non_finite": "nan"})));
    }

    #[test]
    fn the_block_size_alone_must_be_a_plain_integer() {
        let block = |value: &str| read(Some(&format!(r#"{{"swap_in_block_size": {value}}}"#))).map(|_| ());
        assert_eq!(block("1"), Ok(()));
        for value in ["960.0", "true", "\"960\"", "null", "[960]"] {
            assert_eq!(block(value), Err(Refusal::BlockNotInteger), "{value}");
        }
        for value in ["0", "-32", "1025"] {
            assert_eq!(block(value), Err(Refusal::BlockOutOfRange), "{value}");
        }
    }
}
