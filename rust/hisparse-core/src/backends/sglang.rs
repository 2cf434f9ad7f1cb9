//! The table as SGLang 0.5.23 sees it: platform and KV type alone decide, architecture and GPU generation do not.
//!
//! An unknown KV type falls back to every backend of the platform. Only the default looks further: GLM with FP8
//! rows on SM120 and SM121 gets the one kernel made for it.

use super::{Backend, Phase, Row, Situation, TABLE};
use crate::model::Family;
use crate::platform::{KvDtype, Platform};

fn rows(platform: Platform, kv_dtype: Option<KvDtype>) -> impl Iterator<Item = &'static Row> {
    TABLE.iter().filter(move |row| {
        row.in_sglang
            && row.platform == platform
            && (platform == Platform::Rocm || kv_dtype.is_none_or(|dtype| row.kv_dtypes.contains(&dtype)))
    })
}

/// The KV type a text names to SGLang's backend check; it knows two, and takes any other text as unknown.
pub fn known_kv_dtype(text: &str) -> Option<KvDtype> {
    text.parse().ok().filter(|dtype| matches!(dtype, KvDtype::Bfloat16 | KvDtype::Fp8E4m3))
}

/// The HiSparse list for a platform and KV type; `None` is an unknown type.
pub fn allowed(platform: Platform, kv_dtype: Option<KvDtype>) -> Vec<Backend> {
    rows(platform, kv_dtype).map(|row| row.backend).collect()
}

/// The first of the list, which its check names as the default.
pub fn default_of_list(platform: Platform, kv_dtype: Option<KvDtype>) -> Option<Backend> {
    rows(platform, kv_dtype).map(|row| row.backend).next()
}

/// Whether SGLang takes its own path for this model: GLM with FP8 rows on SM120 and SM121.
pub fn is_sm12x_glm(platform: Platform, sm: u64, kv_dtype: KvDtype, family: Family) -> bool {
    let here =
        Situation { platform, sm, kv_dtype, family: Some(family), phase: Phase::Decode, heads: None, index_pooling: 1 };
    TABLE.iter().any(|row| row.backend == Backend::FlashinferSparseMla && row.accepts(&here))
}

/// What it picks for a DSA model where the user names no backend.
pub fn resolve(platform: Platform, sm: u64, kv_dtype: KvDtype, family: Family) -> Option<Backend> {
    if is_sm12x_glm(platform, sm, kv_dtype, family) {
        return Some(Backend::FlashinferSparseMla);
    }
    default_of_list(platform, Some(kv_dtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kv_type_opens_the_whole_platform() {
        let union = allowed(Platform::Cuda, known_kv_dtype("auto"));
        assert_eq!(union, [Backend::FlashmlaSparse, Backend::FlashmlaKv, Backend::FlashinferSparseMla]);
        assert_eq!(allowed(Platform::Cuda, known_kv_dtype("bfloat16")), [Backend::FlashmlaSparse]);
    }

    #[test]
    fn what_it_picks_is_in_its_list() {
        for platform in Platform::ALL {
            for kv_dtype in [KvDtype::Bfloat16, KvDtype::Fp8E4m3] {
                for family in [Family::DeepseekV32, Family::GlmMoeDsa] {
                    for sm in 80..=130 {
                        let picked = resolve(*platform, sm, kv_dtype, family).unwrap();
                        assert!(allowed(*platform, Some(kv_dtype)).contains(&picked), "{platform} {sm} {kv_dtype}");
                    }
                }
            }
        }
    }
}
