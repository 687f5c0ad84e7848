//! Files that are read again when they change.

use std::{
    fmt,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use podplane_host::{clock::Instant, fs};

use crate::PkiError;

/// The time between two looks at the files. A renewed certificate is used after that long.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

type ReadFiles<T> = Box<dyn Fn() -> Result<T, PkiError> + Send + Sync>;

/// A value read from files, which is read again after one of them has changed.
///
/// There is no task that watches: [`current`](ReloadedFiles::current) looks at most once a second.
/// If the new content is not valid, the value stays what it was, and one warning is logged for each
/// change.
pub struct ReloadedFiles<T> {
    paths: Vec<PathBuf>,
    read: ReadFiles<T>,
    state: Mutex<ReadState<T>>,
}

struct ReadState<T> {
    value: Arc<T>,
    stamps: Vec<Option<FileStamp>>,
    checked: Instant,
}

/// The parts of a file's metadata of which at least one differs after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl<T> fmt::Debug for ReloadedFiles<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReloadedFiles").field(&self.paths).finish()
    }
}

impl<T> ReloadedFiles<T> {
    /// Reads the files by `read`, which is called again after a change of one of `paths`.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub fn open(
        paths: Vec<PathBuf>,
        read: impl Fn() -> Result<T, PkiError> + Send + Sync + 'static,
    ) -> Result<Self, PkiError> {
        // Taken first: a change while the files are read is seen at the next look.
        let stamps = stamps(&paths);
        let state = ReadState {
            value: Arc::new(read()?),
            stamps,
            checked: Instant::now(),
        };
        Ok(Self {
            paths,
            read: Box::new(read),
            state: Mutex::new(state),
        })
    }

    /// The value as the files have it now, or had it less than a second ago.
    pub fn current(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.checked.elapsed() >= CHECK_INTERVAL {
            self.look(&mut state);
        }
        Arc::clone(&state.value)
    }

    fn look(&self, state: &mut ReadState<T>) {
        state.checked = Instant::now();
        let stamps = stamps(&self.paths);
        if stamps == state.stamps {
            return;
        }
        state.stamps = stamps;
        match (self.read)() {
            Ok(value) => {
                state.value = Arc::new(value);
                tracing::info!(files = ?self.paths, "reloaded files that changed");
            }
            Err(error) => tracing::warn!(
                error = podplane_error_chain::one_line(&error),
                "failed to reload files that changed; using their earlier content"
            ),
        }
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<FileStamp>> {
    let stamp = |path: &PathBuf| {
        let file = fs::metadata(path).ok()?;
        Some(FileStamp {
            device: file.dev(),
            inode: file.ino(),
            bytes: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    };
    paths.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_and_invalid_ones_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("number");
        let number = {
            let path = path.clone();
            move || {
                let text = fs::read_to_string(&path).unwrap_or_default();
                text.parse::<u32>().map_err(|error| PkiError::Invalid {
                    what: path.display().to_string(),
                    why: error.to_string(),
                })
            }
        };
        ReloadedFiles::open(vec![path.clone()], number.clone()).unwrap_err();
        fs::write(&path, "1").unwrap();
        let files = ReloadedFiles::open(vec![path.clone()], number).unwrap();
        let look = || {
            files.look(&mut files.state.lock().unwrap());
            *files.current()
        };
        assert_eq!(*files.current(), 1);
        fs::write(&path, "22").unwrap();
        assert_eq!(*files.current(), 1, "within the second");
        assert_eq!(look(), 22);
        fs::write(&path, "a").unwrap();
        assert_eq!(look(), 22);
        fs::remove_file(&path).unwrap();
        assert_eq!(look(), 22);
        fs::write(&path, "333").unwrap();
        assert_eq!(look(), 333);
    }
}
