//! The directory of the signing keys: a file `TIME.pem` for each, where TIME is that of its making.

use std::{
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use podplane_host::{fs, random};

use crate::{
    key::{InvalidKey, SigningKey},
    ring::{KeyPolicy, KeyRing, KeyRingPlan},
};

const DIR_MODE: u32 = 0o700;
const KEY_MODE: u32 = 0o600;
const EXTENSION: &str = "pem";
/// The form of times in file names: `20261123T154443Z`.
const TIME: &str = "%Y%m%dT%H%M%SZ";

/// A directory of keys. Without one, keys are in memory and end with the process.
#[derive(Clone, Debug)]
pub struct KeyDir(Option<PathBuf>);

/// The keys cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeyDirError {
    /// A file or the directory cannot be used.
    #[error("failed to {action} {}", path.display())]
    Io {
        /// The failed step.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The file is not a key.
    #[error("invalid signing key {}: {why}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The rule that it breaks.
        #[source]
        why: InvalidKey,
    },
    /// The file's name is not a time.
    #[error(
        "invalid name of the signing key {}: must be the time when it was made, such as 20261123T154443Z.pem",
        .0.display()
    )]
    Name(PathBuf),
    /// Others may read the file.
    #[error(
        "the mode of the signing key {} is {mode:04o}, so that others may read it: chmod 600 it, or remove it to have the tokens that it signed refused",
        path.display()
    )]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// No key can be made.
    #[error(transparent)]
    Generate(InvalidKey),
}

impl KeyDir {
    /// The keys of this directory, which need not exist.
    pub fn at(path: PathBuf) -> Self {
        Self(Some(path))
    }

    /// Keys in memory.
    pub fn in_memory() -> Self {
        Self(None)
    }

    /// Reads the keys, and makes the changes that are due: the directory and the first key if there
    /// is none.
    ///
    /// # Errors
    ///
    /// [`KeyDirError`].
    pub fn open(&self, policy: KeyPolicy, now: Timestamp) -> Result<KeyRing, KeyDirError> {
        let keys = match &self.0 {
            Some(dir) => read(dir)?,
            None => Vec::new(),
        };
        let ring = KeyRing::new(policy, keys);
        let plan = ring.plan(now);
        self.apply(&ring, &plan, now)
    }

    /// Carries out a plan: the end of retired keys, then a new one.
    ///
    /// # Errors
    ///
    /// [`KeyDirError`]; the ring is as it was, and a later call does what is left.
    pub fn apply(
        &self,
        ring: &KeyRing,
        plan: &KeyRingPlan,
        now: Timestamp,
    ) -> Result<KeyRing, KeyDirError> {
        let KeyRingPlan { rotates, retired } = plan;
        let mut changed = ring.clone();
        for made in retired {
            if let Some(dir) = &self.0 {
                let path = path(dir, *made);
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(io("remove", &path)(error));
                    }
                    _ => {}
                }
            }
        }
        if *rotates {
            let key = SigningKey::generate().map_err(KeyDirError::Generate)?;
            // As the name has it: whole seconds.
            let made = Timestamp::from_second(now.as_second()).unwrap_or(now);
            if let Some(dir) = &self.0 {
                write(&path(dir, made), &key)?;
            }
            changed = changed.with(made, key);
        }
        Ok(changed.without(retired))
    }
}

/// Reads the key that signs, which several servers may share, and keys that only verify. They are
/// not read again.
///
/// # Errors
///
/// [`KeyDirError`].
pub fn read_key_files(signing: &Path, others: &[PathBuf]) -> Result<KeyRing, KeyDirError> {
    let paths = others.iter().map(PathBuf::as_path).chain([signing]);
    let keys = paths.map(read_key_file).collect::<Result<_, _>>()?;
    Ok(KeyRing::fixed(keys))
}

fn path(dir: &Path, made: Timestamp) -> PathBuf {
    let name = made.to_zoned(TimeZone::UTC).strftime(TIME);
    dir.join(format!("{name}.{EXTENSION}"))
}

fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> KeyDirError + use<'a> {
    move |source| KeyDirError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

fn read(dir: &Path) -> Result<Vec<(Timestamp, SigningKey)>, KeyDirError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(DIR_MODE);
    fs::create_dir_with(&builder, dir).map_err(io("make", dir))?;
    let mut keys = Vec::new();
    for entry in fs::read_dir(dir).map_err(io("read", dir))? {
        let path = entry.map_err(io("read", dir))?.path();
        // Others are what a crash left while it wrote.
        if path.extension().is_some_and(|known| known == EXTENSION) {
            keys.push(read_key(&path)?);
        }
    }
    Ok(keys)
}

