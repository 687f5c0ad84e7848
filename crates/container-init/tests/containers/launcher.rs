//! A launcher of containers, and an image of Debian's busybox.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use podplane_container_init::{
    Channel, ContainerSpec, LaunchEvent, LaunchRequest, ProcessSpec,
    spec::{BeneathPath, BindMount, ImageFiles},
};
use podplane_test_requirements::{require, root};
use rustix::process::{Signal, pidfd_send_signal};
use tempfile::TempDir;

/// A user that nothing else on the machine has.
pub(crate) const USER: u32 = 47_110;

const BUSYBOX: &str = "/bin/busybox";
const APPLETS: [&str; 14] = [
    "cat", "chroot", "hostname", "id", "ls", "mount", "ps", "rm", "sh", "sleep", "su", "true",
    "tty", "unshare",
];

/// Returns true if the tests can run, and false if the environment says to do without.
fn can_run() -> bool {
    let has_busybox = Path::new(BUSYBOX).exists();
    root() && require("busybox", has_busybox, "apt-get install busybox-static")
}

/// A root of images with one, and a directory that can be mounted.
pub(crate) struct Image(TempDir);

impl Image {
    /// `None` if the environment says to do without.
    pub(crate) fn new() -> Option<Self> {
        if !can_run() {
            return None;
        }
        let image = Self(tempfile::tempdir().unwrap());
        for dir in ["busybox/bin", "busybox/etc", "volume"] {
            fs::create_dir_all(image.root().join(dir)).unwrap();
        }
        fs::create_dir(image.dir().join("scratch")).unwrap();
        let bin = image.tree().join("bin");
        fs::copy(BUSYBOX, bin.join("busybox")).unwrap();
        for applet in APPLETS {
            std::os::unix::fs::symlink("busybox", bin.join(applet)).unwrap();
        }
        Some(image)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir().join("images")
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.root().join("busybox")
    }

    /// The paths of the tree.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut dirs = vec![self.tree()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    dirs.push(entry.path());
                }
                found.push(entry.path());
            }
        }
        found.sort();
        found
    }

    pub(crate) fn beneath(&self, path: &str) -> BeneathPath {
        BeneathPath {
            root: self.root(),
            path: path.into(),
        }
    }

    pub(crate) fn bind(&self, path: &str, target: &str, readonly: bool) -> BindMount {
        BindMount {
            source: self.beneath(path),
            target: target.into(),
            readonly,
        }
    }

    pub(crate) fn container(&self) -> ContainerSpec {
        ContainerSpec {
            image: ImageFiles::Tree(self.beneath("busybox")),
            mounts: Vec::new(),
            files: vec![("/etc/hostname".into(), "web-0\n".into())],
            masked_paths: Vec::new(),
            readonly_paths: Vec::new(),
            readonly: false,
            hostname: "web-0".into(),
            scratch: self.dir().join("scratch"),
            oom_score_adj: 500,
        }
    }

    pub(crate) fn process(&self, args: &[&str]) -> ProcessSpec {
        ProcessSpec {
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            env: vec![("PATH".into(), "/bin".into())],
            cwd: "/".into(),
            uid: USER,
            gid: USER,
            groups: Vec::new(),
            terminal: false,
        }
    }

    /// The exit code and the output of a process in a new container.
    pub(crate) fn run(&self, container: &ContainerSpec, process: ProcessSpec) -> (i32, String) {
        self.launch(container, process).unwrap().finish()
    }

    pub(crate) fn launch(
        &self,
        container: &ContainerSpec,
        process: ProcessSpec,
    ) -> Result<Launched, String> {
        let network = File::open("/proc/self/ns/net").unwrap();
        let request = LaunchRequest::Create(Box::new(container.clone()), process);
        self.request(&request, &network.into())
    }

    /// Sends a request to a helper, and waits until its program is executed.
    pub(crate) fn request(
        &self,
        request: &LaunchRequest,
        place: &OwnedFd,
    ) -> Result<Launched, String> {
        let (control, of_helper) = Channel::pair().unwrap();
        let mut helper = Command::new(env!("CARGO_BIN_EXE_podplane-container-init"));
        helper.stdin(OwnedFd::from(of_helper)).stdout(Stdio::null());
        let process = helper.spawn().unwrap();
        // It has the helper's end of the socket.
        drop(helper);
        let mut file = tempfile::tempfile().unwrap();
        serde_json::to_writer(&mut file, request).unwrap();
        file.flush().unwrap();
        file.rewind().unwrap();
        let null = File::open("/dev/null").unwrap();
        let (output, of_program) = io::pipe().unwrap();
        let fds = [
            file.as_fd(),
            null.as_fd(),
            of_program.as_fd(),
            of_program.as_fd(),
            place.as_fd(),
        ];
        control.send(&(), &fds).unwrap();
        drop(of_program);
        let mut launched = Launched {
            control,
            helper: process,
            output: File::from(OwnedFd::from(output)),
            pidfd: null.into(),
            is_terminal: false,
        };
        loop {
            let (event, mut fds) = launched.control.receive().unwrap().unwrap();
            match event {
                LaunchEvent::Forked { pid } => {
                    assert!(pid > 0);
                    launched.pidfd = fds.pop().unwrap();
                }
                LaunchEvent::Terminal => {
                    launched.output = File::from(fds.pop().unwrap());
                    launched.is_terminal = true;
                }
                LaunchEvent::Started => return Ok(launched),
                LaunchEvent::Failed { reason } => {
                    assert_eq!(launched.helper.wait().unwrap().code(), Some(128));
                    return Err(reason);
                }
            }
        }
    }
}

/// A program that was executed.
#[derive(Debug)]
pub(crate) struct Launched {
    control: Channel,
    helper: Child,
    output: File,
    pub(crate) pidfd: OwnedFd,
    is_terminal: bool,
}

impl Launched {
    /// Waits for the end.
    pub(crate) fn finish(mut self) -> (i32, String) {
        let mut output = Vec::new();
        match self.output.read_to_end(&mut output) {
            // So ends a terminal that nobody has open any more.
            Err(error) if self.is_terminal => assert_eq!(error.raw_os_error(), Some(5)),
            read => drop(read.unwrap()),
        }
        let code = self.helper.wait().unwrap().code().unwrap();
        drop(self.control);
        (code, String::from_utf8(output).unwrap())
    }

    /// The output until it has this text.
    pub(crate) fn read_until(&self, text: &str) -> String {
        let mut read = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let length = (&self.output).read(&mut buffer).unwrap();
            read.extend_from_slice(&buffer[..length]);
            let so_far = String::from_utf8_lossy(&read);
            if length == 0 || so_far.contains(text) {
                return so_far.into_owned();
            }
        }
    }

    pub(crate) fn kill(self) -> (i32, String) {
        pidfd_send_signal(&self.pidfd, Signal::KILL).unwrap();
        self.finish()
    }

    /// Closes the socket, as a launcher that dies.
    pub(crate) fn abandon(mut self) -> i32 {
        drop(self.control);
        self.helper.wait().unwrap().code().unwrap()
    }
}
