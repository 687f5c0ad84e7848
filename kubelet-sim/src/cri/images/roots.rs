//! Images that are unpacked on this machine: directories and programs beneath roots that the
//! operator has chosen. Nothing is fetched, and nothing is unpacked.

use std::{
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    str::FromStr,
};

use podplane_container_init::{
    read_beneath,
    spec::{BeneathPath, ImageFiles},
};
use podplane_host::fs;
use serde::Deserialize;

use super::{reference::ImageReference, store::IMAGE_UID};

/// The largest configuration of an image in bytes.
const MAX_CONFIG: u64 = 1 << 20;

/// The reason why an image is not present.
#[derive(Debug, thiserror::Error)]
pub enum ImageLookupError {
    /// No root has it.
    #[error(
        "image {reference} is not present: nothing is fetched, and none of these is a directory or a program: {}",
        looked_at(.candidates)
    )]
    Missing {
        /// The complete reference.
        reference: String,
        /// The paths that were looked at.
        candidates: Vec<PathBuf>,
    },
    /// A digest cannot be checked.
    #[error("image {0} has a digest, which unpacked files do not have: name it by a tag")]
    Digest(String),
    /// The configuration beside the image cannot be used.
    #[error("failed to read the image's configuration {}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn looked_at(candidates: &[PathBuf]) -> String {
    let paths: Vec<_> = candidates
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(", ")
}

/// The roots of images, in the order in which they are searched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageRoots(Vec<PathBuf>);

/// An image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpackedImage {
    /// Its files.
    pub files: ImageFiles,
    /// Its configuration.
    pub config: ImageConfig,
}

/// The part of OCI's image configuration that is about the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ImageConfig {
    user: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
    stop_signal: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ImageFile {
    config: ImageConfig,
}

impl ImageConfig {
    /// The user and group, if they are numbers: `UID` or `UID:GID`. An image without a user has
    /// [`IMAGE_UID`].
    pub fn user(&self) -> Option<(u32, Option<u32>)> {
        // The kernel takes the largest number for "as it is".
        let id = |text: &str| text.parse().ok().filter(|id| *id != u32::MAX);
        match self.user.as_deref().unwrap_or_default() {
            "" => Some((u32::try_from(IMAGE_UID).ok()?, None)),
            user => match user.split_once(':') {
                Some((uid, gid)) => Some((id(uid)?, Some(id(gid)?))),
                None => Some((id(user)?, None)),
            },
        }
    }

    /// The user, as the image has it.
    pub fn user_name(&self) -> &str {
        self.user.as_deref().unwrap_or_default()
    }

    /// The environment; an entry without `=` has no value.
    pub fn env(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = self.env.iter().flatten();
        entries.map(|entry| entry.split_once('=').unwrap_or((entry, "")))
    }

    /// The command line of a container with this `command` and these `args`, by Kubernetes' rules.
    pub fn command_line(&self, command: &[String], args: &[String]) -> Vec<String> {
        let words = |words: &Option<Vec<String>>| words.clone().unwrap_or_default();
        let (start, rest) = match (command.is_empty(), args.is_empty()) {
            (true, true) => (words(&self.entrypoint), words(&self.cmd)),
            (true, false) => (words(&self.entrypoint), args.to_owned()),
            (false, _) => (command.to_owned(), args.to_owned()),
        };
        [start, rest].concat()
    }

    /// The working directory.
    pub fn working_dir(&self) -> Option<&str> {
        self.working_dir.as_deref().filter(|dir| !dir.is_empty())
    }

    /// The signal that stops it, such as `SIGQUIT` or `3`.
    pub fn stop_signal(&self) -> Option<&str> {
        self.stop_signal.as_deref().filter(|name| !name.is_empty())
    }
}

/// The text is not a list of directories.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid directory {0:?}: must be an absolute path")]
pub struct ImageRootsError(PathBuf);

impl FromStr for ImageRoots {
    type Err = ImageRootsError;

    /// Reads absolute paths, separated by colons.
    fn from_str(text: &str) -> Result<Self, ImageRootsError> {
        let roots = std::env::split_paths(text);
        let checked = roots.map(|root| match root.is_absolute() {
            true => Ok(root),
            false => Err(ImageRootsError(root)),
        });
        checked.collect::<Result<_, _>>().map(Self)
    }
}

