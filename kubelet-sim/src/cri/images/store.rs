//! The images that a node has pulled: their references, remembered on disk. They have no content.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use podplane_host::fs;
use podplane_proto::cri;
use serde::{Deserialize, Serialize};

use super::{
    super::record_dir::{Record, RecordDir},
    reference::{ImageReference, ReferenceError},
    roots::{ImageLookupError, ImageRoots, UnpackedImage},
};

/// The user of every image, "nobody" of most systems: a kubelet starts no container that has
/// `runAsNonRoot` of an image without a user.
pub const IMAGE_UID: i64 = 65534;

/// An image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// 64 hexadecimal digits, without `sha256:`.
    id: String,
    /// The complete reference.
    reference: String,
}

impl Record for ImageRecord {
    const FILE_MODE: u32 = 0o644;

    fn id(&self) -> &str {
        &self.id
    }
}

/// An image, with all that follows from its reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredImage {
    /// `sha256:` and 64 hexadecimal digits.
    pub id: String,
    /// The reference with its tag, if it has one.
    pub repo_tag: Option<String>,
    /// The reference with a digest.
    pub repo_digest: String,
    /// The size of its record, in bytes: what removing it frees.
    pub bytes: u64,
    /// Its user.
    pub uid: i64,
}

/// The images of a node.
#[derive(Debug)]
pub struct ImageStore {
    dir: PathBuf,
    records: RecordDir<ImageRecord>,
    /// The directories of images; `None` if they have no files.
    roots: Option<ImageRoots>,
    /// By id, without `sha256:`.
    images: Mutex<BTreeMap<String, Arc<StoredImage>>>,
}

impl ImageStore {
    /// The images remembered in `dir`. With `roots` they have files there, and those that have none
    /// any more are forgotten.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn open(dir: PathBuf, roots: Option<ImageRoots>) -> io::Result<Self> {
        let records = RecordDir::<ImageRecord>::open(dir.clone())?;
        let mut images = BTreeMap::new();
        for record in records.load()? {
            // Written by this program, so that it is a reference.
            let reference = record.reference.parse::<ImageReference>().ok();
            let present = reference.and_then(|reference| {
                let uid = uid_of(roots.as_ref(), &reference).ok()?;
                Some((reference, uid))
            });
            let Some((reference, uid)) = present else {
                records.remove(&record.id)?;
                continue;
            };
            let image = stored(&reference, &records.path(&record.id), uid)?;
            images.insert(record.id, Arc::new(image));
        }
        Ok(Self {
            dir,
            records,
            roots,
            images: Mutex::new(images),
        })
    }

    /// The directory of the records.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Checks that the image of a reference can be pulled, and returns its user.
    ///
    /// # Errors
    ///
    /// [`ImageLookupError`] if images have files, and this one has none.
    pub fn locate(&self, reference: &ImageReference) -> Result<i64, ImageLookupError> {
        uid_of(self.roots.as_ref(), reference)
    }

    /// The files and configuration of a pulled image; `None` if images have none, or it was
    /// removed.
    ///
    /// # Errors
    ///
    /// [`ImageLookupError`].
    pub fn unpacked(&self, id: &str) -> Result<Option<UnpackedImage>, ImageLookupError> {
        let found = self.find(id).ok().flatten();
        let reference = found.and_then(|image| image.repo_tag.as_deref()?.parse().ok());
        match (&self.roots, reference) {
            (Some(roots), Some(reference)) => roots.find(&reference).map(Some),
            _ => Ok(None),
        }
    }

    /// Remembers the image of a reference, which has this user.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn pull(&self, reference: &ImageReference, uid: i64) -> io::Result<Arc<StoredImage>> {
        let id = reference.image_id();
        let mut images = self.lock();
        if let Some(image) = images.get(&id) {
            return Ok(image.clone());
        }
        self.records.write(&ImageRecord {
            id: id.clone(),
            reference: reference.to_string(),
        })?;
        let image = Arc::new(stored(reference, &self.records.path(&id), uid)?);
        images.insert(id, image.clone());
        Ok(image)
    }

    /// The image of an id with `sha256:`, of a reference, or of a unique prefix of an id, which are
    /// tried in this order.
    ///
    /// # Errors
    ///
    /// [`ReferenceError`] if the text is none of them.
    pub fn find(&self, text: &str) -> Result<Option<Arc<StoredImage>>, ReferenceError> {
        let images = self.lock();
        if let Some(id) = text.strip_prefix("sha256:") {
            return Ok(images.get(id).cloned());
        }
        let reference = text.parse::<ImageReference>();
        if let Ok(reference) = &reference {
            let name = reference.to_string();
            let by_id = images.get(&reference.image_id());
            let found = by_id.or_else(|| images.values().find(|image| image.repo_digest == name));
            if found.is_some() {
                return Ok(found.cloned());
            }
        }
        let mut matching = images
            .range(text.to_owned()..)
            .take_while(|(id, _)| !text.is_empty() && id.starts_with(text));
        match (matching.next(), matching.next()) {
            (Some((_, image)), None) => Ok(Some(image.clone())),
            _ => reference.map(|_| None),
        }
    }

    /// All images, by id.
    pub fn list(&self) -> Vec<Arc<StoredImage>> {
        self.lock().values().cloned().collect()
    }

    /// Forgets the image of an id or reference; a missing one counts as removed.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn remove(&self, text: &str) -> io::Result<()> {
        let Ok(Some(image)) = self.find(text) else {
            return Ok(());
        };
        let id = image.id.trim_start_matches("sha256:");
        let mut images = self.lock();
        self.records.remove(id)?;
        images.remove(id);
        Ok(())
    }

    /// Locks the images. They are consistent between any two statements, so a panic elsewhere does
    /// no harm.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<StoredImage>>> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn uid_of(roots: Option<&ImageRoots>, reference: &ImageReference) -> Result<i64, ImageLookupError> {
    let Some(roots) = roots else {
        return Ok(IMAGE_UID);
    };
    let user = roots.find(reference)?.config.user();
    Ok(user.map_or(IMAGE_UID, |(uid, _)| uid.into()))
}

