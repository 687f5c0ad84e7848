//! Starts clusters.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::PipeWriter,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use podplane_cluster::settings::{Network, name_of};
use podplane_ipam::IpPolicy;
use tempfile::TempDir;

use crate::{
    Cluster, ClusterError, Program, Result,
    program::{self, line},
    wiring::{ClusterFacilities, WantedFacilities},
};

/// A builder that starts a cluster: in ledger mode, with three nodes and the defaults of `podplane
/// up`, unless other values are set.
///
/// ```no_run
/// # async fn example() -> podplane_test_cluster::Result<()> {
/// use podplane_test_cluster::{Cluster, IpPolicy};
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
    wanted: WantedFacilities,
}

/// Flags of `podplane up` that may be repeated.
const REPEATED: [&str; 2] = ["--extra-config", "--filename"];

/// Returns `--nodes` for `--nodes` and `--nodes=3`; `None` for anything but a long flag.
fn flag_name(arg: &OsStr) -> Option<String> {
    let text = arg.to_str()?;
    let name = text.split('=').next().unwrap_or_default();
    name.starts_with("--").then(|| name.to_owned())
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self {
            network: Network::Ledger,
            program: None,
            data_dir: None,
            keep: false,
            wait: true,
            timeout: Duration::from_secs(60),
            args: Vec::new(),
            env: Vec::new(),
            wanted: WantedFacilities::default(),
        }
    }
}

impl ClusterBuilder {
    /// Sets the number of nodes, named `node-0`, `node-1`, …
    #[must_use]
    pub fn nodes(self, nodes: u32) -> Self {
        self.flag("--nodes", nodes.to_string())
    }

    /// Sets the network of pods.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// Sets the range from which nodes' blocks are cut; one for each address family, separated by a
    /// comma.
    #[must_use]
    pub fn cluster_cidr(self, ranges: impl AsRef<OsStr>) -> Self {
        self.flag("--cluster-cidr", ranges)
    }

    /// Sets the prefix length of a node's block, for a cluster of one address family.
    #[must_use]
    pub fn node_cidr_mask_size(self, bits: u8) -> Self {
        self.flag("--node-cidr-mask-size", bits.to_string())
    }

    /// Sets the prefix length of a node's IPv4 block.
    #[must_use]
    pub fn node_cidr_mask_size_ipv4(self, bits: u8) -> Self {
        self.flag("--node-cidr-mask-size-ipv4", bits.to_string())
    }

    /// Sets the prefix length of a node's IPv6 block.
    #[must_use]
    pub fn node_cidr_mask_size_ipv6(self, bits: u8) -> Self {
        self.flag("--node-cidr-mask-size-ipv6", bits.to_string())
    }

    /// Sets the range of services, which no node's block may overlap; one for each address family.
    #[must_use]
    pub fn service_cluster_ip_range(self, ranges: impl AsRef<OsStr>) -> Self {
        self.flag("--service-cluster-ip-range", ranges)
    }

    /// Sets the way in which the addresses of a node limit its pods.
    #[must_use]
    pub fn ip_policy(self, policy: IpPolicy) -> Self {
        self.flag("--ip-policy", name_of(&policy))
    }

    /// Assigns blocks to nodes as another system does, including its faults: `upstream`,
    /// `upstream-1.30`, …, `gcp`.
    #[must_use]
    pub fn compat(self, system: impl AsRef<OsStr>) -> Self {
        self.flag("--compat", system)
    }

    /// Runs two of ipam-controller, controller-manager and scheduler each, of which one leads. The
    /// second ones are named `scheduler-standby` and so on.
    #[must_use]
    pub fn standby(self) -> Self {
        self.args(["--standby=true"])
    }

    /// Sets the directory of the CNI plugins: `bridge` and `host-local`, yours or anyone's.
    #[must_use]
    pub fn cni_bin_dir(self, dir: impl AsRef<OsStr>) -> Self {
        self.flag("--cni-bin-dir", dir)
    }

    /// Adds any flag of `podplane up` that has a value. A later one of the same name replaces an
    /// earlier one.
    #[must_use]
    pub fn flag(self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.args([name.as_ref(), value.as_ref()])
    }

    /// Adds any flags of `podplane up`, separated by blanks.
    #[must_use]
    pub fn flags(self, flags: &str) -> Self {
        self.args(flags.split_whitespace())
    }

    /// Adds any arguments of `podplane up`. A later flag replaces an earlier one of the same name,
    /// except for flags that may be repeated.
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

