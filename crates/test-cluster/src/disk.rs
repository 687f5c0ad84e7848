//! Disks of limited size that can be filled: a tmpfs on a directory.

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
    ClusterError, ProgramOutput, Result, carrier::Carrier, fault::Fault, program,
    recording::Recorder,
};

/// The file that takes the free space.
const FILLER: &str = ".filler";

/// Disks that are visible only to the programs that are run here, and to programs that these start.
/// They are in the mount namespace of a thread, and disappear with the last of these processes,
/// however it ends.
#[derive(Debug)]
pub(crate) struct Disks {
    disks: BTreeMap<String, Disk>,
    carrier: Carrier,
    root: PathBuf,
}

impl Disks {
    /// Makes disks on directories. `wanted` has the directory and the size in bytes, by name.
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

    /// Translates `path`, as it is inside the mount namespace, to a path for this process.
    pub(crate) fn seen(&self, path: &Path) -> PathBuf {
        seen(&self.root, path)
    }

    /// Runs a command inside the mount namespace.
    pub(crate) async fn run(&self, command: Command) -> Result<ProgramOutput> {
        let failed = ClusterError::io(format!("run {}", program::line(&command)));
        let finished = self.carrier.run(program::run(command)).await;
        finished.map_err(failed)?
    }
}

fn seen(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Gives the calling thread a mount namespace of its own. Mounts of the machine still appear in it.
fn isolate() -> io::Result<()> {
    // SAFETY: the hazard of unshare(2) is CLONE_FILES, which leaves threads with different tables
    // of descriptors. It is not passed.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    let detached = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(mount_change("/", detached)?)
}

fn mount_one(dir: &Path, bytes: u64) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    if fs::read_dir(dir)?.next().is_some() {
        // Processes that already run have the old directory open.
        let why = format!("{} is not empty", dir.display());
        return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, why));
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let options = CString::new(format!("size={bytes},mode=0700"))?;
    Ok(mount("podplane", dir, "tmpfs", flags, options.as_c_str())?)
}

/// A file system of limited size on a directory. It disappears with the cluster, and so do its
/// files.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
    recorder: Recorder,
}

impl Disk {
    /// The path of its root for this process.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Takes all free space until the fault is healed or dropped. Removing another file there frees
    /// its space again.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if the disk cannot be written at all.
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
