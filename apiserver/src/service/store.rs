//! The service for the store as a whole.

use futures::{StreamExt as _, stream::BoxStream};
use podplane_proto::store::{BackupRequest, BackupResponse, store_service_server::StoreService};
use tonic::{Request, Response, Status};

use super::status;
use crate::{engine::Engine, error};

/// Streams backups while the server runs.
#[derive(Debug)]
pub(crate) struct Backups(pub(crate) Engine);

#[tonic::async_trait]
impl StoreService for Backups {
    type BackupStream = BoxStream<'static, Result<BackupResponse, Status>>;

    async fn backup(
        &self,
        _: Request<BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        let pieces = self.0.back_up().map(|piece| match piece {
            Ok(piece) => Ok(BackupResponse {
                piece: piece.to_vec(),
            }),
            Err(error) => Err(status::of(error::store(error))),
        });
        Ok(Response::new(pieces.boxed()))
    }
}
