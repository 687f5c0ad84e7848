//! `runtime.v1.ImageService` of a runtime that has no images.
//!
//! Lists are empty and removing succeeds, as CRI requires for missing images. Pulling is refused: a
//! client that takes an image for present goes on to create a container, and fails there with a
//! less clear error.

use std::path::PathBuf;

use podplane_host::clock;
use podplane_proto::cri::{self, image_service_server::ImageService};
use tonic::{Request, Response, Status};

/// The image service of one node.
#[derive(Clone, Debug)]
pub struct Images {
    /// The file system that images would be on.
    pub dir: PathBuf,
}

#[tonic::async_trait]
impl ImageService for Images {
    async fn list_images(
        &self,
        _: Request<cri::ListImagesRequest>,
    ) -> Result<Response<cri::ListImagesResponse>, Status> {
        Ok(Response::new(cri::ListImagesResponse::default()))
    }

    async fn image_status(
        &self,
        _: Request<cri::ImageStatusRequest>,
    ) -> Result<Response<cri::ImageStatusResponse>, Status> {
        // CRI: no image in the answer means that it is not present.
        Ok(Response::new(cri::ImageStatusResponse::default()))
    }

    async fn pull_image(
        &self,
        request: Request<cri::PullImageRequest>,
    ) -> Result<Response<cri::PullImageResponse>, Status> {
        let image = request.into_inner().image.unwrap_or_default().image;
        Err(Status::unimplemented(format!(
            "podplane runs sandboxes without containers: image {image:?} is not pulled"
        )))
    }

    async fn remove_image(
        &self,
        _: Request<cri::RemoveImageRequest>,
    ) -> Result<Response<cri::RemoveImageResponse>, Status> {
        Ok(Response::new(cri::RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        _: Request<cri::ImageFsInfoRequest>,
    ) -> Result<Response<cri::ImageFsInfoResponse>, Status> {
        let now = clock::timestamp().as_nanosecond();
        let usage = cri::FilesystemUsage {
            timestamp: i64::try_from(now).unwrap_or(i64::MAX),
            fs_id: Some(cri::FilesystemIdentifier {
                mountpoint: self.dir.to_string_lossy().into_owned(),
            }),
            used_bytes: Some(cri::UInt64Value { value: 0 }),
            inodes_used: Some(cri::UInt64Value { value: 0 }),
        };
        Ok(Response::new(cri::ImageFsInfoResponse {
            image_filesystems: vec![usage.clone()],
            container_filesystems: vec![usage],
        }))
    }
}
