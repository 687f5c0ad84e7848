//! References of images, as clients write them and as registries know them.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// The registry of a reference without one.
const DEFAULT_DOMAIN: &str = "docker.io";
/// Another name of it.
const LEGACY_DOMAIN: &str = "index.docker.io";
/// The path of images of [`DEFAULT_DOMAIN`] that have none.
const OFFICIAL_PATH: &str = "library";
/// The tag of a reference that has neither tag nor digest.
const DEFAULT_TAG: &str = "latest";
/// The longest tag, by the distribution specification.
const MAX_TAG: usize = 128;

/// The text is not a reference of an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid reference {0:?} of an image: must be NAME, NAME:TAG or NAME@sha256:DIGEST")]
pub struct ReferenceError(String);

/// A complete reference: with a registry, and with a tag or a digest. A tag beside a digest is
/// dropped, as it decides nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageReference {
    repository: String,
    version: Version,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Version {
    Tag(String),
    Digest(String),
}

impl std::str::FromStr for ImageReference {
    type Err = ReferenceError;

    /// Completes a reference by Docker's rules: `busybox` is
    /// `docker.io/library/busybox:latest`.
    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        parse(text).ok_or_else(|| ReferenceError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<ImageReference> {
    let (name, digest) = match text.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (text, None),
    };
    // A colon before the last slash is that of a port.
    let (name, tag) = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (name, None),
    };
    let is_domain =
        |first: &str| first.contains(['.', ':']) || first == "localhost" || first.starts_with('[');
    let (domain, path) = match name.split_once('/') {
        Some((first, path)) if is_domain(first) => (first, path.to_owned()),
        _ => (DEFAULT_DOMAIN, name.to_owned()),
    };
    let (domain, path) = match domain {
        DEFAULT_DOMAIN | LEGACY_DOMAIN if !path.contains('/') => {
            (DEFAULT_DOMAIN, format!("{OFFICIAL_PATH}/{path}"))
        }
        LEGACY_DOMAIN => (DEFAULT_DOMAIN, path),
        domain => (domain, path),
    };
    let is_component = |part: &str| {
        let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_inner = |c: char| is_edge(c) || matches!(c, '.' | '_' | '-');
        part.starts_with(is_edge) && part.ends_with(is_edge) && part.chars().all(is_inner)
    };
    let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    let is_start = |c: char| c.is_ascii_alphanumeric() || c == '[';
    if !domain.starts_with(is_start)
        || !domain.chars().all(is_host)
        || !path.split('/').all(is_component)
    {
        return None;
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_tag = |tag: &str| {
        (1..=MAX_TAG).contains(&tag.len())
            && tag.chars().all(is_word)
            && !tag.starts_with(['.', '-'])
    };
    if tag.is_some_and(|tag| !is_tag(tag)) || digest.is_some_and(|digest| !is_digest(digest)) {
        return None;
    }
    let version = match digest {
        Some(digest) => Version::Digest(digest.to_owned()),
        None => Version::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned()),
    };
    Some(ImageReference {
        repository: format!("{domain}/{path}"),
        version,
    })
}

/// Returns true for `sha256:` with 64 digits.
fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
    })
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            repository,
            version,
        } = self;
        match version {
            Version::Tag(tag) => write!(f, "{repository}:{tag}"),
            Version::Digest(digest) => write!(f, "{repository}@{digest}"),
        }
    }
}

impl ImageReference {
    /// The id of the image, 64 hexadecimal digits: the same for the same reference on every node.
    pub fn image_id(&self) -> String {
        hash("id", self)
    }

    /// The relative paths at which the image can be unpacked on a machine, the most exact first:
    /// the complete reference, and the parts of it that are not Docker's defaults. None with a
    /// digest.
    pub fn local_paths(&self) -> Vec<String> {
        let Version::Tag(tag) = &self.version else {
            return Vec::new();
        };
        let official = format!("{DEFAULT_DOMAIN}/{OFFICIAL_PATH}/");
        let short = self.repository.strip_prefix(&official);
        let short = short.or_else(|| self.repository.strip_prefix(&format!("{DEFAULT_DOMAIN}/")));
        let names: Vec<&str> = [Some(self.repository.as_str()), short]
            .into_iter()
            .flatten()
            .collect();
        let tagged = names.iter().map(|name| format!("{name}:{tag}"));
        let untagged = names.iter().map(|name| (*name).to_owned());
        tagged
            .chain(untagged.filter(|_| tag == DEFAULT_TAG))
            .collect()
    }

    /// The reference with its tag; none with a digest.
    pub fn repo_tag(&self) -> Option<String> {
        matches!(self.version, Version::Tag(_)).then(|| self.to_string())
    }

    /// The reference with a digest: its own, or one that is derived from it.
    pub fn repo_digest(&self) -> String {
        match &self.version {
            Version::Tag(_) => format!("{}@sha256:{}", self.repository, hash("manifest", self)),
            Version::Digest(_) => self.to_string(),
        }
    }
}

/// A digest of nothing but the reference; `part` tells several of one reference apart.
fn hash(part: &str, reference: &ImageReference) -> String {
    let hash = Sha256::digest(format!("podplane.io/{part} {reference}"));
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn completes_references() {
        let with_digest = format!("a.io/b:1@{DIGEST}");
        let digest = format!("a.io/b@{DIGEST}");
        for (text, want) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("a/b", "docker.io/a/b:latest"),
            ("index.docker.io/b", "docker.io/library/b:latest"),
            ("localhost/b", "localhost/b:latest"),
            ("r.io:5000/a/b_c:v1", "r.io:5000/a/b_c:v1"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            (&with_digest, &digest),
        ] {
            let reference: ImageReference = text.parse().unwrap();
            assert_eq!(reference.to_string(), want, "{text}");
        }
    }

    #[test]
    fn rejects_what_registries_reject() {
        for text in [
            "",
            ":1",
            "A",
            "a:",
            "a b",
            "a//b",
            "a@sha256:1",
            "../a",
            "a/",
            "a:b c",
            "-a",
            "r.io/",
        ] {
            assert!(text.parse::<ImageReference>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn ids_follow_from_the_reference_alone() {
        let id = |text: &str| text.parse::<ImageReference>().unwrap().image_id();
        assert_eq!(id("busybox"), id("docker.io/library/busybox:latest"));
        assert_ne!(id("busybox:1"), id("busybox:2"));
        let tagged: ImageReference = "busybox".parse().unwrap();
        assert_ne!(tagged.repo_digest(), tagged.image_id());
        let pinned: ImageReference = tagged.repo_digest().parse().unwrap();
        assert_eq!(pinned.repo_digest(), tagged.repo_digest());
        assert_eq!(pinned.repo_tag(), None);
    }
}
