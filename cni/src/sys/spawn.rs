//! Starting a program without a copy of this process's memory.
//!
//! The standard library forks if something has to be done before the program begins. fork(2) copies
//! the page tables: this takes milliseconds for a server of some hundred megabytes, in which none
//! of its threads can map memory, and each page written afterwards costs a fault. Here the child
//! shares its parent's memory until the program begins, and the calling thread waits that long, as
//! with posix_spawn(3), which cannot set a death signal.

use std::{
    ffi::{CString, OsStr, OsString, c_char, c_int, c_void},
    io, iter, mem,
    os::{
        fd::{AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    ptr,
};

use podplane_netlink::KernelLimit;
use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{Pid, WaitOptions, waitpid},
};

/// The child's stack between clone(2) and execve(2), where it makes a few calls with small frames.
const STACK: usize = 64 << 10;

/// The parameters of a new program.
#[derive(Debug)]
pub(crate) struct SpawnParams<'a> {
    /// The program, which is also its only argument.
    pub(crate) program: &'a Path,
    /// The whole environment.
    pub(crate) env: &'a [(OsString, OsString)],
    /// The standard streams.
    pub(crate) streams: [BorrowedFd<'a>; 3],
    /// Make the program the leader of a process group of its own.
    pub(crate) leads_group: bool,
    /// The network namespace that the program starts in; the calling thread's if `None`.
    pub(crate) netns: Option<BorrowedFd<'a>>,
}

/// The input of the child, and the place for its error. The child need not allocate.
struct ChildInput {
    program: CString,
    argv: [*const c_char; 2],
    envp: Vec<*const c_char>,
    streams: [c_int; 3],
    leads_group: bool,
    netns: Option<c_int>,
    parent: libc::pid_t,
    error: c_int,
}

/// Starts a program that is killed when the calling thread ends. The caller must wait for it.
///
/// # Errors
///
/// Those of the operating system, of any step up to execve(2).
pub(crate) fn spawn(plan: &SpawnParams<'_>) -> io::Result<Pid> {
    let entries: Vec<_> = plan.env.iter().map(entry).collect::<Result<_, _>>()?;
    // Above the standard streams, so that no stream is overwritten when another is moved.
    let streams: Vec<_> = plan.streams.iter().map(above).collect::<Result<_, _>>()?;
    let program = CString::new(plan.program.as_os_str().as_bytes())?;
    let mut prepared = ChildInput {
        argv: [program.as_ptr(), ptr::null()],
        program,
        envp: entries
            .iter()
            .map(|entry| entry.as_ptr())
            .chain(iter::once(ptr::null()))
            .collect(),
        streams: [
            streams[0].as_raw_fd(),
            streams[1].as_raw_fd(),
            streams[2].as_raw_fd(),
        ],
        leads_group: plan.leads_group,
        netns: plan.netns.map(|netns| netns.as_raw_fd()),
        parent: rustix::process::getpid().as_raw_nonzero().get(),
        error: 0,
    };
    let mut stack = vec![0_u128; STACK / mem::size_of::<u128>()];
    let signals = BlockedSignals::all();
    let arg = ptr::from_mut(&mut prepared).cast::<c_void>();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack has the stated size, is aligned, and grows down from its end. CLONE_VFORK
    // suspends this thread until the child has left this memory, so the target of `arg` lives as
    // long as it is used, and nothing else uses it meanwhile. All signals are blocked, so no
    // handler runs in the child.
    let pid = unsafe { libc::clone(child, stack.as_mut_ptr_range().end.cast(), flags, arg) };
    let failed = io::Error::last_os_error();
    drop(signals);
    let pid = Pid::from_raw(pid.max(0)).ok_or_else(|| KernelLimit::Processes.explain(failed))?;
    // SAFETY: the child wrote it before this thread continued; the compiler does not know of that,
    // hence the volatile read.
    match unsafe { ptr::read_volatile(&raw const prepared.error) } {
        0 => Ok(pid),
        error => {
            rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()))?;
            Err(io::Error::from_raw_os_error(error))
        }
    }
}

/// Formats an entry of the environment: `KEY=VALUE`.
fn entry((key, value): &(OsString, OsString)) -> io::Result<CString> {
    let bytes = [key.as_bytes(), b"=", OsStr::as_bytes(value)].concat();
    Ok(CString::new(bytes)?)
}

/// Duplicates a stream to a number above those of the standard streams.
fn above(stream: &BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(fcntl_dupfd_cloexec(stream, 3)?)
}

