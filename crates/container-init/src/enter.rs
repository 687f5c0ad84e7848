//! The steps of the first process of a container, and of each that enters one, until it executes
//! its program.

use std::{
    env, fs, io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    path::Path,
    process::Command,
};

use rustix::{
    fs::{FileType, Mode, Uid, fchown, fstat},
    process::{Signal, ioctl_tiocsctty, set_parent_process_death_signal, setsid, umask},
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
    thread::{
        LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags, move_into_link_name_space,
        move_into_thread_name_spaces,
    },
};

use crate::{
    Channel, ContainerSpec, LaunchError, LaunchEvent, LaunchRequest, ProcessSpec, error::Step as _,
    mounts, rights, seccomp, sys,
};

/// The standard streams of a program without a terminal.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// Raises the score by which the kernel kills when memory is short, of this process and of those
/// that it starts. It is never lowered, nor below 0.
pub(crate) fn adjust_oom_score(adjustment: i32) -> Result<(), LaunchError> {
    const FILE: &str = "/proc/self/oom_score_adj";
    let own = fs::read_to_string(FILE).step(|| "read oom_score_adj".into())?;
    let adjustment = adjustment.max(own.trim().parse().unwrap_or(0)).max(0);
    let written = fs::write(FILE, adjustment.to_string());
    match written {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        written => written.step(|| format!("set oom_score_adj to {adjustment}")),
    }
}

/// Becomes the program of a request. Returns only if that fails.
pub(crate) fn become_program(
    request: &LaunchRequest,
    streams: &Streams,
    place: &OwnedFd,
    report: &Channel,
) -> LaunchError {
    let prepared = || {
        let (LaunchRequest::Create(_, process) | LaunchRequest::Enter(process)) = request;
        rights::check(process)?;
        // A session, and a process group, of its own.
        setsid().step(|| "begin a session".into())?;
        umask(Mode::WGRP | Mode::WOTH);
        match request {
            LaunchRequest::Create(container, _) => create(container, process, place)?,
            LaunchRequest::Enter(_) => {
                let kinds = ThreadNameSpaceType::MOUNT
                    | ThreadNameSpaceType::NETWORK
                    | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
                    | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
                    | ThreadNameSpaceType::CONTROL_GROUP;
                move_into_thread_name_spaces(place.as_fd(), kinds)
                    .step(|| "enter the container's namespaces".into())?;
            }
        }
        match process.terminal {
            true => open_terminal(process, report).step(|| "make a terminal".into())?,
            false => take_streams(streams, process).step(|| "set the standard streams".into())?,
        }
        enter_working_directory(&process.cwd)?;
        sys::close_on_exec().step(|| "mark descriptors".into())?;
        rights::give_up(process)?;
        // Cleared by a change of the user, so it comes after that.
        set_parent_process_death_signal(Some(Signal::KILL))
            .step(|| "bind the program's life to the helper's".into())?;
        seccomp::restrict()?;
        Ok(process)
    };
    let process = match prepared() {
        Ok(process) => process,
        Err(error) => return error,
    };
    let Some((program, rest)) = process.args.split_first() else {
        return LaunchError {
            step: "execute the program: it has no name".into(),
            source: io::ErrorKind::InvalidInput.into(),
        };
    };
    let mut command = Command::new(program);
    command
        .args(rest)
        .env_clear()
        .envs(process.env.iter().cloned());
    LaunchError {
        step: format!("execute {program:?}"),
        source: command.exec(),
    }
}

/// Enters the namespaces of a new container, and builds its file tree.
fn create(
    container: &ContainerSpec,
    process: &ProcessSpec,
    network: &OwnedFd,
) -> Result<(), LaunchError> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .step(|| "enter the sandbox's network namespace".into())?;
    let kinds =
        UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC | UnshareFlags::NEWCGROUP;
    sys::unshare(kinds).step(|| "make namespaces".into())?;
    if !container.hostname.is_empty() {
        rustix::system::sethostname(container.hostname.as_bytes())
            .step(|| format!("set the host name {:?}", container.hostname))?;
    }
    mounts::build(container, &process.cwd)
}

/// Changes to the working directory, and checks that it is one of the container: a descriptor of a
/// directory of the machine would be a way out through `/proc/self/fd`.
fn enter_working_directory(cwd: &Path) -> Result<(), LaunchError> {
    let step = || format!("enter the working directory {}", cwd.display());
    env::set_current_dir(cwd).step(step)?;
    match env::current_dir().step(step)?.is_absolute() {
        true => Ok(()),
        false => Err(io::Error::from(io::ErrorKind::PermissionDenied)).step(step),
    }
}

/// Makes a terminal of the container the standard streams, and reports its controlling end.
fn open_terminal(process: &ProcessSpec, report: &Channel) -> io::Result<()> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let controlling = openpt(flags)?;
    unlockpt(&controlling)?;
    let terminal = ioctl_tiocgptpeer(&controlling, flags)?;
    fchown(&terminal, Some(Uid::from_raw(process.uid)), None)?;
    ioctl_tiocsctty(&terminal)?;
    dup2_stdin(&terminal)?;
    dup2_stdout(&terminal)?;
    dup2_stderr(&terminal)?;
    report.send(&LaunchEvent::Terminal, &[controlling.as_fd()])
}

fn take_streams(streams: &Streams, process: &ProcessSpec) -> io::Result<()> {
    for stream in [&streams.stdin, &streams.stdout, &streams.stderr] {
        // So that the program can open `/dev/stdout` by its name.
        if FileType::from_raw_mode(fstat(stream)?.st_mode) == FileType::Fifo {
            fchown(stream, Some(Uid::from_raw(process.uid)), None)?;
        }
    }
    dup2_stdin(&streams.stdin)?;
    dup2_stdout(&streams.stdout)?;
    Ok(dup2_stderr(&streams.stderr)?)
}
