//! The one table of backend support. Order matters: the resolver takes the first row that is sure to work.
//!
//! ```text
//!  CUDA  bfloat16   flashmla_sparse  triton  reference
//!        fp8_e4m3   flashmla_kv      (SM120, SM121 and GLM: flashinfer_sparse_mla)  triton  reference
//!        float32    reference
//!  ROCm             tilelang  aiter  triton  reference
//! ```

use serde::Serialize;

use super::{Backend, Phase, Situation};
use crate::model::Family;
use crate::platform::{KvDtype, Platform};

/// Query heads per rank that a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Heads {
    /// Any number.
    Any,
    /// Up to this many; fewer are padded.
    UpTo(u64),
    /// These numbers alone.
    OneOf(&'static [u64]),
}

impl Heads {
    /// Why `heads` on one rank is refused, if it is.
    fn objection(self, heads: u64) -> Option<String> {
        match self {
            Self::UpTo(most) if heads > most => Some(format!("takes up to {most} heads a rank, not {heads}")),
            Self::OneOf(list) if !list.contains(&heads) => {
                let takes: Vec<_> = list.iter().map(u64::to_string).collect();
                Some(format!("takes {} heads a rank, not {heads}", takes.join(", ")))
            }
            Self::Any | Self::UpTo(_) | Self::OneOf(_) => None,
        }
    }
}

/// One line of the table: a backend and all the conditions under which it may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The backend.
    pub backend: Backend,
    /// Platform it runs on.
    pub platform: Platform,
    /// Lowest and highest compute capability, the latter `None` where the range is open; `None` altogether where the
    /// platform has no such number or none matters.
    pub sm: Option<(u64, Option<u64>)>,
    /// Compute capabilities that published builds carry code for; empty where it is compiled on the spot.
    pub built_for: &'static [u64],
    /// KV types whose rows it reads.
    pub kv_dtypes: &'static [KvDtype],
    /// Families whose rows it reads.
    pub families: &'static [Family],
    /// Phases it serves.
    pub phases: &'static [Phase],
    /// Query heads per rank.
    pub heads: Heads,
    /// Whether it can follow an index that pools several tokens into one key.
    pub pooled_index: bool,
    /// Whether SGLang 0.5.23 has it in its HiSparse list; the others are this project's own.
    pub in_sglang: bool,
}

const MLA: &[Family] = &[Family::DeepseekV32, Family::GlmMoeDsa, Family::GenericDsa];
const BF16: &[KvDtype] = &[KvDtype::Bfloat16];
const FP8: &[KvDtype] = &[KvDtype::Fp8E4m3];
const BF16_OR_FP8: &[KvDtype] = &[KvDtype::Bfloat16, KvDtype::Fp8E4m3];
const SGLANG_KV: &[KvDtype] = &[KvDtype::Bfloat16, KvDtype::Fp8E4m3, KvDtype::Fp8Raw];
const EXACT_TOO: &[KvDtype] = &[KvDtype::Bfloat16, KvDtype::Fp8E4m3, KvDtype::Float32];
const BOTH: &[Phase] = Phase::ALL;

/// FlashMLA's published builds carry cubins for `sm_90a`, and for `sm_100f`, which 100 and 103 run.
const FLASHMLA_BUILDS: &[u64] = &[90, 100, 103];

const fn flashmla(backend: Backend, kv_dtypes: &'static [KvDtype], pooled_index: bool) -> Row {
    Row {
        backend,
        platform: Platform::Cuda,
        sm: Some((90, None)),
        built_for: FLASHMLA_BUILDS,
        kv_dtypes,
        families: MLA,
        phases: BOTH,
        heads: Heads::UpTo(128), // the caller pads to 64 or 128
        pooled_index,
        in_sglang: true,
    }
}

const fn rocm(backend: Backend, kv_dtypes: &'static [KvDtype], in_sglang: bool) -> Row {
    Row {
        backend,
        platform: Platform::Rocm,
        sm: None,
        built_for: &[],
        kv_dtypes,
        families: MLA,
        phases: BOTH,
        heads: Heads::Any,
        pooled_index: true,
        in_sglang,
    }
}

