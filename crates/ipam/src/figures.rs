//! Formatting of large numbers in reports: IPv6 has more addresses than most readers can represent
//! exactly.

/// The largest integer that every JSON reader represents exactly: 2^53 - 1.
pub const MAX_JSON_INTEGER: u128 = (1 << 53) - 1;

/// Formats a number for people: digits, or beyond [`MAX_JSON_INTEGER`] a power of 2.
#[must_use]
pub fn readable(number: u128) -> String {
    let power = number.checked_next_power_of_two();
    match power {
        _ if number <= MAX_JSON_INTEGER => number.to_string(),
        Some(power) if power - number <= 9 => {
            let (exponent, less) = (power.trailing_zeros(), power - number);
            if less == 0 {
                format!("2^{exponent}")
            } else {
                format!("2^{exponent}-{less}")
            }
        }
        _ => format!("about 2^{}", number.ilog2()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_large_numbers_as_powers() {
        assert_eq!(readable(253), "253");
        assert_eq!(readable(1 << 64), "2^64");
        assert_eq!(readable((1 << 64) - 2), "2^64-2");
        assert_eq!(readable(u128::MAX), "about 2^127");
        assert_eq!(readable((1 << 80) - (1 << 70)), "about 2^79");
    }
}
