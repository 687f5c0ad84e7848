//! Sessions of port-forward: for each connection the client opens a stream for data and one for
//! errors, with the same request id.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use podplane_error_chain::one_line;
use podplane_host::{clock, net, task};
use podplane_netlink::netns;
use podplane_spdy::{Session, Stream};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinSet,
};

use super::StreamRequest;

/// The protocol of sessions.
pub(super) const PROTOCOL: &str = "portforward.k8s.io";
const PIECE: usize = 32 << 10;
/// The longest time to connect to a port, which is on the same machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections of which one stream is missing. More are not remembered.
const MAX_HALVES: usize = 256;

/// The streams of a connection.
#[derive(Default)]
struct ConnectionStreams {
    data: Option<Stream>,
    error: Option<Stream>,
}

/// Serves a session until the client is gone.
pub(super) async fn run(mut session: Session, request: StreamRequest) {
    let StreamRequest::PortForward(sandbox) = request else {
        return;
    };
    let Some(network) = sandbox.attached() else {
        return;
    };
    let mut halves = HashMap::<String, ConnectionStreams>::new();
    let mut connections = JoinSet::new();
    loop {
        // Losing any of these waits loses nothing.
        let stream = tokio::select! {
            stream = session.accept() => stream,
            Some(ended) = connections.join_next() => {
                if let Err(panic) = ended {
                    tracing::error!(error = %panic, "a forwarded connection failed");
                }
                continue;
            }
        };
        let Some(stream) = stream else {
            break;
        };
        let (kind, id) = (
            stream.headers.get("streamtype"),
            stream.headers.get("requestid"),
        );
        let id = id.unwrap_or_default().to_owned();
        if halves.len() >= MAX_HALVES && !halves.contains_key(&id) {
            _ = stream.writer.reset().await;
            continue;
        }
        let connection = halves.entry(id.clone()).or_default();
        match kind {
            Some("data") => connection.data = Some(stream),
            Some("error") => connection.error = Some(stream),
            _ => {
                _ = stream.writer.reset().await;
                continue;
            }
        }
        if let ConnectionStreams {
            data: Some(_),
            error: Some(_),
        } = connection
            && let Some(ConnectionStreams {
                data: Some(data),
                error: Some(error),
            }) = halves.remove(&id)
        {
            let netns = network.netns.clone();
            task::spawn(&mut connections, forward(netns, data, error));
        }
    }
    // Without a client nobody reads what they would send.
    connections.shutdown().await;
}

/// Forwards a connection to a port of the sandbox.
async fn forward(netns: PathBuf, data: Stream, error: Stream) {
    let port = data.headers.get("port").unwrap_or_default().to_owned();
    let failure = match port.parse() {
        Ok(port) if port != 0 => copy(&netns, port, data).await.err(),
        _ => {
            _ = data.writer.reset().await;
            Some(io::Error::other(format!("invalid port {port:?}")))
        }
    };
    if let Some(failure) = failure {
        let text = format!(
            "failed to forward port {port} of the sandbox: {}",
            one_line(&failure)
        );
        _ = error.writer.send(Bytes::from(text)).await;
    }
    _ = error.writer.finish().await;
}

/// Copies in both directions, until both have ended.
async fn copy(netns: &Path, port: u16, data: Stream) -> io::Result<()> {
    let Stream {
        headers: _,
        mut reader,
        writer,
    } = data;
    let connection = match connect(netns, port).await {
        Ok(connection) => connection,
        Err(error) => {
            _ = writer.reset().await;
            return Err(error);
        }
    };
    let (mut receive, mut send) = tokio::io::split(connection);
    let to_port = async {
        while let Some(piece) = reader.next().await {
            send.write_all(&piece).await?;
        }
        send.shutdown().await
    };
    let to_client = async {
        let mut piece = vec![0; PIECE];
        loop {
            let length = receive.read(&mut piece).await?;
            if length == 0 {
                return Ok(());
            }
            if writer
                .send(Bytes::copy_from_slice(&piece[..length]))
                .await
                .is_err()
            {
                return Ok(());
            }
        }
    };
    // A port that has nothing more to say has closed the connection, as a rule, and a client that
    // waits for that must not keep it.
    let copied = {
        let mut to_client = Box::pin(to_client);
        tokio::select! {
            copied = &mut to_client => copied,
            // What the port has sent before it closed is still worth reading.
            _ = to_port => to_client.await,
        }
    };
    _ = writer.finish().await;
    copied
}

/// Connects to a port of the sandbox's loopback address: that of IPv4 first, then that of IPv6.
async fn connect(netns: &Path, port: u16) -> io::Result<net::Stream> {
    let mut failures = Vec::new();
    for ip in [
        IpAddr::from(Ipv4Addr::LOCALHOST),
        IpAddr::from(Ipv6Addr::LOCALHOST),
    ] {
        let path = netns.to_owned();
        let family = match ip {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        // A socket stays in the namespace that it was made in.
        let made = task::spawn_blocking(move || netns::in_netns(&path, || tcp_socket(family)));
        let socket = made.await.map_err(io::Error::other)?;
        let socket = socket.map_err(io::Error::other)??;
        let connected = net::connect_socket(socket, SocketAddr::new(ip, port));
        failures.push(match clock::timeout(CONNECT_TIMEOUT, connected).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        });
    }
    // As a rule programs listen at that of IPv4, and a sandbox may have no other.
    Err(failures.swap_remove(0))
}

fn tcp_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(
        family,
        SocketType::STREAM,
        flags,
        Some(ipproto::TCP),
    )?)
}
