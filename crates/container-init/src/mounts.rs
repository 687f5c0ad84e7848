//! The file tree of a container.
//!
//! Everything of the machine that the container gets is opened first, beneath directories that the
//! operator has chosen. Then the machine's tree is taken away, and only then is anything made at
//! paths of the image: whatever its links say, they lead nowhere else. `/proc`, whose links lead to
//! open files, comes last.

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt, symlink},
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, StatVfsMountFlags, fstat, openat2, statvfs},
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
        mount_bind, mount_change, mount_remount, move_mount, open_tree, unmount,
    },
    process::pivot_root,
};

use crate::{
    LaunchError,
    beneath::{self, RESOLVE},
    error::Step as _,
    spec::{BeneathPath, BindMount, ContainerSpec, ImageFiles},
};

/// The limits of the files that a container writes outside of its mounts. They are in memory.
const WRITABLE: &str = "mode=0755,size=64m,nr_inodes=16k";
const SHARED_MEMORY: &str = "mode=1777,size=64m";
const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];
const LINKS: [(&str, &str); 5] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/ptmx", "pts/ptmx"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
];
/// The paths that other runtimes hide and protect (OCI's and Kubernetes' defaults).
const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
];
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];
const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const INERT: MountFlags = PLAIN.union(MountFlags::NOEXEC);

/// A detached mount, and whether it is a directory.
struct Source {
    mount: OwnedFd,
    is_dir: bool,
}

/// Builds the tree in a new mount namespace, and makes it the process's root.
pub(crate) fn build(container: &ContainerSpec, cwd: &Path) -> Result<(), LaunchError> {
    let ContainerSpec {
        image,
        mounts,
        files,
        masked_paths,
        readonly_paths,
        readonly,
        hostname: _,
        scratch,
        oom_score_adj: _,
    } = container;
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .step(|| "detach the mount namespace from the machine's".into())?;
    let bound = mounts
        .iter()
        .map(|bind| Ok((bind, detach_beneath(&bind.source)?)))
        .collect::<Result<Vec<_>, LaunchError>>()?;
    let devices = DEVICES
        .iter()
        .map(|name| Ok((*name, detach(CWD, &format!("/dev/{name}"))?)))
        .collect::<Result<Vec<_>, LaunchError>>()?;
    let program = match image {
        ImageFiles::Tree(_) => None,
        ImageFiles::Program(path) => Some((path, detach_beneath(path)?)),
    };
    mount_root(image, scratch)?;
    leave_machine(&scratch.join("root")).step(|| "take the machine's tree away".into())?;

    if let Some((path, source)) = program {
        let name = path.path.file_name().unwrap_or_default();
        place(&source, &Path::new("/").join(name), MountFlags::RDONLY)?;
    }
    own_directories().step(|| "make /dev, /proc and /tmp".into())?;
    make_devices(&devices)?;
    for (path, text) in files {
        write_file(path, text).step(|| format!("write {}", path.display()))?;
    }
    for (
        BindMount {
            target, readonly, ..
        },
        source,
    ) in &bound
    {
        let target = inside(target)?;
        let flags = match readonly {
            true => MountFlags::RDONLY,
            false => MountFlags::empty(),
        };
        place(source, &target, flags)?;
    }
    // Not beneath /proc, which is mounted over it. A program that enters later finds it.
    if !cwd.starts_with("/proc") {
        make_dir(cwd).step(|| format!("make the working directory {}", cwd.display()))?;
    }
    if *readonly {
        mount_remount("/", MountFlags::BIND | MountFlags::RDONLY | PLAIN, c"")
            .step(|| "make the root read-only".into())?;
    }
    mount_proc().step(|| "mount /proc".into())?;
    let own = MASKED.into_iter().map(Path::new);
    for path in own.chain(masked_paths.iter().map(PathBuf::as_path)) {
        mask(path).step(|| format!("hide {}", path.display()))?;
    }
    let own = READ_ONLY.into_iter().map(Path::new);
    for path in own.chain(readonly_paths.iter().map(PathBuf::as_path)) {
        protect(path).step(|| format!("make {} read-only", path.display()))?;
    }
    Ok(())
}

/// Mounts the image, with what is written over it in memory, at `root` in `scratch`.
fn mount_root(image: &ImageFiles, scratch: &Path) -> Result<(), LaunchError> {
    let tree = match image {
        ImageFiles::Tree(path) => Some(open_beneath(path)?),
        ImageFiles::Program(_) => None,
    };
    let text = |option: String| CString::new(option).map_err(io::Error::from);
    let mounted = || -> io::Result<()> {
        mount(
            "tmpfs",
            scratch,
            "tmpfs",
            PLAIN,
            text(WRITABLE.into())?.as_c_str(),
        )?;
        for dir in ["changes", "empty", "root", "work"] {
            fs::DirBuilder::new()
                .mode(0o755)
                .create(scratch.join(dir))?;
        }
        // By relative paths, which have no characters of the options' own.
        std::env::set_current_dir(scratch)?;
        let lower = match &tree {
            Some(tree) => format!("/proc/self/fd/{}", tree.as_raw_fd()),
            None => "empty".to_owned(),
        };
        let options = text(format!("lowerdir={lower},upperdir=changes,workdir=work"))?;
        Ok(mount(
            "overlay",
            "root",
            "overlay",
            PLAIN,
            options.as_c_str(),
        )?)
    };
    mounted().step(|| format!("mount the image on {}", scratch.display()))
}

/// Makes `root` the root, and detaches the previous one.
fn leave_machine(root: &Path) -> io::Result<()> {
    std::env::set_current_dir(root)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")
}