fn stored(reference: &ImageReference, path: &Path, uid: i64) -> io::Result<StoredImage> {
    Ok(StoredImage {
        id: format!("sha256:{}", reference.image_id()),
        repo_tag: reference.repo_tag(),
        repo_digest: reference.repo_digest(),
        bytes: fs::metadata(path)?.len(),
        uid,
    })
}

impl From<&StoredImage> for cri::Image {
    fn from(image: &StoredImage) -> Self {
        let StoredImage {
            id,
            repo_tag,
            repo_digest,
            bytes,
            uid,
        } = image;
        Self {
            id: id.clone(),
            repo_tags: repo_tag.iter().cloned().collect(),
            repo_digests: vec![repo_digest.clone()],
            size: *bytes,
            uid: Some(cri::Int64Value { value: *uid }),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_images_by_id_reference_digest_and_prefix_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("images");
        let store = ImageStore::open(path.clone(), None).unwrap();
        assert_eq!(store.find("busybox").unwrap(), None);
        let image = store.pull(&"busybox".parse().unwrap(), IMAGE_UID).unwrap();
        assert_eq!(
            store
                .pull(&"busybox:latest".parse().unwrap(), IMAGE_UID)
                .unwrap(),
            image
        );
        for store in [store, ImageStore::open(path, None).unwrap()] {
            let bare = image.id.trim_start_matches("sha256:");
            for text in [
                "busybox",
                "docker.io/library/busybox:latest",
                &image.id,
                &image.repo_digest,
                bare,
                &bare[..12],
            ] {
                assert_eq!(store.find(text).unwrap().as_ref(), Some(&image), "{text}");
            }
            assert_eq!(store.list(), std::slice::from_ref(&image));
            assert!(store.find("A b").is_err());
        }
    }

    #[test]
    fn removal_is_idempotent_and_lasts() {
        let dir = tempfile::tempdir().unwrap();
        let store = ImageStore::open(dir.path().join("images"), None).unwrap();
        let image = store.pull(&"busybox".parse().unwrap(), IMAGE_UID).unwrap();
        store.pull(&"other".parse().unwrap(), IMAGE_UID).unwrap();
        store.remove(&image.id).unwrap();
        store.remove("busybox").unwrap();
        let store = ImageStore::open(dir.path().join("images"), None).unwrap();
        let left = store.list();
        assert_eq!(left.len(), 1);
        assert!(left[0].repo_tag.as_ref().unwrap().contains("other"));
    }
}
