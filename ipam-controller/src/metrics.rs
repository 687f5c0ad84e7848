//! Metrics, under the reference's names where it has them (subsystem node_ipam_controller, and the
//! work queue's).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64},
    },
};

use ipnet::IpNet;
use podplane_client::{QueueMetrics, WorkQueue};
use podplane_host::clock::Instant;
use podplane_ipam::{
    Claim, Usage,
    upstream::{CidrSet, Reservation},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};

use crate::{
    controller::AllocatorHandle,
    growth::Growth,
    holds::HoldTimes,
    overlaps::overlaps,
    plan::{Allocator, ReleasePhase},
};

/// The reference's buckets.
const TRIES: [f64; 5] = [1.0, 5.0, 25.0, 125.0, 625.0];
/// The name of the queue, as the reference labels it.
const QUEUE: &str = "range_allocator";

/// The queue of the cloud's allocator, as the reference labels it.
const CLOUD_QUEUE: [(&str, &str); 1] = [("name", "cloudCIDRAllocator")];

type AttemptHistograms<Labels> = Family<Labels, Histogram, fn() -> Histogram>;

/// Ranges by the name of the ClusterCIDR, empty for `--cluster-cidr`, and by prefix.
type RangeSamples = BTreeMap<String, BTreeMap<IpNet, RangeSample>>;

#[expect(non_snake_case, reason = "labels have the reference's names")]
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlagRangeLabels {
    clusterCIDR: String,
}

#[expect(non_snake_case, reason = "labels have the reference's names")]
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterCidrLabels {
    clusterCIDR: String,
    clusterCIDRName: String,
}

/// The metrics of ranges, either of the flags or of ClusterCIDRs.
#[derive(Clone, Debug)]
struct RangeMetrics<Labels> {
    allocations: Family<Labels, Counter<u64, AtomicU64>>,
    releases: Family<Labels, Counter<u64, AtomicU64>>,
    usage: Family<Labels, Gauge<f64, AtomicU64>>,
    max: Family<Labels, Gauge<i64, AtomicI64>>,
    tries: AttemptHistograms<Labels>,
}

/// The last sample of a range.
#[derive(Debug)]
struct RangeSample {
    usage: Usage,
    growth: Growth,
}

/// All metrics. Cheap to clone; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct AllocatorMetrics {
    dropped: Family<[(&'static str, &'static str); 1], Counter>,
    queue: Arc<WorkQueue<String>>,
    flags: RangeMetrics<FlagRangeLabels>,
    objects: RangeMetrics<ClusterCidrLabels>,
    seen: Arc<Mutex<RangeSamples>>,
    holds: Arc<Mutex<HoldTimes>>,
}

impl<Labels> RangeMetrics<Labels>
where
    Labels: Clone + EncodeLabelSet + Eq + std::hash::Hash + fmt::Debug + Send + Sync + 'static,
{
    fn new() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(TRIES);
        Self {
            allocations: Family::default(),
            releases: Family::default(),
            usage: Family::default(),
            max: Family::default(),
            tries: Family::new_with_constructor(histogram),
        }
    }

    /// The encoder adds `_total` to counters.
    fn register(&self, registry: &mut Registry, prefix: &str) {
        let name = |metric: &str| format!("node_ipam_controller_{prefix}_{metric}");
        registry.register(
            name("cidrs_allocations"),
            "Blocks that came into use",
            self.allocations.clone(),
        );
        registry.register(
            name("cidrs_releases"),
            "Blocks that went out of use",
            self.releases.clone(),
        );
        registry.register(
            name("usage_cidrs"),
            "Share of the range's blocks in use, from 0 to 1",
            self.usage.clone(),
        );
        registry.register(name("max_cidrs"), "Blocks of the range", self.max.clone());
        registry.register(
            name("allocation_tries_per_request"),
            "Blocks in use between the candidate and the assigned block",
            self.tries.clone(),
        );
    }

    fn changed(&self, labels: &Labels, before: Option<&Usage>, now: &Usage) {
        let used = before.map_or(0, |before| before.used);
        if let Some(more) = now.used.checked_sub(used).filter(|more| *more > 0) {
            self.allocations.get_or_create(labels).inc_by(more);
        } else if now.used < used {
            let less = used - now.used;
            self.releases.get_or_create(labels).inc_by(less);
        }
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let ratio = now.used as f64 / now.blocks as f64;
        self.usage.get_or_create(labels).set(ratio);
        let max = i64::try_from(now.blocks).unwrap_or(i64::MAX);
        self.max.get_or_create(labels).set(max);
        // The candidate moves only when a block is assigned, and then to the next one.
        if let Some(before) = before
            && before.next_candidate != now.next_candidate
        {
            let given = now.next_candidate + now.blocks - 1;
            let passed = (given + now.blocks - before.next_candidate) % now.blocks;
            #[expect(clippy::cast_precision_loss, reason = "a count for people")]
            self.tries.get_or_create(labels).observe(passed as f64);
        }
    }

    fn forget(&self, labels: &Labels) {
        self.usage.remove(labels);
        self.max.remove(labels);
    }
}

