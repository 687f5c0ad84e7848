//! `runtime.v1.ImageService`.
//!
//! Without containers there are no images: lists are empty and removing succeeds, as CRI requires
//! for missing images. Pulling is refused: a client that takes an image for present goes on to
//! create a container, and fails there with a less clear error.
//!
//! With containers a pull is remembered, and nothing is fetched: an image is its reference, from
//! which its id and digest are derived. With `--containers=pretend` every pull succeeds; with
//! `process`, that of an image whose files are on this machine ([`roots`]).

pub mod reference;
pub mod roots;
pub mod store;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use podplane_error_chain::one_line;
use podplane_host::{clock, task};
use podplane_proto::cri::{self, image_service_server::ImageService};
use tonic::{Request, Response, Status};

use self::{
    reference::{ImageReference, ReferenceError},
    store::ImageStore,
};

/// The image service of one node.
#[derive(Clone, Debug)]
pub enum Images {
    /// Of a runtime without containers.
    None {
        /// The file system that images would be on.
        dir: PathBuf,
    },
    /// Of a runtime with containers.
    Stored(Arc<ImageStore>),
}

impl Images {
    fn store(&self) -> Option<&Arc<ImageStore>> {
        match self {
            Self::None { .. } => None,
            Self::Stored(store) => Some(store),
        }
    }

    fn dir(&self) -> &Path {
        match self {
            Self::None { dir } => dir,
            Self::Stored(store) => store.dir(),
        }
    }
}

fn invalid(error: &ReferenceError) -> Status {
    Status::invalid_argument(format!("image.image: {}", one_line(error)))
}

/// Runs a step that writes files, on a thread for blocking work.
async fn run<T: Send + 'static>(
    step: &'static str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let done = task::spawn_blocking(work).await;
    let done = done.map_err(|panic| Status::internal(panic.to_string()))?;
    done.map_err(|error| Status::unknown(format!("failed to {step}: {}", one_line(&error))))
}

#[tonic::async_trait]
impl ImageService for Images {
    async fn list_images(
        &self,
        request: Request<cri::ListImagesRequest>,
    ) -> Result<Response<cri::ListImagesResponse>, Status> {
        let Some(store) = self.store() else {
            return Ok(Response::new(cri::ListImagesResponse::default()));
        };
        let filter = request.into_inner().filter.unwrap_or_default();
        let wanted = filter.image.unwrap_or_default().image;
        let images = match wanted.as_str() {
            "" => store.list(),
            wanted => store.find(wanted).into_iter().flatten().collect(),
        };
        let images = images.iter().map(|image| (&**image).into()).collect();
        Ok(Response::new(cri::ListImagesResponse { images }))
    }

    async fn image_status(
        &self,
        request: Request<cri::ImageStatusRequest>,
    ) -> Result<Response<cri::ImageStatusResponse>, Status> {
        // CRI: no image in the answer means that it is not present.
        let mut answer = cri::ImageStatusResponse::default();
        if let Some(store) = self.store() {
            let image = request.into_inner().image.unwrap_or_default().image;
            let found = store.find(&image).map_err(|error| invalid(&error))?;
            answer.image = found.map(|image| (&*image).into());
        }
        Ok(Response::new(answer))
    }

    async fn pull_image(
        &self,
        request: Request<cri::PullImageRequest>,
    ) -> Result<Response<cri::PullImageResponse>, Status> {
        let image = request.into_inner().image.unwrap_or_default().image;
        let Some(store) = self.store().cloned() else {
            return Err(Status::unimplemented(format!(
                "podplane runs sandboxes without containers (--containers=none): image {image:?} \
                 is not pulled"
            )));
        };
        let reference: ImageReference = image.parse().map_err(|error| invalid(&error))?;
        let looked_up = store.clone();
        let (reference, located) = run("look up the image", move || {
            let located = looked_up.locate(&reference);
            Ok((reference, located))
        })
        .await?;
        let uid = located.map_err(|error| Status::not_found(one_line(&error).to_string()))?;
        let image = run("record the image", move || store.pull(&reference, uid)).await?;
        Ok(Response::new(cri::PullImageResponse {
            image_ref: image.id.clone(),
        }))
    }

    async fn remove_image(
        &self,
        request: Request<cri::RemoveImageRequest>,
    ) -> Result<Response<cri::RemoveImageResponse>, Status> {
        if let Some(store) = self.store().cloned() {
            let image = request.into_inner().image.unwrap_or_default().image;
            run("remove the image's record", move || store.remove(&image)).await?;
        }
        Ok(Response::new(cri::RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        _: Request<cri::ImageFsInfoRequest>,
    ) -> Result<Response<cri::ImageFsInfoResponse>, Status> {
        let now = clock::timestamp().as_nanosecond();
        let images = self.store().map(|store| store.list()).unwrap_or_default();
        let usage = |bytes: u64, inodes: usize| cri::FilesystemUsage {
            timestamp: i64::try_from(now).unwrap_or(i64::MAX),
            fs_id: Some(cri::FilesystemIdentifier {
                mountpoint: self.dir().to_string_lossy().into_owned(),
            }),
            used_bytes: Some(cri::UInt64Value { value: bytes }),
            inodes_used: Some(cri::UInt64Value {
                value: inodes as u64,
            }),
        };
        let bytes = images.iter().map(|image| image.bytes).sum();
        Ok(Response::new(cri::ImageFsInfoResponse {
            image_filesystems: vec![usage(bytes, images.len())],
            container_filesystems: vec![usage(0, 0)],
        }))
    }
}
