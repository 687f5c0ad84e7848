//! One plugin with one directory: its calls, and their observed results.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    os::unix::{
        fs::{PermissionsExt as _, symlink},
        process::ExitStatusExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

/// The placeholder for the data directory, which each side has for itself.
pub(crate) const DATA_DIR: &str = "@DIR@";

/// The input of a plugin.
#[derive(Debug, Clone)]
pub(crate) struct PluginInput {
    pub(crate) env: BTreeMap<&'static str, String>,
    /// The configuration, with [`DATA_DIR`] in place of the directory.
    pub(crate) config: String,
}

/// The content of a file, without its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileNode {
    Directory,
    File(Vec<u8>),
    Link(PathBuf),
}

/// The files below the data directory, by path, with their permissions.
pub(crate) type Tree = BTreeMap<String, (FileNode, u32)>;

/// The observed result of a call.
#[derive(Debug, Clone)]
pub(crate) struct ObservedResult {
    /// `None` if a signal or the deadline ended it.
    pub(crate) code: Option<i32>,
    /// The output, with [`DATA_DIR`] in place of the directory's path.
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) tree: Tree,
}

#[derive(Debug)]
pub(crate) struct PluginSide {
    root: PathBuf,
}

impl PluginSide {
    /// A side with an empty directory below `parent`.
    pub(crate) fn new(parent: &Path, name: &str) -> Self {
        let root = parent.join(name);
        fs::create_dir(&root).unwrap();
        Self { root }
    }

    fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// Runs a plugin to its end.
    pub(crate) fn run(&self, program: &Path, call: &PluginInput) -> ObservedResult {
        self.run_by(&mut Command::new(program), call)
    }

    /// Runs a plugin to its end by way of another program.
    pub(crate) fn run_by(&self, command: &mut Command, call: &PluginInput) -> ObservedResult {
        let data = self.data();
        let data = data.to_str().unwrap();
        let mut child = command
            .env_clear()
            .envs(&call.env)
            .current_dir(&self.root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // VERSION does not read it, and may have ended already.
        let config = call.config.replace(DATA_DIR, data);
        _ = child.stdin.take().unwrap().write_all(config.as_bytes());
        let pid = Pid::from_child(&child);
        let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        // Both outputs fit into their pipes, except a panic of the reference, which is not waited
        // for.
        let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let deadline = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let ended = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&deadline)).unwrap();
        if ended == 0 {
            child.kill().unwrap();
        }
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        out.read_to_end(&mut stdout).unwrap();
        err.read_to_end(&mut stderr).unwrap();
        let status = child.wait().unwrap();
        assert!(status.code().is_some() || status.signal().is_some());
        let masked = |text: Vec<u8>| String::from_utf8_lossy(&text).replace(data, DATA_DIR);
        ObservedResult {
            code: status.code(),
            stdout: masked(stdout),
            stderr: masked(stderr),
            tree: self.tree(),
        }
    }

    pub(crate) fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        read(&self.root, "", &mut tree);
        tree
    }

    /// Gives the directory the content of `tree`.
    pub(crate) fn set(&self, tree: &Tree) {
        if self.tree() == *tree {
            return;
        }
        fs::remove_dir_all(&self.root).unwrap();
        fs::create_dir(&self.root).unwrap();
        for (path, (node, mode)) in tree {
            let path = self.root.join(path);
            match node {
                FileNode::Directory => fs::create_dir(&path).unwrap(),
                FileNode::File(content) => fs::write(&path, content).unwrap(),
                FileNode::Link(target) => {
                    symlink(target, &path).unwrap();
                    continue;
                }
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
        }
    }
}

fn read(dir: &Path, prefix: &str, tree: &mut Tree) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let meta = entry.metadata().unwrap();
        let mode = meta.permissions().mode() & 0o7777;
        let path = entry.path();
        if meta.is_dir() {
            tree.insert(name.clone(), (FileNode::Directory, mode));
            read(&path, &format!("{name}/"), tree);
        } else if meta.is_symlink() {
            tree.insert(name, (FileNode::Link(fs::read_link(path).unwrap()), 0));
        } else {
            tree.insert(name, (FileNode::File(fs::read(path).unwrap()), mode));
        }
    }
}
