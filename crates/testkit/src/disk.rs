//! A disk with little room, which can be filled: a tmpfs of a certain size under a directory.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::{ClusterError, Result, fault::Fault, recording::Recorder};

/// What takes the room.
const FILLER: &str = ".filler";

/// A file system of its own under a directory, with so much room and no more. Dropping it takes it away, with all that is on it.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
    recorder: Recorder,
}

impl Disk {
    /// Puts a disk of so many bytes under a directory, which is made and must be empty: what runs already has the old one open.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`], without the privilege to mount among the reasons: that takes root, or a user namespace as of `unshare --user --map-root-user --mount`.
    pub fn mount(dir: impl Into<PathBuf>, bytes: u64, recorder: Recorder) -> Result<Self> {
        let dir = dir.into();
        let step = format!(
            "put a disk of {bytes} bytes under {}, which takes root or a user namespace (unshare --user --map-root-user --mount)",
            dir.display()
        );
        let made = || -> io::Result<()> {
            fs::create_dir_all(&dir)?;
            if fs::read_dir(&dir)?.next().is_some() {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            let flags = MountFlags::NOSUID | MountFlags::NODEV;
            let options = format!("size={bytes},mode=0700");
            let options = std::ffi::CString::new(options)?;
            Ok(mount("podplane", &dir, "tmpfs", flags, options.as_c_str())?)
        };
        made().map_err(ClusterError::io(step))?;
        Ok(Self { dir, recorder })
    }

    /// Where it is.
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

impl Drop for Disk {
    fn drop(&mut self) {
        // Those who have a file of it open keep it until they close that.
        _ = unmount(&self.dir, UnmountFlags::DETACH);
    }
}
