//! Asking an address whether it answers, and whether it is who we think.

use std::{
    io::{self, ErrorKind, Read as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use etherparse::{
    IcmpEchoHeader, Icmpv4Header, Icmpv4Slice, Icmpv4Type, Icmpv6Header, Icmpv6Slice, Icmpv6Type,
    Ipv4HeaderSlice,
};
use podplane_cni::netns;
use socket2::{Domain, Protocol, Socket, Type};

/// Bytes of data in a request, as ping(8) sends.
const PAYLOAD: [u8; 56] = [0x50; 56];
/// Larger than any answer to such a request.
const ANSWER: usize = 1500;
/// A datagram may be lost once; a second one is not by chance.
const PROOFS: usize = 3;

/// An answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) bytes: usize,
    /// IPv4 on a raw socket only: elsewhere the kernel does not show it.
    pub(crate) ttl: Option<u8>,
    pub(crate) time: Duration,
}

/// A socket for echo requests to one address. It stays in the network namespace that it was made in.
#[derive(Debug)]
pub(crate) struct Echo {
    socket: Socket,
    target: IpAddr,
    /// Absent where the kernel puts its own into requests, and keeps answers to others' away.
    id: Option<u16>,
}

impl Echo {
    /// A socket inside the namespace `netns`.
    pub(crate) fn open(netns: &Path, target: IpAddr) -> anyhow::Result<Self> {
        let (domain, protocol) = match target {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let open = || -> io::Result<(Socket, Option<u16>)> {
            let (socket, id) = match Socket::new(domain, Type::RAW, Some(protocol)) {
                Ok(socket) => (socket, Some(rand::random())),
                // As in a container without CAP_NET_RAW.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    (Socket::new(domain, Type::DGRAM, Some(protocol))?, None)
                }
                Err(error) => return Err(error),
            };
            // The kernel then passes on only what comes from there.
            socket.connect(&SocketAddr::new(target, 0).into())?;
            Ok((socket, id))
        };
        let (socket, id) = netns::in_netns(netns, open)?
            .with_context(|| format!("open a socket for echo requests to {target}"))?;
        Ok(Self { socket, target, id })
    }

    /// Sends a request and waits for its answer; absent if there is none in time.
    pub(crate) fn request(&self, seq: u16, timeout: Duration) -> io::Result<Option<Reply>> {
        let started = Instant::now();
        self.socket.send(&self.packet(seq))?;
        let mut buffer = [0; ANSWER];
        loop {
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left))?;
            let length = match (&self.socket).read(&mut buffer) {
                Ok(length) => length,
                Err(error) if is_timeout(&error) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if let Some((echo, ttl, bytes)) = self.parse(&buffer[..length])
                && echo.seq == seq
                && self.id.is_none_or(|id| echo.id == id)
            {
                let time = started.elapsed();
                return Ok(Some(Reply { bytes, ttl, time }));
            }
        }
    }

    fn packet(&self, seq: u16) -> Vec<u8> {
        let id = self.id.unwrap_or_default();
        let echo = IcmpEchoHeader { id, seq };
        let mut packet = match self.target {
            IpAddr::V4(_) => Icmpv4Header::with_checksum(Icmpv4Type::EchoRequest(echo), &PAYLOAD)
                .to_bytes()
                .to_vec(),
            // The kernel computes the checksum, which needs the source address.
            IpAddr::V6(_) => Icmpv6Header::new(Icmpv6Type::EchoRequest(echo))
                .to_bytes()
                .to_vec(),
        };
        packet.extend(PAYLOAD);
        packet
    }

    /// What a packet answers, its TTL, and the length of its ICMP message.
    fn parse(&self, packet: &[u8]) -> Option<(IcmpEchoHeader, Option<u8>, usize)> {
        match self.target {
            IpAddr::V4(_) => {
                // A raw socket shows the header of the packet too.
                let (message, ttl) = match self.id {
                    None => (packet, None),
                    Some(_) => {
                        let header = Ipv4HeaderSlice::from_slice(packet).ok()?;
                        (packet.get(header.slice().len()..)?, Some(header.ttl()))
                    }
                };
                match Icmpv4Slice::from_slice(message).ok()?.icmp_type() {
                    Icmpv4Type::EchoReply(echo) => Some((echo, ttl, message.len())),
                    _ => None,
                }
            }
            IpAddr::V6(_) => match Icmpv6Slice::from_slice(packet).ok()?.icmp_type() {
                Icmpv6Type::EchoReply(echo) => Some((echo, None, packet.len())),
                _ => None,
            },
        }
    }
}

/// Whether it is the namespace `target` that answers when `source` sends to `address`: a responder is bound to the address inside
/// `target`, and only it knows the answer to be given. An address that two pods have can well answer a ping from the wrong one.
///
/// # Errors
///
/// If `target` does not have the address, or a socket fails. Anything else than the right answer is `Ok(false)`.
pub(crate) fn is_answered_by(
    source: &Path,
    target: &Path,
    address: IpAddr,
    timeout: Duration,
) -> anyhow::Result<bool> {
    let (question, answer): ([u8; 16], [u8; 16]) = (rand::random(), rand::random());
    let bind = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((address, 0))?;
        socket.set_read_timeout(Some(timeout))?;
        Ok(socket)
    };
    let responder = netns::in_netns(target, bind)?
        .with_context(|| format!("{address} is not an address of the target pod"))?;
    let port = responder
        .local_addr()
        .context("find the responder's port")?
        .port();
    let connect = || -> io::Result<UdpSocket> {
        let any: IpAddr = if address.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, port))?;
        socket.set_read_timeout(Some(timeout))?;
        Ok(socket)
    };
    let prober =
        netns::in_netns(source, connect)?.with_context(|| format!("open a socket to {address}"))?;
    let mut buffer = [0; ANSWER];
    for _ in 0..PROOFS {
        // Refused is an answer too, by somebody without our responder; it is reported by whichever call comes next.
        if prober.send(&question).is_err() {
            continue;
        }
        let Some((length, from)) = in_time(responder.recv_from(&mut buffer))? else {
            continue;
        };
        if buffer[..length] != question {
            continue;
        }
        responder
            .send_to(&answer, from)
            .context("answer from the target pod")?;
        if let Some(length) = in_time(prober.recv(&mut buffer))?
            && buffer[..length] == answer
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What was received; absent if that was nothing, or a refusal.
fn in_time<T>(received: io::Result<T>) -> io::Result<Option<T>> {
    match received {
        Ok(received) => Ok(Some(received)),
        Err(error) if is_timeout(&error) || error.kind() == ErrorKind::ConnectionRefused => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What a socket's read timeout gives, by system.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
