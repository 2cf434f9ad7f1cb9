//! The host-to-device ratio as an exact fraction, so that budgets stay integers: 2.5 is 5/2, never 2.4999….

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::{Number, Value};

use crate::limits::{DEFAULT_RATIO, MAX_RATIO};

/// Tokens of logical capacity per token of device capacity: a finite number, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ratio {
    numerator: u64,
    denominator: u64,
}

impl Ratio {
    /// Logical and device size are the same.
    pub const ONE: Self = Self { numerator: 1, denominator: 1 };

    /// What is planned with where neither a ratio nor a host pool is named.
    pub const DEFAULT: Self = Self { numerator: DEFAULT_RATIO, denominator: 1 };

    /// Decimal places a ratio may have.
    const PLACES: u32 = 6;

    /// [`MAX_RATIO`] as a double.
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    const MOST: f64 = MAX_RATIO as f64;

    /// A whole ratio; `None` outside 1 to [`MAX_RATIO`].
    pub const fn whole(ratio: u64) -> Option<Self> {
        if ratio >= 1 && ratio <= MAX_RATIO { Some(Self { numerator: ratio, denominator: 1 }) } else { None }
    }

    /// The exact fraction of a JSON number's shortest decimal text; `None` for text, booleans, values below 1 or
    /// above [`MAX_RATIO`], and more than six decimal places.
    pub fn from_json(value: &Value) -> Option<Self> {
        value.as_number().and_then(Self::from_number)
    }

    fn from_number(number: &Number) -> Option<Self> {
        if let Some(whole) = number.as_u64() {
            return Self::whole(whole);
        }
        let float = number.as_f64()?;
        if !(1.0..=Self::MOST).contains(&float) {
            return None;
        }
        let text = float.to_string();
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let places = u32::try_from(fraction.len()).ok().filter(|places| *places <= Self::PLACES)?;
        let denominator = 10_u64.pow(places);
        let numerator = whole.parse::<u64>().ok()? * denominator + fraction.parse::<u64>().unwrap_or(0);
        Some(Self::reduced(numerator, denominator))
    }

    /// The ratio of two sizes in the decimal places that are read back: the least with `scale_floor(device)` equal to
    /// `logical`. Beyond a million device pages there may be none, and then the one below. `None` outside 1 to
    /// [`MAX_RATIO`].
    pub fn between(logical: u64, device: u64) -> Option<Self> {
        let denominator = 10_u64.pow(Self::PLACES);
        let scaled = u128::from(logical) * u128::from(denominator);
        let numerator = u64::try_from(scaled.checked_div(u128::from(device))?).ok()?;
        let below = Self::reduced(numerator, denominator);
        let above = Self::reduced(numerator.checked_add(1)?, denominator);
        [below, above]
            .into_iter()
            .find(|ratio| ratio.scale_floor(device) == Some(logical))
            .or(Some(below))
            .filter(|ratio| (1.0..=Self::MOST).contains(&ratio.to_f64()))
    }

    const fn reduced(numerator: u64, denominator: u64) -> Self {
        let divisor = greatest_common_divisor(numerator, denominator);
        Self { numerator: numerator / divisor, denominator: denominator / divisor }
    }

    /// Top of the reduced fraction.
    pub const fn numerator(self) -> u64 {
        self.numerator
    }

    /// Bottom of the reduced fraction.
    pub const fn denominator(self) -> u64 {
        self.denominator
    }

    /// The nearest double, for display and for engines that compute with one.
    #[allow(clippy::cast_precision_loss)] // both parts are below 2^52
    pub fn to_f64(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    /// `floor(count × ratio)`, or `None` on overflow.
    pub fn scale_floor(self, count: u64) -> Option<u64> {
        u64::try_from(u128::from(count) * u128::from(self.numerator) / u128::from(self.denominator)).ok()
    }

    /// `ceil(count × ratio)`, or `None` on overflow.
    pub fn scale_ceil(self, count: u64) -> Option<u64> {
        let scaled = u128::from(count) * u128::from(self.numerator);
        u64::try_from(scaled.div_ceil(u128::from(self.denominator))).ok()
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_f64())
    }
}

impl Serialize for Ratio {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.denominator == 1 {
            serializer.serialize_u64(self.numerator)
        } else {
            serializer.serialize_f64(self.to_f64())
        }
    }
}

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_decimal_becomes_its_exact_fraction() {
        let ratio = Ratio::from_json(&json!(2.5)).unwrap();
        assert_eq!((ratio.numerator(), ratio.denominator()), (5, 2));
        assert_eq!(Ratio::from_json(&json!(1.1)).unwrap().scale_floor(10), Some(11));
        assert_eq!(Ratio::from_json(&json!(4.0)), Ratio::whole(4));
    }

    #[test]
    fn what_is_no_ratio_is_refused() {
        for value in
            [json!(0), json!(-1), json!(0.5), json!(true), json!("2"), json!([2]), json!(1e9), json!(1.000_000_1)]
        {
            assert_eq!(Ratio::from_json(&value), None, "{value}");
        }
    }

    #[test]
    fn the_ratio_of_two_sizes_keeps_both() {
        for (logical, device) in [(3, 2), (4_104, 70), (1, 1), (10_000, 1), (1_000_001, 999_999), (16_385, 65)] {
            let ratio = Ratio::between(logical, device).unwrap();
            assert_eq!(ratio.scale_floor(device), Some(logical), "{logical} {device}");
            assert_eq!(Ratio::from_json(&json!(ratio)), Some(ratio), "{logical} {device}");
        }
        assert_eq!(Ratio::between(3, 2), Ratio::from_json(&json!(1.5)));
        for (logical, device) in [(1, 2), (0, 0), (1, 0), (10_001, 1)] {
            assert_eq!(Ratio::between(logical, device), None, "{logical} {device}");
        }
    }

    #[test]
    fn overflow_is_none() {
        assert_eq!(Ratio::whole(4).unwrap().scale_floor(u64::MAX / 2), None);
    }
}
