//! Sends echo requests to an address, and verifies who answers.

use std::{
    io::{self, ErrorKind, Read as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::Path,
    time::Duration,
};

use anyhow::Context as _;
use etherparse::{
    IcmpEchoHeader, Icmpv4Header, Icmpv4Slice, Icmpv4Type, Icmpv6Header, Icmpv6Slice, Icmpv6Type,
    Ipv4HeaderSlice,
};
use podplane_host::{clock::Instant, net, random};
use podplane_netlink::netns;
use socket2::{Domain, Protocol, Socket, Type};

/// The data of a request, of the same size as ping(8) sends.
const PAYLOAD: [u8; 56] = [0x50; 56];
/// The size of the read buffer, larger than any answer.
const ANSWER: usize = 1500;
/// The number of attempts: a datagram may be lost, but not each time.
const PROOFS: usize = 3;

/// An answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoReply {
    pub bytes: usize,
    /// The TTL, for IPv4 on a raw socket only: elsewhere the kernel does not show it.
    pub ttl: Option<u8>,
    pub time: Duration,
}

/// A socket for echo requests to one address. It stays in the network namespace in which it was
/// made.
#[derive(Debug)]
pub struct Echo {
    socket: Socket,
    target: IpAddr,
    /// The identifier of requests; `None` if the kernel sets its own, and filters the answers to
    /// others.
    id: Option<u16>,
}

impl Echo {
    /// Opens a socket inside the namespace `netns`.
    pub fn open(netns: &Path, target: IpAddr) -> anyhow::Result<Self> {
        let (domain, protocol) = match target {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let open = || -> io::Result<(Socket, Option<u16>)> {
            let (socket, id) = match Socket::new(domain, Type::RAW, Some(protocol)) {
                Ok(socket) => (socket, Some(random::value())),
                // As in a container without CAP_NET_RAW.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    (Socket::new(domain, Type::DGRAM, Some(protocol))?, None)
                }
                Err(error) => return Err(error),
            };
            // The kernel then only passes packets from that address.
            socket.connect(&SocketAddr::new(target, 0).into())?;
            Ok((socket, id))
        };
        let (socket, id) = netns::in_netns(netns, open)?
            .with_context(|| format!("failed to open a socket for echo requests to {target}"))?;
        Ok(Self { socket, target, id })
    }

    /// Sends a request and waits for its answer; `None` if there is none in time.
    pub fn request(&self, seq: u16, timeout: Duration) -> io::Result<Option<EchoReply>> {
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
                return Ok(Some(EchoReply { bytes, ttl, time }));
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

    /// Parses a packet: the echo reply's header, the TTL, and the length of its ICMP message.
    fn parse(&self, packet: &[u8]) -> Option<(IcmpEchoHeader, Option<u8>, usize)> {
        match self.target {
            IpAddr::V4(_) => {
                // A raw socket also shows the header of the packet.
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

/// Checks that the namespace `target` answers when `source` sends to `address`.
///
/// A responder is bound to the address inside `target`, and only it knows the expected answer. With
/// an address that two pods have, the wrong one may well answer a ping.
///
/// # Errors
///
/// `target` does not have the address, or a socket fails. Any other outcome than the right answer
/// is `Ok(false)`.
pub fn is_answered_by(
    source: &Path,
    target: &Path,
    address: IpAddr,
    timeout: Duration,
) -> anyhow::Result<bool> {
    let (question, answer): ([u8; 16], [u8; 16]) = (random::value(), random::value());
    let bind = || -> io::Result<UdpSocket> {
        let socket = net::bind_udp((address, 0).into())?;
        socket.set_read_timeout(Some(timeout))?;
        Ok(socket)
    };
    let responder = netns::in_netns(target, bind)?
        .with_context(|| format!("{address} is not an address of the target pod"))?;
    let port = responder
        .local_addr()
        .context("failed to find the responder's port")?
        .port();
    let connect = || -> io::Result<UdpSocket> {
        let any: IpAddr = if address.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let socket = net::bind_udp((any, 0).into())?;
        socket.connect((address, port))?;
        socket.set_read_timeout(Some(timeout))?;
        Ok(socket)
    };
    let prober = netns::in_netns(source, connect)?
        .with_context(|| format!("failed to open a socket to {address}"))?;
    let mut buffer = [0; ANSWER];
    for _ in 0..PROOFS {
        // A refusal is an answer too, from a namespace without the responder; the next call reports
        // it.
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
            .context("failed to answer from the target pod")?;
        if let Some(length) = in_time(prober.recv(&mut buffer))?
            && buffer[..length] == answer
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The received value; `None` after a timeout or a refusal.
fn in_time<T>(received: io::Result<T>) -> io::Result<Option<T>> {
    match received {
        Ok(received) => Ok(Some(received)),
        Err(error) if is_timeout(&error) || error.kind() == ErrorKind::ConnectionRefused => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns true for the error of a socket's read timeout, which differs by system.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
