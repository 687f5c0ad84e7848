//! Deletion of a veth pair without waiting for the kernel to release its memory.
//!
//! `RTM_DELLINK` takes both ends out of their namespaces, and off their bridge, within a few
//! milliseconds. Then, holding no lock any more, the kernel waits for all CPUs to notice
//! (`rcu_barrier` in `netdev_run_todo`) before it frees the memory and answers: 10 to 25 ms in
//! which the links are invisible, and the caller is blocked. So a child process makes the request,
//! and the caller continues when the kernel has announced to both namespaces that the ends are
//! gone. The request cannot be interrupted once it is made, whatever happens to the child. If the
//! child dies before that, the caller makes the request itself.
//!
//! The child is left to process 1. If process 1 is not known to collect such children, the caller
//! waits instead.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd},
};

use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
};

use super::{Link, Netlink, NetlinkError, Request};
use crate::sys;

/// The names of programs that, as process 1, collect orphaned children.
const COLLECTORS: [&str; 11] = [
    "systemd",
    "init",
    "tini",
    "docker-init",
    "podman-init",
    "catatonit",
    "dumb-init",
    "s6-svscan",
    "runit",
    "openrc-init",
    "procd",
];

fn children_are_collected() -> bool {
    let name = fs::read_to_string("/proc/1/comm");
    name.is_ok_and(|name| COLLECTORS.contains(&name.trim_end()))
}

/// The news from a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkNews {
    /// Nothing of interest.
    Nothing,
    /// The link is gone.
    Gone,
    /// The kernel has answered the request.
    Answered,
}

impl Netlink {
    /// Deletes a link of the namespace of `inside`: a veth whose other end is in the namespace of
    /// this socket. Returns when neither end can be found any more. A link of another kind is
    /// deleted in the plain way.
    ///
    /// For a program of one thread: the request is made by a forked child.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn delete_pair(&mut self, inside: &mut Self, link: &Link) -> Result<(), NetlinkError> {
        let plainly = |inside: &mut Self| inside.execute([Request::delete_link(link.index)]);
        let peer = match link.peer {
            Some(index) if link.kind == "veth" => self.link_by_index(index)?,
            _ => None,
        };
        let is_other_end = |peer: &Link| peer.kind == "veth" && peer.peer == Some(link.index);
        let Some(peer) = peer.filter(|peer| is_other_end(peer) && children_are_collected()) else {
            return plainly(inside);
        };
        match self.start_and_watch(inside, link.index, peer.index) {
            // Only the means to do it without waiting failed.
            Err(NetlinkError::Socket { .. }) => match plainly(inside) {
                Err(error) if error.is_not_found() => Ok(()),
                other => other,
            },
            other => other,
        }
    }

    fn start_and_watch(
        &mut self,
        inside: &mut Self,
        index: u32,
        peer: u32,
    ) -> Result<(), NetlinkError> {
        let attempt = format!("delete link {index}");
        let failed = |source| NetlinkError::Socket {
            attempt: attempt.clone(),
            source,
        };
        self.0.watch_links().map_err(failed)?;
        inside.0.watch_links().map_err(failed)?;
        let (sequence, request) = inside.0.encode(Request::delete_link(index).0);
        let send = || _ = inside.0.send(&request);
        let child = sys::in_background(send).map_err(|error| failed(error.into()))?;
        let (mut here, mut there) = (false, false);
        while !(here && there) {
            let is_ended = wait(&[self.0.as_fd(), inside.0.as_fd()], child.as_fd());
            let is_ended = is_ended.map_err(failed)?;
            for (socket, index, gone) in [
                (&mut *self, peer, &mut here),
                (&mut *inside, index, &mut there),
            ] {
                loop {
                    let told = socket.read_told(index, sequence, &attempt)?;
                    match told {
                        Some(LinkNews::Answered) => return Ok(()),
                        Some(LinkNews::Gone) => *gone = true,
                        Some(LinkNews::Nothing) => {}
                        None => break,
                    }
                }
            }
            if is_ended && !(here && there) {
                // The child was killed before it could ask, or the answer was lost.
                return Err(failed(io::ErrorKind::BrokenPipe.into()));
            }
        }
        Ok(())
    }

    /// Reads the news of one datagram; `None` if there is none.
    fn read_told(
        &mut self,
        index: u32,
        sequence: u32,
        attempt: &str,
    ) -> Result<Option<LinkNews>, NetlinkError> {
        let messages = match self.0.receive_now() {
            Ok(messages) => messages,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            // Messages were lost in a burst; the end of the child suffices.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => {
                return Ok(Some(LinkNews::Nothing));
            }
            Err(source) => {
                let attempt = attempt.to_owned();
                return Err(NetlinkError::Socket { attempt, source });
            }
        };
        let mut told = LinkNews::Nothing;
        for message in messages {
            match message.payload {
                NetlinkPayload::Error(error) if message.header.sequence_number == sequence => {
                    if error.code.is_some() {
                        return Err(NetlinkError::Refused {
                            attempt: attempt.to_owned(),
                            source: error.to_io(),
                        });
                    }
                    told = LinkNews::Answered;
                }
                // A bridge first announces, in its own family, that the link is no longer its port.
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link))
                    if link.header.index == index
                        && link.header.interface_family == AddressFamily::Unspec
                        && told == LinkNews::Nothing =>
                {
                    told = LinkNews::Gone;
                }
                _ => {}
            }
        }
        Ok(Some(told))
    }
}

/// Waits until a socket is readable or the child ends. Returns true if the child has ended.
fn wait(sockets: &[BorrowedFd<'_>], child: BorrowedFd<'_>) -> io::Result<bool> {
    let all = sockets.iter().chain([&child]);
    let mut fds: Vec<_> = all
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    loop {
        match rustix::event::poll(&mut fds, None) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(fds.last().is_some_and(|fd| !fd.revents().is_empty())),
        }
    }
}
