//! Requests of launchers, and the answers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A request to a helper. These descriptors come with it, in this order: a file with this request
/// as JSON, the program's standard input, output and error, and the network namespace of a
/// [`LaunchRequest::Create`] or the pidfd of the container's first process of a
/// [`LaunchRequest::Enter`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaunchRequest {
    /// Make a container, and execute its first process.
    Create(Box<ContainerSpec>, ProcessSpec),
    /// Execute a process in a container.
    Enter(ProcessSpec),
}

/// The number of descriptors that come with a request.
pub const REQUEST_FDS: usize = 5;

/// A container: its file tree and its names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// The files of the image.
    pub image: ImageFiles,
    /// Mounts besides those that every container has.
    pub mounts: Vec<BindMount>,
    /// Files that are written into the tree: their absolute paths and contents.
    pub files: Vec<(PathBuf, String)>,
    /// Paths that are hidden besides those of every container; missing ones are ignored.
    pub masked_paths: Vec<PathBuf>,
    /// Paths that cannot be written, besides those of every container; missing ones are ignored.
    pub readonly_paths: Vec<PathBuf>,
    /// True if nothing but mounts may be written. Otherwise changes are kept in memory, and end
    /// with the container.
    pub readonly: bool,
    /// The host name; empty for the machine's.
    pub hostname: String,
    /// An empty directory of the machine, over which the container's tree is mounted in its own
    /// mount namespace. It can be shared by all containers.
    pub scratch: PathBuf,
    /// The adjustment of the score by which the kernel kills when memory is short; not below the
    /// launcher's own.
    pub oom_score_adj: i32,
}

/// A path of the machine that is opened without leaving `root`, and without following a symbolic
/// link below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeneathPath {
    /// An absolute path that the operator of the machine has chosen.
    pub root: PathBuf,
    /// A relative path. It may come from anybody.
    pub path: PathBuf,
}

/// The files of an image. They are never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageFiles {
    /// A directory, as the root of the container.
    Tree(BeneathPath),
    /// A program, alone, under its own name in an empty root.
    Program(BeneathPath),
}

/// A file or directory of the machine in the container. What is mounted below it is not seen there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindMount {
    /// The file or directory.
    pub source: BeneathPath,
    /// Its absolute path in the container; made if it is missing.
    pub target: PathBuf,
    /// True if the container must not write there.
    pub readonly: bool,
}

/// A process of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// The program and its arguments. A name without a slash is looked up in `PATH` of `env`.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// The working directory; made if it is missing.
    pub cwd: PathBuf,
    /// The user: not 0.
    pub uid: u32,
    /// The group: not 0.
    pub gid: u32,
    /// Further groups: not 0.
    pub groups: Vec<u32>,
    /// True for a terminal of the container as its standard streams, in place of those that came
    /// with the request.
    pub terminal: bool,
}

/// A message of a helper. Nothing comes after [`LaunchEvent::Started`] and [`LaunchEvent::Failed`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaunchEvent {
    /// The process exists. Its pidfd comes with the event.
    Forked {
        /// Its id, as the helper sees it.
        pid: i32,
    },
    /// The process has a terminal. Its controlling end comes with the event.
    Terminal,
    /// The program is executed.
    Started,
    /// The program was not executed.
    Failed {
        /// The reason, for people.
        reason: String,
    },
}
