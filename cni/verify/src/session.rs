//! The state that all checks of a verification share: the plugin, the log of calls, the findings.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Write as _,
    path::Path,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use podplane_cni::types::Version;
use rand::{SeedableRng as _, rngs::StdRng};
use serde_json::Value;

use super::{
    Amount, Finding, Halt, RangeKeys, Severity, VerifyError, VerifyOptions, conform,
    exchange::{Exchange, Interruption, PluginEnd, PluginInput},
    network::Network,
    plan,
    script::{self, ScriptSetting, ScriptedCall},
    step::CallLine,
    template::{SupportedKeys, known_ranges, with_ranges},
};

/// The time limit for deleting leftovers from the plugin's own store after a stop.
const CLEANING: Duration = Duration::from_secs(10);

/// The number of calls of a network that are remembered. A longer history is not written as
/// commands, as nobody would repeat it by hand.
const LONGEST_HISTORY: usize = 20_000;

/// A verification. See the module.
pub(super) struct Session {
    pub(super) options: VerifyOptions,
    /// The version of configurations, where a check does not need another.
    pub(super) version: Version,
    pub(super) supported: Vec<String>,
    /// The keys of ranges that checks may use, beside those of the template.
    pub(super) range_keys: SupportedKeys,
    /// Ranges with few addresses, for a quick verification.
    pub(super) small_ranges: Option<Value>,
    /// The number of addresses of a network; `None` if they cannot be counted.
    pub(super) capacity: OnceLock<Option<usize>>,
    /// Set if a network's addresses are in its directory, and so its own.
    pub(super) has_own_directory: AtomicBool,
    /// Set if the first calls gave two containers the same address.
    pub(super) gives_same_address: AtomicBool,
    started: Instant,
    log: Mutex<File>,
    findings: Mutex<Vec<Finding>>,
    calls: AtomicU64,
    kills: AtomicU64,
    networks: AtomicU32,
    history: Mutex<BTreeMap<u32, Vec<ScriptedCall>>>,
    /// The time until which a stopped verification deletes leftovers.
    cleaning: OnceLock<Instant>,
    left: Mutex<Vec<String>>,
}

