//! Files. The functions are std's, by their names; those of `File` and [`Path`] are functions here.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

pub use fs::{
    DirBuilder, DirEntry, File, Metadata, OpenOptions, Permissions, ReadDir, TryLockError,
};

/// The content of a file.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    fs::read(path)
}

/// The content of a file, which is UTF-8.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    fs::read_to_string(path)
}

/// Makes a directory.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    fs::create_dir(path)
}

/// Makes a directory and those above it.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// Makes a directory and those above it, each for its owner alone. One that exists stays as it is.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn create_private_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Removes a file.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    fs::remove_file(path)
}

/// Removes a directory with all that is below it.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    fs::remove_dir_all(path)
}

/// The metadata of a file, through symbolic links.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    fs::metadata(path)
}

/// The metadata of a file or of a symbolic link itself.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    fs::symlink_metadata(path)
}

/// The entries of a directory.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    fs::read_dir(path)
}

/// The absolute path, without symbolic links.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    fs::canonicalize(path)
}

/// Writes a file, and makes it if it is not there.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
    fs::write(path, content)
}

/// Renames a file, which replaces another.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    fs::rename(from, to)
}

/// Copies a file, and returns its length.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    fs::copy(from, to)
}

/// Changes the mode of a file.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
    fs::set_permissions(path, permissions)
}

/// Returns true for a path that leads to something.
#[inline]
#[must_use]
pub fn exists(path: impl AsRef<Path>) -> bool {
    path.as_ref().exists()
}

/// Returns true for a path that leads to a regular file.
#[inline]
#[must_use]
pub fn is_file(path: impl AsRef<Path>) -> bool {
    path.as_ref().is_file()
}

/// Returns true for a path that leads to a directory.
#[inline]
#[must_use]
pub fn is_dir(path: impl AsRef<Path>) -> bool {
    path.as_ref().is_dir()
}

/// Opens a file or a directory to read it.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    File::open(path)
}

/// Opens a file to write it anew, and makes it if it is not there.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn create(path: impl AsRef<Path>) -> io::Result<File> {
    File::create(path)
}

/// Waits until a file is durable, or the entries of a directory are.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn sync_all(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// Waits until the content of a file is durable.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn sync_data(file: &File) -> io::Result<()> {
    file.sync_data()
}

/// Opens a file as the options say.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn open_with(options: &OpenOptions, path: impl AsRef<Path>) -> io::Result<File> {
    options.open(path)
}

/// Makes a directory as the builder says.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn create_dir_with(builder: &DirBuilder, path: impl AsRef<Path>) -> io::Result<()> {
    builder.create(path)
}

/// The content of a file, which is UTF-8, read without blocking the runtime.
///
/// # Errors
///
/// The operating system's.
#[cfg(feature = "async")]
pub async fn read_to_string_async(path: impl AsRef<Path>) -> io::Result<String> {
    tokio::fs::read_to_string(path).await
}
