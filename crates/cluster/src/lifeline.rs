//! Ties a cluster's life to standard input: the cluster ends when the last writer of the pipe is
//! gone, however it ended.

use std::{io, os::fd::AsFd as _};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::{io::AsyncReadExt as _, net::unix::pipe};

/// Opens standard input, which must be a pipe.
pub(crate) fn open() -> anyhow::Result<pipe::Receiver> {
    let input = io::stdin().as_fd().try_clone_to_owned();
    input
        .and_then(pipe::Receiver::from_owned_fd)
        .context("failed to use standard input for --until-eof")
}

/// Waits until the pipe has no writer any more. Never completes without a pipe.
pub(crate) async fn cut(lifeline: Option<pipe::Receiver>) {
    let Some(mut lifeline) = lifeline else {
        return std::future::pending().await;
    };
    // The content is ignored.
    let mut buffer = [0; 64];
    while lifeline.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

/// Returns true if standard input has no writer now.
pub(crate) fn is_cut() -> bool {
    let input = io::stdin();
    let mut polled = [PollFd::new(&input, PollFlags::empty())];
    let looked = poll(&mut polled, Some(&Timespec::default()));
    looked.is_ok() && polled[0].revents().contains(PollFlags::HUP)
}