impl AllocatorMetrics {
    pub(crate) fn new() -> Self {
        Self {
            dropped: Family::default(),
            queue: Arc::default(),
            flags: RangeMetrics::new(),
            objects: RangeMetrics::new(),
            seen: Arc::default(),
            holds: Arc::default(),
        }
    }

    /// Counts a node that the cloud's allocator has dropped.
    pub(crate) fn dropped(&self) {
        self.dropped.get_or_create(&CLOUD_QUEUE).inc();
    }

    /// The queue whose length is exported.
    pub(crate) fn queue(&self) -> Arc<WorkQueue<String>> {
        self.queue.clone()
    }

    /// Registers everything that `/metrics` shows.
    pub(crate) fn register(&self, registry: &mut Registry, known: Arc<AllocatorHandle>) {
        registry.register(
            "workqueue_dropped_objects",
            "Nodes dropped after too many failures, until they change",
            self.dropped.clone(),
        );
        self.flags.register(registry, "cidrset");
        self.objects.register(registry, "multicidrset");
        let queue = self.queue.clone();
        let queues = QueueMetrics::default().with(QUEUE, move || queue.stats());
        registry.register_collector(Box::new(queues));
        let metrics = self.clone();
        registry.register_collector(Box::new(ScrapeCollector { metrics, known }));
    }

    /// Makes a decision and counts its changes.
    pub(crate) fn count<T>(
        &self,
        allocator: &mut Allocator,
        decision: impl FnOnce(&mut Allocator) -> T,
    ) -> T {
        let decided = decision(allocator);
        let mut seen = self.seen();
        let blocks = allocator.blocks();
        let mut pools = 0;
        for (set, usage) in blocks.usage_by_set() {
            pools += 1;
            let range = usage.range.cidr();
            let known = seen.get_mut(set).and_then(|set| set.get_mut(&range));
            let before = known.as_ref().map(|seen| seen.usage);
            if before == Some(usage) {
                continue;
            }
            self.changed(set, before.as_ref(), &usage);
            match known {
                Some(known) => known.usage = usage,
                None => {
                    let growth = Growth::default();
                    let ranges = seen.entry(set.to_owned()).or_default();
                    ranges.insert(range, RangeSample { usage, growth });
                }
            }
        }
        if pools < seen.values().map(BTreeMap::len).sum::<usize>() {
            self.forget_gone(allocator, &mut seen);
        }
        decided
    }

    /// Copies the counts of the reference's sets.
    pub(crate) fn bits(&self, sets: &[CidrSet]) {
        for set in sets {
            let labels = FlagRangeLabels::of(set);
            let catch_up = |counter: &Family<FlagRangeLabels, Counter<u64, AtomicU64>>, to: u64| {
                let counter = counter.get_or_create(&labels);
                counter.inc_by(to.saturating_sub(counter.get()));
            };
            catch_up(&self.flags.allocations, set.allocations());
            catch_up(&self.flags.releases, set.releases());
            #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
            let ratio = set.used() as f64 / set.max_cidrs() as f64;
            self.flags.usage.get_or_create(&labels).set(ratio);
        }
    }

    /// Counts the used blocks that the reference passed over for its reservations.
    pub(crate) fn passed_over(&self, sets: &[CidrSet], reservation: &Reservation) {
        for (set, tries) in sets.iter().zip(&reservation.tries) {
            #[expect(clippy::cast_precision_loss, reason = "a count for people")]
            let tries = *tries as f64;
            self.flags
                .tries
                .get_or_create(&FlagRangeLabels::of(set))
                .observe(tries);
        }
    }

    /// Samples the use of the ranges and the held blocks.
    pub(crate) fn sample(&self, allocator: &Allocator) {
        let now = Instant::now();
        self.holds().observe(allocator.held_blocks(), now);
        let mut seen = self.seen();
        for RangeSample { usage, growth } in seen.values_mut().flat_map(BTreeMap::values_mut) {
            growth.sample(now, usage.used, usage.free);
        }
    }

    fn changed(&self, set: &str, before: Option<&Usage>, now: &Usage) {
        let range = now.range.cidr();
        match set {
            "" => self
                .flags
                .changed(&FlagRangeLabels::new(range), before, now),
            _ => self
                .objects
                .changed(&ClusterCidrLabels::new(set, range), before, now),
        }
    }

