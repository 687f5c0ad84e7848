//! The data directory: its layout, its owner, and its running supervisor.

use std::{
    collections::BTreeSet,
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use podplane_api::node::NetworkBackend;
use podplane_host::{
    clock,
    fs::{self, File, Permissions, TryLockError},
};
use podplane_service_runtime::{
    files::{write_atomically, write_volatile},
    server::MAX_SOCKET_PATH,
};
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{settings::Settings, trust};

/// The number in the file `VERSION`. It changes when an older program could no longer read what a
/// newer one wrote.
///
/// With 2, the store splits large values and may be rewritten into other files (ADR 0024). With 3,
/// an instance of a node has no secret (ADR 0054).
const FORMAT: &str = "3";

/// The previous numbers. A directory with one of them can be read too, and is
/// [raised](DataDir::raise_format) when a cluster starts in it.
const FORMATS_BEFORE: [&str; 2] = ["1", "2"];

/// The length of the longest name of a socket: that of a process, or of the runtime of a node with
/// the longest name that `up` gives one.
const LONGEST_SOCKET: usize = "/controller-manager-standby.sock".len();

/// The interval at which a supervisor checks that its directory still exists.
const REMOVAL_LOOK: Duration = Duration::from_millis(500);

/// The directory of one cluster.
///
/// ```text
/// VERSION             the format of all this
/// cluster.json        flags and nodes; survives `down`
/// lock                held by the supervisor
/// members             held by every process of the cluster
/// supervisor.json     what runs; stale unless the lock is held
/// control.sock        podplane.cluster.v1
/// NAME.sock           each process, for clients of this machine without a certificate
/// *.address           where services listen
/// kubeconfig          the same for kubectl
/// pki/                the authority and the certificates of processes and nodes; that of a node
///                     which joined a cluster elsewhere
/// store/ logs/ nodes/
/// run/                a tmpfs in the supervisor's mount namespace: network namespaces
/// ```
#[derive(Clone, Debug)]
pub struct DataDir(PathBuf);

/// The stored part of a cluster, which survives `down`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterRecord {
    pub settings: Settings,
    /// The nodes with their places: a node keeps its place, and with it the address of its uplink,
    /// as long as it exists.
    pub nodes: Vec<Member>,
}

/// A node of this cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub name: String,
    pub place: u32,
    /// True if its pods have only addresses, even if those of other nodes have devices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ledger: bool,
    /// The backend of its node network; `None`: the cluster's.
    #[serde(
        default,
        rename = "nodeNetworkBackend",
        skip_serializing_if = "Option::is_none"
    )]
    pub node_network_backend: Option<NetworkBackend>,
}

/// The supervisor's state for processes that must enter its namespaces before they can start a
/// thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SupervisorRecord {
    pub pid: i32,
    /// True if pods have devices, in the supervisor's mount (and perhaps user) namespace.
    pub kernel: bool,
    /// The reason for the mode.
    pub reason: String,
    /// The client certificate, with its key, of a node that joined a cluster elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<PathBuf>,
}

