//! The few closed choices that every question carries: which engine, which platform, which KV type.
//! Their text forms are those of the command line, of gRPC and of the docs.

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::serde::Serialize, ::serde::Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $text)] $variant),+
        }

        impl $name {
            /// Every choice, in the order they are offered.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// Their names, in the same order.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The name users write.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(format!("use one of {}", Self::NAMES.join(", "))),
                }
            }
        }
    };
}

pub(crate) use choice;

choice!(
    /// Whose allocation and admission a plan describes.
    Engine {
        /// This project: right by construction.
        Native = "native",
        /// SGLang 0.5.23, quirks included.
        Sglang = "sglang",
        /// vLLM 0.33.0, quirks included.
        Vllm = "vllm",
    }
);

choice!(
    /// The GPU software platform.
    Platform {
        /// NVIDIA.
        Cuda = "cuda",
        /// AMD.
        Rocm = "rocm",
    }
);

choice!(
    /// How main KV is stored.
    KvDtype {
        /// Two bytes a number.
        Bfloat16 = "bfloat16",
        /// One byte a number, with scales (the FlashMLA record).
        Fp8E4m3 = "fp8_e4m3",
        /// One byte a number, no scales (TRT-LLM, HIP).
        Fp8Raw = "fp8_raw",
        /// Four bytes a number, the indexer's keys too: for tests whose arithmetic is to be exact. MLA models of the
        /// native engine alone have it.
        Float32 = "float32",
    }
);

choice!(
    /// How the indexer's keys are stored.
    IndexDtype {
        /// FP8 e4m3 with a scale per 128 values.
        Fp8 = "fp8",
        /// FP4 e2m1 with four bytes of scale per 128 values.
        Fp4 = "fp4",
        /// Two bytes a number, no scales (MiniMax M3).
        Bfloat16 = "bfloat16",
        /// Four bytes a number, no scales: with main KV of [`KvDtype::Float32`].
        Float32 = "float32",
    }
);

choice!(
    /// Whether layers that share an index lie side by side in host memory.
    LayerGroups {
        /// Side by side, which makes one token one run of bytes.
        Auto = "auto",
        /// Layer after layer.
        Off = "off",
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_reads_back_from_its_name() {
        for engine in Engine::ALL {
            assert_eq!(engine.name().parse(), Ok(*engine));
        }
        for dtype in KvDtype::ALL {
            assert_eq!(dtype.name().parse(), Ok(*dtype));
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        assert_eq!("metal".parse::<Platform>(), Err("use one of cuda, rocm".to_owned()));
    }
}