impl Session {
    pub(super) fn new(options: VerifyOptions) -> Result<Self, VerifyError> {
        let path = options.directory.join("calls.log");
        let log = File::create(&path).map_err(|source| VerifyError::Directory { path, source })?;
        Ok(Self {
            small_ranges: None,
            capacity: OnceLock::new(),
            has_own_directory: AtomicBool::new(options.template.has_own_directory()),
            gives_same_address: AtomicBool::new(false),
            started: Instant::now(),
            history: Mutex::default(),
            cleaning: OnceLock::new(),
            left: Mutex::default(),
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

    /// Runs the plugin and judges the format of its answer.
    pub(super) fn call(&self, call: &PluginInput) -> Result<Exchange, Halt> {
        self.interrupt(call, Interruption::None)
    }

    pub(super) fn interrupt(
        &self,
        call: &PluginInput,
        interruption: Interruption,
    ) -> Result<Exchange, Halt> {
        if self.is_stopped() {
            return Err(Halt::Stopped);
        }
        let VerifyOptions {
            plugin, timeout, ..
        } = &self.options;
        let is_stopped = || self.is_stopped();
        let run = Exchange::run(plugin, call, interruption, *timeout, &is_stopped);
        let exchange = run.map_err(|source| VerifyError::Run {
            path: plugin.clone(),
            source,
        })?;
        let Some(exchange) = exchange else {
            return Err(Halt::Stopped);
        };
        self.calls.fetch_add(1, Ordering::Relaxed);
        if exchange.end == PluginEnd::Interrupted {
            self.kills.fetch_add(1, Ordering::Relaxed);
        }
        let step = self.step(&exchange);
        {
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            // The log is a help; a full disk must not end the verification.
            _ = writeln!(
                log,
                "{step}\n# {} {} ({:.1?})",
                step.interruption(),
                step.answer(),
                exchange.took
            );
        }
        let record = ScriptedCall::new(&exchange);
        if let Some(network) = call.network {
            let mut history = self.history();
            let records = history.entry(network).or_default();
            if records.len() < LONGEST_HISTORY {
                records.push(record.clone());
            }
        }
        for fault in conform::faults(&exchange) {
            let history = || {
                let network = call.network.into_iter().collect::<Vec<_>>();
                let mut records = self.records(&network);
                if records.is_empty() {
                    records.push(record.clone());
                }
                script::since_last_del(records)
            };
            let steps = vec![step.clone()];
            let (seen, expected) = (fault.seen, fault.expected.to_owned());
            self.record(fault.check, fault.severity, seen, expected, steps, history);
        }
        Ok(exchange)
    }

    /// Returns true if no more calls should be made: the caller asked to stop, or the time is over.
    pub(super) fn is_stopped(&self) -> bool {
        self.options.stop.load(Ordering::Relaxed)
            || self.time_left().is_some_and(|left| left.is_zero())
    }

    /// The remaining time of a quick verification.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let is_quick = matches!(self.options.amount, Amount::Quick);
        let time = plan::QUICK.saturating_sub(plan::RESERVE);
        is_quick.then(|| time.saturating_sub(self.started.elapsed()))
    }

    /// Returns true if a quick verification has used up its time.
    pub(super) fn is_out_of_time(&self) -> bool {
        !self.options.stop.load(Ordering::Relaxed) && self.is_stopped()
    }

    /// Makes a DEL after a stop, in a short time and without judgement.
    pub(super) fn take_back(&self, call: &PluginInput) {
        let until = *self.cleaning.get_or_init(|| Instant::now() + CLEANING);
        let time = until.saturating_duration_since(Instant::now());
        let time = time.min(self.options.timeout);
        let is_done = !time.is_zero()
            && Exchange::run(
                &self.options.plugin,
                call,
                Interruption::None,
                time,
                &|| false,
            )
            .is_ok_and(|exchange| exchange.is_some_and(|exchange| exchange.succeeded()));
        if !is_done {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            left.push(self.step_of(call).to_string());
        }
    }

    /// The calls that would delete what could not be deleted after a stop.
    pub(super) fn left(&self) -> Vec<String> {
        self.left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn history(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Vec<ScriptedCall>>> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the calls of a network that is over.
    pub(super) fn forget_history(&self, network: u32) {
        self.history().remove(&network);
    }

    fn records(&self, networks: &[u32]) -> Vec<ScriptedCall> {
        let history = self.history();
        let records = networks.iter().filter_map(|network| history.get(network));
        if records
            .clone()
            .any(|records| records.len() == LONGEST_HISTORY)
        {
            return Vec::new();
        }
        records.flatten().cloned().collect()
    }

    fn commands(&self, records: Vec<ScriptedCall>) -> String {
        let setting = ScriptSetting {
            program: &self.options.plugin,
            directory: &self.options.directory,
            netns: self.netns(),
            is_netns_real: self.options.netns.is_some(),
            plugin_dir: self.plugin_dir(),
            has_own_directory: self.has_own_directory(),
        };
        script::commands(&setting, records)
    }

    pub(super) fn has_own_directory(&self) -> bool {
        self.has_own_directory.load(Ordering::Relaxed)
    }

    pub(super) fn is_stateless(&self) -> bool {
        self.options.stateless
    }

    pub(super) fn is_quick(&self) -> bool {
        matches!(self.options.amount, Amount::Quick)
    }

    /// The number of addresses above which a range counts as endless.
    pub(super) fn max_addresses(&self) -> usize {
        let most = self.options.max_addresses;
        if self.is_quick() {
            most.min(plan::QUICK_ADDRESSES)
        } else {
            most
        }
    }

    /// The number of ADDs that measure the time of one.
    pub(super) fn samples(&self) -> u32 {
        if self.is_quick() { 3 } else { 7 }
    }

    /// The number of calls in a random sequence.
    pub(super) fn sequence(&self) -> u32 {
        if self.is_quick() { 20 } else { 40 }
    }

    /// The number of concurrent ADDs beyond the addresses.
    pub(super) fn more_than_addresses(&self) -> usize {
        if self.is_quick() { 4 } else { 8 }
    }

    /// The average time of a call so far.
    pub(super) fn time_of_call(&self) -> Duration {
        let calls = u32::try_from(self.calls()).unwrap_or(u32::MAX);
        self.started.elapsed() / calls.max(1)
    }

    fn step_of(&self, call: &PluginInput) -> CallLine {
        CallLine::of(&self.options.plugin, call)
    }

    pub(super) fn step(&self, exchange: &Exchange) -> CallLine {
        CallLine::new(&self.options.plugin, exchange)
    }

    /// Records a finding that shows in these calls, and in the earlier ones of the same networks.
    pub(super) fn find(
        &self,
        check: &'static str,
        severity: Severity,
        seen: impl Into<String>,
        expected: impl Into<String>,
        steps: Vec<CallLine>,
    ) {
        let mut networks: Vec<_> = steps.iter().filter_map(CallLine::network).collect();
        networks.sort_unstable();
        networks.dedup();
        let history = || self.records(&networks);
        self.record(
            check,
            severity,
            seen.into(),
            expected.into(),
            steps,
            history,
        );
    }

    /// Records a finding about the calls of a network.
    pub(super) fn find_in(
        &self,
        network: &Network<'_>,
        check: &'static str,
        severity: Severity,
        seen: impl Into<String>,
        expected: impl Into<String>,
    ) {
        let history = || self.records(&[network.number()]);
        self.record(
            check,
            severity,
            seen.into(),
            expected.into(),
            Vec::new(),
            history,
        );
    }

    /// Records a finding. A check has one finding for each severity and expectation; further ones
    /// only raise its count.
    fn record(
        &self,
        check: &'static str,
        severity: Severity,
        seen: String,
        expected: String,
        steps: Vec<CallLine>,
        history: impl FnOnce() -> Vec<ScriptedCall>,
    ) {
        if check == "add-unique" && self.is_stateless() {
            return;
        }
        let mut findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |old: &&mut Finding| {
            old.check == check && old.severity == severity && old.expected == expected
        };
        // With the same expectation only the first observation is kept, except for wrong formats,
        // which differ.
        let told_apart = matches!(check, "result-form" | "error-shape" | "no-crash");
        let mut alike = findings.iter_mut();
        match alike.find(|old| same(old) && (!told_apart || old.seen == seen)) {
            Some(old) => old.times += 1,
            None => findings.push(Finding {
                check,
                severity,
                seen,
                expected,
                commands: match history() {
                    records if records.is_empty() => String::new(),
                    records => self.commands(records),
                },
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

    /// The `CNI_NETNS` of calls. It need not exist: an IPAM plugin does not use the namespace, and
    /// runs without root.
    pub(super) fn netns(&self) -> String {
        let netns = self.options.netns.as_deref();
        let netns = netns.unwrap_or(Path::new("/var/run/netns/podplane-verify"));
        netns.to_string_lossy().into_owned()
    }

    pub(super) fn plugin_dir(&self) -> String {
        let dir = self.options.plugin.parent().unwrap_or(Path::new("/"));
        dir.to_string_lossy().into_owned()
    }

    /// A new network with the template's ranges.
    pub(super) fn network(&self) -> Network<'_> {
        self.network_of(self.version)
    }

    pub(super) fn network_of(&self, version: Version) -> Network<'_> {
        let number = self.networks.fetch_add(1, Ordering::Relaxed);
        let name = format!("verify-{:x}-{number}", self.options.seed);
        let data_dir = self.options.directory.join(format!("data-{number}"));
        let template = &self.options.template;
        let mut config = template.config(&name, &data_dir, version.as_str());
        if let Some(ranges) = &self.small_ranges {
            config = with_ranges(&config, ranges);
        }
        let is_offered = template.is_authors() && self.options.range_keys != RangeKeys::None;
        let judged = if is_offered || self.range_keys.sets {
            known_ranges(&config)
        } else {
            Vec::new()
        };
        Network::new(self, number, config, data_dir, judged).of_the_template()
    }

    /// A new network with other ranges; `None` if the plugin does not accept them.
    pub(super) fn network_with(&self, ranges: &Value) -> Option<Network<'_>> {
        let network = self.range_keys.take(ranges).then(|| self.network())?;
        let config = with_ranges(&network.config, ranges);
        let judged = known_ranges(&config);
        Some(Network::new(
            self,
            network.number(),
            config,
            network.data_dir().to_owned(),
            judged,
        ))
    }

    /// A new network with other ranges, by which its results are not judged.
    pub(super) fn network_to_try(&self, ranges: &Value) -> Network<'_> {
        let network = self.network();
        let config = with_ranges(&network.config, ranges);
        let (number, data_dir) = (network.number(), network.data_dir().to_owned());
        Network::new(self, number, config, data_dir, Vec::new())
    }

    /// The random numbers of a check, and of a worker in it.
    pub(super) fn random(&self, check: &str, worker: u64) -> StdRng {
        let mut seed = self.options.seed ^ worker.rotate_left(32);
        // FNV-1a, so that a check's numbers do not depend on the checks that run before it.
        for byte in check.bytes() {
            seed = (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        StdRng::seed_from_u64(seed)
    }

    /// The rounds of a random check: `weight` for each round that was asked for, or as many as fit
    /// into its time.
    pub(super) fn rounds(&self, weight: u32) -> impl Iterator<Item = u32> + use<> {
        let amount = self.options.amount;
        let started = Instant::now();
        (0..u32::MAX).take_while(move |round| match amount {
            Amount::Rounds(rounds) => *round < rounds.saturating_mul(weight),
            Amount::Time(time) => started.elapsed() < time / plan::RANDOM_CHECKS,
            Amount::Quick => *round < plan::QUICK_ROUNDS.saturating_mul(weight),
        })
    }

    /// The median time of an ADD.
    pub(super) fn time_of_add(&self, network: &Network<'_>) -> Result<Duration, Halt> {
        let mut times = Vec::new();
        for number in 0..self.samples() {
            let key = super::network::AttachmentKey::new(format!("time-{number}"));
            let (_, exchange) = network.add_exchange(&key, Interruption::None)?;
            times.push(exchange.took);
            network.del(&key)?;
        }
        times.sort();
        Ok(times[times.len() / 2])
    }
}
