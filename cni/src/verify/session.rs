//! What all checks of a verification share: the plugin, the log of calls, the findings.

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rand::{SeedableRng as _, rngs::StdRng};
use serde_json::Value;

use super::{
    Amount, Finding, Options, RangeKeys, Severity, VerifyError, conform,
    exchange::{Call, End, Exchange, Interruption, Step},
    network::Network,
    template::{SupportedKeys, known_ranges, with_ranges},
};
use crate::types::Version;

/// See the module.
pub(super) struct Session {
    pub(super) options: Options,
    /// The version of configurations, where a check does not need another.
    pub(super) version: Version,
    pub(super) supported: Vec<String>,
    /// The keys of ranges that checks may use, beside those of the template.
    pub(super) range_keys: SupportedKeys,
    log: Mutex<File>,
    findings: Mutex<Vec<Finding>>,
    calls: AtomicU64,
    kills: AtomicU64,
    networks: AtomicU32,
}

impl Session {
    pub(super) fn new(options: Options) -> Result<Self, VerifyError> {
        let path = options.directory.join("calls.log");
        let log = File::create(&path).map_err(|source| VerifyError::Directory { path, source })?;
        Ok(Self {
            options,
            version: Version::V1_0_0,
            supported: Vec::new(),
            range_keys: SupportedKeys::default(),
            log: Mutex::new(log),
            findings: Mutex::default(),
            calls: AtomicU64::new(0),
            kills: AtomicU64::new(0),
            networks: AtomicU32::new(0),
        })
    }

    /// Runs the plugin and judges the form of its answer.
    pub(super) fn call(&self, call: &Call) -> Result<Exchange, VerifyError> {
        self.interrupt(call, Interruption::None)
    }

    pub(super) fn interrupt(
        &self,
        call: &Call,
        interruption: Interruption,
    ) -> Result<Exchange, VerifyError> {
        let Options {
            plugin, timeout, ..
        } = &self.options;
        let exchange = Exchange::run(plugin, call, interruption, *timeout).map_err(|source| {
            VerifyError::Run {
                path: plugin.clone(),
                source,
            }
        })?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        if exchange.end == End::Interrupted {
            self.kills.fetch_add(1, Ordering::Relaxed);
        }
        let step = self.step(&exchange);
        {
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            // The log is a help; a disk that is full must not end the verification.
            _ = writeln!(
                log,
                "{step}\n# {} {} ({:.1?})",
                step.interruption(),
                step.answer(),
                exchange.took
            );
        }
        for fault in conform::faults(&exchange) {
            self.find(
                fault.check,
                fault.severity,
                fault.seen,
                fault.expected,
                vec![step.clone()],
            );
        }
        Ok(exchange)
    }

    pub(super) fn step(&self, exchange: &Exchange) -> Step {
        Step::new(&self.options.plugin, exchange)
    }

    /// Records a finding. A check has one for each severity and form of words; more of the same count.
    pub(super) fn find(
        &self,
        check: &'static str,
        severity: Severity,
        seen: impl Into<String>,
        expected: impl Into<String>,
        steps: Vec<Step>,
    ) {
        let (seen, expected) = (seen.into(), expected.into());
        let mut findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |old: &&mut Finding| {
            old.check == check && old.severity == severity && old.expected == expected
        };
        // Where the expectation is the same the first is told, except that wrong forms differ.
        let told_apart = matches!(check, "result-form" | "error-shape" | "no-crash");
        let mut alike = findings.iter_mut();
        match alike.find(|old| same(old) && (!told_apart || old.seen == seen)) {
            Some(old) => old.times += 1,
            None => findings.push(Finding {
                check,
                severity,
                seen,
                expected,
                steps,
                times: 1,
            }),
        }
    }

    /// The findings of a check so far.
    pub(super) fn findings(&self, check: &str) -> Vec<Finding> {
        let findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        let own = findings.iter().filter(|finding| finding.check == check);
        own.cloned().collect()
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }

    pub(super) fn supports(&self, version: Version) -> bool {
        self.supported.iter().any(|text| text == version.as_str())
    }

    /// A path that need not exist: an IPAM plugin has no business in the namespace, and runs without root.
    pub(super) fn netns(&self) -> String {
        let netns = self.options.netns.as_deref();
        let netns = netns.unwrap_or(Path::new("/var/run/netns/podplane-verify"));
        netns.to_string_lossy().into_owned()
    }

    pub(super) fn plugin_dir(&self) -> String {
        let dir = self.options.plugin.parent().unwrap_or(Path::new("/"));
        dir.to_string_lossy().into_owned()
    }

    /// A network of its own, with the template's ranges.
    pub(super) fn network(&self) -> Network<'_> {
        self.network_of(self.version)
    }

    pub(super) fn network_of(&self, version: Version) -> Network<'_> {
        let number = self.networks.fetch_add(1, Ordering::Relaxed);
        let name = format!("verify-{:x}-{number}", self.options.seed);
        let data_dir = self.options.directory.join(format!("data-{number}"));
        let template = &self.options.template;
        let config = template.config(&name, &data_dir, version.as_str());
        let is_offered = template.is_authors() && self.options.range_keys != RangeKeys::None;
        let judged = if is_offered || self.range_keys.sets {
            known_ranges(&config)
        } else {
            Vec::new()
        };
        Network::new(self, config, data_dir, judged)
    }

    /// A network with other ranges; `None` if the plugin does not take them.
    pub(super) fn network_with(&self, ranges: &Value) -> Option<Network<'_>> {
        let network = self.range_keys.take(ranges).then(|| self.network())?;
        let config = with_ranges(&network.config, ranges);
        let judged = known_ranges(&config);
        Some(Network::new(
            self,
            config,
            network.data_dir().to_owned(),
            judged,
        ))
    }

    /// A network with other ranges, whose results are not judged by them.
    pub(super) fn network_to_try(&self, ranges: &Value) -> Network<'_> {
        let network = self.network();
        let config = with_ranges(&network.config, ranges);
        Network::new(self, config, network.data_dir().to_owned(), Vec::new())
    }

    /// The random numbers of a check, and of a worker in it.
    pub(super) fn random(&self, check: &str, worker: u64) -> StdRng {
        let mut seed = self.options.seed ^ worker.rotate_left(32);
        // FNV-1a, so that a check's numbers do not depend on which checks run before it.
        for byte in check.bytes() {
            seed = (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        StdRng::seed_from_u64(seed)
    }

    /// The rounds of a random check: `weight` for each round that was asked for, or until its time is up.
    pub(super) fn rounds(&self, weight: u32) -> impl Iterator<Item = u32> + use<> {
        let amount = self.options.amount;
        let started = Instant::now();
        (0..u32::MAX).take_while(move |round| match amount {
            Amount::Rounds(rounds) => *round < rounds.saturating_mul(weight),
            Amount::Time(time) => started.elapsed() < time / super::RANDOM_CHECKS,
        })
    }

    /// How long an ADD takes, in the middle of some.
    pub(super) fn time_of_add(&self, network: &Network<'_>) -> Result<Duration, VerifyError> {
        let mut times = Vec::new();
        for number in 0..7 {
            let key = super::network::Key::new(format!("time-{number}"));
            let (_, exchange) = network.add_exchange(&key, Interruption::None)?;
            times.push(exchange.took);
            network.del(&key)?;
        }
        times.sort();
        Ok(times[times.len() / 2])
    }
}