impl ImageRoots {
    /// Looks an image up. It is a directory, or a program that can be executed, at one of the
    /// [paths](ImageReference::local_paths) of its reference, and its configuration is in a file
    /// beside it whose name has `.json` appended.
    ///
    /// # Errors
    ///
    /// [`ImageLookupError`].
    pub fn find(&self, reference: &ImageReference) -> Result<UnpackedImage, ImageLookupError> {
        let names = reference.local_paths();
        if names.is_empty() {
            return Err(ImageLookupError::Digest(reference.to_string()));
        }
        let mut candidates = Vec::new();
        for root in &self.0 {
            for name in &names {
                let path = root.join(name);
                let Some(files) = files_at(root, name) else {
                    candidates.push(path);
                    continue;
                };
                let mut config = config_of(root, name)?;
                if let ImageFiles::Program(_) = files
                    && config.entrypoint.is_none()
                {
                    let program = path.file_name().unwrap_or_default().to_string_lossy();
                    config.entrypoint = Some(vec![format!("/{program}")]);
                }
                return Ok(UnpackedImage { files, config });
            }
        }
        Err(ImageLookupError::Missing {
            reference: reference.to_string(),
            candidates,
        })
    }
}

fn files_at(root: &Path, name: &str) -> Option<ImageFiles> {
    let beneath = BeneathPath {
        root: root.to_owned(),
        path: name.into(),
    };
    // A link is not followed here, and the container's start refuses one on the way, too.
    let found = fs::symlink_metadata(root.join(name)).ok()?;
    if found.is_dir() {
        return Some(ImageFiles::Tree(beneath));
    }
    let is_program = found.is_file() && found.permissions().mode() & 0o111 != 0;
    is_program.then_some(ImageFiles::Program(beneath))
}

fn config_of(root: &Path, name: &str) -> Result<ImageConfig, ImageLookupError> {
    let beneath = BeneathPath {
        root: root.to_owned(),
        path: format!("{name}.json").into(),
    };
    let path = root.join(&beneath.path);
    let read = match read_beneath(&beneath, MAX_CONFIG) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ImageConfig::default()),
        read => read,
    };
    let parsed = read.and_then(|text| Ok(serde_json::from_slice::<ImageFile>(&text)?));
    match parsed {
        Ok(ImageFile { config }) if config.user().is_some() => Ok(config),
        Ok(ImageFile { config }) => Err(ImageLookupError::Config {
            source: io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "config.User {:?}: must be UID or UID:GID",
                    config.user_name()
                ),
            ),
            path,
        }),
        Err(source) => Err(ImageLookupError::Config { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_absolute() {
        let roots: ImageRoots = "/a:/b/c".parse().unwrap();
        assert_eq!(roots.0, [Path::new("/a"), Path::new("/b/c")]);
        for bad in ["", "a", "/a:b", "/a:"] {
            assert!(bad.parse::<ImageRoots>().is_err(), "{bad}");
        }
    }

    #[test]
    fn finds_directories_and_programs_by_their_references() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("registry.example/team/app:v1")).unwrap();
        fs::create_dir_all(root.join("busybox")).unwrap();
        fs::write(root.join("tool"), "").unwrap();
        let config = r#"{"config": {"User": "7:8", "Env": ["A=b"], "Entrypoint": null,
            "Cmd": ["serve"], "WorkingDir": "/srv", "StopSignal": "SIGQUIT"}}"#;
        fs::write(root.join("busybox.json"), config).unwrap();
        let roots = ImageRoots(vec![root.join("none"), root.to_owned()]);
        let find = |name: &str| roots.find(&name.parse().unwrap());

        let app = find("registry.example/team/app:v1").unwrap();
        assert!(matches!(app.files, ImageFiles::Tree(_)));
        assert_eq!(app.config.user(), Some((65534, None)));
        for name in ["busybox", "docker.io/library/busybox:latest"] {
            let image = find(name).unwrap().config;
            assert_eq!(image.user(), Some((7, Some(8))));
            assert_eq!(image.env().collect::<Vec<_>>(), [("A", "b")]);
            assert_eq!(image.command_line(&[], &[]), ["serve"]);
            assert_eq!(image.command_line(&["x".into()], &[]), ["x"]);
            assert_eq!(image.working_dir(), Some("/srv"));
            assert_eq!(image.stop_signal(), Some("SIGQUIT"));
        }
        let missing = find("tool").unwrap_err().to_string();
        assert!(missing.contains("none/tool:latest"), "{missing}");
        let executable = std::fs::Permissions::from_mode(0o755);
        fs::set_permissions(root.join("tool"), executable).unwrap();
        let tool = find("tool").unwrap();
        assert_eq!(tool.config.command_line(&[], &["x".into()]), ["/tool", "x"]);
        let digest = format!("busybox@sha256:{}", "0".repeat(64));
        assert!(find(&digest).unwrap_err().to_string().contains("digest"));
        fs::write(root.join("busybox.json"), r#"{"config": {"User": "www"}}"#).unwrap();
        let named = find("busybox").unwrap_err();
        assert!(matches!(named, ImageLookupError::Config { .. }), "{named}");
    }
}
