//! Simulated faults of clouds: slow answers, rate limits, errors, and ranges that are assigned
//! after the instance.
//!
//! Pure: time and randomness are arguments.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use humantime::parse_duration;
use podplane_host::clock::Instant;
use rand::{Rng, RngExt as _};

/// The faults to simulate; none without flags.
#[derive(Args, Clone, Debug, Default)]
pub struct Troubles {
    /// Delay each answer by this time, such as 200ms [default: 0s]
    #[arg(long, env = "PODPLANE_CLOUD_LATENCY", value_name = "DURATION", value_parser = parse_duration)]
    pub latency: Option<Duration>,

    /// Delay each answer by a further random time of at most this much, such as 50ms [default: 0s]
    #[arg(long, env = "PODPLANE_CLOUD_JITTER", value_name = "DURATION", value_parser = parse_duration)]
    pub jitter: Option<Duration>,

    /// Answer at most N calls per second, and reject others with RESOURCE_EXHAUSTED [default: no
    /// limit]
    #[arg(long, env = "PODPLANE_CLOUD_QPS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub qps: Option<u32>,

    /// Answer N calls at once before --qps limits them; requires --qps [default: 1]
    #[arg(long, env = "PODPLANE_CLOUD_BURST", value_name = "N", requires = "qps", value_parser = clap::value_parser!(u32).range(1..))]
    pub burst: Option<u32>,

    /// Fail this share of calls with UNAVAILABLE, from 0 to 1 [default: 0]
    #[arg(long, env = "PODPLANE_CLOUD_ERROR_RATE", value_name = "SHARE", value_parser = share)]
    pub error_rate: Option<f64>,

    /// Return an instance without pod CIDRs until this time after the first request for it, such as
    /// 5s [default: 0s]
    #[arg(long, env = "PODPLANE_CLOUD_LATE_RANGES", value_name = "DURATION", value_parser = parse_duration)]
    pub late_ranges: Option<Duration>,

    /// Seed the random choices with N, to repeat a run [default: random, in the log]
    #[arg(long, env = "PODPLANE_CLOUD_SEED", value_name = "N")]
    pub seed: Option<u64>,
}

fn share(text: &str) -> Result<f64, String> {
    let parsed = text.parse::<f64>().ok();
    parsed
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| format!("invalid share {text:?}: must be a number from 0 to 1"))
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// The call is answered.
    Answered,
    /// The call is answered, but the instance has no ranges yet.
    WithoutRanges,
    /// The call exceeds the rate limit.
    Throttled,
    /// The call fails.
    Failed,
}

/// The former calls, as far as faults depend on them.
#[derive(Debug, Default)]
pub struct CallHistory {
    /// The time at which the bucket has room for another call.
    paid: Option<Instant>,
    first_asked: BTreeMap<String, Instant>,
}

impl Troubles {
    /// The delay of an answer.
    pub fn delay(&self, random: &mut impl Rng) -> Duration {
        let jitter = self.jitter.map(|most| {
            let seconds = most.as_secs_f64() * random.random_range(0.0..=1.0);
            // The longest duration, rounded up, may be out of range.
            Duration::try_from_secs_f64(seconds).unwrap_or(most)
        });
        let latency = self.latency.unwrap_or_default();
        latency.saturating_add(jitter.unwrap_or_default())
    }

    /// The result of a call for the instance at `now`.
    pub fn fate(
        &self,
        past: &mut CallHistory,
        provider_id: &str,
        now: Instant,
        random: &mut impl Rng,
    ) -> CallResult {
        if !self.lets_through(past, now) {
            return CallResult::Throttled;
        }
        if self
            .error_rate
            .is_some_and(|share| random.random_bool(share))
        {
            return CallResult::Failed;
        }
        let Some(late) = self.late_ranges else {
            return CallResult::Answered;
        };
        let first = *past
            .first_asked
            .entry(provider_id.to_owned())
            .or_insert(now);
        if now.saturating_duration_since(first) < late {
            CallResult::WithoutRanges
        } else {
            CallResult::Answered
        }
    }

    /// Takes a call from a bucket of `burst` calls, which fills at `qps` calls a second.
    fn lets_through(&self, past: &mut CallHistory, now: Instant) -> bool {
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

    fn fates(troubles: &Troubles, calls: &[(u64, &str)]) -> Vec<CallResult> {
        let (mut past, start) = (CallHistory::default(), Instant::now());
        let mut random = StdRng::seed_from_u64(1);
        let fate = |(after, id): &(u64, &str)| {
            let now = start + Duration::from_millis(*after);
            troubles.fate(&mut past, id, now, &mut random)
        };
        calls.iter().map(fate).collect()
    }

    #[test]
    fn simulates_no_faults_by_default() {
        let calls = [(0, "a"); 100];
        assert_eq!(
            fates(&Troubles::default(), &calls),
            [CallResult::Answered; 100]
        );
    }

    #[test]
    fn limits_calls_beyond_the_burst_to_the_rate() {
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
            .map(|fate| fate == CallResult::Answered)
            .collect();
        assert_eq!(got, [true, true, false, false, true, false, true]);
    }

    #[test]
    fn delays_the_ranges_of_each_instance() {
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
        use CallResult::{Answered as A, WithoutRanges as W};
        assert_eq!(fates(&troubles, &calls), [W, W, W, A, W, A]);
    }

    #[test]
    fn longest_durations_do_not_overflow() {
        let troubles = Troubles {
            latency: Some(Duration::MAX),
            jitter: Some(Duration::MAX),
            late_ranges: Some(Duration::MAX),
            ..Troubles::default()
        };
        let mut random = StdRng::seed_from_u64(1);
        assert_eq!(troubles.delay(&mut random), Duration::MAX);
        let calls = [(0, "a"), (1000, "a")];
        assert_eq!(fates(&troubles, &calls), [CallResult::WithoutRanges; 2]);
    }

    #[test]
    fn same_seed_gives_the_same_errors() {
        let troubles = Troubles {
            error_rate: Some(0.5),
            ..Troubles::default()
        };
        let calls = [(0, "a"); 64];
        let first = fates(&troubles, &calls);
        assert_eq!(first, fates(&troubles, &calls));
        let failed = first
            .iter()
            .filter(|fate| **fate == CallResult::Failed)
            .count();
        assert!((16..48).contains(&failed), "{failed}");
    }

    #[test]
    fn accepts_shares_from_0_to_1() {
        assert_eq!(share("0.25"), Ok(0.25));
        for text in ["", "-1", "1.1", "NaN", "ten"] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
