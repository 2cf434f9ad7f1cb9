//! The text as a JSON object, in Python's dialect: `NaN`, `Infinity` and `-Infinity` are words there, and a user
//! who writes one should hear that a number must be finite, not that the text cannot be parsed.
//!
//! ```text
//!  {"ratio": NaN}  ──mark──►  {"ratio": {"non_finite": "nan"}}  ──serde_json──►  object
//! ```

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::error::Problem;
use crate::input::shown;
use crate::limits::MAX_HISPARSE_CONFIG_BYTES;

/// Field name of the whole text in problems.
pub const FIELD: &str = "--hisparse-config";

/// Key of the object that stands for a number JSON cannot write.
const NON_FINITE: &str = "non_finite";

/// Python's words for such numbers, and the names they get; the longest first, since it contains another.
const WORDS: [(&str, &str); 3] = [("-Infinity", "-inf"), ("Infinity", "inf"), ("NaN", "nan")];

/// A problem with the text as a whole.
fn whole_text(text: &str, rule: impl Into<String>) -> Problem {
    let remedy = r#"write an object such as {"device_buffer_size": 4096, "host_to_device_ratio": 4}"#;
    Problem::new(FIELD, shown(&Value::from(text)), rule, remedy)
}

/// What Python's parser makes of a text: non-finite numbers become objects `{"non_finite": …}`.
pub(super) fn parse(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(&mark_non_finite(text))
}

/// The object a text holds, strictly: one object, no key twice.
pub(crate) fn object(text: &str) -> Result<Map<String, Value>, Problem> {
    if text.len() > MAX_HISPARSE_CONFIG_BYTES {
        return Err(whole_text(text, format!("must be at most {MAX_HISPARSE_CONFIG_BYTES} bytes")));
    }
    let value = parse(text).map_err(|error| whole_text(text, format!("must be JSON: {error}")))?;
    let Value::Object(object) = value else {
        return Err(whole_text(text, "must be a JSON object"));
    };
    if let Ok(Keys(keys)) = serde_json::from_str(&mark_non_finite(text)) {
        for (i, key) in keys.iter().enumerate() {
            if keys[..i].contains(key) {
                return Err(whole_text(text, format!("gives {key} twice, and only the last would count")));
            }
        }
    }
    Ok(object)
}

/// A message with each marked number as the word the user wrote.
pub(super) fn as_written(message: &str) -> String {
    WORDS.iter().fold(message.to_owned(), |text, (word, name)| text.replace(&marker(name), word))
}

fn marker(name: &str) -> String {
    format!("{{\"{NON_FINITE}\":\"{name}\"}}")
}

/// Which word a marked value stands for.
pub(super) fn non_finite(value: &Value) -> Option<f64> {
    match marked(value)? {
        "nan" => Some(f64::NAN),
        "inf" => Some(f64::INFINITY),
        "-inf" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// The name in a marked value.
fn marked(value: &Value) -> Option<&str> {
    value.as_object().filter(|object| object.len() == 1)?.get(NON_FINITE)?.as_str()
}

/// The fields of a text that hold Python's words for numbers JSON cannot write, each with its word; none where the text
/// is broken otherwise too.
pub(crate) fn python_numbers(text: &str) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    if let Ok(value) = parse(text) {
        collect_words(&value, "", &mut found);
    }
    found
}

/// Walks as deep as the parser went, which has its own bound.
fn collect_words(value: &Value, path: &str, found: &mut Vec<(String, &'static str)>) {
    if let Some(name) = marked(value) {
        found.extend(WORDS.iter().find(|(_, known)| *known == name).map(|(word, _)| (path.to_owned(), *word)));
        return;
    }
    match value {
        Value::Object(object) => {
            for (name, inner) in object {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect_words(inner, &path, found);
            }
        }
        Value::Array(items) => {
            for (i, inner) in items.iter().enumerate() {
                collect_words(inner, &format!("{path}[{i}]"), found);
            }
        }
        _ => {}
    }
}

/// Replaces Python's words outside of strings.
fn mark_non_finite(text: &str) -> String {
    let mut marked = String::with_capacity(text.len());
    let mut rest = text;
    let mut in_string = false;
    while let Some(next) = rest.chars().next() {
        let word = WORDS.iter().find(|(word, _)| !in_string && rest.starts_with(word));
        if let Some((word, name)) = word {
            marked.push_str(&marker(name));
            rest = &rest[word.len()..];
            continue;
        }
        let escaped = in_string && next == '\\';
        in_string ^= next == '"';
        marked.push(next);
        rest = &rest[next.len_utf8()..];
        if let Some(after) = rest.chars().next().filter(|_| escaped) {
            marked.push(after);
            rest = &rest[after.len_utf8()..];
        }
    }
    marked
}

/// The keys of an object in the order written, repeated ones included.
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Keys;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, serde::de::IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_outside_strings_are_numbers_that_json_cannot_write() {
        let text = r#"{"a": NaN, "b": -Infinity, "c": "NaN \" Infinity", "d": [Infinity]}"#;
        assert_eq!(
            parse(text).unwrap(),
            json!({
                "a": {"non_finite": "nan"},
                "b": {"non_finite": "-inf"},
                "c": "NaN \" Infinity",
                "d": [{"non_finite": "inf"}]
            })
        );
    }

    #[test]
    fn words_do_not_mend_broken_json() {
        for text in ["-NaN", "NaNNaN", "{NaN: 1}", r#"{"a": NaN1}"#, r#"{"a": 1Infinity}"#, "\"", "\"\\"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_repeated_key_is_refused() {
        let problem = object(r#"{"top_k": 1, "top_k": 2}"#).unwrap_err();
        assert_eq!(problem.rule, "gives top_k twice, and only the last would count");
    }
}
