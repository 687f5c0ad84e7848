//! The helper: forks the process of a container, and stays until it has ended.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    os::fd::{AsFd as _, OwnedFd},
    process::ExitCode,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{
        DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, kill_process_group, pidfd_open,
        pidfd_send_signal, set_dumpable_behavior, waitpid,
    },
    thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces},
};

use crate::{
    Channel, LaunchError, LaunchEvent, LaunchRequest, NOT_STARTED,
    enter::{self, Streams},
    error::Step as _,
    spec::REQUEST_FDS,
    sys,
};

/// The exit code of a process that a signal has ended is this and the signal's number.
const SIGNALED: i32 = 128;

/// Does the helper's work, from the request to the end of the program. The process must have one
/// thread, and a [`Channel`] as its standard input. Its exit code is the program's.
#[must_use]
pub fn run() -> ExitCode {
    let control = io::stdin().as_fd().try_clone_to_owned();
    let Ok(control) = control.map(Channel::from) else {
        return ExitCode::from(NOT_STARTED);
    };
    match launch(&control) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let reason = error.to_string();
            // Without a launcher nobody wants to know.
            _ = control.send(&LaunchEvent::Failed { reason }, &[]);
            ExitCode::from(NOT_STARTED)
        }
    }
}

fn launch(control: &Channel) -> Result<u8, LaunchError> {
    // Processes of a container that is entered must not look into this one.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .step(|| "protect the helper's memory".into())?;
    let (request, streams, place) = receive(control).step(|| "read the request".into())?;
    // For children alone: this process stays where it is.
    match &request {
        LaunchRequest::Create(container, _) => {
            enter::adjust_oom_score(container.oom_score_adj)?;
            sys::unshare(UnshareFlags::NEWPID).step(|| "make a namespace for processes".into())?;
        }
        LaunchRequest::Enter(_) => {
            move_into_thread_name_spaces(place.as_fd(), ThreadNameSpaceType::PROCESS_ID)
                .step(|| "enter the container's namespace for processes".into())?;
        }
    }
    let (report, of_child) = Channel::pair().step(|| "make a socket".into())?;
    let child = sys::fork(|| {
        let error = enter::become_program(&request, streams.as_ref(), &place, &of_child);
        let reason = error.to_string();
        _ = of_child.send(&LaunchEvent::Failed { reason }, &[]);
        NOT_STARTED.into()
    });
    let child = child.step(|| "fork".into())?;
    drop((of_child, streams, place));
    supervise(control, report, child, &request).step(|| "wait for the program".into())
}

/// Receives the request and its descriptors.
fn receive(control: &Channel) -> io::Result<(LaunchRequest, Box<Streams>, OwnedFd)> {
    let received = control.receive::<()>()?;
    let ((), fds) = received.ok_or(io::ErrorKind::UnexpectedEof)?;
    let fds: [OwnedFd; REQUEST_FDS] = fds
        .try_into()
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let [file, stdin, stdout, stderr, place] = fds;
    let (mut file, mut text) = (File::from(file), String::new());
    file.rewind()?;
    file.read_to_string(&mut text)?;
    let request = serde_json::from_str(&text)?;
    Ok((
        request,
        Box::new(Streams {
            stdin,
            stdout,
            stderr,
        }),
        place,
    ))
}

/// Passes on what the child reports, waits for its end, and kills it if the launcher goes away.
fn supervise(
    control: &Channel,
    report: Channel,
    child: Pid,
    request: &LaunchRequest,
) -> io::Result<u8> {
    let pidfd = pidfd_open(child, PidfdFlags::empty())?;
    let pid = child.as_raw_nonzero().get();
    control.send(&LaunchEvent::Forked { pid }, &[pidfd.as_fd()])?;
    let mut report = Some(report);
    let mut is_wanted = true;
    loop {
        // Of these sockets only the report has anything to read.
        let mut fds = vec![PollFd::new(&pidfd, PollFlags::IN)];
        let from_report = report.as_ref().map(|report| {
            fds.push(PollFd::new(report, PollFlags::IN));
            fds.len() - 1
        });
        let from_control = is_wanted.then(|| {
            fds.push(PollFd::new(control, PollFlags::empty()));
            fds.len() - 1
        });
        rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
        let is_ready = |at: Option<usize>| at.is_some_and(|at| !fds[at].revents().is_empty());
        let (has_ended, is_gone) = (is_ready(Some(0)), is_ready(from_control));
        if is_ready(from_report)
            && let Some(open) = &report
        {
            if !relay(control, open) {
                report = None;
            }
        } else if is_gone {
            is_wanted = false;
            _ = pidfd_send_signal(&pidfd, Signal::KILL);
        } else if has_ended {
            break;
        }
    }
    // Its children in an entered container: nobody waits for them any more. They are found by their
    // group as long as the child's id is not free.
    if let (false, LaunchRequest::Enter(_)) = (is_wanted, request) {
        _ = kill_process_group(child, Signal::KILL);
    }
    let status = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))?;
    let code = status.and_then(|(_, status)| {
        let signaled = status.terminating_signal();
        status
            .exit_status()
            .or(signaled.map(|signal| SIGNALED + signal))
    });
    Ok(code
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX))
}

/// Passes on the next report. Returns false after the last one.
fn relay(control: &Channel, report: &Channel) -> bool {
    let received = report.receive::<LaunchEvent>();
    let (event, fds) = match received {
        Ok(Some(received)) => received,
        // execve(2) has closed it.
        Ok(None) => (LaunchEvent::Started, Vec::new()),
        Err(error) => (
            LaunchEvent::Failed {
                reason: format!("failed to read the report of the container: {error}"),
            },
            Vec::new(),
        ),
    };
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    // A launcher that is gone is noticed by its end of the socket.
    _ = control.send(&event, &fds);
    event == LaunchEvent::Terminal
}
