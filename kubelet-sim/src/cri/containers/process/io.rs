//! The standard streams of programs, on the side of this server.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use podplane_host::fs;
use tokio::net::unix::pipe;

use super::launch::{Launched, ProgramStreams};

/// The streams that a program is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamChoice {
    /// An open standard input, and not an empty one.
    pub stdin: bool,
    /// A terminal as its streams.
    pub terminal: bool,
}

/// The other ends of a program's streams.
#[derive(Debug)]
pub struct OwnStreams {
    stdin: Option<OwnedFd>,
    /// Standard output.
    stdout: Option<OwnedFd>,
    /// Standard error.
    stderr: Option<OwnedFd>,
}

/// Makes the streams of a program.
///
/// # Errors
///
/// The operating system's.
pub fn streams(choice: StreamChoice) -> io::Result<(ProgramStreams, OwnStreams)> {
    let null = || -> io::Result<OwnedFd> {
        let mut options = fs::OpenOptions::new();
        Ok(fs::open_with(options.read(true).write(true), "/dev/null")?.into())
    };
    let none = OwnStreams {
        stdin: None,
        stdout: None,
        stderr: None,
    };
    if choice.terminal {
        let program = ProgramStreams {
            stdin: null()?,
            stdout: null()?,
            stderr: null()?,
        };
        return Ok((program, none));
    }
    let (stdout, of_stdout) = io::pipe()?;
    let (stderr, of_stderr) = io::pipe()?;
    let (of_stdin, stdin) = match choice.stdin {
        true => {
            let (of_program, own) = io::pipe()?;
            (of_program.into(), Some(own.into()))
        }
        false => (null()?, None),
    };
    let program = ProgramStreams {
        stdin: of_stdin,
        stdout: of_stdout.into(),
        stderr: of_stderr.into(),
    };
    let own = OwnStreams {
        stdin,
        stdout: Some(stdout.into()),
        stderr: Some(stderr.into()),
    };
    Ok((program, own))
}

impl OwnStreams {
    /// Takes the terminal of a program that has one: it is its input, output and errors.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn with_terminal(mut self, launched: &Launched, choice: StreamChoice) -> io::Result<Self> {
        if let Some(terminal) = &launched.terminal {
            self.stdout = Some(terminal.as_fd().try_clone_to_owned()?);
            if choice.stdin {
                self.stdin = Some(terminal.as_fd().try_clone_to_owned()?);
            }
        }
        Ok(self)
    }

    /// Standard input, for asynchronous writing; `None` if the program has none.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn take_input(&mut self) -> io::Result<Option<pipe::Sender>> {
        self.stdin.take().map(sender).transpose()
    }

    /// Standard output and standard error, for asynchronous reading.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn take_readers(&mut self) -> io::Result<[Option<pipe::Receiver>; 2]> {
        let stdout = self.stdout.take().map(receiver).transpose()?;
        Ok([stdout, self.stderr.take().map(receiver).transpose()?])
    }
}

// Unchecked: a terminal is not a pipe, but is read, written and polled like one.
fn sender(fd: OwnedFd) -> io::Result<pipe::Sender> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    pipe::Sender::from_owned_fd_unchecked(fd)
}

fn receiver(fd: OwnedFd) -> io::Result<pipe::Receiver> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    pipe::Receiver::from_owned_fd_unchecked(fd)
}

/// Returns true for the error with which a terminal ends: nobody has its other end open.
pub fn is_end_of_terminal(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}
