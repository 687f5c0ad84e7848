//! Messages with descriptors, over a pair of sockets.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::spec::REQUEST_FDS;

/// The longest message. Requests are files, and come as descriptors.
const MAX_MESSAGE: usize = 64 << 10;

/// One end of a connection whose messages stay whole, and may have descriptors.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Two connected ends, which no executed program inherits.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn pair() -> io::Result<(Self, Self)> {
        let kind = SocketType::SEQPACKET;
        let (a, b) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        Ok((Self(a), Self(b)))
    }

    /// Sends a message with at most five descriptors.
    ///
    /// # Errors
    ///
    /// The operating system's: [`io::ErrorKind::BrokenPipe`] if the other end is closed.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REQUEST_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let text = [IoSlice::new(&text)];
        rustix::io::retry_on_intr(|| sendmsg(&self.0, &text, &mut control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Waits for the next message; `None` once the other end is closed.
    ///
    /// # Errors
    ///
    /// The operating system's, and [`io::ErrorKind::InvalidData`] for another message.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut text = vec![0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REQUEST_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            let mut into = [IoSliceMut::new(&mut text)];
            recvmsg(&self.0, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        let lost = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
        if received.flags.intersects(lost) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let message = serde_json::from_slice(&text[..received.bytes])?;
        Ok(Some((message, fds)))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}
