//! The process metrics: build and resource use, under the names of Prometheus' own clients.

use std::{fmt, sync::LazyLock};

use procfs::{
    WithCurrentSystemInfo as _,
    process::{LimitValue, Process, Stat},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge, info::Info},
    registry::Registry,
};

/// Registers the metrics of the process.
pub(crate) fn register(registry: &mut Registry) {
    let labels = [("version", env!("CARGO_PKG_VERSION"))];
    // The encoder adds `_info`.
    registry.register(
        "podplane_build",
        "The version of podplane",
        Info::new(labels),
    );
    registry.register_collector(Box::new(ThisProcess));
}

#[derive(Debug)]
struct ThisProcess;

/// The start time of the process, in seconds since 1970.
static STARTED: LazyLock<Option<f64>> = LazyLock::new(|| {
    let stat = Process::myself().ok()?.stat().ok()?;
    let booted = procfs::boot_time_secs().ok()?;
    #[expect(
        clippy::cast_precision_loss,
        reason = "seconds, of which doubles hold enough"
    )]
    let started = booted as f64 + stat.starttime as f64 / procfs::ticks_per_second() as f64;
    Some(started)
});

#[expect(clippy::cast_precision_loss, reason = "a count for people")]
fn cpu_seconds(stat: &Stat) -> f64 {
    (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64
}

impl Collector for ThisProcess {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // Without /proc there are no metrics.
        let Ok((process, stat)) = Process::myself().and_then(|this| {
            let stat = this.stat()?;
            Ok((this, stat))
        }) else {
            return Ok(());
        };
        let help = "Processor time, of user and system";
        let counter =
            encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(cpu_seconds(&stat)).encode(counter)?;
        let limit = process
            .limits()
            .ok()
            .map(|limits| limits.max_open_files.soft_limit);
        let max_fds = limit.map(|limit| match limit {
            LimitValue::Value(most) => most,
            LimitValue::Unlimited => u64::MAX,
        });
        let fds = process
            .fd_count()
            .ok()
            .and_then(|count| u64::try_from(count).ok());
        let resident = stat.rss_bytes().get();
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory",
                Some(resident),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory",
                Some(stat.vsize),
            ),
            ("process_open_fds", "Open file descriptors", fds),
            (
                "process_max_fds",
                "File descriptors that may be open",
                max_fds,
            ),
            (
                "process_threads",
                "Threads",
                u64::try_from(stat.num_threads).ok(),
            ),
        ] {
            if let Some(value) = value {
                let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(gauge)?;
            }
        }
        if let Some(started) = *STARTED {
            let (name, help) = (
                "process_start_time_seconds",
                "Start time of the process, in seconds since 1970",
            );
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(started).encode(gauge)?;
        }
        Ok(())
    }
}
