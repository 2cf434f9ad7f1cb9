//! Errors that tell the caller what to do.
//!
//! Bad input is a list of [`Problem`]s, all found in one pass: field, value, rule, remedy. Front ends print them;
//! they never write a second text for the same rule.

use std::fmt;

use serde::Serialize;

/// One thing wrong with an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Path of the field, as the user wrote it: `index_topk`, `--hot-rows`, `compress_ratios[3]`.
    pub field: String,
    /// What was found there, as compact JSON text; `missing` where nothing was.
    pub value: String,
    /// The rule it breaks, as a statement: `must be a multiple of 64`.
    pub rule: String,
    /// What to do about it: `use 4096 or 4160`.
    pub remedy: String,
}

impl Problem {
    /// A problem in the order of the sentence it prints.
    pub fn new(
        field: impl Into<String>,
        value: impl fmt::Display,
        rule: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { field: field.into(), value: value.to_string(), rule: rule.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}: {}; {}", self.field, self.value, self.rule, self.remedy)
    }
}

/// Everything wrong with one input; never empty when it is an `Err`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(transparent)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// No problem yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A list of one.
    pub fn one(problem: Problem) -> Self {
        Self(vec![problem])
    }

    /// Notes one more.
    pub fn push(&mut self, problem: Problem) {
        self.0.push(problem);
    }

    /// Notes all of another list.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The problems in the order they were found.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }

    /// `value` when nothing is wrong, else all that is.
    ///
    /// # Errors
    /// Returns itself when at least one problem was noted.
    pub fn into_result<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            fmt::Display::fmt(problem, f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_reads_as_one_sentence() {
        let problem = Problem::new("--hot-rows", 4100, "must be a multiple of 64", "use 4096 or 4160");
        assert_eq!(problem.to_string(), "--hot-rows is 4100: must be a multiple of 64; use 4096 or 4160");
    }

    #[test]
    fn no_problem_means_the_value() {
        assert_eq!(Problems::new().into_result(7), Ok(7));
    }
}
