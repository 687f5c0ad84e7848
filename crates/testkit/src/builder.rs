//! How to start a cluster.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::PipeWriter,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;

use crate::{
    Cluster, ClusterError, Program, Result,
    program::{self, line},
    wiring::{Wanted, Wiring},
};

/// How pods get their network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Real namespaces and devices: needs root, or user namespaces.
    Kernel,
    /// Addresses alone: the IPAM plugin is executed, with the same files, and nothing else. Needs no privileges, and is the fastest.
    #[default]
    Ledger,
    /// Kernel if that is possible here, else ledger.
    Auto,
}

impl Network {
    /// As the flag has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Ledger => "ledger",
            Self::Auto => "auto",
        }
    }
}

/// How the addresses of a node limit its pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IpPolicy {
    /// The scheduler counts addresses.
    #[default]
    Resource,
    /// Fewer pods are allowed on each node.
    PodCidr,
    /// Not at all, as in Kubernetes.
    Off,
}

impl IpPolicy {
    /// As the flag has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Resource => "resource",
            Self::PodCidr => "pod-cidr",
            Self::Off => "off",
        }
    }
}

/// How to start a cluster: in ledger mode, with three nodes and the defaults of `podplane up`, unless it is said otherwise.
///
/// ```no_run
/// # async fn example() -> podplane_testkit::Result<()> {
/// use podplane_testkit::{Cluster, IpPolicy};
///
/// let cluster = Cluster::builder()
///     .nodes(1)
///     .cluster_cidr("10.255.0.0/19")
///     .service_cluster_ip_range("10.255.31.0/24")
///     .node_cidr_mask_size(30)
///     .ip_policy(IpPolicy::PodCidr)
///     .start()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ClusterBuilder {
    network: Network,
    program: Option<PathBuf>,
    data_dir: Option<PathBuf>,
    keep: bool,
    wait: bool,
    timeout: Duration,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    wanted: Wanted,
}

/// Flags of `podplane up` of which each counts.
const REPEATED: [&str; 2] = ["--extra-config", "--filename"];

/// `--nodes` of `--nodes` and `--nodes=3`; nothing, if it is no long flag.
fn flag_name(arg: &OsStr) -> Option<String> {
    let text = arg.to_str()?;
    let name = text.split('=').next().unwrap_or_default();
    name.starts_with("--").then(|| name.to_owned())
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self {
            network: Network::default(),
            program: None,
            data_dir: None,
            keep: false,
            wait: true,
            timeout: Duration::from_secs(60),
            args: Vec::new(),
            env: Vec::new(),
            wanted: Wanted::default(),
        }
    }
}

impl ClusterBuilder {
    /// How many nodes, named `node-0`, `node-1`, …
    #[must_use]
    pub fn nodes(self, nodes: u32) -> Self {
        self.flag("--nodes", nodes.to_string())
    }

    /// Whether pods get devices.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// The range that nodes' blocks are cut from; one for each address family, separated by a comma.
    #[must_use]
    pub fn cluster_cidr(self, ranges: impl AsRef<OsStr>) -> Self {
        self.flag("--cluster-cidr", ranges)
    }

    /// Prefix length of a node's block, for a cluster of one address family.
    #[must_use]
    pub fn node_cidr_mask_size(self, bits: u8) -> Self {
        self.flag("--node-cidr-mask-size", bits.to_string())
    }

    /// Prefix length of a node's IPv4 block.
    #[must_use]
    pub fn node_cidr_mask_size_ipv4(self, bits: u8) -> Self {
        self.flag("--node-cidr-mask-size-ipv4", bits.to_string())
    }

    /// Prefix length of a node's IPv6 block.
    #[must_use]
    pub fn node_cidr_mask_size_ipv6(self, bits: u8) -> Self {
        self.flag("--node-cidr-mask-size-ipv6", bits.to_string())
    }

    /// The range of services, which no node's block may touch; one for each address family.
    #[must_use]
    pub fn service_cluster_ip_range(self, ranges: impl AsRef<OsStr>) -> Self {
        self.flag("--service-cluster-ip-range", ranges)
    }

    /// How the addresses of a node limit its pods.
    #[must_use]
    pub fn ip_policy(self, policy: IpPolicy) -> Self {
        self.flag("--ip-policy", policy.as_str())
    }

