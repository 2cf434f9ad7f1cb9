//! Reading untrusted JSON: one pass, every problem noted with its path, no value accepted by accident.
//!
//! ```text
//!  Value ──► Fields("text_config") ──► .positive("num_hidden_layers", MAX_LAYERS) ──► Some(60)
//!                  └─ problems: [text_config.index_topk is "2048": must be a whole number; …]
//! ```
//! `true` is no number, `"2048"` is no number, `2048.0` is one, NaN cannot be written.

use std::str::FromStr;

use serde_json::{Map, Value};

use crate::error::{Problem, Problems};
use crate::limits::MAX_MEMORY_BYTES;
use crate::size::{SIZE_RULE, parse_size, size_remedy};
use crate::units::Bytes;

/// An object being read, and what was wrong with it so far.
#[derive(Debug)]
pub struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
    problems: Problems,
}

impl<'a> Fields<'a> {
    /// Starts reading `object`; `path` is put before each field's name (`""` for the root).
    pub fn new(object: &'a Map<String, Value>, path: impl Into<String>) -> Self {
        Self { object, path: path.into(), problems: Problems::new() }
    }

    /// The field as it stands, `None` where absent or `null`.
    pub fn raw(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// The field's path as the user would write it.
    pub fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Notes a problem with the field `name`.
    pub fn problem(&mut self, name: &str, rule: impl Into<String>, remedy: impl Into<String>) {
        let value = self.object.get(name).map_or_else(|| "missing".to_owned(), shown);
        self.problems.push(Problem::new(self.path_of(name), value, rule, remedy));
    }

    /// A whole number in `min..=max`; `None` where absent, or wrong (then noted).
    pub fn whole(&mut self, name: &str, min: u64, max: u64) -> Option<u64> {
        let value = self.raw(name)?;
        let found = whole_number(value);
        match found {
            Some(number) if (i128::from(min)..=i128::from(max)).contains(&number) => u64::try_from(number).ok(),
            _ => {
                self.problem(name, "must be a whole number in range", format!("give a number from {min} to {max}"));
                None
            }
        }
    }

    /// As [`Fields::whole`] from 1, and absence is a problem too.
    pub fn required(&mut self, name: &str, max: u64) -> Option<u64> {
        self.required_from(name, 1, max)
    }

    /// As [`Fields::whole`], but absence is a problem too.
    pub fn required_from(&mut self, name: &str, min: u64, max: u64) -> Option<u64> {
        if self.raw(name).is_none() {
            self.problem(name, "is required", "add it to the file");
            return None;
        }
        self.whole(name, min, max)
    }

    /// Text; `None` where absent, or wrong (then noted).
    pub fn text(&mut self, name: &str) -> Option<&'a str> {
        let value = self.raw(name)?;
        let text = value.as_str();
        if text.is_none() {
            self.problem(name, "must be text", "put it in quotes");
        }
        text
    }

    /// `true` or `false`; `None` where absent, or wrong (then noted).
    pub fn flag(&mut self, name: &str) -> Option<bool> {
        let value = self.raw(name)?;
        let flag = value.as_bool();
        if flag.is_none() {
            self.problem(name, "must be true or false", "write true or false, without quotes");
        }
        flag
    }

    /// A memory size of at least `min_bytes`, as text (`512MiB`) or a number of bytes; `None` where absent, or wrong
    /// (then noted).
    pub fn size(&mut self, name: &str, min_bytes: u64) -> Option<u64> {
        let value = self.raw(name)?;
        let bytes = match value {
            Value::String(text) => parse_size(text).map(Bytes::get),
            other => whole_number(other).and_then(|bytes| u64::try_from(bytes).ok()),
        };
        if !bytes.is_some_and(|bytes| (1..=MAX_MEMORY_BYTES).contains(&bytes)) {
            self.problem(name, SIZE_RULE, size_remedy(value.as_str().unwrap_or_default()));
            return None;
        }
        if bytes < Some(min_bytes) {
            self.problem(name, format!("must be at least {min_bytes} bytes"), "give more");
            return None;
        }
        bytes
    }

    /// One name of a closed choice; `None` where absent, or wrong (then noted with the choices).
    pub fn choice<T: FromStr<Err = String>>(&mut self, name: &str) -> Option<T> {
        match self.text(name)?.parse() {
            Ok(choice) => Some(choice),
            Err(choices) => {
                self.problem(name, "must be a known choice", choices);
                None
            }
        }
    }

    /// Notes every key that is not among `known`, each with its nearest known name.
    pub fn only(&mut self, known: &[&str]) {
        for name in self.object.keys().filter(|name| !known.contains(&name.as_str())) {
            let remedy = match nearest(name, known) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("use one of {}", known.join(", ")),
            };
            self.problem(name, "is not a known key", remedy);
        }
    }

    /// A list; `None` where absent, or wrong (then noted).
    pub fn list(&mut self, name: &str) -> Option<&'a [Value]> {
        let value = self.raw(name)?;
        let list = value.as_array().map(Vec::as_slice);
        if list.is_none() {
            self.problem(name, "must be a list", "write it as [ … ]");
        }
        list
    }

    /// An object inside this one, to be read under its own path; `None` where absent, or wrong (then noted).
    ///
    /// What is noted on it comes back by [`Fields::absorb`].
    pub fn object(&mut self, name: &str) -> Option<Fields<'a>> {
        let value = self.raw(name)?;
        let object = value.as_object();
        if object.is_none() {
            self.problem(name, "must be an object", "write it as { … }");
        }
        object.map(|object| Fields::new(object, self.path_of(name)))
    }

    /// Notes a problem with entry `index` of the list `name`.
    pub fn problem_at(&mut self, name: &str, index: usize, rule: impl Into<String>, remedy: impl Into<String>) {
        let value = self.raw(name).and_then(|list| list.get(index)).map_or_else(|| "missing".to_owned(), shown);
        self.problems.push(Problem::new(format!("{}[{index}]", self.path_of(name)), value, rule, remedy));
    }

    /// Takes over the problems noted on a nested object.
    pub fn absorb(&mut self, nested: Fields<'_>) {
        self.problems.extend(nested.finish());
    }

    /// Everything noted so far, and the end of reading.
    pub fn finish(self) -> Problems {
        self.problems
    }
}

