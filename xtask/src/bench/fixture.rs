//! The fixture of the CNI benchmarks: directories of leases, network namespaces, the programs of
//! both sides.

use std::{
    cell::Cell,
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use super::{
    cni::DEBIAN,
    process::{NO_NETNS, Program},
};
use crate::build;

/// The name of the network and of its directory.
const NETWORK: &str = "bench";

/// The number of addresses of 10.0.0.0/16 that can be leased: all but the network, gateway and
/// broadcast address.
pub(super) const FULL: u32 = 65_533;

#[derive(Debug)]
pub(super) struct BenchFixture {
    dir: PathBuf,
    quick: bool,
    serial: Cell<u32>,
    /// The C program that makes the system calls of host-local.
    pub(super) reserve: PathBuf,
    /// The C program that reports another program's peak memory.
    pub(super) peak: PathBuf,
}

impl BenchFixture {
    pub(super) fn new(dir: &Path, quick: bool) -> Result<Self> {
        Ok(Self {
            dir: dir.to_owned(),
            quick,
            serial: Cell::new(0),
            reserve: compile(dir, "reserve")?,
            peak: compile(dir, "peak")?,
        })
    }

    /// The number of rounds: `rounds`, or a few if quick.
    pub(super) fn rounds(&self, rounds: u32) -> u32 {
        if self.quick { rounds.min(2) } else { rounds }
    }

    /// A unique number.
    pub(super) fn serial(&self) -> u32 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }

    /// The plugin directories of both sides, ours first.
    pub(super) fn sides() -> [PathBuf; 2] {
        [build::release_dir(), DEBIAN.into()]
    }

    /// Creates a dataDir with this many leases, in order, the cursor on the last.
    pub(super) fn data_dir(&self, leases: u32) -> Result<PathBuf> {
        let data = self.dir.join(format!("data-{}", self.serial()));
        let network = network_dir(&data);
        fs::create_dir_all(&network).context("failed to create a directory of leases")?;
        for n in 1..=leases {
            write(&network.join(address(n)), &format!("{}\r\neth0", id(n)))?;
        }
        write(&network.join("last_reserved_ip.0"), &address(leases))?;
        let mut lock = OpenOptions::new();
        lock.write(true).create_new(true).mode(0o750);
        lock.open(network.join("lock"))
            .context("failed to create the lock")?;
        Ok(data)
    }

    /// host-local of each side, each with a directory of this many leases.
    pub(super) fn host_locals(&self, leases: u32) -> Result<[Program; 2]> {
        let [ours, theirs] = Self::sides();
        let program = |plugins: &Path| -> Result<Program> {
            let config = json!({
                "cniVersion": "1.0.0", "name": NETWORK, "type": "bridge",
                "ipam": ipam(&self.data_dir(leases)?),
            });
            Ok(Program::plugin(plugins, "host-local", &config))
        };
        Ok([program(&ours)?, program(&theirs)?])
    }

    /// The lower bound, with a directory of this many leases.
    pub(super) fn floor(&self, leases: u32) -> Result<Program> {
        let network = network_dir(&self.data_dir(leases)?);
        Ok(Program {
            path: self.reserve.clone(),
            args: vec![network],
            plugins: build::release_dir(),
            config: json!({"cniVersion": "1.0.0", "name": NETWORK})
                .to_string()
                .into_bytes(),
        })
    }

    /// Creates a network namespace.
    pub(super) fn netns(&self) -> Result<PathBuf> {
        let name = format!("bench-{}", self.serial());
        let status = Command::new("ip").args(["netns", "add", &name]).status();
        if !status
            .context("failed to start ip (package iproute2)")?
            .success()
        {
            bail!("ip netns add {name} failed");
        }
        Ok(Path::new("/run/netns").join(name))
    }
}

/// The ipam section: a /16 with its leases in this directory.
pub(super) fn ipam(data_dir: &Path) -> Value {
    json!({"type": "host-local", "subnet": "10.0.0.0/16", "dataDir": data_dir, "routes": [{"dst": "0.0.0.0/0"}]})
}

/// A container ID of the length that runtimes use.
pub(super) fn id(n: u32) -> String {
    format!("{n:064x}")
}

/// Moves this thread, and thereby the programs that it starts, into a network namespace.
pub(super) fn move_into(netns: &Path) -> Result<()> {
    let file = File::open(netns).with_context(|| format!("failed to open {}", netns.display()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("failed to enter {}", netns.display()))
}

/// The CNI_NETNS of IPAM plugins, which never use it.
pub(super) fn no_netns() -> &'static Path {
    Path::new(NO_NETNS)
}

fn network_dir(data_dir: &Path) -> PathBuf {
    data_dir.join(NETWORK)
}

/// The nth address for pods; the first is 10.0.0.2.
fn address(n: u32) -> String {
    format!("10.0.{}.{}", (n + 1) / 256, (n + 1) % 256)
}

fn write(path: &Path, text: &str) -> Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("failed to write {}", path.display()))
}

pub(super) fn compile(dir: &Path, name: &str) -> Result<PathBuf> {
    let (source, program) = (
        build::root()
            .join("xtask/src/bench")
            .join(format!("{name}.c")),
        dir.join(name),
    );
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-static", "-Wall", "-o"])
        .arg(&program)
        .arg(source);
    build::run(&mut cc)
        .context("a C compiler with a static libc is needed: apt-get install gcc libc6-dev")?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_network_ends_before_its_broadcast_address() {
        assert_eq!(address(1), "10.0.0.2");
        assert_eq!(address(FULL), "10.0.255.254");
    }
}