    /// Sets a variable in the environment of `podplane up`, which passes some on to the services,
    /// such as `PODPLANE_LOG`. The test's own `PODPLANE_` variables are not passed on.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().into(), value.as_ref().into()));
        self
    }

    /// Sets the path of the program, if it is not where [`Program::find`] looks.
    #[must_use]
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Sets a data directory, which stays. A cluster that was in it resumes. The default is a
    /// temporary directory.
    #[must_use]
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(dir.into());
        self
    }

    /// Leaves the cluster running when it is dropped, with its data directory: `podplane down
    /// --purge --data-dir DIR` ends it.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Lets `start` return once the cluster serves, without waiting until all nodes are Ready.
    #[must_use]
    pub fn without_waiting(mut self) -> Self {
        self.wait = false;
        self
    }

    /// Sets the time limit for all nodes to be Ready. The default is a minute.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Connects the services over [links](crate::link), so that calls can be delayed, failed and
    /// cut off.
    #[must_use]
    pub fn links(mut self) -> Self {
        self.wanted.links = true;
        self
    }

    /// Records the run in a directory, which is made; see [`recording`](crate::recording). A
    /// recording needs links, and adds them.
    #[must_use]
    pub fn record(mut self, dir: impl Into<PathBuf>) -> Self {
        self.wanted.recording = Some(dir.into());
        self
    }

    /// Puts the files of a node, or of `apiserver`, on a disk of `bytes` bytes, which
    /// [`Cluster::fill_disk`] can fill. Only the cluster's own processes see it: [`Cluster::files`]
    /// has a path to it. Needs root or a user namespace.
    #[must_use]
    pub fn disk(mut self, of: impl Into<String>, bytes: u64) -> Self {
        self.wanted.disks.insert(of.into(), bytes);
        self
    }

    /// Sets a flag of a service for which `podplane up` has none: `scheduler`, `log`, `debug`.
    #[must_use]
    pub fn extra_config(mut self, service: &str, flag: &str, value: &str) -> Self {
        self.args.push("--extra-config".into());
        self.args.push(format!("{service}.{flag}={value}").into());
        self
    }

    /// The network that [`ClusterBuilder::network`] has set.
    #[must_use]
    pub fn network_mode(&self) -> Network {
        self.network
    }

    /// Starts the cluster.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoProgram`] if there is no `podplane`, and [`ClusterError::Failed`] with its
    /// output if the cluster does not come up. Nothing of it is left then.
    pub async fn start(self) -> Result<Cluster> {
        let program = match &self.program {
            Some(path) => Program::at(path)?,
            None => Program::find()?,
        };
        let mut dir = match &self.data_dir {
            Some(path) => DirChoice::Given(
                std::path::absolute(path).map_err(ClusterError::io("find the data directory"))?,
            ),
            // The name is short, because the paths of sockets in it are limited.
            None => tempfile::Builder::new()
                .prefix("pp-")
                .tempdir()
                .map(DirChoice::Temporary)
                .map_err(ClusterError::io("make a data directory"))?,
        };
        let wanted = self
            .wanted
            .make(dir.path(), self.command(&program, dir.path()));
        let facilities = wanted.await?;
        let changing = facilities.changing();
        let up = self.up(&program, &dir, &facilities).await;
        drop(changing);
        match up {
            Ok(lifeline) => Cluster::new(program, dir, lifeline, facilities, self.keep),
            Err(error) => {
                dir.ended_badly();
                Err(error)
            }
        }
    }

    /// The command line of `podplane up`, with the flags of the cluster.
    fn command(&self, program: &Program, data_dir: &Path) -> Command {
        let mut command = program.command(["up", "--data-dir"]);
        command.arg(data_dir);
        command.args(["--network", self.network.as_str()]);
        command.args(&self.args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs `podplane up`. The cluster runs while the returned pipe is open.
    pub(crate) async fn up(
        &self,
        program: &Program,
        dir: &DirChoice,
        facilities: &ClusterFacilities,
    ) -> Result<Option<PipeWriter>> {
        let data_dir = dir.path();
        let mut command = self.command(program, data_dir);
        command.arg("--detach");
        if self.wait {
            let timeout = format!("{}ms", self.timeout.as_millis());
            command.args(["--wait", "--timeout", &timeout]);
        }
        if let Some(links) = facilities.links() {
            command.arg("--links").arg(links.dir());
        }
        let mut lifeline = None;
        if !self.keep {
            // The cluster ends when the last writer is gone. That is this process, however it ends.
            let (reader, writer) = std::io::pipe().map_err(ClusterError::io("make a pipe"))?;
            command.arg("--until-eof").stdin(reader);
            if matches!(dir, DirChoice::Temporary(_)) && !is_kept() {
                command.arg("--purge");
            }
            lifeline = Some(writer);
        }
        let shown = line(&command);
        let finished = facilities.run(command).await?;
        if finished.code == Some(0) {
            return Ok(lifeline);
        }
        // A cluster that serves and only lacks something still runs.
        let down = program.command([OsStr::new("down"), "--data-dir".as_ref(), data_dir.as_ref()]);
        program::run(down).await?;
        Err(ClusterError::Failed {
            command: shown,
            finished,
        })
    }
}

/// Returns true if the data directory of a cluster that ends badly is to be kept.
fn is_kept() -> bool {
    std::env::var_os("PODPLANE_KEEP").is_some_and(|value| !value.is_empty())
}

/// The data directory of a cluster.
#[derive(Debug)]
pub(crate) enum DirChoice {
    Temporary(TempDir),
    Given(PathBuf),
}

impl DirChoice {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Given(path) => path,
        }
    }

    /// Keeps a temporary directory when this is dropped.
    pub(crate) fn keep(&mut self) {
        if let Self::Temporary(dir) = self {
            dir.disable_cleanup(true);
        }
    }

    /// Keeps the directory and prints its path, if the user asked for that.
    pub(crate) fn ended_badly(&mut self) {
        if is_kept() {
            self.keep();
            #[expect(clippy::print_stderr, reason = "somebody asked for it")]
            {
                eprintln!("PODPLANE_KEEP: {}", self.path().display());
            }
        }
    }

    /// Removes a temporary directory.
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
    fn later_flags_replace_earlier_ones_in_any_spelling() {
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
