//! Resource quantities (`100m`, `1.5Gi`) as numbers that can be compared and added.

use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rust_decimal::{Decimal, prelude::ToPrimitive};

/// A string that is not a quantity, or one that does not fit into a 64-bit integer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid quantity {0:?}: want a number with an optional suffix, as in 100m, 2, 1.5Gi")]
pub struct QuantityError(pub String);

/// `quantity` in whole units, rounded up: bytes for memory, a count for pods and pod IPs.
///
/// # Errors
///
/// [`QuantityError`] if it is not a quantity or does not fit.
pub fn units(quantity: &Quantity) -> Result<i64, QuantityError> {
    scaled(quantity, Decimal::ONE)
}

/// `quantity` in thousandths, rounded up: millicores for cpu.
///
/// # Errors
///
/// [`QuantityError`] if it is not a quantity or does not fit.
pub fn millis(quantity: &Quantity) -> Result<i64, QuantityError> {
    scaled(quantity, Decimal::ONE_THOUSAND)
}

/// The suffixes of Kubernetes' quantity format and their factors: a power of 1024 or of 1000.
const SUFFIXES: [(&str, Decimal, i32); 14] = [
    ("Ki", KIBI, 1),
    ("Mi", KIBI, 2),
    ("Gi", KIBI, 3),
    ("Ti", KIBI, 4),
    ("Pi", KIBI, 5),
    ("Ei", KIBI, 6),
    ("n", Decimal::ONE_THOUSAND, -3),
    ("u", Decimal::ONE_THOUSAND, -2),
    ("m", Decimal::ONE_THOUSAND, -1),
    ("k", Decimal::ONE_THOUSAND, 1),
    ("M", Decimal::ONE_THOUSAND, 2),
    ("G", Decimal::ONE_THOUSAND, 3),
    ("T", Decimal::ONE_THOUSAND, 4),
    ("P", Decimal::ONE_THOUSAND, 5),
];
const KIBI: Decimal = Decimal::from_parts(1024, 0, 0, false, 0);

fn scaled(quantity: &Quantity, factor: Decimal) -> Result<i64, QuantityError> {
    value(&quantity.0)
        .and_then(|value| value.checked_mul(factor))
        .and_then(|scaled| scaled.ceil().to_i64())
        .ok_or_else(|| QuantityError(quantity.0.clone()))
}

/// The value of a number with a suffix, with an exponent, or neither; `None` if it is malformed or
/// does not fit.
pub fn decimal(text: &str) -> Option<Decimal> {
    value(text)
}

/// `E` alone is the suffix exa; before digits it is an exponent.
fn value(text: &str) -> Option<Decimal> {
    if text.contains('_') {
        return None; // `Decimal` allows it between digits, Kubernetes does not.
    }
    let suffixed = SUFFIXES
        .iter()
        .find_map(|(suffix, base, power)| Some((text.strip_suffix(suffix)?, base, *power)));
    if let Some((number, base, power)) = suffixed {
        return times(number, *base, power);
    }
    if let Some(number) = text.strip_suffix('E') {
        return times(number, Decimal::ONE_THOUSAND, 6);
    }
    Decimal::from_str(text)
        .or_else(|_| Decimal::from_scientific(text))
        .ok()
}

fn times(number: &str, base: Decimal, power: i32) -> Option<Decimal> {
    let mut value = Decimal::from_str(number).ok()?;
    for _ in 0..power.abs() {
        value = if power > 0 {
            value.checked_mul(base)?
        } else {
            value.checked_div(base)?
        };
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_scale_quantities() {
        let cases = [
            ("100m", 100),
            ("2", 2000),
            ("1.5", 1500),
            ("0.0001", 1),
            ("1k", 1_000_000),
        ];
        for (text, want) in cases {
            assert_eq!(millis(&Quantity(text.into())), Ok(want), "{text}");
        }
        let cases = [
            ("1Ki", 1024),
            ("1.5Gi", 1_610_612_736),
            ("1e3", 1000),
            ("1E3", 1000),
            ("2E", 2_000_000_000_000_000_000),
            ("-1", -1),
        ];
        for (text, want) in cases {
            assert_eq!(units(&Quantity(text.into())), Ok(want), "{text}");
        }
    }

    #[test]
    fn refuses_invalid_quantities() {
        for text in [
            "",
            "abc",
            "1x",
            "1 Gi",
            "Ki",
            "1_0",
            "12E",
            "99999999999999999999999999999999999999",
            "1e999",
        ] {
            assert!(units(&Quantity(text.into())).is_err(), "{text}");
        }
    }
}
