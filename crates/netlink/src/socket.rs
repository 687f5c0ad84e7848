//! The netlink socket: requests, acknowledgements, dumps, errors.

use std::{
    fmt, io,
    marker::PhantomData,
    os::fd::{AsFd, BorrowedFd},
};

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};
use rustix::{io::Errno, net::sockopt};

use crate::{limit::KernelLimit, netns::NetnsError};

/// Flags of a request that changes something.
pub(super) const CHANGE: u16 = NLM_F_REQUEST | NLM_F_ACK;

/// A failed attempt, with the kernel's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The kernel refused a request.
    #[error("failed to {attempt}")]
    Refused {
        /// The attempt, such as `create bridge cni0`.
        attempt: String,
        /// The kernel's errno.
        source: io::Error,
    },
    /// The socket failed, or the kernel's answer could not be understood.
    #[error("netlink socket failed to {attempt}")]
    Socket {
        /// The attempt.
        attempt: String,
        /// The cause.
        source: io::Error,
    },
    /// The namespace could not be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
}

impl NetlinkError {
    fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }

    /// Returns true if the object exists already (`EEXIST`).
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// Returns true if the object does not exist (`ENODEV`, `ENOENT`, `ESRCH`, `EADDRNOTAVAIL`).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        let gone = [Errno::NODEV, Errno::NOENT, Errno::SRCH, Errno::ADDRNOTAVAIL];
        self.errno().is_some_and(|errno| gone.contains(&errno))
    }

    /// Returns true if the object is in use and cannot be deleted (`EBUSY`).
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.errno() == Some(Errno::BUSY)
    }

    /// Returns true if the kernel lacks the feature (`EOPNOTSUPP`).
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.errno() == Some(Errno::OPNOTSUPP)
    }

    /// Returns true if the kernel lacks the kind of link (`EOPNOTSUPP`), queueing discipline,
    /// filter or action (`ENOENT`).
    #[must_use]
    pub fn is_unknown_kind(&self) -> bool {
        matches!(self.errno(), Some(Errno::OPNOTSUPP | Errno::NOENT))
    }

    /// Returns true if the kernel lacks this part of netlink: nftables is not built in, and its
    /// module is missing.
    #[must_use]
    pub fn is_unknown_family(&self) -> bool {
        match self {
            Self::Socket { source, .. } => {
                Errno::from_io_error(source) == Some(Errno::PROTONOSUPPORT)
            }
            _ => self.errno() == Some(Errno::INVAL),
        }
    }
}

/// A message of one of netlink's families.
pub(super) trait Message: NetlinkSerializable + NetlinkDeserializable + Clone {}

impl<M: NetlinkSerializable + NetlinkDeserializable + Clone> Message for M {}

/// A message to send.
#[derive(Debug, Clone)]
pub(super) struct OutgoingMessage<M> {
    /// The attempt, for the error.
    pub(super) attempt: String,
    /// The limited resource of which the request takes one more.
    pub(super) limited: KernelLimit,
    pub(super) message: M,
    /// The header's flags; an answer is awaited if [`NLM_F_ACK`] is set.
    pub(super) flags: u16,
}

/// A socket of one of netlink's families. It stays in the network namespace it was opened in,
/// whichever thread uses it.
pub(super) struct Connection<M> {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
    family: PhantomData<M>,
}

impl<M> fmt::Debug for Connection<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl<M: Message> Connection<M> {
    /// The largest datagram. The kernel puts at most 32 KiB of messages into a dump's, and no
    /// single message is longer than this.
    const DATAGRAM: usize = 64 << 10;

    /// Opens a socket in the calling thread's namespace.
    pub(super) fn open(protocol: isize) -> Result<Self, NetlinkError> {
        let open = || {
            let socket = Socket::new(protocol)?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // Lets the kernel filter dumps. It is optional: all dumps are also filtered here.
            _ = socket.set_netlink_get_strict_chk(true);
            Ok(socket)
        };
        let socket = open().map_err(|source| NetlinkError::Socket {
            attempt: "open".to_owned(),
            source,
        })?;
        Ok(Self {
            socket,
            sequence: 0,
            buffer: Vec::new(),
            family: PhantomData,
        })
    }

    /// Sends messages in one datagram and waits for the answers to those that ask for one.
    ///
    /// # Errors
    /// The first message that failed.
    pub(super) fn transact(&mut self, batch: Vec<OutgoingMessage<M>>) -> Result<(), NetlinkError> {
        let mut buffer = Vec::new();
        let mut attempts = Vec::with_capacity(batch.len());
        let first = self.sequence.wrapping_add(1);
        let mut awaited = 0_usize;
        for OutgoingMessage {
            attempt,
            limited,
            message,
            flags,
        } in batch
        {
            self.append(&mut buffer, message, flags);
            let is_awaited = flags & NLM_F_ACK != 0;
            awaited += usize::from(is_awaited);
            attempts.push((attempt, limited, is_awaited));
        }
        let failed = |source| {
            const SHOWN: usize = 10;
            let first = attempts.iter().take(SHOWN).map(|(attempt, ..)| &**attempt);
            let mut attempt = first.collect::<Vec<_>>().join(", ");
            if let Some(more) = attempts.len().checked_sub(SHOWN + 1) {
                attempt = format!("{attempt}, and {} more", more + 1);
            }
            NetlinkError::Socket { attempt, source }
        };
        self.make_room(buffer.len());
        self.socket.send(&buffer, 0).map_err(failed)?;
        let mut outcome = Ok(());
        while awaited > 0 {
            for answer in self.receive().map_err(failed)? {
                let index = usize::try_from(answer.header.sequence_number.wrapping_sub(first)).ok();
                let attempt = index.and_then(|index| attempts.get(index));
                let (Some((attempt, limited, is_awaited)), NetlinkPayload::Error(error)) =
                    (attempt, answer.payload)
                else {
                    continue; // Not an acknowledgement of this batch.
                };
                // In a transaction, a failure of the first message, which opens the batch, fails
                // the whole.
                let is_last = !is_awaited && index == Some(0);
                awaited = if is_last {
                    0
                } else {
                    awaited.saturating_sub(usize::from(*is_awaited))
                };
                if error.code.is_some() && outcome.is_ok() {
                    outcome = Err(NetlinkError::Refused {
                        attempt: attempt.clone(),
                        source: limited.explain(error.to_io()),
                    });
                }
            }
        }
        outcome
    }