    fn forget_gone(&self, allocator: &Allocator, seen: &mut RangeSamples) {
        let pools = allocator.blocks().usage_by_set();
        let there: BTreeSet<(&str, IpNet)> = pools
            .map(|(set, usage)| (set, usage.range.cidr()))
            .collect();
        seen.retain(|set, ranges| {
            ranges.retain(|range, _| {
                let stays = there.contains(&(set.as_str(), *range));
                if !stays {
                    self.objects.forget(&ClusterCidrLabels::new(set, *range));
                }
                stays
            });
            !ranges.is_empty()
        });
    }

    fn holds(&self) -> MutexGuard<'_, HoldTimes> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, RangeSamples> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FlagRangeLabels {
    fn new(range: IpNet) -> Self {
        Self {
            clusterCIDR: range.to_string(),
        }
    }

    fn of(set: &CidrSet) -> Self {
        Self::new(set.cluster())
    }
}

impl ClusterCidrLabels {
    fn new(set: &str, range: IpNet) -> Self {
        Self {
            clusterCIDR: range.to_string(),
            clusterCIDRName: set.to_owned(),
        }
    }
}

/// Metrics that are computed when they are scraped.
#[derive(Debug)]
struct ScrapeCollector {
    metrics: AllocatorMetrics,
    known: Arc<AllocatorHandle>,
}

/// The number of blocks in each state.
#[derive(Debug, Default)]
struct BlockCounts {
    reserved: u64,
    assigned: u64,
    foreign: u64,
    draining: u64,
    quarantined: u64,
    held: u64,
    overlaps: u64,
    without: u64,
    /// Addresses that several live pods have.
    duplicates: u64,
}

impl BlockCounts {
    fn of(allocator: &Allocator) -> Self {
        let mut states = Self::default();
        for block in allocator.blocks().iter() {
            match block.claim {
                Claim::Reserved => states.reserved += 1,
                Claim::Assigned(_) => states.assigned += 1,
                Claim::Foreign(_) => states.foreign += 1,
                Claim::Draining(_) => states.draining += 1,
            }
        }
        for (_, _, phase) in allocator.former_blocks() {
            match phase {
                ReleasePhase::Quarantined(_) => {
                    states.quarantined += 1;
                    states.draining = states.draining.saturating_sub(1);
                }
                ReleasePhase::Held(_) => states.held += 1,
                ReleasePhase::Draining => {}
            }
        }
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        states.overlaps = count(overlaps(allocator.blocks()).len());
        states.without = count(allocator.without_blocks().count());
        states.duplicates = count(allocator.duplicate_addresses());
        states
    }
}

impl Collector for ScrapeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let gauge = MetricType::Gauge;
        self.pools(&mut encoder)?;
        let Some(states) = self.known.read(BlockCounts::of) else {
            return Ok(());
        };
        let help = "Node blocks by state";
        let mut family = encoder.encode_descriptor("podplane_node_blocks", help, None, gauge)?;
        for (state, count) in [
            ("reserved", states.reserved),
            ("assigned", states.assigned),
            ("foreign", states.foreign),
            ("draining", states.draining),
            ("quarantined", states.quarantined),
        ] {
            ConstGauge::new(count).encode(family.encode_family(&[("state", state)])?)?;
        }
        for (name, help, count) in [
            (
                "podplane_node_blocks_held",
                "Draining blocks of deleted nodes that are held, since sandboxes may have addresses of them",
                states.held,
            ),
            (
                "podplane_podcidr_overlaps",
                "Blocks of nodes that overlap another node's block",
                states.overlaps,
            ),
            (
                "podplane_nodes_without_podcidr",
                "Nodes that should have a block and have none",
                states.without,
            ),
            (
                "podplane_pod_ip_duplicates",
                "Addresses that several pods have which are not finished, pods on the network of their host apart",
                states.duplicates,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, gauge)?;
            ConstGauge::new(count).encode(metric)?;
        }
        let longest = self.metrics.holds().longest(Instant::now());
        let held = encoder.encode_descriptor(
            "podplane_node_blocks_held_longest_seconds",
            "Time since this process first read that the block was held, for the block for which that is longest; 0 without held blocks, and a new leader starts at 0",
            None,
            gauge,
        )?;
        ConstGauge::new(longest.as_secs_f64()).encode(held)
    }
}

