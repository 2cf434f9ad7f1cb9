//! Number formats a user may ask for: of the main KV, and of the indexer's keys.

use serde::Serialize;

use crate::error::Problem;
use crate::input::nearest;
use crate::model::{Model, Shape};

/// Format of the main KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KvDtype {
    /// 16-bit brain floats throughout.
    Bfloat16,
    /// FP8 e4m3 with scales, the rotary part in bfloat16 (FlashMLA's record).
    Fp8E4m3,
    /// FP8 e4m3 throughout, no scales (TRT-LLM, HIP).
    Fp8Raw,
}

/// Format of the indexer's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IndexDtype {
    /// FP8 e4m3 keys with a scale per 128 values.
    Fp8,
    /// FP4 e2m1 keys with 4 bytes of scale per 128 values.
    Fp4,
    /// 16-bit brain floats, no scales (MiniMax M3).
    Bfloat16,
}

impl KvDtype {
    /// Every format, in the order of the help text.
    pub const ALL: [Self; 3] = [Self::Bfloat16, Self::Fp8E4m3, Self::Fp8Raw];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bfloat16 => "bfloat16",
            Self::Fp8E4m3 => "fp8_e4m3",
            Self::Fp8Raw => "fp8_raw",
        }
    }

    /// Reads a name; `field` is what the user wrote it under.
    ///
    /// # Errors
    /// An unknown name, with the known ones.
    pub fn parse(field: &str, name: &str) -> Result<Self, Problem> {
        parse(field, name, &Self::ALL.map(|dtype| (dtype.name(), dtype)))
    }
}

impl IndexDtype {
    /// Every format, in the order of the help text.
    pub const ALL: [Self; 3] = [Self::Fp8, Self::Fp4, Self::Bfloat16];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp8 => "fp8",
            Self::Fp4 => "fp4",
            Self::Bfloat16 => "bfloat16",
        }
    }

    /// What the model's engines use unless told otherwise.
    pub const fn default_of(model: &Model) -> Self {
        match model.shape {
            Shape::Mla { .. } | Shape::DeepseekV4 { .. } => Self::Fp8,
            Shape::Mha { .. } => Self::Bfloat16,
        }
    }

    /// Reads a name; `field` is what the user wrote it under.
    ///
    /// # Errors
    /// An unknown name, with the known ones.
    pub fn parse(field: &str, name: &str) -> Result<Self, Problem> {
        parse(field, name, &Self::ALL.map(|dtype| (dtype.name(), dtype)))
    }
}

fn parse<T: Copy>(field: &str, name: &str, known: &[(&'static str, T)]) -> Result<T, Problem> {
    if let Some((_, found)) = known.iter().find(|(known_name, _)| *known_name == name) {
        return Ok(*found);
    }
    let names: Vec<&'static str> = known.iter().map(|(known_name, _)| *known_name).collect();
    let guess = nearest(name, &names).map_or_else(String::new, |near| format!("; did you mean {near}?"));
    Err(Problem::new(
        field,
        format!("{name:?}"),
        "is no known number format",
        format!("use one of {}{guess}", names.join(", ")),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for dtype in KvDtype::ALL {
            assert_eq!(KvDtype::parse("--kv-dtype", dtype.name()), Ok(dtype));
        }
        for dtype in IndexDtype::ALL {
            assert_eq!(IndexDtype::parse("index", dtype.name()), Ok(dtype));
        }
    }

    #[test]
    fn an_unknown_format_is_refused_with_the_known_ones() {
        let problem = KvDtype::parse("--kv-dtype", "fp8_e4m4").unwrap_err();
        assert_eq!(
            problem.to_string(),
            "--kv-dtype is \"fp8_e4m4\": is no known number format; use one of bfloat16, fp8_e4m3, fp8_raw; did you \
             mean fp8_e4m3?"
        );
    }
}
