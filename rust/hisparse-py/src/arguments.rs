//! Python's keyword arguments as the JSON object that the core reads.
//!
//! ```text
//!  {"hot_rows": 4096, "ratio": nan}  ──►  Err [--ratio is nan: must be a finite number; …]
//! ```
//! Whatever JSON cannot say (NaN, infinities, integers beyond 64 bits, foreign objects, endless nesting) is a problem
//! with its path, never a panic and never a silent `null`. Ranges and types of fields are the core's business.

use std::collections::BTreeSet;

use hisparse_core::error::{Problem, Problems};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyTuple};
use serde_json::{Map, Number, Value};

/// Nesting that no honest request has; a list that holds itself ends here.
const MAX_DEPTH: usize = 32;

/// Keyword arguments, as far as JSON can say them.
pub(crate) struct Arguments {
    /// What the core reads; `null` where JSON has no word for the value.
    pub object: Map<String, Value>,
    unsayable: Problems,
}

impl Arguments {
    /// Reads a dict; `name` is how the core calls a key in its messages.
    pub(crate) fn read(arguments: &Bound<'_, PyDict>, name: impl Fn(&str) -> String) -> Self {
        let mut found = Problems::new();
        let object = mapping(arguments, "", 0, &mut found);
        let mut unsayable = Problems::new();
        for mut problem in found {
            problem.field = name(&problem.field);
            unsayable.push(problem);
        }
        Self { object, unsayable }
    }

    /// The problems of what JSON cannot say, before those that the core found. A field is not reported twice: the core
    /// saw `null` there.
    pub(crate) fn and_problems(self, found: Problems) -> Problems {
        let named: BTreeSet<String> = self.unsayable.iter().map(|problem| problem.field.clone()).collect();
        let mut problems = self.unsayable;
        for problem in found.into_iter().filter(|problem| !named.contains(&problem.field)) {
            problems.push(problem);
        }
        problems
    }

    /// The core's answer, unless something could not even be said.
    ///
    /// # Errors
    /// Both kinds of problems together.
    pub(crate) fn with_unsayable<T>(self, answer: Result<T, Problems>) -> Result<T, Problems> {
        match answer {
            Ok(value) => self.and_problems(Problems::new()).into_result(value),
            Err(found) => Err(self.and_problems(found)),
        }
    }
}

fn mapping(dict: &Bound<'_, PyDict>, path: &str, depth: usize, problems: &mut Problems) -> Map<String, Value> {
    let mut object = Map::new();
    // `items` is a copy: a value whose `__index__` changes the dict must not change what is being walked.
    for (key, value) in
        dict.items().iter().filter_map(|item| item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>().ok())
    {
        if let Ok(name) = key.extract::<String>() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            object.insert(name, from_python(&value, &path, depth + 1, problems));
        } else {
            problems.push(Problem::new(path, shown(&key), "keys must be text", "put the key in quotes"));
        }
    }
    object
}

fn from_python(value: &Bound<'_, PyAny>, path: &str, depth: usize, problems: &mut Problems) -> Value {
    if depth > MAX_DEPTH {
        problems.push(Problem::new(path, "nested too deeply", "must be plain data", "flatten it"));
        return Value::Null;
    }
    if value.is_none() {
        return Value::Null;
    }
    // `bool` is an `int` in Python; here it is not.
    if let Ok(truth) = value.cast::<PyBool>() {
        return Value::Bool(truth.is_true());
    }
    if let Ok(text) = value.extract::<String>() {
        return Value::String(text);
    }
    if let Ok(float) = value.cast::<PyFloat>() {
        return Number::from_f64(float.value()).map_or_else(
            || {
                problems.push(Problem::new(
                    path,
                    shown(value),
                    "must be a finite number",
                    "give a number or leave it out",
                ));
                Value::Null
            },
            Value::Number,
        );
    }
    if let Ok(dict) = value.cast::<PyDict>() {
        return Value::Object(mapping(dict, path, depth, problems));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let Ok(items) = value.try_iter() else { return Value::Null };
        let noted = problems.iter().count();
        let items = items
            .flatten()
            .enumerate()
            .map(|(i, item)| from_python(&item, &format!("{path}[{i}]"), depth + 1, problems))
            .collect();
        // A list with an entry that could not be read counts as not given, or its reader would complain once more.
        return if problems.iter().count() > noted { Value::Null } else { Value::Array(items) };
    }
    // Integers last: this also takes what says it is one through `__index__` (NumPy's).
    if let Ok(whole) = value.extract::<u64>() {
        return Value::Number(whole.into());
    }
    if let Ok(whole) = value.extract::<i64>() {
        return Value::Number(whole.into());
    }
    let (rule, remedy) = if value.is_instance_of::<PyInt>() {
        ("must fit 64 bits", "give a number below 2^63")
    } else {
        ("must be plain data", "give a number, text, true, false, a list or a dict")
    };
    problems.push(Problem::new(path, shown(value), rule, remedy));
    Value::Null
}

/// A Python value as it is shown in a message: its `repr`, cut where it is long.
fn shown(value: &Bound<'_, PyAny>) -> String {
    const LONGEST: usize = 40;
    // `repr` of an integer with thousands of digits is an error by itself.
    let text = value.repr().map_or_else(|_| "beyond printing".to_owned(), |text| text.to_string_lossy().into_owned());
    if text.chars().count() <= LONGEST {
        return text;
    }
    let head: String = text.chars().take(LONGEST).collect();
    format!("{head}…")
}
