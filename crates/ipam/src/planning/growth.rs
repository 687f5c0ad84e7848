//! How a number of nodes grows: by a share of itself, or by so many.

use std::{fmt, str::FromStr};

/// `20%/year` is compound, `+50/month` is not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    amount: Amount,
    period: Period,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Amount {
    Percent(f64),
    Nodes(f64),
}

/// In what time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "their names say it")]
pub enum Period {
    Day,
    Week,
    Month,
    Year,
}

impl Period {
    const ALL: [Self; 4] = [Self::Day, Self::Week, Self::Month, Self::Year];

    /// `day`
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// `1 year`, `2.5 years`
    #[must_use]
    pub fn amount(self, count: f64) -> String {
        let rounded = (count * 10.0).round() / 10.0;
        let plural = if (rounded - 1.0).abs() < f64::EPSILON {
            ""
        } else {
            "s"
        };
        format!("{rounded} {}{plural}", self.name())
    }
}

/// A text that is no growth.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no growth: say 20%/year, or +50/month; the period is day, week, month or year, and the amount more than 0"
)]
pub struct InvalidGrowth {
    text: String,
}

impl FromStr for Growth {
    type Err = InvalidGrowth;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidGrowth {
            text: text.to_owned(),
        };
        let (amount, period) = text.split_once('/').ok_or_else(invalid)?;
        let period = Period::ALL
            .into_iter()
            .find(|known| known.name() == period)
            .ok_or_else(invalid)?;
        let positive = |number: &str| {
            let number: f64 = number.parse().map_err(|_| invalid())?;
            (number > 0.0 && number.is_finite())
                .then_some(number)
                .ok_or_else(invalid)
        };
        let amount = match amount.strip_suffix('%') {
            Some(share) => Amount::Percent(positive(share)?),
            None => Amount::Nodes(positive(amount)?),
        };
        Ok(Self { amount, period })
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.amount {
            Amount::Percent(share) => write!(f, "{share}%/{}", self.period.name()),
            Amount::Nodes(nodes) => write!(f, "+{nodes}/{}", self.period.name()),
        }
    }
}

impl Growth {
    /// The time that it is measured in.
    #[must_use]
    pub const fn period(&self) -> Period {
        self.period
    }

    /// The number that `nodes` have become after so many periods, rounded up: a node that is there in
    /// part needs a whole block. Saturates.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float becomes the nearest integer there is, and is never below 0 here"
    )]
    pub fn after(&self, nodes: u64, periods: f64) -> u64 {
        let start = nodes as f64;
        let grown = match self.amount {
            Amount::Percent(share) => start * (1.0 + share / 100.0).powf(periods),
            Amount::Nodes(each) => start + each * periods,
        };
        // A hair is taken off, for 100 nodes at 10 % are 110 and not 110.000…1.
        (grown - 1e-6).ceil() as u64
    }

    /// After how many periods `nodes` are as many as `limit`; 0 if they are already. Infinite if they never are.
    #[must_use]
    pub fn reaches(&self, nodes: u64, limit: u64) -> f64 {
        if nodes >= limit {
            return 0.0;
        }
        let (start, limit) = (nodes as f64, limit as f64);
        match self.amount {
            Amount::Percent(share) => (limit / start).ln() / (share / 100.0).ln_1p(),
            Amount::Nodes(each) => (limit - start) / each,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(text: &str) -> Growth {
        text.parse().unwrap()
    }

    #[test]
    fn both_forms_are_read_and_written() {
        for (text, want) in [
            ("20%/year", "20%/year"),
            ("+50/month", "+50/month"),
            ("50/month", "+50/month"),
            ("0.5%/week", "0.5%/week"),
        ] {
            assert_eq!(growth(text).to_string(), want);
        }
        for text in [
            "",
            "20%",
            "20/",
            "/year",
            "20%/century",
            "-5/day",
            "0%/day",
            "NaN/day",
            "inf/day",
            "much/day",
        ] {
            assert!(text.parse::<Growth>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_share_is_compound_and_a_number_is_not() {
        assert_eq!(growth("10%/year").after(100, 2.0), 121);
        assert_eq!(growth("+50/month").after(100, 2.0), 200);
        assert_eq!(growth("+50/month").after(100, 0.01), 101);
        assert_eq!(growth("20%/year").after(256, 0.001), 257);
        assert_eq!(growth("+50/month").reaches(100, 200), 2.0);
        assert!((growth("10%/year").reaches(100, 121) - 2.0).abs() < 1e-9);
        assert_eq!(growth("10%/year").reaches(300, 256), 0.0);
        assert_eq!(growth("100%/day").after(u64::MAX, 1e9), u64::MAX);
        assert_eq!(growth("10%/year").reaches(0, 256), f64::INFINITY);
    }

    #[test]
    fn amounts_of_time() {
        assert_eq!(Period::Year.amount(1.0), "1 year");
        assert_eq!(Period::Month.amount(2.54), "2.5 months");
    }
}
