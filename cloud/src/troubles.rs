//! What goes wrong with clouds: answers that take long, too many questions, errors, and ranges that come after the instance.
//!
//! Pure: time and randomness are arguments.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use clap::Args;
use humantime::parse_duration;
use rand::{Rng, RngExt as _};

/// What is to go wrong. Nothing, if no flag is given.
#[derive(Args, Clone, Debug, Default)]
pub struct Troubles {
    /// How long each answer takes, such as 200ms
    #[arg(long, env = "PODPLANE_CLOUD_LATENCY", value_name = "DURATION", value_parser = parse_duration)]
    pub latency: Option<Duration>,

    /// How much longer it may take, at random
    #[arg(long, env = "PODPLANE_CLOUD_JITTER", value_name = "DURATION", value_parser = parse_duration)]
    pub jitter: Option<Duration>,

    /// How many calls a second are answered; others are refused with RESOURCE_EXHAUSTED [default: no limit]
    #[arg(long, env = "PODPLANE_CLOUD_QPS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub qps: Option<u32>,

    /// How many calls at once are answered before --qps limits them [default: 1]
    #[arg(long, env = "PODPLANE_CLOUD_BURST", value_name = "N", requires = "qps", value_parser = clap::value_parser!(u32).range(1..))]
    pub burst: Option<u32>,

    /// The share of calls that fail with UNAVAILABLE, from 0 to 1
    #[arg(long, env = "PODPLANE_CLOUD_ERROR_RATE", value_name = "SHARE", value_parser = share)]
    pub error_rate: Option<f64>,

    /// How long an instance has no ranges yet after it is first asked for
    #[arg(long, env = "PODPLANE_CLOUD_LATE_RANGES", value_name = "DURATION", value_parser = parse_duration)]
    pub late_ranges: Option<Duration>,

    /// What random choices begin with, so that a run can be had again [default: another each time; the log says which]
    #[arg(long, env = "PODPLANE_CLOUD_SEED", value_name = "N")]
    pub seed: Option<u64>,
}

fn share(text: &str) -> Result<f64, String> {
    let parsed = text.parse::<f64>().ok();
    parsed
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| format!("{text:?} is no number from 0 to 1"))
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is answered.
    Answered,
    /// It is answered, but the instance has no ranges yet.
    WithoutRanges,
    /// Too many came before it.
    Throttled,
    /// It fails.
    Failed,
}

/// What was asked until now, as far as it matters.
#[derive(Debug, Default)]
pub struct Past {
    /// When the calls that were let through are paid for.
    paid: Option<Instant>,
    first_asked: BTreeMap<String, Instant>,
}

impl Troubles {
    /// How long the answer takes.
    pub fn delay(&self, random: &mut impl Rng) -> Duration {
        let jitter = self.jitter.map(|most| {
            let seconds = most.as_secs_f64() * random.random_range(0.0..=1.0);
            // The longest of all may be rounded up to what is none.
            Duration::try_from_secs_f64(seconds).unwrap_or(most)
        });
        let latency = self.latency.unwrap_or_default();
        latency.saturating_add(jitter.unwrap_or_default())
    }

    /// What becomes of a call for the instance that comes at `now`.
    pub fn fate(
        &self,
        past: &mut Past,
        provider_id: &str,
        now: Instant,
        random: &mut impl Rng,
    ) -> Fate {
        if !self.lets_through(past, now) {
            return Fate::Throttled;
        }
        if self
            .error_rate
            .is_some_and(|share| random.random_bool(share))
        {
            return Fate::Failed;
        }
        let Some(late) = self.late_ranges else {
            return Fate::Answered;
        };
        let first = *past
            .first_asked
            .entry(provider_id.to_owned())
            .or_insert(now);
        if now.saturating_duration_since(first) < late {
            Fate::WithoutRanges
        } else {
            Fate::Answered
        }
    }

    /// A bucket of `burst` calls that fills at `qps`.
    fn lets_through(&self, past: &mut Past, now: Instant) -> bool {
        let Some(qps) = self.qps else { return true };
        let each = Duration::from_secs(1) / qps;
        let paid = past.paid.map_or(now, |paid| paid.max(now));
        let credit = each.saturating_mul(self.burst.unwrap_or(1) - 1);
        let fits = paid <= now + credit;
        if fits {
            past.paid = Some(paid + each);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng as _, rngs::StdRng};

    use super::*;

    fn fates(troubles: &Troubles, calls: &[(u64, &str)]) -> Vec<Fate> {
        let (mut past, start) = (Past::default(), Instant::now());
        let mut random = StdRng::seed_from_u64(1);
        let fate = |(after, id): &(u64, &str)| {
            let now = start + Duration::from_millis(*after);
            troubles.fate(&mut past, id, now, &mut random)
        };
        calls.iter().map(fate).collect()
    }

    #[test]
    fn nothing_goes_wrong_unless_asked_for() {
        let calls = [(0, "a"); 100];
        assert_eq!(fates(&Troubles::default(), &calls), [Fate::Answered; 100]);
    }

    #[test]
    fn calls_beyond_the_burst_wait_for_the_rate() {
        let troubles = Troubles {
            qps: Some(10),
            burst: Some(2),
            ..Troubles::default()
        };
        let calls = [
            (0, "a"),
            (0, "b"),
            (0, "c"),
            (99, "c"),
            (100, "c"),
            (150, "d"),
            (200, "d"),
        ];
        let got: Vec<_> = fates(&troubles, &calls)
            .into_iter()
            .map(|fate| fate == Fate::Answered)
            .collect();
        assert_eq!(got, [true, true, false, false, true, false, true]);
    }

    #[test]
    fn ranges_are_late_for_each_instance() {
        let troubles = Troubles {
            late_ranges: Some(Duration::from_secs(2)),
            ..Troubles::default()
        };
        let calls = [
            (0, "a"),
            (1000, "b"),
            (1999, "a"),
            (2000, "a"),
            (2999, "b"),
            (3000, "b"),
        ];
        use Fate::{Answered as A, WithoutRanges as W};
        assert_eq!(fates(&troubles, &calls), [W, W, W, A, W, A]);
    }

    #[test]
    fn what_takes_for_ever_is_no_overflow() {
        let troubles = Troubles {
            latency: Some(Duration::MAX),
            jitter: Some(Duration::MAX),
            late_ranges: Some(Duration::MAX),
            ..Troubles::default()
        };
        let mut random = StdRng::seed_from_u64(1);
        assert_eq!(troubles.delay(&mut random), Duration::MAX);
        let calls = [(0, "a"), (1000, "a")];
        assert_eq!(fates(&troubles, &calls), [Fate::WithoutRanges; 2]);
    }

    #[test]
    fn errors_are_the_same_for_the_same_seed() {
        let troubles = Troubles {
            error_rate: Some(0.5),
            ..Troubles::default()
        };
        let calls = [(0, "a"); 64];
        let first = fates(&troubles, &calls);
        assert_eq!(first, fates(&troubles, &calls));
        let failed = first.iter().filter(|fate| **fate == Fate::Failed).count();
        assert!((16..48).contains(&failed), "{failed}");
    }

    #[test]
    fn a_share_is_from_0_to_1() {
        assert_eq!(share("0.25"), Ok(0.25));
        for text in ["", "-1", "1.1", "NaN", "ten"] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
