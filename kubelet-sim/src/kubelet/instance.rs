//! The identity of a kubelet as an instance of its node: an id, and a lock.
//!
//! They are files of the node's directory. A kubelet that is started again from that directory is
//! the same instance, whatever happened to the process before it. One on another machine, or with
//! another directory, is another instance, even under the same node name.

use std::{
    io::{self, Read as _, Seek as _, Write as _},
    path::PathBuf,
};

use podplane_host::{
    fs::{self, File, OpenOptions, TryLockError},
    random,
};
use podplane_proto::ipam::{HoldChange, PodAddress, hold_change::Action};
use serde::{Deserialize, Serialize};

use crate::{NodeDir, NodeName};

/// The id of an instance. That the kubelet is the node's, its credentials prove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceIdentity {
    id: String,
}

/// The instance that this process is, for the lifetime of the value.
#[derive(Debug)]
pub struct Instance {
    identity: InstanceIdentity,
    _lock: Lock,
}

/// A locked file. Children forked by other threads have it open, too, until they execute their
/// programs, so closing it would not unlock it at once.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing unlocks as well, but maybe late.
        _ = self.0.unlock();
    }
}

/// The reason why a process cannot be an instance of a node.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// Another process is the instance.
    #[error(
        "another kubelet{pid} runs node {node} from {dir}: stop it first, or give this one another --nodes-dir"
    )]
    Locked {
        /// The node.
        node: String,
        /// Its directory.
        dir: String,
        /// The other process, as ` (process PID)`; empty if not known.
        pid: String,
    },
    /// A file cannot be used.
    #[error("failed to {step} {path}", path = path.display())]
    Io {
        /// The failed step.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The identity cannot be read.
    #[error(
        "failed to read {path}: it is damaged; remove it to make a new instance of the node, which holds none of the blocks that this one held",
        path = path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
}

impl Instance {
    /// Becomes the instance of the node's directory, which is created if it is missing.
    ///
    /// # Errors
    ///
    /// [`InstanceError`]; `Locked` while another process is the instance.
    pub fn open(dir: &NodeDir, node: &NodeName) -> Result<Self, InstanceError> {
        fs::create_dir_all(dir.path()).map_err(failed("make", dir.path()))?;
        let lock = lock(dir, node)?;
        let identity = match InstanceIdentity::read(dir)? {
            Some(identity) => identity,
            None => InstanceIdentity::make(dir)?,
        };
        Ok(Self {
            identity,
            _lock: lock,
        })
    }

    /// Its identity.
    pub fn identity(&self) -> &InstanceIdentity {
        &self.identity
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.identity.id
    }
}

impl InstanceIdentity {
    /// Reads the identity in the node's directory; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`InstanceError`] if it cannot be read.
    pub fn read(dir: &NodeDir) -> Result<Option<Self>, InstanceError> {
        let path = dir.identity();
        let mut file = match fs::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed("open", &path))?,
        };
        let mut text = String::new();
        file.read_to_string(&mut text)
            .map_err(failed("read", &path))?;
        let identity = serde_json::from_str(&text);
        identity
            .map(Some)
            .map_err(|source| InstanceError::Damaged { path, source })
    }

    /// Creates an identity, on disk before it is used: otherwise a hold could stay that nobody can
    /// end.
    fn make(dir: &NodeDir) -> Result<Self, InstanceError> {
        let identity = Self {
            id: random::uuid().to_string(),
        };
        let path = dir.identity();
        let new = path.with_extension("new");
        let write = || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true);
            let mut file = fs::open_with(&options, &new)?;
            serde_json::to_writer(&mut file, &identity)?;
            fs::sync_all(&file)?;
            fs::rename(&new, &path)?;
            fs::sync_all(&fs::open(dir.path())?)
        };
        write().map_err(failed("write", &path))?;
        Ok(identity)
    }

    /// The instance's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A change of a block's hold by this instance.
    pub fn hold(&self, action: Action, addresses: Vec<PodAddress>) -> HoldChange {
        HoldChange {
            action: action.into(),
            instance: self.id.clone(),
            addresses,
        }
    }
}

fn lock(dir: &NodeDir, node: &NodeName) -> Result<Lock, InstanceError> {
    let path = dir.kubelet_lock();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let opened = fs::open_with(&options, &path);
    let mut file = opened.map_err(failed("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // Only for people; empty for a moment after the other process has taken the lock.
            _ = file.read_to_string(&mut pid);
            let digits = pid.trim();
            let is_pid = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            return Err(InstanceError::Locked {
                node: node.to_string(),
                dir: dir.path().display().to_string(),
                pid: match is_pid {
                    true => format!(" (process {digits})"),
                    false => String::new(),
                },
            });
        }
        Err(TryLockError::Error(source)) => return Err(failed("lock", &path)(source)),
    }
    let mut say = || {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    say().map_err(failed("write", &path))?;
    Ok(Lock(file))
}

fn failed(step: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> InstanceError {
    let path = path.to_owned();
    move |source| InstanceError::Io { step, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(dir: &tempfile::TempDir) -> (NodeDir, NodeName) {
        let name: NodeName = "n".parse().unwrap();
        (NodeDir::new(dir.path(), &name), name)
    }

    #[test]
    fn a_directory_admits_one_kubelet_and_keeps_its_identity() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, name) = node(&temp);
        let first = Instance::open(&dir, &name).unwrap();
        let error = Instance::open(&dir, &name).unwrap_err().to_string();
        let pid = std::process::id();
        let want = format!("another kubelet (process {pid}) runs node n from ");
        assert!(error.starts_with(&want), "{error}");
        let identity = first.identity().clone();
        // As in a child that has not executed its program yet.
        let _inherited = first._lock.0.try_clone().unwrap();
        drop(first);
        let again = Instance::open(&dir, &name).unwrap();
        assert_eq!(*again.identity(), identity);
        drop(again);
        let other = tempfile::tempdir().unwrap();
        let (dir, name) = node(&other);
        let other = Instance::open(&dir, &name).unwrap();
        assert_ne!(other.id(), identity.id);
    }

    /// Earlier versions had a secret, too.
    #[test]
    fn identities_of_earlier_versions_are_read() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, name) = node(&temp);
        drop(Instance::open(&dir, &name).unwrap());
        fs::write(dir.identity(), r#"{"id":"one","secret":"00ff"}"#).unwrap();
        assert_eq!(Instance::open(&dir, &name).unwrap().id(), "one");
    }

    #[test]
    fn refuses_a_damaged_identity() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, name) = node(&temp);
        drop(Instance::open(&dir, &name).unwrap());
        fs::write(dir.identity(), "").unwrap();
        let error = Instance::open(&dir, &name).unwrap_err();
        assert!(matches!(error, InstanceError::Damaged { .. }), "{error}");
    }
}
