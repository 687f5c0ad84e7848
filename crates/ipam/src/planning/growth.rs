//! The growth of a number of nodes: by a percentage or by a number per period.

use std::{fmt, str::FromStr};

/// A growth rate. `20%/year` is compound, `+50/month` is linear.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    amount: GrowthAmount,
    period: Period,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum GrowthAmount {
    Percent(f64),
    Nodes(f64),
}

/// The period of a growth rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are enough")]
pub enum Period {
    Day,
    Week,
    Month,
    Year,
}

/// The number of years from which a time is named in years.
const YEARS_FROM: f64 = 2.0;
/// The most years that a forecast names.
pub const MOST_YEARS: f64 = 1000.0;

impl Period {
    const ALL: [Self; 4] = [Self::Day, Self::Week, Self::Month, Self::Year];

    /// The singular name, such as `day`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    const fn per_year(self) -> f64 {
        match self {
            Self::Day => 365.25,
            Self::Week => 365.25 / 7.0,
            Self::Month => 12.0,
            Self::Year => 1.0,
        }
    }

    /// A number of periods in years.
    #[must_use]
    pub fn years(self, count: f64) -> f64 {
        count / self.per_year()
    }

    /// The period in which `count` of these are named, and their number of it: years from
    /// two of them on.
    #[must_use]
    pub fn named(self, count: f64) -> (Self, f64) {
        let years = self.years(count);
        match years >= YEARS_FROM {
            true => (Self::Year, years),
            false => (self, count),
        }
    }

    /// A time of `count` periods in words, rounded as far as a forecast is good for: `7.5 months`,
    /// `109 years`.
    #[must_use]
    pub fn duration(self, count: f64) -> String {
        let (period, count) = self.named(count);
        if period == Self::Year && count > MOST_YEARS {
            return format!("more than {MOST_YEARS} years");
        }
        period.amount(match count >= 10.0 {
            true => count.round(),
            false => count,
        })
    }

    /// A number of periods in words, such as `1 year` or `2.5 years`.
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

/// An invalid growth rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid growth {text:?}: use a rate such as 20%/year or +50/month; the period is day, week, month or year, and the amount more than 0"
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
            Some(share) => GrowthAmount::Percent(positive(share)?),
            None => GrowthAmount::Nodes(positive(amount)?),
        };
        Ok(Self { amount, period })
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.amount {
            GrowthAmount::Percent(share) => write!(f, "{share}%/{}", self.period.name()),
            GrowthAmount::Nodes(nodes) => write!(f, "+{nodes}/{}", self.period.name()),
        }
    }
}

impl Growth {
    /// The period of the rate.
    #[must_use]
    pub const fn period(&self) -> Period {
        self.period
    }

    /// The number that `nodes` have become after `periods`, rounded up: a node needs a whole block.
    /// Saturates.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float becomes the nearest integer there is, and is never below 0 here"
    )]
    pub fn after(&self, nodes: u64, periods: f64) -> u64 {
        let start = nodes as f64;
        let grown = match self.amount {
            GrowthAmount::Percent(share) => start * (1.0 + share / 100.0).powf(periods),
            GrowthAmount::Nodes(each) => start + each * periods,
        };
        // A small amount is subtracted, so that 100 nodes at 10 % become 110 and not 110.000…1.
        (grown - 1e-6).ceil() as u64
    }

    /// The number of periods after which `nodes` have grown to `limit`; 0 if they have already.
    /// Infinite if they never do.
    #[must_use]
    pub fn reaches(&self, nodes: u64, limit: u64) -> f64 {
        if nodes >= limit {
            return 0.0;
        }
        let (start, limit) = (nodes as f64, limit as f64);
        match self.amount {
            GrowthAmount::Percent(share) => (limit / start).ln() / (share / 100.0).ln_1p(),
            GrowthAmount::Nodes(each) => (limit - start) / each,
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
    fn parses_and_prints_both_forms() {
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
    fn only_growth_by_a_share_is_compound() {
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
    fn prints_amounts_of_time_in_singular_and_plural() {
        assert_eq!(Period::Year.amount(1.0), "1 year");
        assert_eq!(Period::Month.amount(2.54), "2.5 months");
    }

    #[test]
    fn names_long_times_in_years() {
        for (period, count, want) in [
            (Period::Month, 7.46, "7.5 months"),
            (Period::Month, 23.4, "23 months"),
            (Period::Month, 1304.7, "109 years"),
            (Period::Week, 9.96, "10 weeks"),
            (Period::Week, 110.0, "2.1 years"),
            (Period::Day, 365.25 * 3.0, "3 years"),
            (Period::Year, 1.0, "1 year"),
            (Period::Year, 5.16, "5.2 years"),
            (Period::Month, 1e9, "more than 1000 years"),
        ] {
            assert_eq!(period.duration(count), want);
        }
    }
}