impl ScrapeCollector {
    fn pools(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let gauge = MetricType::Gauge;
        let seen = self.metrics.seen();
        let pools = || {
            seen.iter().flat_map(|(set, ranges)| {
                let of_set = ranges.iter();
                of_set.map(|(range, seen)| (ClusterCidrLabels::new(set, *range), seen))
            })
        };
        for (name, help, count) in [
            (
                "podplane_pool_blocks_free",
                "Blocks of the range that can be assigned",
                (|usage| usage.free) as fn(&Usage) -> u64,
            ),
            (
                "podplane_pool_blocks_used",
                "Blocks of the range that are in use or reserved",
                |usage| usage.used,
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, gauge)?;
            for (labels, seen) in pools() {
                let value = ConstGauge::new(count(&seen.usage));
                value.encode(family.encode_family(&labels)?)?;
            }
        }
        let name = "podplane_pool_exhaustion_seconds";
        let help = "Time until no block of the range is free, at the rate of the last hour; absent while use does not grow";
        let mut family = encoder.encode_descriptor(name, help, None, gauge)?;
        for (labels, seen) in pools() {
            if let Some(left) = seen.growth.time_left() {
                let value = ConstGauge::new(left.as_secs_f64());
                value.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use podplane_api::{ObjectKey, jiff::Timestamp};
    use podplane_ipam::{RangeConfig, RangeFlags};
    use prometheus_client::encoding::text;

    use super::*;
    use crate::plan::{BlockRecord, NodeView, PodView, RecordStatus};

    #[test]
    fn metrics_have_the_names_of_the_reference() {
        let flags = RangeFlags {
            cluster_cidr: "10.0.0.0/22".to_owned(),
            ..RangeFlags::default()
        };
        let mut allocator = Allocator::new(&flags.validate().unwrap(), Duration::ZERO);
        let metrics = AllocatorMetrics::new();
        metrics.count(&mut allocator, |_| ());
        let mut node = |name: &str, exists: bool| {
            let view = exists.then(|| NodeView {
                uid: name.to_owned(),
                ..NodeView::default()
            });
            metrics.count(&mut allocator, |allocator| {
                allocator.observe([(name.to_owned(), view)].into(), BTreeMap::new());
                let (work, _) = allocator.work(name, Timestamp::UNIX_EPOCH);
                for update in work.updates {
                    allocator.record_updated(&update, None);
                }
            });
        };
        node("a", true);
        node("b", true);
        node("a", false);
        let (mut registry, mut shown) = (Registry::default(), String::new());
        metrics.register(&mut registry, Arc::default());
        text::encode(&mut shown, &registry).unwrap();
        for line in [
            "cidrset_cidrs_allocations_total{clusterCIDR=\"10.0.0.0/22\"} 2",
            "cidrset_cidrs_releases_total{clusterCIDR=\"10.0.0.0/22\"} 1",
            "cidrset_usage_cidrs{clusterCIDR=\"10.0.0.0/22\"} 0.25",
            "cidrset_allocation_tries_per_request_count{clusterCIDR=\"10.0.0.0/22\"} 2",
        ] {
            let line = format!("node_ipam_controller_{line}\n");
            assert!(shown.contains(&line), "{line} in {shown}");
        }
        assert!(shown.contains(
            "podplane_pool_blocks_free{clusterCIDR=\"10.0.0.0/22\",clusterCIDRName=\"\"} 3\n"
        ));
        assert!(
            !shown.contains("podplane_pool_exhaustion_seconds{"),
            "one sample has no rate"
        );
    }

    #[test]
    fn shows_held_blocks_and_duplicate_addresses() {
        let mut allocator = Allocator::new(&RangeConfig::none(), Duration::ZERO);
        let records = vec![BlockRecord {
            net: "10.0.0.0/24".parse().unwrap(),
            node: "gone".to_owned(),
            uid: "1".to_owned(),
            status: RecordStatus::Deleted(ReleasePhase::Held(None)),
        }];
        allocator.apply_records(records);
        let pods = ["a", "b"].map(|name| {
            let view = PodView {
                node: "node".to_owned(),
                addresses: vec!["10.0.0.2".parse().unwrap()],
            };
            (ObjectKey::new("default", name), Some(view))
        });
        allocator.observe(BTreeMap::new(), pods.into());
        let metrics = AllocatorMetrics::new();
        metrics.sample(&allocator);
        let (mut registry, mut shown) = (Registry::default(), String::new());
        metrics.register(&mut registry, Arc::new(AllocatorHandle::of(allocator)));
        text::encode(&mut shown, &registry).unwrap();
        let value = |name: &str| -> f64 {
            let mut lines = shown.lines().filter_map(|line| line.split_once(' '));
            let (_, value) = lines.find(|(found, _)| *found == name).expect(name);
            value.parse().unwrap()
        };
        assert_eq!(value("podplane_pod_ip_duplicates"), 1.0);
        assert_eq!(value("podplane_node_blocks_held"), 1.0);
        assert!(value("podplane_node_blocks_held_longest_seconds") > 0.0);
    }
}