/// The whole number a JSON value stands for: integers, and floats without a fraction. Never `true`, never text.
pub fn whole_number(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    if let Some(unsigned) = number.as_u64() {
        return Some(i128::from(unsigned));
    }
    if let Some(signed) = number.as_i64() {
        return Some(i128::from(signed));
    }
    let float = number.as_f64()?;
    // 2^63 bounds what a float may claim; beyond it floats skip whole numbers anyway.
    #[allow(clippy::cast_possible_truncation)] // fract() is zero and the range fits i128
    (float.fract() == 0.0 && float.abs() < 9.3e18).then_some(float as i128)
}

/// A value as it is shown in a message: compact JSON, cut where it is long.
pub fn shown(value: &Value) -> String {
    const LONGEST: usize = 80;
    let text = value.to_string();
    if text.chars().count() <= LONGEST {
        return text;
    }
    let head: String = text.chars().take(LONGEST).collect();
    format!("{head}…")
}

/// The known name nearest to a misspelt one, if one is near at all. Of equally near ones, a name that has the same letters
/// and digits goes first: `glm-52` is `glm-5.2` with a sign left out, and not `glm-5` with a digit too many.
pub fn nearest<'n>(word: &str, known: &[&'n str]) -> Option<&'n str> {
    known
        .iter()
        .map(|name| {
            let (word, near) = (word.to_lowercase(), name.to_lowercase());
            (edit_distance(&word, &near), edit_distance(&letters(&word), &letters(&near)), *name)
        })
        .min_by_key(|(distance, of_letters, _)| (*distance, *of_letters))
        .filter(|(distance, _, name)| *distance <= name.len().max(word.len()) / 2)
        .map(|(.., name)| name)
}

/// A name without its dashes, dots and underscores.
fn letters(name: &str) -> String {
    name.chars().filter(|letter| letter.is_alphanumeric()).collect()
}

/// Levenshtein distance, by the plain two-row table.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: &Value) -> &Map<String, Value> {
        value.as_object().unwrap()
    }

    #[test]
    fn all_problems_come_back_together_with_their_paths() {
        let value = json!({"a": true, "b": "64", "c": -1, "d": 1.5});
        let mut fields = Fields::new(object(&value), "text_config");
        for name in ["a", "b", "c", "d", "e"] {
            assert_eq!(fields.required(name, 100), None);
        }
        let paths: Vec<_> = fields.finish().into_iter().map(|p| format!("{}={}", p.field, p.value)).collect();
        assert_eq!(
            paths,
            [
                "text_config.a=true",
                "text_config.b=\"64\"",
                "text_config.c=-1",
                "text_config.d=1.5",
                "text_config.e=missing"
            ]
        );
    }

    #[test]
    fn an_unknown_key_is_a_problem_that_names_its_neighbour() {
        let value = json!({"top_k": 1, "topk": 2, "zzzzzzzz": 3});
        let mut fields = Fields::new(object(&value), "");
        fields.only(&["top_k"]);
        let found: Vec<_> = fields.finish().into_iter().map(|p| (p.field, p.remedy)).collect();
        assert_eq!(
            found,
            [
                ("topk".to_owned(), "did you mean top_k?".to_owned()),
                ("zzzzzzzz".to_owned(), "use one of top_k".to_owned())
            ]
        );
    }

    #[test]
    fn a_choice_and_a_flag_are_read_or_refused_with_what_is_allowed() {
        use crate::platform::Platform;
        let value = json!({"a": "rocm", "b": "metal", "c": true, "d": 1});
        let mut fields = Fields::new(object(&value), "");
        assert_eq!(fields.choice::<Platform>("a"), Some(Platform::Rocm));
        assert_eq!(fields.choice::<Platform>("b"), None);
        assert_eq!((fields.flag("c"), fields.flag("d"), fields.flag("e")), (Some(true), None, None));
        let remedies: Vec<_> = fields.finish().into_iter().map(|p| p.remedy).collect();
        assert_eq!(remedies, ["use one of cuda, rocm", "write true or false, without quotes"]);
    }

    #[test]
    fn a_float_without_fraction_is_a_whole_number() {
        assert_eq!(whole_number(&json!(2048.0)), Some(2048));
        assert_eq!(whole_number(&json!(u64::MAX)), Some(i128::from(u64::MAX)));
        assert_eq!(whole_number(&json!(1e300)), None);
    }

    #[test]
    fn a_misspelt_key_finds_its_neighbour() {
        let known = ["top_k", "device_buffer_size", "host_to_device_ratio"];
        assert_eq!(nearest("device_bufer_size", &known), Some("device_buffer_size"));
        assert_eq!(nearest("topk", &known), Some("top_k"));
        assert_eq!(nearest("glm-52", &["glm-5", "glm-5.1", "glm-5.2"]), Some("glm-5.2"));
        assert_eq!(nearest("zzzzzzzzzzz", &known), None);
    }
}
