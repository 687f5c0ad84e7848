//! CPU time and memory of a cluster's processes.

use std::{collections::BTreeMap, fmt};

use podplane_test_cluster::{Cluster, Result};
use procfs::process::Process;

/// The resources that the processes of a kind use, such as all kubelets together.
#[derive(Clone, Copy, Default)]
struct ProcessUsage {
    processes: u32,
    /// CPU time in seconds, with that of the programs that they have run.
    cpu: f64,
    /// Resident memory in MiB.
    memory: f64,
}

/// The resources that the processes of a cluster use, by kind.
pub(crate) struct Usage(BTreeMap<String, ProcessUsage>);

impl Usage {
    pub(crate) async fn of(cluster: &Cluster) -> Result<Self> {
        let status = cluster.status().await?;
        let services = status.services.iter();
        let services = services.filter_map(|service| Some((service.name.as_str(), service.pid?)));
        let mut usage = BTreeMap::<String, ProcessUsage>::new();
        for (name, pid) in services.chain([("up", status.pid)]) {
            let kind = match name.split_once('-') {
                Some((kind @ ("kubelet" | "cri"), _)) => kind,
                _ => name,
            };
            let used = usage.entry(kind.to_owned()).or_default();
            used.processes += 1;
            if let Some((cpu, memory)) = measure(pid) {
                used.cpu += cpu;
                used.memory += memory;
            }
        }
        Ok(Self(usage))
    }

    /// Subtracts the CPU time at `before`; memory is as it is.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        for (kind, used) in &mut self.0 {
            used.cpu -= before.0.get(kind).map_or(0.0, |before| before.cpu);
        }
        self
    }

    /// CPU time in seconds.
    pub(crate) fn cpu(&self) -> f64 {
        self.0.values().map(|used| used.cpu).sum()
    }

    /// Memory in MiB.
    pub(crate) fn memory(&self) -> f64 {
        self.0.values().map(|used| used.memory).sum()
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds and mebibytes")]
fn measure(pid: u32) -> Option<(f64, f64)> {
    let process = Process::new(i32::try_from(pid).ok()?).ok()?;
    let stat = process.stat().ok()?;
    let children = u64::try_from(stat.cutime + stat.cstime).unwrap_or_default();
    let cpu = (stat.utime + stat.stime + children) as f64 / procfs::ticks_per_second() as f64;
    let memory = (stat.rss * procfs::page_size()) as f64 / f64::from(1 << 20);
    Some((cpu, memory))
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, used) in &self.0 {
            let ProcessUsage {
                processes,
                cpu,
                memory,
            } = used;
            writeln!(
                f,
                "  {kind:18} {processes:2} × {cpu:7.2} s {memory:6.0} MiB"
            )?;
        }
        write!(
            f,
            "  {:18}      {:7.2} s {:6.0} MiB",
            "all",
            self.cpu(),
            self.memory()
        )
    }
}
