//! Connections and listening sockets.

use std::{
    io::{self, IoSlice},
    net::{SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    path::Path,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpSocket, TcpStream, ToSocketAddrs, UnixListener, UnixStream},
};

/// A connection.
#[derive(Debug)]
pub struct Stream(Connected);

#[derive(Debug)]
enum Connected {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "simulation")]
    Pipe(tokio::io::DuplexStream),
}

/// Connects over TCP, without Nagle's delay.
///
/// # Errors
///
/// The operating system's, of the last address that was tried.
pub async fn connect_tcp(address: impl ToSocketAddrs) -> io::Result<Stream> {
    #[cfg(feature = "simulation")]
    if crate::simulation::is_on() {
        let mut found = tokio::net::lookup_host(address).await?;
        let address = found.next().ok_or(io::ErrorKind::NotFound)?;
        let pipe = crate::simulation::connect(&address.to_string())?;
        return Ok(Stream(Connected::Pipe(pipe)));
    }
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(Stream(Connected::Tcp(stream)))
}

/// Connects a TCP socket that does not block, which may be of another network namespace, without
/// Nagle's delay.
///
/// # Errors
///
/// The operating system's.
pub async fn connect_socket(socket: OwnedFd, address: SocketAddr) -> io::Result<Stream> {
    let socket = TcpSocket::from_std_stream(socket.into());
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(Stream(Connected::Tcp(stream)))
}

/// Connects to a unix socket.
///
/// # Errors
///
/// The operating system's.
pub async fn connect_unix(path: impl AsRef<Path>) -> io::Result<Stream> {
    #[cfg(feature = "simulation")]
    if crate::simulation::is_on() {
        let pipe = crate::simulation::connect(&path.as_ref().to_string_lossy())?;
        return Ok(Stream(Connected::Pipe(pipe)));
    }
    let stream = UnixStream::connect(path).await?;
    Ok(Stream(Connected::Unix(stream)))
}

macro_rules! either {
    ($stream:expr, $name:ident => $call:expr) => {
        match &mut $stream.get_mut().0 {
            Connected::Tcp(stream) => {
                let $name = Pin::new(stream);
                $call
            }
            Connected::Unix(stream) => {
                let $name = Pin::new(stream);
                $call
            }
            #[cfg(feature = "simulation")]
            Connected::Pipe(stream) => {
                let $name = Pin::new(stream);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_write(context, buffer))
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_write_vectored(context, buffers))
    }

    #[inline]
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_shutdown(context))
    }
}

/// The other end of an accepted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteEnd {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A process on this machine, connected to a unix socket; `None` if the kernel does not say
    /// which.
    Unix(Option<PeerCredentials>),
    /// A task of the same simulation.
    Pipe,
}

/// The process that connected to a unix socket (`SO_PEERCRED`): as it was when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// The effective user id, as the user namespace of this process sees it.
    pub uid: u32,
    /// The process id; `None` if the process is in a pid namespace that cannot be seen from here.
    pub pid: Option<i32>,
}

impl PeerCredentials {
    fn of(stream: &UnixStream) -> Option<Self> {
        let credentials = stream.peer_cred().ok()?;
        Some(Self {
            uid: credentials.uid(),
            pid: credentials.pid().filter(|pid| *pid > 0),
        })
    }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub struct Listener(Socket);

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
    #[cfg(feature = "simulation")]
    Queue(Option<SocketAddr>, crate::simulation::Accepted),
}

/// Listens on a TCP address; port 0 is any free one.
///
/// # Errors
///
/// The operating system's, `AddrInUse` among them.
pub async fn listen_tcp(address: SocketAddr) -> io::Result<Listener> {
    #[cfg(feature = "simulation")]
    if crate::simulation::is_on() {
        let accepted = crate::simulation::listen(&address.to_string())?;
        return Ok(Listener(Socket::Queue(Some(address), accepted)));
    }
    let socket = TcpListener::bind(address).await?;
    Ok(Listener(Socket::Tcp(socket)))
}

/// Listens on a unix socket, for which there is no file yet.
///
/// # Errors
///
/// The operating system's, `AddrInUse` among them.
pub fn listen_unix(path: impl AsRef<Path>) -> io::Result<Listener> {
    #[cfg(feature = "simulation")]
    if crate::simulation::is_on() {
        let accepted = crate::simulation::listen(&path.as_ref().to_string_lossy())?;
        return Ok(Listener(Socket::Queue(None, accepted)));
    }
    let socket = UnixListener::bind(path)?;
    Ok(Listener(Socket::Unix(socket)))
}

impl Listener {
    /// The address of a TCP socket, with its actual port.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a unix socket.
    pub fn tcp_address(&self) -> io::Result<SocketAddr> {
        match &self.0 {
            Socket::Tcp(socket) => socket.local_addr(),
            Socket::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
            #[cfg(feature = "simulation")]
            Socket::Queue(address, _) => address.ok_or(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The next connection, over TCP without Nagle's delay, and its other end.
    ///
    /// # Errors
    ///
    /// The operating system's, after which the socket may be asked again.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(Stream, RemoteEnd)>> {
        match &self.0 {
            Socket::Tcp(socket) => socket.poll_accept(context).map(|accepted| {
                let (stream, address) = accepted?;
                // Only its delay is worse if that fails, and an error could end the server.
                _ = stream.set_nodelay(true);
                Ok((Stream(Connected::Tcp(stream)), RemoteEnd::Tcp(address)))
            }),
            Socket::Unix(socket) => socket.poll_accept(context).map_ok(|(stream, _)| {
                let remote = RemoteEnd::Unix(PeerCredentials::of(&stream));
                (Stream(Connected::Unix(stream)), remote)
            }),
            #[cfg(feature = "simulation")]
            Socket::Queue(_, accepted) => {
                let next = accepted.poll_next(context);
                next.map(|pipe| Ok((Stream(Connected::Pipe(pipe)), RemoteEnd::Pipe)))
            }
        }
    }
}

/// The addresses of `HOST:PORT`. Blocks while a name is looked up.
///
/// # Errors
///
/// The operating system's.
pub fn resolve(authority: &str) -> io::Result<impl Iterator<Item = SocketAddr>> {
    std::net::ToSocketAddrs::to_socket_addrs(authority)
}

/// A UDP socket that blocks.
///
/// # Errors
///
/// The operating system's.
pub fn bind_udp(address: SocketAddr) -> io::Result<UdpSocket> {
    UdpSocket::bind(address)
}
