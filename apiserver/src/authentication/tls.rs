use podplane_service_runtime::{
    server::Listener,
    tls::{ServerTls, TlsFiles},
};

use crate::ApiserverRunError;

/// The listener with TLS by these files.
///
/// # Errors
///
/// A unix socket, and files that cannot be used.
pub(crate) fn secure(listener: Listener, files: &TlsFiles) -> Result<Listener, ApiserverRunError> {
    let tls = ServerTls::read(files)?;
    listener
        .with_tls(tls)
        .map_err(|listener| ApiserverRunError::TlsOnSocket(listener.address().clone()))
}
