//! A disk with little room, which can be filled: a tmpfs of a certain size under a directory.

#![expect(
    unsafe_code,
    reason = "unshare(2) can take file descriptors from under other threads; only a mount namespace is unshared here"
)]

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    thread::{UnshareFlags, gettid, unshare_unsafe},
};

use crate::{
    ClusterError, Finished, Result, carrier::Carrier, fault::Fault, program, recording::Recorder,
};

/// What takes the room.
const FILLER: &str = ".filler";

/// Disks that nobody sees but the programs that are run here, and those that they start: they are in the mount namespace of a thread, and go with the last
/// of these, however it ends.
#[derive(Debug)]
pub(crate) struct Disks {
    disks: BTreeMap<String, Disk>,
    carrier: Carrier,
    root: PathBuf,
}

impl Disks {
    /// Makes disks of so many bytes under directories, by name.
    pub(crate) fn mount(
        wanted: BTreeMap<String, (PathBuf, u64)>,
        recorder: &Recorder,
    ) -> Result<Self> {
        let places: Vec<_> = wanted.values().cloned().collect();
        let started = Carrier::start("disks", move || {
            isolate()?;
            for (dir, bytes) in places {
                mount_one(&dir, bytes)?;
            }
            Ok(gettid())
        });
        let step = "make disks, which takes root or a user namespace (unshare --user --map-root-user --mount)";
        let (carrier, thread) = started.map_err(ClusterError::io(step))?;
        let thread = thread.as_raw_nonzero();
        let root = PathBuf::from(format!("/proc/self/task/{thread}/root"));
        let disk = |dir: &Path| Disk {
            dir: seen(&root, dir),
            recorder: recorder.clone(),
        };
        let disks = wanted.iter();
        let disks = disks.map(|(name, (dir, _))| (name.clone(), disk(dir)));
        Ok(Self {
            disks: disks.collect(),
            carrier,
            root,
        })
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Disk> {
        self.disks.get(name)
    }

    /// What is at `path` for those who see the disks, as this process reaches it.
    pub(crate) fn seen(&self, path: &Path) -> PathBuf {
        seen(&self.root, path)
    }

    /// Runs a command that sees the disks.
    pub(crate) async fn run(&self, command: Command) -> Result<Finished> {
        let failed = ClusterError::io(format!("run {}", program::line(&command)));
        let finished = self.carrier.run(program::run(command)).await;
        finished.map_err(failed)?
    }
}

fn seen(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Gives the calling thread a mount namespace of its own, in which it still sees what the machine mounts.
fn isolate() -> io::Result<()> {
    // SAFETY: the hazard of unshare(2) is CLONE_FILES, which leaves threads with different tables of descriptors. It is not passed.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    let detached = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(mount_change("/", detached)?)
}

fn mount_one(dir: &Path, bytes: u64) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    if fs::read_dir(dir)?.next().is_some() {
        // What runs already has the old one open.
        let why = format!("{} is not empty", dir.display());
        return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, why));
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let options = CString::new(format!("size={bytes},mode=0700"))?;
    Ok(mount("podplane", dir, "tmpfs", flags, options.as_c_str())?)
}

/// A file system of its own under a directory, with so much room and no more. It goes with the cluster, with all that is on it.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
    recorder: Recorder,
}

impl Disk {
    /// Where this process reaches it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Takes all the room that is left, until the fault is healed or dropped. Whoever removes a file there makes room for as much again.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if it cannot be written to at all.
    pub fn fill(&self) -> Result<Fault> {
        let path = self.dir.join(FILLER);
        let filled = || -> io::Result<()> {
            let mut file = File::create(&path)?;
            // Large pieces, then small ones, down to the last page.
            for piece in [1 << 20, 4096, 1] {
                let piece = vec![0; piece];
                loop {
                    match file.write_all(&piece) {
                        Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                        written => written?,
                    }
                }
            }
            Ok(())
        };
        if let Err(error) = filled() {
            _ = fs::remove_file(&path);
            return Err(ClusterError::io(format!("fill {}", self.dir.display()))(
                error,
            ));
        }
        let what = format!("the disk of {} is full", self.dir.display());
        let free = move || _ = fs::remove_file(path);
        Ok(Fault::new(what, self.recorder.clone(), free))
    }
}