fn read_key(path: &Path) -> Result<(Timestamp, SigningKey), KeyDirError> {
    let name = path.file_stem().and_then(|name| name.to_str());
    let made = name.and_then(|name| DateTime::strptime(TIME, name).ok());
    let made = made.and_then(|made| made.to_zoned(TimeZone::UTC).ok());
    let made = made.ok_or_else(|| KeyDirError::Name(path.to_owned()))?;
    Ok((made.timestamp(), read_key_file(path)?))
}

fn read_key_file(path: &Path) -> Result<SigningKey, KeyDirError> {
    let mode = fs::metadata(path).map_err(io("read", path))?.mode() & 0o777;
    if mode & !KEY_MODE != 0 {
        let path = path.to_owned();
        return Err(KeyDirError::Mode { path, mode });
    }
    let text = fs::read_to_string(path).map_err(io("read", path))?;
    SigningKey::from_pem(&text).map_err(|why| KeyDirError::Key {
        path: path.to_owned(),
        why,
    })
}

/// Writes a key in one step: a reader finds all of it or nothing.
fn write(path: &Path, key: &SigningKey) -> Result<(), KeyDirError> {
    let fresh = path.with_extension(format!("{}.tmp", random::uuid().simple()));
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(KEY_MODE);
    let written = || {
        let mut file = fs::open_with(&options, &fresh)?;
        file.write_all(key.to_pem().as_bytes())?;
        fs::sync_all(&file)?;
        fs::rename(&fresh, path)?;
        // A key that a power failure takes away would end the tokens that it has signed.
        fs::sync_all(&fs::open(path.parent().unwrap_or(Path::new(".")))?)
    };
    written().map_err(|error| {
        // What is left of it has no use; that it cannot be removed is not the error to report.
        _ = fs::remove_file(&fresh);
        io("write", path)(error)
    })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test")]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, time::Duration};

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);
    const POLICY: KeyPolicy = KeyPolicy {
        rotation: DAY,
        longest_token: DAY,
    };

    fn at(days: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + days * 24 * 3600).unwrap()
    }

    fn files(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn keys_rotate_and_retire_across_starts() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("keys");
        let keys = KeyDir::at(dir.clone());
        keys.open(POLICY, at(0)).unwrap();
        let first = files(&dir);
        assert_eq!(first, ["20260921T141320Z.pem"]);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&dir), 0o700);
        assert_eq!(mode(&dir.join(&first[0])), 0o600);
        keys.open(POLICY, at(0)).unwrap();
        assert_eq!(files(&dir), first);
        keys.open(POLICY, at(1)).unwrap();
        assert_eq!(files(&dir).len(), 2);
        // The second is a day old, so a third is made, and the first has not signed for a day.
        keys.open(POLICY, at(2)).unwrap();
        assert_eq!(
            files(&dir),
            ["20260922T141320Z.pem", "20260923T141320Z.pem"]
        );
    }

    #[test]
    fn key_files_are_read_by_any_name() {
        let dir = tempfile::tempdir().unwrap();
        KeyDir::at(dir.path().join("keys"))
            .open(POLICY, at(0))
            .unwrap();
        let made = dir.path().join("keys/20260921T141320Z.pem");
        let (signing, other) = (dir.path().join("a.key"), dir.path().join("b.key"));
        std::fs::copy(&made, &signing).unwrap();
        write(&other, &SigningKey::generate().unwrap()).unwrap();
        let ring = read_key_files(&signing, std::slice::from_ref(&other)).unwrap();
        assert_eq!(ring.public_keys(at(0)).len(), 2);
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = read_key_files(&signing, &[other]).unwrap_err();
        assert!(matches!(error, KeyDirError::Mode { mode: 0o644, .. }));
    }

    #[test]
    fn refuses_files_that_others_may_read_or_that_are_not_keys() {
        let dir = tempfile::tempdir().unwrap();
        let keys = KeyDir::at(dir.path().to_owned());
        keys.open(POLICY, at(0)).unwrap();
        let file = dir.path().join(&files(dir.path())[0]);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = keys.open(POLICY, at(0)).unwrap_err();
        assert!(matches!(error, KeyDirError::Mode { mode: 0o640, .. }));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&file, "s3cret").unwrap();
        let error = keys.open(POLICY, at(0)).unwrap_err();
        assert!(matches!(error, KeyDirError::Key { .. }));
        assert!(!format!("{error:?}").contains("s3cret"));
        std::fs::rename(&file, dir.path().join("a.pem")).unwrap();
        let error = keys.open(POLICY, at(0)).unwrap_err();
        assert!(matches!(error, KeyDirError::Name(_)));
    }
}
