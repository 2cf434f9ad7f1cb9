//! Memory sizes as people write them, read and shown by one rule everywhere (command line, TOML, environment, gRPC).
//!
//! ```text
//!  "512MiB"  "160GiB"  "141GB"  "1073741824"  ──parse──► Bytes ──display──► "512 MiB"  "1.50 GiB"
//! ```
//! `KiB`, `MiB`, `GiB`, `TiB` are powers of 1024; `kB`, `MB`, `GB`, `TB` powers of 1000. A bare number is bytes.

use crate::limits::MAX_MEMORY_BYTES;
use crate::units::Bytes;

/// Units in the order they are offered, with their size in bytes.
const UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// What a size must look like, for error texts.
pub const SIZE_RULE: &str = "must be a size above 0 and at most 1024 TiB";

/// How to write one, for error texts.
const SIZE_REMEDY: &str = "write it as 160GiB: in KiB, MiB, GiB or TiB (powers of 1024), in kB, MB, GB or TB (of 1000), or as a number of bytes";

/// What to do about a text that is no size: `20G` and `20Gi` are taken for a slip.
pub fn size_remedy(text: &str) -> String {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let (number, unit) = (number.trim_end(), unit.to_ascii_lowercase());
    let meant = UNITS.iter().skip(1).take(4).map(|(name, _)| *name).find(|name| {
        let name = name.to_ascii_lowercase();
        unit == name[..1] || unit == name[..2]
    });
    match meant.map(|unit| format!("{number}{unit}")).filter(|size| parse_size(size).is_some()) {
        Some(size) => format!("did you mean {size}? {SIZE_REMEDY}"),
        None => SIZE_REMEDY.to_owned(),
    }
}

/// Reads a size; `None` unless it is a number, at most a unit behind it, and 1 to [`MAX_MEMORY_BYTES`] bytes.
///
/// Fractions are exact decimals (`1.5GiB`) and must come to whole bytes. Upper and lower case mean the same.
pub fn parse_size(text: &str) -> Option<Bytes> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    let scale = if unit.is_empty() {
        1
    } else {
        UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, scale)| *scale)?
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let places = u32::try_from(fraction.len()).ok().filter(|places| *places <= 9)?;
    let denominator = 10_u128.pow(places);
    let numerator = parse_digits(whole)?.checked_mul(denominator)?.checked_add(if fraction.is_empty() {
        0
    } else {
        parse_digits(fraction)?
    })?;
    let scaled = numerator.checked_mul(u128::from(scale))?;
    if !scaled.is_multiple_of(denominator) {
        return None;
    }
    u64::try_from(scaled / denominator).ok().filter(|bytes| (1..=MAX_MEMORY_BYTES).contains(bytes)).map(Bytes::new)
}

/// Plain ASCII digits, at least one; no sign, which `u128::from_str` would accept.
fn parse_digits(text: &str) -> Option<u128> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// A size as a person reads it: the largest binary unit that leaves at least 1, to three significant figures or more.
pub fn show_size(bytes: Bytes) -> String {
    let (unit, scale) = UNITS[1..5].iter().rev().find(|(_, scale)| bytes.get() >= *scale).copied().unwrap_or(UNITS[0]);
    if bytes.get().is_multiple_of(scale) {
        return format!("{} {unit}", bytes.get() / scale);
    }
    let hundredths = (u128::from(bytes.get()) * 100 + u128::from(scale) / 2) / u128::from(scale);
    if hundredths < 10_000 {
        return format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100);
    }
    let tenths = (hundredths + 5) / 10;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Option<u64> {
        parse_size(text).map(Bytes::get)
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!(bytes("512MiB"), Some(512 << 20));
        assert_eq!(bytes("160 GiB"), Some(160 << 30));
        assert_eq!(bytes("160gib"), Some(160 << 30));
        assert_eq!(bytes("141GB"), Some(141_000_000_000));
        assert_eq!(bytes("1.5GiB"), Some(3 << 29));
        assert_eq!(bytes("1073741824"), Some(1 << 30));
        assert_eq!(bytes("1024TiB"), Some(MAX_MEMORY_BYTES));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "0",
            "0GiB",
            "-1",
            "+1",
            "1e9",
            "GiB",
            "12 parsecs",
            "1.0000000001GiB",
            "0.3B",
            ".5GiB",
            "1..5GiB",
            "nan",
            "1025TiB",
            "99999999999999999999999999999999999999999TiB",
            "1,5GiB",
        ] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn a_unit_cut_short_is_completed() {
        for (text, meant) in [("20G", "20GiB"), ("1.5 t", "1.5TiB"), ("512Mi", "512MiB"), ("4k", "4KiB")] {
            assert!(size_remedy(text).starts_with(&format!("did you mean {meant}? ")), "{text}: {}", size_remedy(text));
        }
        for text in ["2PiB", "plenty", "-1G", "0G", "", "2000T"] {
            assert_eq!(size_remedy(text), SIZE_REMEDY, "{text}");
        }
    }

    #[test]
    fn sizes_show_in_the_unit_that_fits() {
        let shown = |n| show_size(Bytes::new(n));
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1536), "1.50 KiB");
        assert_eq!(shown(160 << 30), "160 GiB");
        assert_eq!(shown((165 << 30) + (1 << 29)), "165.5 GiB");
        assert_eq!(shown((99 << 30) + 1), "99.00 GiB");
        assert_eq!(shown(3 << 40), "3 TiB");
    }

    proptest::proptest! {
        #[test]
        fn a_number_of_bytes_reads_back(count in 1..=MAX_MEMORY_BYTES) {
            proptest::prop_assert_eq!(bytes(&count.to_string()), Some(count));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            let _ = parse_size(&text);
            let _ = size_remedy(&text);
        }
    }
}