const fn cuda_own(backend: Backend, sm: Option<(u64, Option<u64>)>) -> Row {
    Row { backend, platform: Platform::Cuda, sm, ..rocm(backend, BF16_OR_FP8, false) }
}

/// Every row, most wanted first.
pub const TABLE: &[Row] = &[
    flashmla(Backend::FlashmlaSparse, BF16, true),
    flashmla(Backend::FlashmlaKv, FP8, false),
    Row {
        built_for: &[],
        sm: Some((120, Some(121))),
        families: &[Family::GlmMoeDsa],
        heads: Heads::OneOf(&[8, 16, 32, 64, 128]),
        ..flashmla(Backend::FlashinferSparseMla, FP8, false)
    },
    cuda_own(Backend::Triton, Some((80, None))),
    Row { kv_dtypes: EXACT_TOO, ..cuda_own(Backend::Reference, None) },
    rocm(Backend::Tilelang, SGLANG_KV, true),
    rocm(Backend::Aiter, SGLANG_KV, true),
    rocm(Backend::Triton, BF16_OR_FP8, true),
    rocm(Backend::Reference, EXACT_TOO, false),
];

impl Row {
    /// Whether nothing that is known about `here` speaks against this row.
    pub fn accepts(&self, here: &Situation) -> bool {
        self.platform == here.platform && self.objections(here).is_empty()
    }

    /// Whether this row is sure to work: accepted, code for this GPU published, and no open condition on the family.
    pub fn is_sure(&self, here: &Situation) -> bool {
        self.accepts(here) && self.has_code_for(here) && (here.family.is_some() || self.families == MLA)
    }

    /// Whether published builds carry code for this GPU, or none is needed.
    pub fn has_code_for(&self, here: &Situation) -> bool {
        self.built_for.is_empty() || self.built_for.contains(&here.sm)
    }

    /// The conditions that `here` breaks on this row's own platform, each as a rule.
    pub fn objections(&self, here: &Situation) -> Vec<String> {
        let mut rules = Vec::new();
        match self.sm {
            Some((least, None)) if here.sm < least => rules.push(format!("needs SM{least} or newer")),
            Some((least, Some(most))) if !(least..=most).contains(&here.sm) => {
                rules.push(format!("runs on SM{least} to SM{most} only"));
            }
            _ => {}
        }
        if !self.kv_dtypes.contains(&here.kv_dtype) {
            let takes: Vec<_> = self.kv_dtypes.iter().map(|dtype| dtype.name()).collect();
            rules.push(format!("reads {} rows, not {}", takes.join(" or "), here.kv_dtype));
        }
        if here.family.is_some_and(|family| !self.families.contains(&family)) {
            let one_family = self.families != MLA;
            rules.push(if one_family { "is for GLM alone" } else { "reads MLA rows alone" }.to_owned());
        }
        if !self.phases.contains(&here.phase) {
            rules.push(format!("does not serve {}", here.phase));
        }
        rules.extend(here.heads.and_then(|heads| self.heads.objection(heads)));
        if here.index_pooling > 1 && !self.pooled_index {
            rules.push(format!("cannot follow an index that pools {} tokens a key", here.index_pooling));
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_has_one_row_a_platform() {
        for (i, row) in TABLE.iter().enumerate() {
            for other in &TABLE[i + 1..] {
                assert!((row.backend, row.platform) != (other.backend, other.platform), "{row:?}");
            }
        }
    }

    #[test]
    fn every_backend_has_a_row() {
        for backend in Backend::ALL {
            assert!(TABLE.iter().any(|row| row.backend == *backend), "{backend}");
        }
    }

    #[test]
    fn a_row_serialises_for_the_docs() {
        let row = serde_json::to_value(TABLE[2]).unwrap();
        assert_eq!(row["backend"], "flashinfer_sparse_mla");
        assert_eq!(row["sm"], serde_json::json!([120, 121]));
        assert_eq!(row["heads"]["one_of"][0], 8);
    }
}
