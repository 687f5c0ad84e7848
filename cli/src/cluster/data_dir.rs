//! The data directory: what is where in it, whose it is, and who runs on it.

use std::{
    fs::{self, DirBuilder, File, Permissions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use podplane_kubelet::node_dir::{write_atomically, write_volatile};
use podplane_telemetry::server::MAX_SOCKET_PATH;
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use super::{
    settings::{Settings, read_json},
    trust,
};

/// The number that the file `VERSION` gets. It changes when an older program could no longer read
/// what a newer one wrote.
///
/// With 2, the store splits large values and may be rewritten into other files (ADR 0024).
const FORMAT: &str = "2";

/// The number before it. A directory with it is read as well, and [raised](DataDir::raise_format)
/// when a cluster starts in it.
const FORMAT_BEFORE: &str = "1";

/// Room for `/nodes/NAME/cri.sock` of a node that `up` names.
const LONGEST_SOCKET: usize = "/nodes/node-9999/cri.sock".len();

/// How often a supervisor looks whether its directory is still there.
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
/// *.address           where services listen
/// kubeconfig          the same for kubectl
/// store/ logs/ nodes/
/// run/                a tmpfs in the supervisor's mount namespace: network namespaces
/// ```
#[derive(Clone, Debug)]
pub(crate) struct DataDir(PathBuf);

/// What is kept of a cluster while it is down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) settings: Settings,
    /// By place: a node keeps its own, and with it the address of its uplink, as long as it lives.
    pub(crate) nodes: Vec<Member>,
}

/// A node of this cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) place: u32,
    /// Whether its pods have addresses alone though those of other nodes have devices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ledger: bool,
}

/// What the supervisor tells of itself to those who must enter its namespaces before they can start a thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Running {
    pub(crate) pid: i32,
    /// Whether pods have devices, in the supervisor's mount (and perhaps user) namespace.
    pub(crate) kernel: bool,
    /// Why, or why not.
    pub(crate) reason: String,
}

impl DataDir {
    /// A directory that may or may not exist. One that others prepared is refused ([`trust`]).
    pub(crate) fn new(path: &Path) -> anyhow::Result<Self> {
        let path = std::path::absolute(path).context("find the current directory")?;
        trust::data_dir(&path)?;
        Ok(Self(path))
    }

    /// Makes the directory what it must be: private, of this format, and short enough for sockets in it.
    pub(crate) fn prepare(&self) -> anyhow::Result<()> {
        let name_it = || format!("prepare the data directory {}", self.0.display());
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
            // Somebody may have put disks there for these. The last is left by a start that was
            // killed.
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
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.0)
                .with_context(name_it)?;
            fs::set_permissions(&self.0, Permissions::from_mode(0o700)).with_context(name_it)?;
            // Nobody else can change it any more; what they did before is seen now.
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

    /// Makes a directory of the format before one of this format. For whoever has the
    /// [lock](Self::lock), before anything of this program writes there: a program that only knows
    /// the earlier format refuses the directory from here on.
    pub(crate) fn raise_format(&self) -> anyhow::Result<()> {
        if self.format()?.is_none_or(|format| format == FORMAT) {
            return Ok(());
        }
        let dir = self.0.display();
        self.write_format()
            .with_context(|| format!("failed to raise the format of {dir} to {FORMAT}"))
    }

    /// Whether there is a cluster's data, of a format that this program reads. Another format is an
    /// error.
    pub(crate) fn is_ours(&self) -> anyhow::Result<bool> {
        Ok(self.format()?.is_some())
    }

