//! The data directory: what is where in it, whose it is, and who runs on it.

use std::{
    fs::{self, DirBuilder, File, Permissions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use podplane_kubelet::node_dir::write_atomically;
use podplane_telemetry::server::MAX_SOCKET_PATH;
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use super::{
    settings::{Settings, read_json},
    trust,
};

/// What the file `VERSION` says. It changes when an older program could no longer read what a newer one wrote.
const FORMAT: &str = "1";

/// Room for `/nodes/NAME/cri.sock` of a node that `up` names.
const LONGEST_SOCKET: usize = "/nodes/node-9999/cri.sock".len();

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
            // Somebody may have put disks there for these.
            let is_ours = |entry: io::Result<fs::DirEntry>| {
                entry.is_ok_and(|entry| {
                    ["nodes", "store"]
                        .iter()
                        .any(|own| entry.file_name() == *own)
                })
            };
            let is_empty = match fs::read_dir(&self.0) {
                Ok(mut entries) => entries.all(is_ours),
                Err(error) if error.kind() == io::ErrorKind::NotFound => true,
                Err(error) => return Err(error).with_context(name_it),
            };
            anyhow::ensure!(
                is_empty,
                "{} is not empty and has no file VERSION: it is no data directory of podplane",
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
            write_atomically(&self.0.join("VERSION"), format!("{FORMAT}\n").as_bytes())
                .with_context(name_it)?;
        }
        for dir in ["logs", "nodes", "run"] {
            fs::create_dir_all(self.0.join(dir)).with_context(name_it)?;
        }
        Ok(())
    }

    /// Whether there is a cluster's data, of this format. Another format is an error.
    pub(crate) fn is_ours(&self) -> anyhow::Result<bool> {
        let path = self.0.join("VERSION");
        let text = match trust::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        anyhow::ensure!(
            text.trim() == FORMAT,
            "{} has data of format {:?}, and this podplane reads format {FORMAT:?}: use the podplane that wrote it, or another --data-dir",
            self.0.display(),
            text.trim()
        );
        Ok(true)
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
        read_json(&self.0.join("cluster.json"))
    }

    pub(crate) fn write_record(&self, record: &Record) -> anyhow::Result<()> {
        self.write_json("cluster.json", record)
    }

    pub(crate) fn write_running(&self, running: &Running) -> anyhow::Result<()> {
        self.write_json("supervisor.json", running)
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> anyhow::Result<()> {
        let path = self.0.join(name);
        let mut text = serde_json::to_vec_pretty(value).context("encode JSON")?;
        text.push(b'\n');
        write_atomically(&path, &text).with_context(|| format!("write {}", path.display()))
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
        Ok(())
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
        fs::write(dir.path().join("VERSION"), "2\n").unwrap();
        let error = dir.prepare().unwrap_err().to_string();
        assert!(error.contains(r#"has data of format "2""#), "{error}");
        assert!(dir.purge().is_err() && dir.path().exists());
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
