//! Percentages of a number of pods, such as `25%` of the replicas.

use podplane_api::IntOrString;

/// The direction in which a share of a pod is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Up,
    Down,
}

/// The share of `of` that a text such as `25%` means; `None` for other texts. Negative percentages
/// are 0.
pub(crate) fn percent_of(text: &str, of: i32, rounding: Rounding) -> Option<i32> {
    let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
    let hundredths = percent.max(0).saturating_mul(i64::from(of));
    let rounded = match rounding {
        Rounding::Up => hundredths.saturating_add(99) / 100,
        Rounding::Down => hundredths / 100,
    };
    Some(i32::try_from(rounded).unwrap_or(i32::MAX))
}

/// The number, or the share of `of`, that a bound means; 0 for invalid ones.
pub(crate) fn scaled(bound: &IntOrString, of: i32, rounding: Rounding) -> i32 {
    match bound {
        IntOrString::Int(number) => (*number).max(0),
        IntOrString::String(text) => percent_of(text, of, rounding).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_shares_up_or_down() {
        let both = |text| [Rounding::Up, Rounding::Down].map(|to| percent_of(text, 7, to));
        assert_eq!(both("50%"), [Some(4), Some(3)]);
        assert_eq!(both("100%"), [Some(7), Some(7)]);
        assert_eq!(both("-1%"), [Some(0), Some(0)]);
        assert_eq!(both("9223372036854775807%"), [Some(i32::MAX); 2]);
        assert_eq!(both("50"), [None; 2]);
        assert_eq!(both("%"), [None; 2]);
    }
}