/// Blocks signals of the calling thread until dropped. It keeps the mask of before.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn all() -> Self {
        // SAFETY: both sets are written before they are read, and sigfillset(3) and
        // pthread_sigmask(3) fail only for invalid arguments, which these are not.
        unsafe {
            let (mut all, mut before) = (mem::zeroed(), mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set was returned by the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// The child, on its own stack in the memory of its parent. It only makes system calls: it takes no
/// lock, allocates nothing, and does not unwind.
extern "C" fn child(arg: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a pointer to this type, and waits.
    let prepared = unsafe { &mut *arg.cast::<ChildInput>() };
    // SAFETY: calls of the C library that wrap one system call each, with arguments that are alive.
    unsafe {
        let is_ready = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0
            // The kernel sends no signal for a parent that had ended before.
            && libc::getppid() == prepared.parent
            && (!prepared.leads_group || libc::setpgid(0, 0) == 0)
            // Before the streams are moved, which may overwrite this descriptor. The parent's
            // threads stay in their namespaces.
            && prepared
                .netns
                .is_none_or(|netns| libc::setns(netns, libc::CLONE_NEWNET) == 0)
            && prepared
                .streams
                .iter()
                .zip(0..)
                .all(|(stream, target)| libc::dup2(*stream, target) == target);
        if is_ready {
            default_signals();
            libc::execve(
                prepared.program.as_ptr(),
                prepared.argv.as_ptr(),
                prepared.envp.as_ptr(),
            );
        }
        prepared.error = match *libc::__errno_location() {
            0 => libc::ECHILD,
            errno => errno,
        };
        libc::_exit(127)
    }
}

/// Resets signals to the state in which `Command` of the standard library starts a program.
/// Handlers are removed, so that none runs here when signals are unblocked, and SIGPIPE kills
/// again.
///
/// # Safety
///
/// Changes the disposition of signals of the process, which must be a child of its own.
unsafe fn default_signals() {
    // SAFETY: each call gets pointers to values of this frame; the kernel refuses numbers that are
    // not signals, or are reserved by the C library.
    unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            let mut action: libc::sigaction = mem::zeroed();
            let is_known = libc::sigaction(signal, ptr::null(), &raw mut action) == 0;
            let is_changed = match action.sa_sigaction {
                libc::SIG_DFL => false,
                libc::SIG_IGN => signal == libc::SIGPIPE,
                _ => true,
            };
            if is_known && is_changed {
                let default: libc::sigaction = mem::zeroed();
                libc::sigaction(signal, &raw const default, ptr::null_mut());
            }
        }
        let none: libc::sigset_t = mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{Read as _, Write as _},
        os::{fd::AsFd as _, unix::fs::PermissionsExt as _},
        thread,
    };

    use rustix::process::{Signal, WaitStatus, getpgid};

    use super::*;

    fn script(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        (dir, path)
    }

    fn ended(pid: Pid) -> WaitStatus {
        waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap().1
    }

    #[test]
    fn a_program_gets_its_environment_and_streams_and_no_blocked_signal() {
        let (_dir, program) =
            script("read line; echo $KEY $line; grep SigBlk /proc/self/status; exit 3");
        let (input, mut stdin) = io::pipe().unwrap();
        let (mut stdout, output) = io::pipe().unwrap();
        let plan = SpawnParams {
            program: &program,
            env: &[("KEY".into(), "value".into())],
            streams: [input.as_fd(), output.as_fd(), output.as_fd()],
            leads_group: true,
            netns: None,
        };
        let pid = spawn(&plan).unwrap();
        assert_eq!(getpgid(Some(pid)).unwrap(), pid);
        stdin.write_all(b"a line\n").unwrap();
        drop((stdin, input, output));
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        assert_eq!(text, "value a line\nSigBlk:\t0000000000000000\n");
        assert_eq!(ended(pid).exit_status(), Some(3));
    }

    #[test]
    fn refuses_an_invalid_namespace_and_leaves_no_child() {
        let (_dir, program) = script("exit 0");
        let null = fs::File::open("/dev/null").unwrap();
        let plan = SpawnParams {
            program: &program,
            env: &[],
            streams: [null.as_fd(), null.as_fd(), null.as_fd()],
            leads_group: false,
            netns: Some(null.as_fd()),
        };
        let error = spawn(&plan).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_an_error_and_leaves_no_child() {
        let null = fs::File::open("/dev/null").unwrap();
        let plan = SpawnParams {
            program: Path::new("/does/not/exist"),
            env: &[],
            streams: [null.as_fd(), null.as_fd(), null.as_fd()],
            leads_group: false,
            netns: None,
        };
        let error = spawn(&plan).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }

    #[test]
    fn a_program_is_killed_when_the_thread_that_started_it_ends() {
        let (_dir, program) = script("exec sleep 1000");
        let null = fs::File::open("/dev/null").unwrap();
        let start = || {
            let plan = SpawnParams {
                program: &program,
                env: &[("PATH".into(), "/usr/bin:/bin".into())],
                streams: [null.as_fd(), null.as_fd(), null.as_fd()],
                leads_group: false,
                netns: None,
            };
            spawn(&plan).unwrap()
        };
        let pid = thread::scope(|scope| scope.spawn(start).join().unwrap());
        let signal = ended(pid).terminating_signal();
        assert_eq!(signal, Some(Signal::KILL.as_raw()));
    }
}
