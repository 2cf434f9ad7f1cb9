//! The backend to use where the user names none: the first row of the table that is sure to work.

use super::{Backend, Situation, TABLE};

/// The backend for `here`, or `None` where none can read such rows (then [`super::check()`] refuses every name too).
pub fn resolve(here: &Situation) -> Option<Backend> {
    TABLE.iter().find(|row| row.is_sure(here)).map(|row| row.backend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::{Phase, allowed, check};
    use crate::model::Family;
    use crate::platform::{KvDtype, Platform};

    const FAMILIES: [Option<Family>; 6] = [
        None,
        Some(Family::DeepseekV32),
        Some(Family::GlmMoeDsa),
        Some(Family::DeepseekV4),
        Some(Family::MinimaxM3),
        Some(Family::GenericDsa),
    ];
    const HEADS: [Option<u64>; 10] =
        [None, Some(1), Some(7), Some(8), Some(16), Some(24), Some(64), Some(96), Some(128), Some(129)];

    /// Every situation that differs for some row.
    fn everywhere() -> impl Iterator<Item = Situation> {
        let platforms = Platform::ALL.iter().flat_map(|platform| (70..=130).map(|sm| (*platform, sm)));
        platforms.flat_map(|(platform, sm)| {
            KvDtype::ALL.iter().flat_map(move |kv_dtype| {
                FAMILIES.iter().flat_map(move |family| {
                    Phase::ALL.iter().flat_map(move |phase| {
                        HEADS.iter().flat_map(move |heads| {
                            [1, 4].into_iter().map(move |index_pooling| Situation {
                                platform,
                                sm,
                                kv_dtype: *kv_dtype,
                                family: *family,
                                phase: *phase,
                                heads: *heads,
                                index_pooling,
                            })
                        })
                    })
                })
            })
        })
    }

    #[test]
    fn what_the_resolver_picks_is_accepted_and_none_means_none() {
        let mut seen = 0_u32;
        for here in everywhere() {
            match resolve(&here) {
                Some(picked) => {
                    assert!(allowed(&here).contains(&picked), "{picked} at {here:?}");
                    assert_eq!(check(picked.name(), &here), Ok(picked), "{here:?}");
                }
                None => assert!(allowed(&here).is_empty(), "{here:?} allows {:?}", allowed(&here)),
            }
            seen += 1;
        }
        assert_eq!(seen, 2 * 61 * 4 * 6 * 2 * 10 * 2);
    }

    #[test]
    fn more_knowledge_never_adds_a_backend() {
        for here in everywhere() {
            let vague = Situation { family: None, heads: None, index_pooling: 1, ..here };
            for backend in allowed(&here) {
                assert!(allowed(&vague).contains(&backend), "{backend} at {here:?}");
            }
        }
    }

    fn at(platform: Platform, sm: u64, kv_dtype: KvDtype, family: Family) -> Situation {
        let phase = Phase::Decode;
        Situation { platform, sm, kv_dtype, family: Some(family), phase, heads: None, index_pooling: 1 }
    }

    #[test]
    fn each_gpu_gets_the_kernel_that_is_built_for_it() {
        use Backend::{FlashinferSparseMla, FlashmlaKv, FlashmlaSparse, Reference, Tilelang, Triton};
        use KvDtype::{Bfloat16, Float32, Fp8E4m3, Fp8Raw};
        use Platform::{Cuda, Rocm};
        for (platform, sm, kv_dtype, family, expected) in [
            (Cuda, 90, Bfloat16, Family::DeepseekV32, Some(FlashmlaSparse)),
            (Cuda, 90, Fp8E4m3, Family::GlmMoeDsa, Some(FlashmlaKv)),
            (Cuda, 100, Fp8E4m3, Family::DeepseekV32, Some(FlashmlaKv)),
            (Cuda, 120, Fp8E4m3, Family::GlmMoeDsa, Some(FlashinferSparseMla)),
            (Cuda, 121, Fp8E4m3, Family::GlmMoeDsa, Some(FlashinferSparseMla)),
            (Cuda, 120, Fp8E4m3, Family::DeepseekV32, Some(Triton)),
            (Cuda, 90, Fp8Raw, Family::DeepseekV32, None),
            (Cuda, 90, Float32, Family::GlmMoeDsa, Some(Reference)),
            (Rocm, 0, Bfloat16, Family::DeepseekV32, Some(Tilelang)),
            (Rocm, 0, Fp8Raw, Family::GlmMoeDsa, Some(Tilelang)),
            (Cuda, 90, Fp8E4m3, Family::MinimaxM3, None),
        ] {
            let here = at(platform, sm, kv_dtype, family);
            assert_eq!(resolve(&here), expected, "{here:?}");
        }
    }

    #[test]
    fn a_pooled_index_leaves_flashmla_kv_out() {
        let here = Situation { index_pooling: 4, ..at(Platform::Cuda, 90, KvDtype::Fp8E4m3, Family::GlmMoeDsa) };
        assert_eq!(allowed(&here), [Backend::Triton, Backend::Reference]);
        assert_eq!(resolve(&here), Some(Backend::Triton));
    }
}