    /// Gives nodes their blocks as another system does, its faults included: `upstream`, `upstream-1.30`, …, `gcp`.
    #[must_use]
    pub fn compat(self, system: impl AsRef<OsStr>) -> Self {
        self.flag("--compat", system)
    }

    /// Where the CNI plugins are: `bridge`, `host-local` and `loopback`, yours or anyone's.
    #[must_use]
    pub fn cni_bin_dir(self, dir: impl AsRef<OsStr>) -> Self {
        self.flag("--cni-bin-dir", dir)
    }

    /// Any flag of `podplane up` that has a value. A later one of the same name replaces an earlier one.
    #[must_use]
    pub fn flag(self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.args([name.as_ref(), value.as_ref()])
    }

    /// Any flags of `podplane up`, separated by blanks.
    #[must_use]
    pub fn flags(self, flags: &str) -> Self {
        self.args(flags.split_whitespace())
    }

    /// Any arguments of `podplane up`. A later flag replaces an earlier one of the same name, but for those that may be repeated.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        for arg in args {
            let arg = arg.as_ref();
            if let Some(name) = flag_name(arg).filter(|name| !REPEATED.contains(&&**name)) {
                self.remove(&name);
            }
            self.args.push(arg.into());
        }
        self
    }

    /// Removes a flag, with its value.
    fn remove(&mut self, name: &str) {
        let is_it = |arg: &OsString| flag_name(arg).as_deref() == Some(name);
        if let Some(place) = self.args.iter().position(is_it) {
            let removed = self.args.remove(place);
            let is_value = |arg: &OsString| flag_name(arg).is_none();
            if removed == name && self.args.get(place).is_some_and(is_value) {
                self.args.remove(place);
            }
        }
    }

    /// A variable in the environment of `podplane up`, which passes some on to the services, such as `PODPLANE_LOG`. The test's own
    /// `PODPLANE_` variables are not passed on.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().into(), value.as_ref().into()));
        self
    }

    /// The program, if it is not where [`Program::find`] looks.
    #[must_use]
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// A data directory that stays, and from which a cluster that was there goes on; else it is a temporary one.
    #[must_use]
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(dir.into());
        self
    }

    /// Leaves the cluster running when it is dropped, with its data directory: `podplane down --purge --data-dir DIR` ends it.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Returns when the cluster serves, and does not wait until all nodes are Ready.
    #[must_use]
    pub fn without_waiting(mut self) -> Self {
        self.wait = false;
        self
    }

    /// How long to wait for all nodes to be Ready; a minute if nothing is said.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Carries what the services say to each other over [links](crate::link), so that calls can be delayed, failed and cut off.
    #[must_use]
    pub fn links(mut self) -> Self {
        self.wanted.links = true;
        self
    }

    /// Records what happens in a directory, which is made; see [`recording`](crate::recording). That takes links.
    #[must_use]
    pub fn record(mut self, dir: impl Into<PathBuf>) -> Self {
        self.wanted.recording = Some(dir.into());
        self
    }

    /// Gives the files of a node, or of `apiserver`, a disk of so many bytes, which [`Cluster::fill_disk`] can fill. Nobody else on the machine sees it: [`Cluster::files`] leads
    /// there. Takes root or a user namespace.
    #[must_use]
    pub fn disk(mut self, of: impl Into<String>, bytes: u64) -> Self {
        self.wanted.disks.insert(of.into(), bytes);
        self
    }

    /// A flag of a service that `podplane up` has none for: `scheduler`, `log`, `debug`.
    #[must_use]
    pub fn extra_config(mut self, service: &str, flag: &str, value: &str) -> Self {
        self.args.push("--extra-config".into());
        self.args.push(format!("{service}.{flag}={value}").into());
        self
    }

    /// What [`ClusterBuilder::network`] was given.
    #[must_use]
    pub fn network_mode(&self) -> Network {
        self.network
    }

    /// Starts the cluster.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoProgram`] if there is no `podplane`, and [`ClusterError::Failed`] with all it said if the cluster does not come up. Nothing of
    /// it is left then.
    pub async fn start(self) -> Result<Cluster> {
        let program = match &self.program {
            Some(path) => Program::at(path)?,
            None => Program::find()?,
        };
        let mut dir = match &self.data_dir {
            Some(path) => Dir::Given(
                std::path::absolute(path).map_err(ClusterError::io("find the data directory"))?,
            ),
            // Short, because sockets are in it.
            None => tempfile::Builder::new()
                .prefix("pp-")
                .tempdir()
                .map(Dir::Temporary)
                .map_err(ClusterError::io("make a data directory"))?,
        };
        let wiring = self.wanted.wire(dir.path(), &self.args)?;
        let changing = wiring.changing();
        let up = self.up(&program, &dir, &wiring).await;
        drop(changing);
        match up {
            Ok(lifeline) => Cluster::new(program, dir, lifeline, wiring, self.keep),
            Err(error) => {
                dir.ended_badly();
                Err(error)
            }
        }
    }

    /// Runs `podplane up`. While what is returned is open, the cluster goes on.
    pub(crate) async fn up(
        &self,
        program: &Program,
        dir: &Dir,
        wiring: &Wiring,
    ) -> Result<Option<PipeWriter>> {
        let data_dir = dir.path();
        let mut command = program.command(["up", "--detach", "--data-dir"]);
        command.arg(data_dir);
        command.args(["--network", self.network.as_str()]);
        if self.wait {
            let timeout = format!("{}ms", self.timeout.as_millis());
            command.args(["--wait", "--timeout", &timeout]);
        }
        if let Some(links) = wiring.links() {
            command.arg("--links").arg(links.dir());
        }
        command.args(&self.args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let mut lifeline = None;
        if !self.keep {
            // The cluster ends when the last writer is gone, which is this process, however it ends.
            let (reader, writer) = std::io::pipe().map_err(ClusterError::io("make a pipe"))?;
            command.arg("--until-eof").stdin(reader);
            if matches!(dir, Dir::Temporary(_)) && !is_kept() {
                command.arg("--purge");
            }
            lifeline = Some(writer);
        }
        let shown = line(&command);
        let finished = wiring.run(command).await?;
        if finished.code == Some(0) {
            return Ok(lifeline);
        }
        // It goes on if it serves and only lacks something.
        let down = program.command([OsStr::new("down"), "--data-dir".as_ref(), data_dir.as_ref()]);
        program::run(down).await?;
        Err(ClusterError::Failed {
            command: shown,
            finished,
        })
    }
}

