//! Container images: those that nodes have, and those that pods need.
//!
//! A node lists up to a hundred names, so names are kept as hashes: equal names have equal ids, and
//! a collision could only raise a score.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use podplane_api::core::{Container, Node, PodSpec};

/// The tag of an image whose name has neither tag nor digest.
const DEFAULT_TAG: &str = "latest";

/// The name of an image, with tag or digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(u64);

impl ImageId {
    fn new(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self(hasher.finish())
    }

    /// The image of a container. As in the reference, a registry or a repository that is left out
    /// stays so, and a name is then found on nodes only in that form.
    fn of_container(container: &Container) -> Self {
        let name = container.image.as_deref().unwrap_or_default();
        // A colon before the last slash is that of the registry's port.
        match name.rfind(':') > name.rfind('/') {
            true => Self::new(name),
            false => Self::new(&format!("{name}:{DEFAULT_TAG}")),
        }
    }
}

/// The images of the pod's init containers and containers, one for each of these.
pub(crate) fn of_pod(spec: &PodSpec) -> Vec<ImageId> {
    let init = spec.init_containers.iter().flatten();
    let containers = init.chain(&spec.containers);
    containers.map(ImageId::of_container).collect()
}

/// The images that a node reports, with their sizes in bytes. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeImages(Arc<[(ImageId, i64)]>);

impl NodeImages {
    /// The images in `status.images`, by each of their names. Of several entries with one name the
    /// first counts.
    pub fn of(node: &Node) -> Self {
        let status = node.status.as_ref();
        let images = status.and_then(|status| status.images.as_ref());
        let named = images.into_iter().flatten().flat_map(|image| {
            let names = image.names.iter().flatten();
            names.map(|name| (ImageId::new(name), image.size_bytes.unwrap_or(0)))
        });
        let mut named: Vec<_> = named.collect();
        named.sort_by_key(|(id, _)| *id);
        named.dedup_by_key(|(id, _)| *id);
        Self(named.into())
    }

    /// The size of an image; `None` if the node does not have it.
    pub fn size(&self, image: ImageId) -> Option<i64> {
        let at = self.0.binary_search_by_key(&image, |(id, _)| *id).ok()?;
        self.0.get(at).map(|(_, size)| *size)
    }
}

/// The number of nodes that have each image.
#[derive(Clone, Debug, Default)]
pub struct ImageIndex(HashMap<ImageId, usize>);

impl ImageIndex {
    /// The number of nodes that have the image.
    pub fn nodes(&self, image: ImageId) -> usize {
        self.0.get(&image).copied().unwrap_or(0)
    }

    /// Counts a node with these images.
    pub fn add(&mut self, images: &NodeImages) {
        for (image, _) in images.0.iter() {
            *self.0.entry(*image).or_default() += 1;
        }
    }

    /// Removes a node that was counted with these images.
    pub fn remove(&mut self, images: &NodeImages) {
        for (image, _) in images.0.iter() {
            if let Some(nodes) = self.0.get_mut(image) {
                *nodes -= 1;
                if *nodes == 0 {
                    self.0.remove(image);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_without_tag_and_digest_is_the_latest() {
        let of = |image: &str| {
            ImageId::of_container(&Container {
                image: Some(image.to_owned()),
                ..Container::default()
            })
        };
        for (image, want) in [
            ("nginx", "nginx:latest"),
            ("nginx:1", "nginx:1"),
            ("registry:5000/nginx", "registry:5000/nginx:latest"),
            ("registry:5000/nginx:1", "registry:5000/nginx:1"),
            ("nginx@sha256:00", "nginx@sha256:00"),
            ("library/nginx", "library/nginx:latest"),
        ] {
            assert_eq!(of(image), ImageId::new(want), "{image}");
        }
    }
}
