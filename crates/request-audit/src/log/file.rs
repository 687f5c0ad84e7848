//! The file of the log, and its rotation.

use std::{
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use podplane_host::{
    clock::{self, Instant},
    fs::{self, File, OpenOptions, Permissions, TryLockError},
};

use super::{LogOptions, LostLines, OpenLogError, Sink, backups, failed};

const MODE: u32 = 0o600;
/// The time between two looks at the age of backups.
const CLEANING: Duration = Duration::from_secs(60 * 60);
/// The time between two attempts to rotate after one that failed.
const RETRY: Duration = Duration::from_secs(10);

/// The open file. It ends with a whole line between two calls.
#[derive(Debug)]
pub(super) struct LogFile {
    options: LogOptions,
    file: File,
    /// The length of the whole lines.
    length: u64,
    /// True if more than the whole lines may be there.
    is_torn: bool,
    cleaned: Instant,
    /// When rotation last failed.
    rotation_failed: Option<Instant>,
}

impl LogFile {
    /// Opens the file, and makes it if it is not there. What a killed process left of a last line
    /// is cut off.
    pub(super) fn open(options: LogOptions) -> Result<Self, OpenLogError> {
        let (file, length) = open(&options.path)?;
        let log = Self {
            options,
            file,
            length,
            is_torn: false,
            cleaned: Instant::now(),
            rotation_failed: None,
        };
        log.clean();
        Ok(log)
    }

    /// Makes the file a backup and begins another.
    fn rotate(&mut self) -> Result<(), OpenLogError> {
        let path = &self.options.path;
        let now = clock::timestamp();
        let free = (0..1000).find_map(|more| {
            let later = now.checked_add(Duration::from_millis(more)).ok()?;
            let backup = backups::path(path, later);
            (!fs::exists(&backup)).then_some(backup)
        });
        let backup = free
            .ok_or_else(|| failed("name a backup of", path)(io::ErrorKind::AlreadyExists.into()))?;
        fs::rename(path, &backup).map_err(failed("rename", path))?;
        match open(path) {
            Ok((file, length)) => {
                (self.file, self.length) = (file, length);
                Ok(())
            }
            // Lines go on to the old file, by its old name.
            Err(error) => {
                let _ = fs::rename(&backup, path);
                Err(error)
            }
        }
    }

    /// Rotates a file that would become too long, and removes backups that are not kept.
    fn prepare(&mut self, bytes: u64) {
        let is_full = self
            .options
            .max_bytes
            .is_some_and(|max| self.length > 0 && self.length.saturating_add(bytes) > max);
        let may_try = self
            .rotation_failed
            .is_none_or(|failed| failed.elapsed() >= RETRY);
        if is_full && may_try && !self.is_torn {
            match self.rotate() {
                Ok(()) => {
                    self.rotation_failed = None;
                    self.clean();
                    self.cleaned = Instant::now();
                }
                Err(error) => {
                    if self.rotation_failed.replace(Instant::now()).is_none() {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "failed to rotate the audit log; it grows, and rotation is tried again"
                        );
                    }
                }
            }
        }
        if self.cleaned.elapsed() >= CLEANING {
            self.clean();
            self.cleaned = Instant::now();
        }
    }

    fn clean(&self) {
        if let Err(error) = self.remove_expired(clock::timestamp()) {
            tracing::warn!(%error, "failed to remove backups of the audit log");
        }
    }

    fn remove_expired(&self, now: Timestamp) -> io::Result<()> {
        let LogOptions {
            path,
            max_backups,
            max_age,
            max_bytes: _,
        } = &self.options;
        if max_backups.is_none() && max_age.is_none() {
            return Ok(());
        }
        let mut made = Vec::new();
        for entry in fs::read_dir(directory(path))? {
            made.extend(backups::time(path, &entry?.file_name()));
        }
        for at in backups::expired(made, now, *max_backups, *max_age) {
            match fs::remove_file(backups::path(path, at)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Cuts off what is behind the whole lines. Works on a full disk, too.
    fn mend(&mut self) -> io::Result<()> {
        if !self.is_torn {
            return Ok(());
        }
        match self.file.metadata()?.len() {
            longer if longer > self.length => self.file.set_len(self.length)?,
            // Someone else has truncated it.
            length => self.length = length,
        }
        self.is_torn = false;
        Ok(())
    }
}

impl Sink for LogFile {
    fn write(&mut self, lines: &[Vec<u8>]) -> Result<(), LostLines> {
        let text = lines.concat();
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        let lost = |cause| LostLines {
            lines: lines.len(),
            cause,
        };
        self.mend().map_err(lost)?;
        self.prepare(bytes);
        // Appended: whoever truncates the file, as logrotate may, leaves no hole before the lines.
        match self.file.write_all(&text) {
            Ok(()) => {
                self.length = self.length.saturating_add(bytes);
                Ok(())
            }
            Err(cause) => {
                self.is_torn = true;
                // If this fails, the next call tries again before it writes.
                let _ = self.mend();
                Err(lost(cause))
            }
        }
    }
}

fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Opens the file for this process alone, and returns the length of its whole lines.
fn open(path: &Path) -> Result<(File, u64), OpenLogError> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(MODE);
    let mut file = fs::open_with(&options, path).map_err(failed("open", path))?;
    let metadata = file.metadata().map_err(failed("read", path))?;
    if !metadata.is_file() {
        return Err(OpenLogError::NotAFile(path.to_owned()));
    }
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenLogError::InUse(path.to_owned())),
        Err(TryLockError::Error(source)) => return Err(failed("lock", path)(source)),
    }
    if metadata.permissions().mode() & 0o777 != MODE {
        file.set_permissions(Permissions::from_mode(MODE))
            .map_err(failed("set the mode of", path))?;
    }
    let length = whole_lines(&mut file).map_err(failed("read", path))?;
    if length < metadata.len() {
        let cut = metadata.len() - length;
        file.set_len(length).map_err(failed("mend", path))?;
        tracing::warn!(path = %path.display(), cut, "removed the incomplete last line of the audit log");
    }
    Ok((file, length))
}

/// The length of the file up to its last line end.
fn whole_lines(file: &mut File) -> io::Result<u64> {
    const BLOCK: u64 = 64 << 10;
    let mut end = file.metadata()?.len();
    let mut block = Vec::new();
    while end > 0 {
        let begin = end.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(begin))?;
        block.clear();
        io::Read::by_ref(file)
            .take(end - begin)
            .read_to_end(&mut block)?;
        let newline = block.iter().rposition(|byte| *byte == b'\n');
        if let Some(at) = newline {
            return Ok(begin + u64::try_from(at).unwrap_or_default() + 1);
        }
        end = begin;
    }
    Ok(0)
}