/// Whether the data directory of a cluster that ends badly is wanted.
fn is_kept() -> bool {
    std::env::var_os("PODPLANE_KEEP").is_some_and(|value| !value.is_empty())
}

/// A data directory.
#[derive(Debug)]
pub(crate) enum Dir {
    Temporary(TempDir),
    Given(PathBuf),
}

impl Dir {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Given(path) => path,
        }
    }

    /// Keeps it beyond its end.
    pub(crate) fn keep(&mut self) {
        if let Self::Temporary(dir) = self {
            dir.disable_cleanup(true);
        }
    }

    /// Keeps it, if that is wanted, and says where it is.
    pub(crate) fn ended_badly(&mut self) {
        if is_kept() {
            self.keep();
            #[expect(clippy::print_stderr, reason = "somebody asked for it")]
            {
                eprintln!("PODPLANE_KEEP: {}", self.path().display());
            }
        }
    }

    /// Removes it, if it is temporary.
    pub(crate) fn remove(self) -> Result<()> {
        match self {
            Self::Temporary(dir) => {
                let path = dir.keep();
                let failed = ClusterError::io(format!("remove {}", path.display()));
                match fs::remove_dir_all(path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        Err(failed(error))
                    }
                    _ => Ok(()),
                }
            }
            Self::Given(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_flag_replaces_an_earlier_one_however_they_are_spelled() {
        let builder = ClusterBuilder::default()
            .nodes(1)
            .flags("--node-cidr-mask-size=30 --ready --cluster-cidr 10.255.0.0/19")
            .extra_config("scheduler", "log", "debug")
            .extra_config("kubelet", "log", "debug")
            .nodes(2)
            .node_cidr_mask_size(29)
            .flags("--ready --nodes=3");
        assert_eq!(
            builder.args.join(OsStr::new(" ")),
            "--cluster-cidr 10.255.0.0/19 --extra-config scheduler.log=debug --extra-config kubelet.log=debug --node-cidr-mask-size 29 --ready --nodes=3"
        );
    }
}
