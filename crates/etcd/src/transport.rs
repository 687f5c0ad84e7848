//! The connection to one member.

use std::{io, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use podplane_host::{clock, net};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Uri};

use crate::flags::{EtcdEndpoint, EtcdTls, OwnCertificate};

/// The limit of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval of probes of the connection of a watch, so that it goes on to the next member soon
/// when its own has stopped. etcd closes connections with more than one in 5 s
/// (`--grpc-keepalive-min-time`), or with probes while there is no call.
const KEEP_ALIVE: Duration = Duration::from_secs(6);
/// The time that a member has to answer a probe.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);

trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// A channel to a member, which connects when it is first used, and again after a loss, with the
/// files for TLS as they are then.
pub(crate) fn channel(member: EtcdEndpoint, tls: Option<Arc<EtcdTls>>) -> Channel {
    // The connector knows the address, and adds TLS itself.
    let builder = Channel::builder(Uri::from_static("http://localhost"))
        .origin(member.uri().clone())
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(false)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(8 << 20)
        .tcp_nodelay(true);
    builder.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let (member, tls) = (member.clone(), tls.clone());
        async move {
            let stream = connect(&member, tls.as_deref()).await?;
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    }))
}

async fn connect(member: &EtcdEndpoint, tls: Option<&EtcdTls>) -> io::Result<Box<dyn Transport>> {
    let stream = net::connect_tcp((member.host(), member.port())).await?;
    if !member.is_secure() {
        return Ok(Box::new(stream));
    }
    let credentials = tls.ok_or(io::ErrorKind::PermissionDenied)?.current();
    if let Some(certificate) = &credentials.certificate {
        refuse_expired(certificate)?;
    }
    let name = ServerName::try_from(member.host().to_owned()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::clone(&credentials.config));
    let stream = connector.connect(name, stream).await?;
    Ok(Box::new(stream))
}

/// Refuses a certificate that etcd would refuse, too: with TLS 1.3 that comes after the handshake,
/// when the connection may have broken before etcd's reason is read.
fn refuse_expired(certificate: &OwnCertificate) -> io::Result<()> {
    match certificate.not_after {
        Some(end) if end < clock::timestamp() => Err(io::Error::other(format!(
            "the client certificate {} expired at {end}; renew it: the file is read again",
            certificate.file.display()
        ))),
        _ => Ok(()),
    }
}
