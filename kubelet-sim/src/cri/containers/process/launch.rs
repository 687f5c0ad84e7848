//! Starts a helper, which starts a program ([`podplane_container_init`]).

use std::{
    fs::File,
    io::{self, Seek as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use podplane_container_init::{Channel, LaunchEvent, LaunchRequest, NAME};
use podplane_host::process;
use rustix::{
    fs::{MemfdFlags, memfd_create},
    net::sockopt::{Timeout, set_socket_timeout},
};
use tokio::process::{Child, Command};

/// The longest time for a helper to say anything. It mounts file systems, and no more.
const PATIENCE: Duration = Duration::from_secs(30);

/// The reason why a program was not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchFailure {
    /// The helper could not be executed.
    #[error("failed to execute the helper {}", program.display())]
    Helper {
        /// The program.
        program: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The connection to the helper failed.
    #[error("failed to reach the helper")]
    Connection(#[from] io::Error),
    /// The helper ended without a word.
    #[error("the helper ended before the program was started")]
    Ended,
    /// The program was not started.
    #[error("{0}")]
    Refused(String),
}

/// The program's ends of its standard streams.
#[derive(Debug)]
pub struct ProgramStreams {
    /// Its input.
    pub stdin: OwnedFd,
    /// Its output.
    pub stdout: OwnedFd,
    /// Its errors.
    pub stderr: OwnedFd,
}

/// A program that is executed. It is killed if this is dropped: the helper does that, and waits for
/// it, when the control socket is closed.
#[derive(Debug)]
pub struct Launched {
    /// Its id on this machine.
    pub pid: i32,
    /// The program.
    pub pidfd: OwnedFd,
    /// The controlling end of its terminal, if it has one.
    pub terminal: Option<OwnedFd>,
    /// The helper, whose exit code is the program's.
    pub helper: Child,
    /// The program is killed when this is closed.
    pub control: Channel,
}

/// Starts a program by a request, in the `place` that it needs: see [`LaunchRequest`]. Blocks until
/// the program is executed. The calling thread must be one of a runtime.
///
/// # Errors
///
/// [`LaunchFailure`].
pub fn launch(
    init: &Path,
    request: &LaunchRequest,
    streams: &ProgramStreams,
    place: &OwnedFd,
) -> Result<Launched, LaunchFailure> {
    let (control, of_helper) = Channel::pair()?;
    let mut command = std::process::Command::new(init);
    command
        .arg0(NAME)
        .env_clear()
        .stdin(OwnedFd::from(of_helper))
        .stdout(Stdio::null());
    let mut command = Command::from(command);
    let spawned = process::spawn_async(&mut command);
    let helper = spawned.map_err(|source| LaunchFailure::Helper {
        program: init.to_owned(),
        source,
    })?;
    // It has the helper's end of the socket, whose end has to be noticed.
    drop(command);
    set_socket_timeout(&control, Timeout::Recv, Some(PATIENCE)).map_err(io::Error::from)?;
    let file = request_file(request)?;
    let fds = [
        file.as_fd(),
        streams.stdin.as_fd(),
        streams.stdout.as_fd(),
        streams.stderr.as_fd(),
        place.as_fd(),
    ];
    control.send(&(), &fds)?;
    let (mut process, mut terminal) = (None, None);
    loop {
        let (event, fds) = control.receive()?.ok_or(LaunchFailure::Ended)?;
        let fd = fds.into_iter().next();
        match event {
            LaunchEvent::Forked { pid } => process = fd.map(|pidfd| (pid, pidfd)),
            LaunchEvent::Terminal => terminal = fd,
            LaunchEvent::Failed { reason } => return Err(LaunchFailure::Refused(reason)),
            LaunchEvent::Started => {
                let (pid, pidfd) = process.ok_or(LaunchFailure::Ended)?;
                return Ok(Launched {
                    pid,
                    pidfd,
                    terminal,
                    helper,
                    control,
                });
            }
        }
    }
}

/// The request as a file in memory: it has no limit, and no name that others could open.
fn request_file(request: &LaunchRequest) -> io::Result<File> {
    let mut file = File::from(memfd_create("request", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(request)?)?;
    file.rewind()?;
    Ok(file)
}
