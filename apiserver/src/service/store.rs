//! The service for the store as a whole.

use futures::{StreamExt as _, stream::BoxStream};
use podplane_proto::store::{BackupRequest, BackupResponse, store_service_server::StoreService};
use tonic::{Request, Response, Status};

use super::status;
use crate::{
    authorization::{Authorized, Gated, MethodRule},
    engine::Engine,
    error,
};

/// The rights that the methods need.
pub(crate) const STORE_RULES: [MethodRule; 1] = [MethodRule::Needs(
    "Backup",
    "create",
    "store.podplane.io",
    "backups",
)];

/// Streams backups while the server runs.
#[derive(Debug)]
pub(crate) struct Backups(pub(crate) Gated<Engine>);

#[tonic::async_trait]
impl StoreService for Backups {
    type BackupStream = BoxStream<'static, Result<BackupResponse, Status>>;

    async fn backup(
        &self,
        request: Request<BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        let authorized = Authorized::of(request.extensions()).map_err(status::of)?;
        let pieces = self.0.open(&authorized).back_up().map(|piece| match piece {
            Ok(piece) => Ok(BackupResponse {
                piece: piece.to_vec(),
            }),
            Err(error) => Err(status::of(error::store(error))),
        });
        Ok(Response::new(pieces.boxed()))
    }
}
