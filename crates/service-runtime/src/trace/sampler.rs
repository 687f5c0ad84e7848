//! The decision which journeys are recorded: `parentbased_traceidratio`, in OpenTelemetry's terms.

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
};

/// The number of a trace id's low bits that are random: all of them in a UUID of version 4, as in
/// an id of W3C's Trace Context Level 2. The version and the variant of a UUID are above them, so
/// the creation and the deletion of a pod have the same ones.
const RANDOM_BITS: u32 = 56;
/// The number of their values.
const VALUES: u64 = 1 << RANDOM_BITS;

/// The ratio of this process, as the bits of an `f64`.
static RATIO: AtomicU64 = AtomicU64::new(SamplingRatio::ALL.0.to_bits());

/// The share of pods whose journeys are recorded, from 0 to 1.
///
/// The id of the trace decides, so all processes with the same ratio agree, and one with a lower
/// ratio records a part of what the others do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingRatio(f64);

// The ratio is never NaN.
impl Eq for SamplingRatio {}

impl SamplingRatio {
    /// Records every journey.
    pub const ALL: Self = Self(1.0);

    /// Returns true if the journey with this trace id is recorded.
    pub fn samples(self, trace: u128) -> bool {
        random_value(trace) >= self.threshold()
    }

    /// The least random value that is sampled.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the product is from 0 to 2^56"
    )]
    fn threshold(self) -> u64 {
        ((1.0 - self.0) * VALUES as f64) as u64
    }

    /// The ratio of this process.
    pub fn of_process() -> Self {
        Self(f64::from_bits(RATIO.load(Ordering::Relaxed)))
    }

    /// Makes it the ratio of this process.
    pub(super) fn apply(self) {
        RATIO.store(self.0.to_bits(), Ordering::Relaxed);
    }
}

/// The random part of a trace id.
fn random_value(trace: u128) -> u64 {
    u64::try_from(trace & u128::from(VALUES - 1)).unwrap_or(u64::MAX)
}

impl Default for SamplingRatio {
    fn default() -> Self {
        Self::ALL
    }
}

impl fmt::Display for SamplingRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The text is not a number from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a number from 0.0 (no pod) to 1.0 (every pod)")]
pub struct InvalidSamplingRatio;

impl FromStr for SamplingRatio {
    type Err = InvalidSamplingRatio;

    fn from_str(text: &str) -> Result<Self, InvalidSamplingRatio> {
        let ratio: f64 = text.trim().parse().map_err(|_| InvalidSamplingRatio)?;
        match (0.0..=1.0).contains(&ratio) {
            // Without the sign of -0.
            true => Ok(Self(ratio.abs())),
            false => Err(InvalidSamplingRatio),
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn ratio(text: &str) -> SamplingRatio {
        text.parse().unwrap()
    }

    /// UIDs of pods as traces, the same in each run.
    fn traces() -> impl Iterator<Item = u128> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()
        };
        std::iter::repeat_with(move || {
            let bytes = [next(), next()].concat().try_into().unwrap();
            uuid::Builder::from_random_bytes(bytes)
                .into_uuid()
                .as_u128()
        })
        .take(10_000)
    }

    fn sampled(text: &str) -> usize {
        let ratio = ratio(text);
        traces().filter(|trace| ratio.samples(*trace)).count()
    }

    #[test]
    fn samples_the_given_share() {
        for (text, expected) in [
            ("0.01", 100),
            ("0.1", 1_000),
            ("0.5", 5_000),
            ("0.9", 9_000),
        ] {
            let count = sampled(text);
            // Five standard deviations of the middle, 50.
            assert!(count.abs_diff(expected) < 250, "{text}: {count}");
        }
        assert!(sampled("0.01") > 50, "{}", sampled("0.01"));
    }

    #[test]
    fn zero_and_one_are_exact() {
        let extremes = [1, u128::MAX, u128::from(VALUES), u128::from(VALUES - 1)];
        for trace in traces().chain(extremes) {
            assert!(!ratio("0").samples(trace), "{trace:x}");
            assert!(ratio("1").samples(trace), "{trace:x}");
        }
    }

    #[test]
    fn a_higher_ratio_samples_more_of_the_same() {
        for trace in traces() {
            assert!(!ratio("0.2").samples(trace) || ratio("0.3").samples(trace));
        }
    }

    #[test]
    fn creation_and_deletion_are_sampled_alike() {
        for trace in traces() {
            let uid = Uuid::from_u128(trace).to_string();
            let [creation, deletion] = [
                crate::trace::Journey::creation(&uid),
                crate::trace::Journey::deletion(&uid),
            ]
            .map(|journey| ratio("0.5").samples(journey.unwrap().trace()));
            assert_eq!(creation, deletion, "{uid}");
        }
    }

    #[test]
    fn rejects_ratios_out_of_range() {
        for text in ["", "-0.1", "1.01", "NaN", "inf", "half", "50%"] {
            assert_eq!(
                text.parse::<SamplingRatio>(),
                Err(InvalidSamplingRatio),
                "{text}"
            );
        }
        assert_eq!(ratio("-0").to_string(), "0");
        assert_eq!(ratio("0.25").to_string(), "0.25");
    }
}