    /// Encodes a message. Returns its sequence number and its bytes.
    pub(super) fn encode(&mut self, outgoing: OutgoingMessage<M>) -> (u32, Vec<u8>) {
        let mut buffer = Vec::new();
        self.append(&mut buffer, outgoing.message, outgoing.flags);
        (self.sequence, buffer)
    }

    /// Sends a message from [`encode`](Self::encode).
    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        self.socket.send(message, 0).map(drop)
    }

    /// Subscribes to the kernel's announcements of links that come, change and go.
    pub(super) fn watch_links(&mut self) -> io::Result<()> {
        const RTNLGRP_LINK: u32 = 1;
        self.socket.add_membership(RTNLGRP_LINK)
    }

    /// Enlarges the send buffer for a datagram of this length. Failures show when the datagram is
    /// sent.
    fn make_room(&self, length: usize) {
        /// A length that the default buffer accepts (`net.core.wmem_default`).
        const ALWAYS: usize = 100 << 10;
        if length > ALWAYS
            && sockopt::set_socket_send_buffer_size_force(&self.socket, length).is_err()
        {
            _ = sockopt::set_socket_send_buffer_size(&self.socket, length);
        }
    }

    /// Asks for one object.
    pub(super) fn get(&mut self, attempt: &str, message: M) -> Result<M, NetlinkError> {
        let mut found = self.query(attempt, message, NLM_F_REQUEST)?;
        found.pop().ok_or_else(|| NetlinkError::Socket {
            attempt: attempt.to_owned(),
            source: io::ErrorKind::UnexpectedEof.into(),
        })
    }

    /// Asks for all objects of a kind. Repeats a dump that a change interrupted.
    pub(super) fn dump(&mut self, attempt: &str, message: &M) -> Result<Vec<M>, NetlinkError> {
        loop {
            match self.query(attempt, message.clone(), NLM_F_REQUEST | NLM_F_DUMP) {
                Err(NetlinkError::Socket { source, .. })
                    if source.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn query(&mut self, attempt: &str, message: M, flags: u16) -> Result<Vec<M>, NetlinkError> {
        let failed = |source| NetlinkError::Socket {
            attempt: attempt.to_owned(),
            source,
        };
        let mut buffer = Vec::new();
        self.append(&mut buffer, message, flags);
        let sequence = self.sequence;
        self.socket.send(&buffer, 0).map_err(failed)?;
        let mut found = Vec::new();
        let mut consistent = true;
        let ended = 'answers: loop {
            for answer in self.receive().map_err(failed)? {
                if answer.header.sequence_number != sequence {
                    continue; // The rest of an earlier dump that failed.
                }
                consistent &= answer.header.flags & NLM_F_DUMP_INTR == 0;
                match answer.payload {
                    NetlinkPayload::InnerMessage(object) => {
                        found.push(object);
                        if flags & NLM_F_DUMP != NLM_F_DUMP {
                            break 'answers Ok(());
                        }
                    }
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        let attempt = attempt.to_owned();
                        break 'answers Err(NetlinkError::Refused {
                            attempt,
                            source: error.to_io(),
                        });
                    }
                    NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => break 'answers Ok(()),
                    _ => {}
                }
            }
        };
        ended?;
        if consistent {
            Ok(found)
        } else {
            Err(failed(io::ErrorKind::Interrupted.into()))
        }
    }

    fn append(&mut self, buffer: &mut Vec<u8>, message: M, flags: u16) {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::new(
            NetlinkHeader::default(),
            NetlinkPayload::InnerMessage(message),
        );
        message.header.flags = flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let start = buffer.len();
        // Messages in one buffer begin at multiples of four.
        buffer.resize(start + message.buffer_len().next_multiple_of(4), 0);
        message.serialize(&mut buffer[start..]);
    }

    /// Receives the messages of one datagram.
    fn receive(&mut self) -> io::Result<Vec<NetlinkMessage<M>>> {
        self.read(0)
    }

    /// Receives the messages of one datagram, or `WouldBlock` if there is none.
    pub(super) fn receive_now(&mut self) -> io::Result<Vec<NetlinkMessage<M>>> {
        let flags = rustix::net::RecvFlags::DONTWAIT.bits();
        self.read(i32::try_from(flags).unwrap_or_default())
    }

    fn read(&mut self, flags: i32) -> io::Result<Vec<NetlinkMessage<M>>> {
        let invalid = |error: DecodeError| io::Error::new(io::ErrorKind::InvalidData, error);
        self.buffer.clear();
        self.buffer.reserve(Self::DATAGRAM);
        loop {
            match self.socket.recv(&mut self.buffer, flags) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(_) => break,
            }
        }
        let mut messages = Vec::new();
        let mut rest = self.buffer.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::deserialize(rest).map_err(invalid)?;
            let length = usize::try_from(message.header.length)
                .unwrap_or(usize::MAX)
                .next_multiple_of(4);
            messages.push(message);
            rest = rest.get(length..).unwrap_or_default();
        }
        Ok(messages)
    }
}

impl<M> AsFd for Connection<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