/// Makes the directories that the container's own mounts need. An image may have them, but not
/// something else in their place.
fn own_directories() -> io::Result<()> {
    for (path, mode) in [("/dev", 0o755), ("/proc", 0o555), ("/tmp", 0o1777)] {
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let text = format!("the image has something at {path} that is not a directory");
                return Err(io::Error::new(io::ErrorKind::NotADirectory, text));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir(path)?;
                fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn make_devices(devices: &[(&str, Source)]) -> Result<(), LaunchError> {
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("tmpfs", "/dev", "tmpfs", flags, c"mode=0755,size=64k").step(|| "mount /dev".into())?;
    for (name, source) in devices {
        let target = Path::new("/dev").join(name);
        attach(source, &target).step(|| format!("make {}", target.display()))?;
    }
    let rest = || -> io::Result<()> {
        for (link, target) in LINKS {
            symlink(target, link)?;
        }
        fs::create_dir("/dev/pts")?;
        let options = c"newinstance,ptmxmode=0666,mode=0620";
        mount("devpts", "/dev/pts", "devpts", flags, options)?;
        fs::create_dir("/dev/shm")?;
        let options = CString::new(SHARED_MEMORY)?;
        Ok(mount(
            "tmpfs",
            "/dev/shm",
            "tmpfs",
            INERT,
            options.as_c_str(),
        )?)
    };
    rest().step(|| "mount /dev/pts and /dev/shm".into())
}

fn mount_proc() -> io::Result<()> {
    Ok(mount("proc", "/proc", "proc", INERT, None)?)
}

/// Hides a file behind `/dev/null`, and a directory behind an empty one.
fn mask(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            let flags = INERT | MountFlags::RDONLY;
            Ok(mount("tmpfs", path, "tmpfs", flags, c"size=4k")?)
        }
        Ok(_) => Ok(mount_bind("/dev/null", path)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn protect(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    mount_bind(path, path)?;
    let own = statvfs(path)?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY | PLAIN;
    flags.set(MountFlags::NOEXEC, own.contains(StatVfsMountFlags::NOEXEC));
    Ok(mount_remount(path, flags, c"")?)
}

/// Opens a path, which leads out of its root neither by `..` nor by a link.
fn open_beneath(path: &BeneathPath) -> Result<OwnedFd, LaunchError> {
    let BeneathPath { root, path } = path;
    let opened = || {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = openat2(beneath::root(root)?, path, flags, Mode::empty(), RESOLVE)?;
        Ok::<_, io::Error>(opened)
    };
    opened().step(|| format!("open {} beneath {}", path.display(), root.display()))
}

fn detach_beneath(path: &BeneathPath) -> Result<Source, LaunchError> {
    detach(open_beneath(path)?, "")
}

/// A copy of the mount at a path of the machine, which is attached nowhere.
fn detach(dir: impl AsFd, path: &str) -> Result<Source, LaunchError> {
    let detached = || -> io::Result<Source> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let mount = open_tree(dir, path, flags)?;
        let is_dir = FileType::from_raw_mode(fstat(&mount)?.st_mode) == FileType::Directory;
        Ok(Source { mount, is_dir })
    };
    detached().step(|| format!("open the mount {path}"))
}

/// Attaches a mount at a path of the container, with these flags and those of a volume.
fn place(source: &Source, target: &Path, flags: MountFlags) -> Result<(), LaunchError> {
    let placed = || -> io::Result<()> {
        attach(source, target)?;
        // What the machine does not allow on this file system is not allowed here either.
        let own = statvfs(target)?.f_flag;
        let mut flags = flags | MountFlags::BIND | PLAIN;
        flags.set(MountFlags::NOEXEC, own.contains(StatVfsMountFlags::NOEXEC));
        if own.contains(StatVfsMountFlags::RDONLY) {
            flags |= MountFlags::RDONLY;
        }
        Ok(mount_remount(target, flags, c"")?)
    };
    placed().step(|| format!("mount {}", target.display()))
}

/// Attaches a mount at a path of the container, which is made if it is missing.
fn attach(source: &Source, target: &Path) -> io::Result<()> {
    match (fs::metadata(target), source.is_dir) {
        (Ok(found), is_dir) if found.is_dir() == is_dir => {}
        (Ok(_), true) => return Err(io::ErrorKind::NotADirectory.into()),
        (Ok(_), false) => return Err(io::ErrorKind::IsADirectory.into()),
        (Err(_), true) => make_dir(target)?,
        (Err(_), false) => {
            if let Some(parent) = target.parent() {
                make_dir(parent)?;
            }
            create_new(target)?;
        }
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
    Ok(move_mount(&source.mount, "", CWD, target, flags)?)
}

/// The target of a mount, if it is an absolute path outside of `/proc` without `..`.
fn inside(target: &Path) -> Result<PathBuf, LaunchError> {
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    let is_allowed = target.is_absolute()
        && target.components().all(is_plain)
        && !target.starts_with("/proc")
        && target != Path::new("/");
    match is_allowed {
        true => Ok(target.to_owned()),
        false => Err(io::Error::from(io::ErrorKind::InvalidInput)).step(|| {
            format!(
                "mount {}: must be an absolute path without \"..\", below / and not below /proc",
                target.display()
            )
        }),
    }
}

fn make_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
}

fn create_new(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o644).open(path)
}

/// Writes a file in place of what the image has there.
fn write_file(path: &Path, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        make_dir(parent)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    io::Write::write_all(&mut create_new(path)?, text.as_bytes())
}
