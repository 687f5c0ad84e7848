//! Standard input as what a cluster's life hangs on: it ends when nobody can write there any more, however they ended.

use std::{io, os::fd::AsFd as _};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::{io::AsyncReadExt as _, net::unix::pipe};

/// Standard input, which must be a pipe.
pub(super) fn open() -> anyhow::Result<pipe::Receiver> {
    let input = io::stdin().as_fd().try_clone_to_owned();
    input
        .and_then(pipe::Receiver::from_owned_fd)
        .context("use standard input for --until-eof")
}

/// Waits until the pipe has no writer any more; for ever if there is no pipe.
pub(super) async fn cut(lifeline: Option<pipe::Receiver>) {
    let Some(mut lifeline) = lifeline else {
        return std::future::pending().await;
    };
    // What is written to it means nothing.
    let mut buffer = [0; 64];
    while lifeline.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

/// Whether standard input has no writer now.
pub(super) fn is_cut() -> bool {
    let input = io::stdin();
    let mut polled = [PollFd::new(&input, PollFlags::empty())];
    let looked = poll(&mut polled, Some(&Timespec::default()));
    looked.is_ok() && polled[0].revents().contains(PollFlags::HUP)
}