    /// The number in the file `VERSION`; absent without the file.
    fn format(&self) -> anyhow::Result<Option<&'static str>> {
        let path = self.0.join("VERSION");
        let text = match trust::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        anyhow::ensure!(
            !text.trim().is_empty(),
            "{} is empty, as after a power failure: if this version of podplane wrote the directory, \
             restore the file with `echo {FORMAT} > {}`; else take another --data-dir",
            path.display(),
            path.display()
        );
        let known = [FORMAT_BEFORE, FORMAT]
            .into_iter()
            .find(|known| text.trim() == *known);
        let format = known.with_context(|| {
            format!(
                "{} has data of format {:?}, and this podplane reads formats {FORMAT_BEFORE} and \
                 {FORMAT}: use the podplane that wrote it, or another --data-dir",
                self.0.display(),
                text.trim()
            )
        })?;
        Ok(Some(format))
    }

    /// Fails if the directory has files of a cluster and no file VERSION.
    ///
    /// # Errors
    ///
    /// With what to do.
    pub(crate) fn ensure_no_remains(&self) -> anyhow::Result<()> {
        let mut known = ["cluster.json", "supervisor.json", "control.sock"].into_iter();
        let Some(found) = known.find(|name| self.0.join(name).exists()) else {
            return Ok(());
        };
        let dir = self.0.display();
        anyhow::bail!(
            "{dir} has the data of a cluster ({found}), and the file VERSION that says its format is \
             missing: if this version of podplane wrote it, restore the file with `echo {FORMAT} > \
             {dir}/VERSION`; else take another --data-dir"
        )
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn log(&self, service: &str) -> PathBuf {
        self.0.join("logs").join(format!("{service}.log"))
    }

    pub(crate) fn address_file(&self, service: &str) -> PathBuf {
        self.0.join(format!("{service}.address"))
    }

    pub(crate) fn nodes(&self) -> PathBuf {
        self.0.join("nodes")
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.0.join("run")
    }

    pub(crate) fn control_socket(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    pub(super) fn remove_kubeconfig(&self) -> anyhow::Result<()> {
        remove_file(&self.kubeconfig())
    }

    /// What is kept; absent before the first start.
    pub(crate) fn record(&self) -> anyhow::Result<Option<Record>> {
        read_json(&self.record_file()).with_context(|| {
            format!(
                "the flags and nodes of the cluster in {} cannot be read: restore the file, or remove the \
                 cluster with `podplane down --purge`",
                self.0.display()
            )
        })
    }

    /// [`DataDir::record`] for a start, which needs it if nodes of an earlier start have left data: without
    /// it, they would be given other addresses than those that are in use there.
    ///
    /// # Errors
    ///
    /// If it is missing or broken; with what to do.
    pub(crate) fn record_to_start(&self) -> anyhow::Result<Option<Record>> {
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
    /// configuration alone may have been prepared for a cluster that is about to start.
    fn node_with_data(&self) -> anyhow::Result<Option<String>> {
        let has_entries =
            |dir: &Path| fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        let nodes = match fs::read_dir(self.nodes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            nodes => nodes.with_context(|| format!("read {}", self.nodes().display()))?,
        };
        for node in nodes.flatten() {
            let dir = node.path();
            let has_lived = dir.join("instance.json").exists()
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
    pub(crate) fn restore_record(&self, record: &Record) -> anyhow::Result<()> {
        match self.record_file().exists() {
            true => Ok(()),
            false => self.write_record(record),
        }
    }

    pub(crate) fn write_record(&self, record: &Record) -> anyhow::Result<()> {
        self.write_json("cluster.json", record, write_atomically)
    }

    pub(crate) fn write_running(&self, running: &Running) -> anyhow::Result<()> {
        self.write_json("supervisor.json", running, write_volatile)
    }

    fn write_json(
        &self,
        name: &str,
        value: &impl Serialize,
        write: fn(&Path, &[u8]) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let path = self.0.join(name);
        let mut text = serde_json::to_vec_pretty(value).context("encode JSON")?;
        text.push(b'\n');
        write(&path, &text).with_context(|| format!("write {}", path.display()))
    }

    /// Waits until the lock that a supervisor has is no longer this directory's: it was removed, or
    /// replaced. Nothing of the cluster can be found any more then, and another may be started
    /// here.
    pub(crate) async fn gone(&self, lock: &File) {
        let mut looks = tokio::time::interval(REMOVAL_LOOK);
        while !self.is_gone(lock) {
            looks.tick().await;
        }
    }

    /// Whether `lock` is no longer the lock of this directory.
    pub(crate) fn is_gone(&self, lock: &File) -> bool {
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
    pub(crate) fn removed(&self) -> anyhow::Error {
        anyhow::anyhow!(
            "the data directory {} was removed or replaced while the cluster ran; the cluster has ended",
            self.0.display()
        )
    }

    /// Becomes the directory's supervisor; absent if there is one already. Ends with the file that is returned.
    pub(crate) fn lock(&self) -> anyhow::Result<Option<File>> {
        let path = self.0.join("lock");
        let file = trust::create(&path).with_context(|| format!("open {}", path.display()))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("lock {}", path.display()));
                }
                // A supervisor, or somebody who asks for one and will have let go in a moment.
                Err(TryLockError::WouldBlock) if self.is_locked()? => return Ok(None),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
    }

    /// Whether a supervisor has the lock. Asking takes it for a moment, shared, so that those who ask do not see each other.
    pub(crate) fn is_locked(&self) -> anyhow::Result<bool> {
        let path = self.0.join("lock");
        let file = match trust::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error).with_context(|| format!("open {}", path.display())),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("lock {}", path.display()))
            }
        }
    }

    /// The file whose lock every process of a cluster shares by inheritance. It is free when the last of them is gone.
    pub(crate) fn members(&self) -> anyhow::Result<File> {
        let path = self.0.join("members");
        trust::create(&path).with_context(|| format!("open {}", path.display()))
    }

    /// The supervisor that runs here; absent if none does.
    pub(crate) fn running(&self) -> anyhow::Result<Option<Running>> {
        if self.is_locked()? {
            read_json(&self.0.join("supervisor.json"))
        } else {
            Ok(None)
        }
    }

    /// Removes what says that something runs here.
    pub(crate) fn clear_running(&self) -> anyhow::Result<()> {
        let mut stale = vec![self.0.join("supervisor.json"), self.control_socket()];
        let entries =
            fs::read_dir(&self.0).with_context(|| format!("read {}", self.0.display()))?;
        for entry in entries {
            let path = entry
                .with_context(|| format!("read {}", self.0.display()))?
                .path();
            if path
                .extension()
                .is_some_and(|extension| extension == "address")
            {
                stale.push(path);
            }
        }
        stale.iter().try_for_each(|path| remove_file(path))
    }

    /// [`DataDir::purge`], and takes away what is mounted in the directory where this process is: its own tmpfs, or disks that somebody has put there and has
    /// left behind.
    pub(crate) fn purge_with_mounts(&self) -> anyhow::Result<()> {
        let busy = match self.purge() {
            Err(error) if is_busy(&error) => error,
            purged => return purged,
        };
        let nodes = fs::read_dir(self.nodes()).into_iter().flatten().flatten();
        let mut places: Vec<_> = nodes.map(|entry| entry.path()).collect();
        places.extend([self.run(), self.0.join("store")]);
        for place in places {
            // Where nothing is mounted this says so, and if it did not help, the next error tells.
            _ = unmount(&place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        fs::remove_dir_all(&self.0).context(busy)
    }

    /// Removes the directory, which must be a cluster's.
    pub(crate) fn purge(&self) -> anyhow::Result<()> {
        if self.is_ours()? {
            fs::remove_dir_all(&self.0).with_context(|| format!("remove {}", self.0.display()))?;
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
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

impl Record {
    /// What `settings` make of what was kept: nodes stay as they are unless their number is another. With the names that are no more.
    pub(crate) fn next(kept: Option<Self>, settings: Settings) -> (Self, Vec<String>) {
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
        let mut number = 0;
        while record.nodes.len() < wanted {
            let name = format!("node-{number}");
            if !record.has(&name) {
                record.add(name, false);
            }
            number += 1;
        }
        (record, gone.into_iter().map(|node| node.name).collect())
    }

    /// How many nodes have devices where the cluster has any.
    pub(crate) fn kernel_nodes(&self) -> usize {
        self.nodes.iter().filter(|node| !node.ledger).count()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.nodes.iter().any(|node| node.name == name)
    }

    /// Adds a node at the first place that is free.
    pub(crate) fn add(&mut self, name: String, ledger: bool) -> Member {
        let taken: std::collections::BTreeSet<_> =
            self.nodes.iter().map(|node| node.place).collect();
        let place = (0..)
            .find(|place| !taken.contains(place))
            .unwrap_or(u32::MAX);
        let member = Member {
            name,
            place,
            ledger,
        };
        self.nodes.push(member.clone());
        member
    }
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

    fn names(record: &Record) -> Vec<&str> {
        record.nodes.iter().map(|node| node.name.as_str()).collect()
    }

    #[test]
    fn it_is_private_and_of_this_format() {
        let (_keep, dir) = dir();
        dir.prepare().unwrap();
        dir.prepare().unwrap();
        let mode = fs::metadata(dir.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn other_formats_are_refused_and_the_one_before_is_raised() {
        let (_keep, dir) = dir();
        dir.prepare().unwrap();
        let version = dir.path().join("VERSION");
        let found = || fs::read_to_string(&version).unwrap();
        assert_eq!(found(), "2\n");
        for unknown in ["0", "3", "22", "x"] {
            fs::write(&version, unknown).unwrap();
            for refused in [dir.prepare(), dir.raise_format(), dir.purge()] {
                let error = refused.unwrap_err().to_string();
                let words = format!(
                    "has data of format {unknown:?}, and this podplane reads formats 1 and 2"
                );
                assert!(error.contains(&words), "{error}");
            }
            assert_eq!(found(), unknown);
        }
        fs::write(&version, "1\n").unwrap();
        // Commands that ask a cluster of an older program leave its directory as it is.
        dir.prepare().unwrap();
        assert_eq!(found(), "1\n");
        dir.raise_format().unwrap();
        assert_eq!(found(), "2\n");
        dir.purge().unwrap();
        dir.raise_format().unwrap();
        assert!(!dir.path().exists());
    }

    #[test]
    fn broken_and_missing_versions_say_what_to_do() {
        let (_keep, dir) = dir();
        dir.prepare().unwrap();
        let version = dir.path().join("VERSION");
        fs::write(&version, "").unwrap();
        let error = dir.prepare().unwrap_err().to_string();
        assert!(
            error.contains("VERSION is empty") && error.contains("echo 2 >"),
            "{error}"
        );
        fs::remove_file(&version).unwrap();
        let (record, _) = Record::next(None, settings(1));
        dir.write_record(&record).unwrap();
        for error in [dir.prepare().unwrap_err(), dir.purge().unwrap_err()] {
            let error = error.to_string();
            assert!(
                error.contains("VERSION") && error.contains("echo 2 >"),
                "{error}"
            );
        }
        assert!(dir.path().exists());
    }

    #[test]
    fn a_start_without_cluster_json_leaves_data_of_nodes_alone() {
        let (_keep, dir) = dir();
        dir.prepare().unwrap();
        // As a start that failed leaves it, and whoever prepares a node's network.
        let node = dir.nodes().join("node-1");
        for subdirectory in ["net.d", "networks/podplane", "sandboxes"] {
            fs::create_dir_all(node.join(subdirectory)).unwrap();
        }
        fs::remove_dir(node.join("networks/podplane")).unwrap();
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
        let (record, _) = Record::next(None, settings(1));
        dir.restore_record(&record).unwrap();
        assert_eq!(dir.record_to_start().unwrap(), Some(record));
        fs::write(dir.path().join("cluster.json"), "").unwrap();
        assert!(dir.record_to_start().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_that_was_removed_or_replaced_is_gone() {
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
    fn a_directory_of_others_is_neither_used_nor_removed() {
        let (_keep, dir) = dir();
        fs::create_dir(dir.path()).unwrap();
        fs::write(dir.path().join("thesis.tex"), "").unwrap();
        assert!(dir.prepare().is_err());
        dir.purge().unwrap();
        assert!(dir.path().join("thesis.tex").exists());
    }

    #[test]
    fn one_supervisor_at_a_time() {
        let (_keep, dir) = dir();
        dir.prepare().unwrap();
        assert!(!dir.is_locked().unwrap());
        let lock = dir.lock().unwrap().unwrap();
        assert!(dir.lock().unwrap().is_none() && dir.is_locked().unwrap());
        drop(lock);
        assert!(dir.lock().unwrap().is_some());
    }

    #[test]
    fn nodes_are_kept_until_their_number_changes() {
        let (mut record, gone) = Record::next(None, settings(3));
        assert_eq!(names(&record), ["node-0", "node-1", "node-2"]);
        assert!(gone.is_empty());
        record.nodes.remove(1);
        assert_eq!(record.add("edge".into(), false).place, 1);
        let (record, _) = Record::next(Some(record), settings(3));
        assert_eq!(names(&record), ["node-0", "node-2", "edge"]);
        let (record, _) = Record::next(Some(record), settings(4));
        assert_eq!(names(&record), ["node-0", "node-2", "edge", "node-1"]);
        let (record, gone) = Record::next(Some(record), settings(2));
        assert_eq!(
            (names(&record), gone),
            (
                vec!["node-0", "node-2"],
                vec!["edge".into(), "node-1".into()]
            )
        );
    }
}