impl DataDir {
    /// A directory that may or may not exist. One that another user prepared is refused
    /// ([`trust`]).
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let path = std::path::absolute(path).context("failed to find the current directory")?;
        trust::data_dir(&path)?;
        Ok(Self(path))
    }

    /// A directory of which only the names of files are asked for; it is not checked.
    pub fn layout(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Prepares the directory: private, of this format, and with a path short enough for sockets in
    /// it.
    pub fn prepare(&self) -> anyhow::Result<()> {
        let name_it = || format!("failed to prepare the data directory {}", self.0.display());
        let longest = self.0.as_os_str().len() + LONGEST_SOCKET;
        anyhow::ensure!(
            longest <= MAX_SOCKET_PATH,
            "the data directory {} is too long a name: sockets in it would have {longest} bytes, and Linux allows {MAX_SOCKET_PATH}",
            self.0.display()
        );
        if self.is_ours()? {
            fs::set_permissions(&self.0, Permissions::from_mode(0o700)).with_context(name_it)?;
            trust::tree(&self.0)?;
        } else {
            // Disks may be mounted there. `VERSION.new` is left by a start that was killed.
            let is_ours = |entry: io::Result<fs::DirEntry>| {
                entry.is_ok_and(|entry| {
                    ["nodes", "store", "VERSION.new"]
                        .iter()
                        .any(|own| entry.file_name() == *own)
                })
            };
            let is_empty = match fs::read_dir(&self.0) {
                Ok(mut entries) => entries.all(is_ours),
                Err(error) if error.kind() == io::ErrorKind::NotFound => true,
                Err(error) => return Err(error).with_context(name_it),
            };
            if !is_empty {
                self.ensure_no_remains()?;
            }
            anyhow::ensure!(
                is_empty,
                "{} is not empty and not a data directory of podplane (it has no file VERSION): name \
                 another with --data-dir",
                self.0.display()
            );
            fs::create_private_dir_all(&self.0).with_context(name_it)?;
            fs::set_permissions(&self.0, Permissions::from_mode(0o700)).with_context(name_it)?;
            // Other users can no longer change it; their earlier changes are found now.
            trust::tree(&self.0)?;
            self.write_format().with_context(name_it)?;
        }
        for dir in ["logs", "nodes", "run"] {
            fs::create_dir_all(self.0.join(dir)).with_context(name_it)?;
        }
        Ok(())
    }

    fn write_format(&self) -> io::Result<()> {
        write_atomically(&self.0.join("VERSION"), format!("{FORMAT}\n").as_bytes())
    }

    /// Raises a directory of a previous format to this one. The caller must have the
    /// [lock](Self::lock), and this program must not have written there yet: a program that only
    /// knows previous formats refuses the directory from here on.
    pub fn raise_format(&self) -> anyhow::Result<()> {
        if self.format()?.is_none_or(|format| format == FORMAT) {
            return Ok(());
        }
        let dir = self.0.display();
        self.write_format()
            .with_context(|| format!("failed to raise the format of {dir} to {FORMAT}"))
    }

    /// Returns true if there is a cluster's data in a format that this program reads.
    ///
    /// # Errors
    ///
    /// The data has another format.
    pub fn is_ours(&self) -> anyhow::Result<bool> {
        Ok(self.format()?.is_some())
    }

    /// The number in the file `VERSION`; `None` without the file.
    fn format(&self) -> anyhow::Result<Option<&'static str>> {
        let path = self.0.join("VERSION");
        let text = match trust::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("failed to read {}", path.display()));
            }
        };
        anyhow::ensure!(
            !text.trim().is_empty(),
            "{} is empty, as after a power failure: if this version of podplane wrote the directory, \
             restore the file with `echo {FORMAT} > {}`; else take another --data-dir",
            path.display(),
            path.display()
        );
        let mut known = FORMATS_BEFORE.into_iter().chain([FORMAT]);
        let known = known.find(|known| text.trim() == *known);
        let format = known.with_context(|| {
            format!(
                "{} has data of format {:?}, and this podplane reads formats {} and \
                 {FORMAT}: use the podplane that wrote it, or another --data-dir",
                self.0.display(),
                text.trim(),
                FORMATS_BEFORE.join(", ")
            )
        })?;
        Ok(Some(format))
    }

    /// Fails if the directory has files of a cluster and no file VERSION.
    ///
    /// # Errors
    ///
    /// With the remedy.
    pub fn ensure_no_remains(&self) -> anyhow::Result<()> {
        let mut known = ["cluster.json", "supervisor.json", "control.sock"].into_iter();
        let Some(found) = known.find(|name| fs::exists(self.0.join(name))) else {
            return Ok(());
        };
        let dir = self.0.display();
        anyhow::bail!(
            "{dir} has the data of a cluster ({found}), and the file VERSION that says its format is \
             missing: if this version of podplane wrote it, restore the file with `echo {FORMAT} > \
             {dir}/VERSION`; else take another --data-dir"
        )
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn log(&self, service: &str) -> PathBuf {
        self.0.join("logs").join(format!("{service}.log"))
    }

    pub fn address_file(&self, service: &str) -> PathBuf {
        self.0.join(format!("{service}.address"))
    }

    pub fn nodes(&self) -> PathBuf {
        self.0.join("nodes")
    }

    pub fn run(&self) -> PathBuf {
        self.0.join("run")
    }

    pub fn control_socket(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    /// The socket of a process for clients of this machine, which need no certificate there.
    pub fn socket(&self, process: &str) -> PathBuf {
        self.0.join(format!("{process}.sock"))
    }

    /// The same of the API server.
    pub fn apiserver_socket(&self) -> PathBuf {
        self.socket("apiserver")
    }

    /// The stored record; `None` before the first start.
    pub fn record(&self) -> anyhow::Result<Option<ClusterRecord>> {
        read_json(&self.record_file()).with_context(|| {
            format!(
                "the flags and nodes of the cluster in {} cannot be read: restore the file, or remove the \
                 cluster with `podplane down --purge`",
                self.0.display()
            )
        })
    }

    /// [`DataDir::record`] for a start, which needs it if nodes of an earlier start have left data:
    /// without it, they would get other addresses than those in use there.
    ///
    /// # Errors
    ///
    /// The record is missing or broken; with the remedy.
    pub fn record_to_start(&self) -> anyhow::Result<Option<ClusterRecord>> {
        let record = self.record()?;
        if record.is_none()
            && let Some(node) = self.node_with_data()?
        {
            let dir = self.0.display();
            anyhow::bail!(
                "{dir} has data of node {node} and no cluster.json, which has the cluster's flags and \
                 nodes: restore cluster.json from a copy; or, if the nodes may lose their pods' networks, \
                 remove {dir}/nodes and start with the flags that the cluster had; or remove all of it \
                 with `podplane down --purge --data-dir {dir}`"
            );
        }
        Ok(record)
    }

    /// A node that a kubelet has worked for: with an instance, allocations or sandboxes. Network
    /// configuration alone may have been prepared for a first start.
    fn node_with_data(&self) -> anyhow::Result<Option<String>> {
        let has_entries =
            |dir: &Path| fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        let nodes = match fs::read_dir(self.nodes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            nodes => nodes.with_context(|| format!("failed to read {}", self.nodes().display()))?,
        };
        for node in nodes.flatten() {
            let dir = node.path();
            let has_lived = fs::exists(dir.join("instance.json"))
                || has_entries(&dir.join("networks"))
                || has_entries(&dir.join("sandboxes"));
            if has_lived {
                return Ok(Some(node.file_name().to_string_lossy().into_owned()));
            }
        }
        Ok(None)
    }

    fn record_file(&self) -> PathBuf {
        self.0.join("cluster.json")
    }

    /// Writes the record if it was removed.
    pub fn restore_record(&self, record: &ClusterRecord) -> anyhow::Result<()> {
        match fs::exists(self.record_file()) {
            true => Ok(()),
            false => self.write_record(record),
        }
    }

    pub fn write_record(&self, record: &ClusterRecord) -> anyhow::Result<()> {
        self.write_json("cluster.json", record, write_atomically)
    }

    pub fn write_running(&self, running: &SupervisorRecord) -> anyhow::Result<()> {
        self.write_json("supervisor.json", running, write_volatile)
    }

    fn write_json(
        &self,
        name: &str,
        value: &impl Serialize,
        write: fn(&Path, &[u8]) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let path = self.0.join(name);
        let mut text = serde_json::to_vec_pretty(value).context("failed to encode JSON")?;
        text.push(b'\n');
        write(&path, &text).with_context(|| format!("failed to write {}", path.display()))
    }

    /// Waits until the supervisor's lock is no longer this directory's, because the directory was
    /// removed or replaced. The cluster can then no longer be found, and another may be started
    /// here.
    pub async fn gone(&self, lock: &File) {
        let mut looks = clock::interval(REMOVAL_LOOK);
        while !self.is_gone(lock) {
            looks.tick().await;
        }
    }

    /// Returns true if `lock` is no longer the lock of this directory.
    pub fn is_gone(&self, lock: &File) -> bool {
        match (fs::metadata(self.0.join("lock")), lock.metadata()) {
            (Ok(there), Ok(own)) => (there.dev(), there.ino()) != (own.dev(), own.ino()),
            (Err(error), _) => matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ),
            (_, Err(_)) => false,
        }
    }

    /// The error of a cluster that ended because its directory is gone.
    pub fn removed(&self) -> anyhow::Error {
        anyhow::anyhow!(
            "the data directory {} was removed or replaced while the cluster ran; the cluster has ended",
            self.0.display()
        )
    }

    /// Takes the supervisor's lock; `None` if another supervisor has it. The lock ends with the
    /// returned file.
    pub fn lock(&self) -> anyhow::Result<Option<File>> {
        let path = self.0.join("lock");
        let file =
            trust::create(&path).with_context(|| format!("failed to open {}", path.display()))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::Error(error)) => {
                    return Err(error)
                        .with_context(|| format!("failed to lock {}", path.display()));
                }
                // A supervisor has it, or a process that checks for one and will release it in a
                // moment.
                Err(TryLockError::WouldBlock) if self.is_locked()? => return Ok(None),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
    }

    /// Returns true if a supervisor has the lock. The check takes it for a moment, shared, so that
    /// concurrent checks do not see each other.
    pub fn is_locked(&self) -> anyhow::Result<bool> {
        let path = self.0.join("lock");
        let file = match trust::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => {
                return Err(error).with_context(|| format!("failed to open {}", path.display()));
            }
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("failed to lock {}", path.display()))
            }
        }
    }

    /// The file whose lock every process of a cluster shares by inheritance. It is released when
    /// the last of them is gone.
    pub fn members(&self) -> anyhow::Result<File> {
        let path = self.0.join("members");
        trust::create(&path).with_context(|| format!("failed to open {}", path.display()))
    }

    /// The running supervisor; `None` if there is none.
    pub fn running(&self) -> anyhow::Result<Option<SupervisorRecord>> {
        if self.is_locked()? {
            read_json(&self.0.join("supervisor.json"))
        } else {
            Ok(None)
        }
    }

    /// Removes the files of a running cluster.
    pub fn clear_running(&self) -> anyhow::Result<()> {
        let mut stale = vec![self.0.join("supervisor.json")];
        let entries = fs::read_dir(&self.0)
            .with_context(|| format!("failed to read {}", self.0.display()))?;
        for entry in entries {
            let path = entry
                .with_context(|| format!("failed to read {}", self.0.display()))?
                .path();
            let extension = path.extension();
            if extension.is_some_and(|extension| extension == "address" || extension == "sock") {
                stale.push(path);
            }
        }
        stale.iter().try_for_each(|path| remove_file(path))
    }

    /// [`DataDir::purge`], which also unmounts file systems in the directory if they prevent it: a
    /// tmpfs of its own, or disks that somebody has left mounted in this mount namespace.
    pub fn purge_with_mounts(&self) -> anyhow::Result<()> {
        let busy = match self.purge() {
            Err(error) if is_busy(&error) => error,
            purged => return purged,
        };
        let nodes = fs::read_dir(self.nodes()).into_iter().flatten().flatten();
        let mut places: Vec<_> = nodes.map(|entry| entry.path()).collect();
        places.extend([self.run(), self.0.join("store")]);
        for place in places {
            // An error means that nothing is mounted there; if unmounting did not help, the next
            // error tells.
            _ = unmount(&place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        fs::remove_dir_all(&self.0).context(busy)
    }

    /// Removes the directory, which must be a cluster's.
    pub fn purge(&self) -> anyhow::Result<()> {
        if self.is_ours()? {
            fs::remove_dir_all(&self.0)
                .with_context(|| format!("failed to remove {}", self.0.display()))?;
        }
        self.ensure_no_remains()
    }
}

fn is_busy(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
}

fn remove_file(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

impl ClusterRecord {
    /// Applies `settings` to the kept record: nodes stay as they are unless their number changes.
    /// Also returns the names of removed nodes.
    pub fn next(kept: Option<Self>, settings: Settings) -> (Self, Vec<String>) {
        let resized = kept
            .as_ref()
            .is_none_or(|kept| kept.settings.nodes != settings.nodes);
        let wanted = usize::try_from(settings.nodes).unwrap_or(usize::MAX);
        let mut record = Self {
            settings,
            nodes: kept.map(|kept| kept.nodes).unwrap_or_default(),
        };
        if !resized {
            return (record, Vec::new());
        }
        let gone = record.nodes.split_off(wanted.min(record.nodes.len()));
        let (names, places) = (record.free_names(), record.free_places());
        let missing = wanted.saturating_sub(record.nodes.len());
        let added = names.zip(places).take(missing);
        record.nodes.extend(added.map(|(name, place)| Member {
            name,
            place,
            ledger: false,
            node_network_backend: None,
        }));
        (record, gone.into_iter().map(|node| node.name).collect())
    }

    /// The number of nodes with devices, if the cluster has any.
    pub fn kernel_nodes(&self) -> usize {
        self.nodes.iter().filter(|node| !node.ledger).count()
    }

    /// Returns true if a node with devices has this backend, or an added one would have it.
    pub fn uses(&self, backend: NetworkBackend) -> bool {
        let mut nodes = self.nodes.iter().filter(|node| !node.ledger);
        self.settings.node_network_backend == backend
            || nodes.any(|node| node.node_network_backend == Some(backend))
    }

    pub fn has(&self, name: &str) -> bool {
        self.nodes.iter().any(|node| node.name == name)
    }

    /// Adds a node at the first free place.
    pub fn add(
        &mut self,
        name: String,
        ledger: bool,
        node_network_backend: Option<NetworkBackend>,
    ) -> Member {
        let place = self.free_places().next().unwrap_or(u32::MAX);
        let member = Member {
            name,
            place,
            ledger,
            node_network_backend,
        };
        self.nodes.push(member.clone());
        member
    }

    /// The free names of `node-0`, `node-1`, …
    fn free_names(&self) -> impl Iterator<Item = String> + use<> {
        let taken = self.nodes.iter().map(|node| node.name.clone());
        let taken: BTreeSet<_> = taken.collect();
        let names = (0..=u32::MAX).map(|number| format!("node-{number}"));
        names.filter(move |name| !taken.contains(name))
    }

    /// The free places.
    fn free_places(&self) -> impl Iterator<Item = u32> + use<> {
        let taken: BTreeSet<_> = self.nodes.iter().map(|node| node.place).collect();
        (0..=u32::MAX).filter(move |place| !taken.contains(place))
    }
}

/// Reads a JSON file of the data directory; `None` if there is none.
fn read_json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Option<T>> {
    let text = match trust::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("failed to read {}", path.display()));
        }
    };
    serde_json::from_str(&text).with_context(|| format!("failed to read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> (tempfile::TempDir, DataDir) {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::new(&dir.path().join("d")).unwrap();
        (dir, data_dir)
    }

    fn settings(nodes: u32) -> Settings {
        Settings {
            nodes,
            ..Settings::default()
        }
    }

    fn names(record: &ClusterRecord) -> Vec<&str> {
        record.nodes.iter().map(|node| node.name.as_str()).collect()
    }

    #[test]
    fn prepare_makes_the_directory_private() {
        let (_keep, dir) = dir();
        dir.prepare().unwrap();
        dir.prepare().unwrap();
        let mode = fs::metadata(dir.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn refuses_other_formats_and_upgrades_the_previous_one() {
        let (_keep, dir) = dir();
        dir.prepare().unwrap();
        let version = dir.path().join("VERSION");
        let found = || fs::read_to_string(&version).unwrap();
        assert_eq!(found(), "3\n");
        for unknown in ["0", "4", "33", "x"] {
            fs::write(&version, unknown).unwrap();
            for refused in [dir.prepare(), dir.raise_format(), dir.purge()] {
                let error = refused.unwrap_err().to_string();
                let words = format!(
                    "has data of format {unknown:?}, and this podplane reads formats 1, 2 and 3"
                );
                assert!(error.contains(&words), "{error}");
            }
            assert_eq!(found(), unknown);
        }
        for before in ["1\n", "2\n"] {
            fs::write(&version, before).unwrap();
            // Commands that talk to a cluster of an older program leave its directory as it is.
            dir.prepare().unwrap();
            assert_eq!(found(), before);
            dir.raise_format().unwrap();
            assert_eq!(found(), "3\n");
        }
        dir.purge().unwrap();
        dir.raise_format().unwrap();
        assert!(!dir.path().exists());
    }

    #[test]
    fn errors_about_a_broken_version_suggest_a_remedy() {
        let (_keep, dir) = dir();
        dir.prepare().unwrap();
        let version = dir.path().join("VERSION");
        fs::write(&version, "").unwrap();
        let error = dir.prepare().unwrap_err().to_string();
        assert!(
            error.contains("VERSION is empty") && error.contains("echo 3 >"),
            "{error}"
        );
        fs::remove_file(&version).unwrap();
        let (record, _) = ClusterRecord::next(None, settings(1));
        dir.write_record(&record).unwrap();
        for error in [dir.prepare().unwrap_err(), dir.purge().unwrap_err()] {
            let error = error.to_string();
            assert!(
                error.contains("VERSION") && error.contains("echo 3 >"),
                "{error}"
            );
        }
        assert!(dir.path().exists());
    }

    #[test]
    fn refuses_to_start_over_node_data_without_cluster_json() {
        let (_keep, dir) = dir();
        dir.prepare().unwrap();
        // Left by a failed start, or by preparing a node's network.
        let node = dir.nodes().join("node-1");
        for subdirectory in ["net.d", "networks/podplane", "sandboxes"] {
            fs::create_dir_all(node.join(subdirectory)).unwrap();
        }
        std::fs::remove_dir(node.join("networks/podplane")).unwrap();
        fs::write(node.join("net.d/10-x.conflist"), "{}").unwrap();
        assert_eq!(dir.record_to_start().unwrap(), None);
        for file in ["instance.json", "networks/10.0.0.2", "sandboxes/0.json"] {
            let file = node.join(file);
            fs::write(&file, "{}").unwrap();
            let error = dir.record_to_start().unwrap_err().to_string();
            assert!(
                error.contains("node-1") && error.contains("cluster.json"),
                "{error}"
            );
            fs::remove_file(file).unwrap();
        }
        let (record, _) = ClusterRecord::next(None, settings(1));
        dir.restore_record(&record).unwrap();
        assert_eq!(dir.record_to_start().unwrap(), Some(record));
        fs::write(dir.path().join("cluster.json"), "").unwrap();
        assert!(dir.record_to_start().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn notices_a_removed_or_replaced_directory() {
        let (_keep, dir) = dir();
        dir.prepare().unwrap();
        let lock = dir.lock().unwrap().unwrap();
        assert!(!dir.is_gone(&lock));
        fs::remove_dir_all(dir.path()).unwrap();
        dir.gone(&lock).await;
        dir.prepare().unwrap();
        let _other = dir.lock().unwrap().unwrap();
        assert!(dir.is_gone(&lock), "it is another cluster's");
    }

    #[test]
    fn neither_uses_nor_removes_a_foreign_directory() {
        let (_keep, dir) = dir();
        fs::create_dir(dir.path()).unwrap();
        fs::write(dir.path().join("thesis.tex"), "").unwrap();
        assert!(dir.prepare().is_err());
        dir.purge().unwrap();
        assert!(dir.path().join("thesis.tex").exists());
    }

    #[test]
    fn only_one_supervisor_holds_the_lock() {
        let (_keep, dir) = dir();
        dir.prepare().unwrap();
        assert!(!dir.is_locked().unwrap());
        let lock = dir.lock().unwrap().unwrap();
        assert!(dir.lock().unwrap().is_none() && dir.is_locked().unwrap());
        drop(lock);
        assert!(dir.lock().unwrap().is_some());
    }

    #[test]
    fn keeps_nodes_until_their_number_changes() {
        let (mut record, gone) = ClusterRecord::next(None, settings(3));
        assert_eq!(names(&record), ["node-0", "node-1", "node-2"]);
        assert!(gone.is_empty());
        record.nodes.remove(1);
        assert_eq!(record.add("edge".into(), false, None).place, 1);
        let (record, _) = ClusterRecord::next(Some(record), settings(3));
        assert_eq!(names(&record), ["node-0", "node-2", "edge"]);
        let (record, _) = ClusterRecord::next(Some(record), settings(4));
        assert_eq!(names(&record), ["node-0", "node-2", "edge", "node-1"]);
        let (record, gone) = ClusterRecord::next(Some(record), settings(2));
        assert_eq!(
            (names(&record), gone),
            (
                vec!["node-0", "node-2"],
                vec!["edge".into(), "node-1".into()]
            )
        );
    }
}
