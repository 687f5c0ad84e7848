//! A simulated disk: after a power cut it has everything written before a flush, and any part of
//! the later writes. It is one file, served through FUSE; a loop device and ext4 on top of it are
//! the kernel's own.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    ops::Range,
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, UNIX_EPOCH},
};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyWrite, Request, WriteFlags,
};
use tempfile::TempDir;

/// Only written blocks take memory. The files of a store are rewritten twice a minute at most, so
/// all data that a test writes with values of the largest size may be on the disk at once.
const BYTES: u64 = 4 * 1024 * 1024 * 1024;
const BLOCK: usize = 4096;
/// The unit that a disk writes atomically.
const SECTOR: usize = 512;

type DiskBlock = [u8; BLOCK];

/// The content of a disk; missing blocks are zeros. Cloning shares the blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image(BTreeMap<u64, Arc<DiskBlock>>);

impl Image {
    fn block(&self, number: u64) -> Arc<DiskBlock> {
        let block = self.0.get(&number).cloned();
        block.unwrap_or_else(|| Arc::new([0; BLOCK]))
    }
}

/// The fate of writes that no flush followed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UnsyncedWrites {
    Lost,
    /// Each sector is independently written or not, as on a disk that was emptying its cache.
    Torn,
}

#[derive(Debug, Default)]
struct DiskContent {
    now: Image,
    durable: Image,
    /// Blocks that were written since the last flush.
    unsynced: BTreeSet<u64>,
}

impl DiskContent {
    fn read(&self, bytes: Range<u64>) -> Vec<u8> {
        let mut found = Vec::new();
        for (number, part) in parts(bytes) {
            found.extend_from_slice(&self.now.block(number)[part]);
        }
        found
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let mut rest = data;
        for (number, part) in parts(offset..offset + data.len() as u64) {
            let (data, after) = rest.split_at(part.len());
            let block = self.now.0.entry(number);
            let block = block.or_insert_with(|| Arc::new([0; BLOCK]));
            Arc::make_mut(block)[part].copy_from_slice(data);
            self.unsynced.insert(number);
            rest = after;
        }
    }

    fn flush(&mut self) {
        for number in std::mem::take(&mut self.unsynced) {
            self.durable.0.insert(number, self.now.block(number));
        }
    }

    fn after_power_cut(&self, unsynced: UnsyncedWrites, random: &mut fastrand::Rng) -> Image {
        let mut image = self.durable.clone();
        if let UnsyncedWrites::Torn = unsynced {
            for number in &self.unsynced {
                let mut block = self.durable.block(*number);
                let written = self.now.block(*number);
                for at in (0..BLOCK).step_by(SECTOR).filter(|_| random.bool()) {
                    let sector = at..at + SECTOR;
                    Arc::make_mut(&mut block)[sector.clone()].copy_from_slice(&written[sector]);
                }
                image.0.insert(*number, block);
            }
        }
        image
    }
}

/// The blocks of a range of bytes, and the bytes of each that are in the range.
fn parts(bytes: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let size = BLOCK as u64;
    let within = move |at: u64| usize::try_from(at).unwrap();
    (bytes.start / size..bytes.end.div_ceil(size)).map(move |number| {
        let first = bytes.start.saturating_sub(number * size);
        let last = (bytes.end - number * size).min(size);
        (number, within(first)..within(last))
    })
}

/// The file behind the loop device: the root of its file system.
#[derive(Clone, Debug, Default)]
struct ServedDisk(Arc<Mutex<DiskContent>>);

impl ServedDisk {
    fn content(&self) -> MutexGuard<'_, DiskContent> {
        self.0.lock().unwrap()
    }

    fn attributes() -> FileAttr {
        FileAttr {
            ino: INodeNo::ROOT,
            size: BYTES,
            blocks: BYTES / SECTOR as u64,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::RegularFile,
            perm: 0o600,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for ServedDisk {
    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::MAX, &Self::attributes());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let end = (offset + u64::from(size)).min(BYTES);
        reply.data(&self.content().read(offset.min(end)..end));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if offset + data.len() as u64 > BYTES {
            return reply.error(Errno::ENOSPC);
        }
        self.content().write(offset, data);
        reply.written(u32::try_from(data.len()).expect("FUSE counts in 32 bits"));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.content().flush();
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // FUSE calls this on close, which promises no durability.
        reply.ok();
    }
}

/// A mounted ext4 file system on a simulated disk.
#[derive(Debug)]
pub(crate) struct MountedDisk {
    content: ServedDisk,
    session: Option<BackgroundSession>,
    place: TempDir,
}

impl MountedDisk {
    /// Creates a disk with a new file system.
    pub(crate) fn new() -> Self {
        let machine = Self::plug_in(Image::default());
        run(Command::new("mkfs.ext4")
            .args(["-F", "-q", "-E", "nodiscard"])
            .arg(machine.disk()));
        machine.mounted()
    }

    /// Mounts the disk of a machine after a power cut.
    pub(crate) fn boot(disk: Image) -> Self {
        Self::plug_in(disk).mounted()
    }

    fn plug_in(image: Image) -> Self {
        let content = ServedDisk(Arc::new(Mutex::new(DiskContent {
            durable: image.clone(),
            now: image,
            unsynced: BTreeSet::new(),
        })));
        let place = tempfile::tempdir().unwrap();
        let disk = place.path().join("disk");
        fs::write(&disk, "").unwrap();
        fs::create_dir(place.path().join("root")).unwrap();
        let session = fuser::spawn_mount(content.clone(), disk, &Config::default())
            .expect("mounting through /dev/fuse");
        Self {
            content,
            session: Some(session),
            place,
        }
    }

    fn mounted(self) -> Self {
        run(Command::new("mount")
            .args(["-t", "ext4", "-o", "loop,noatime"])
            .args([self.disk(), self.root()]));
        self
    }

    fn disk(&self) -> PathBuf {
        self.place.path().join("disk")
    }

    /// The mount point of the file system.
    pub(crate) fn root(&self) -> PathBuf {
        self.place.path().join("root")
    }

    /// The content that the disk would have if the power were cut now.
    pub(crate) fn cut_power(&self, unsynced: UnsyncedWrites, random: &mut fastrand::Rng) -> Image {
        self.content.content().after_power_cut(unsynced, random)
    }
}

impl Drop for MountedDisk {
    fn drop(&mut self) {
        // Detached lazily, because a failed test may have left files open; the end of the process
        // closes them.
        for at in [self.root(), self.disk()] {
            let _ = Command::new("umount").arg("--lazy").arg(at).status();
        }
        drop(self.session.take());
    }
}

fn run(command: &mut Command) {
    let program = command.get_program().to_owned();
    let output = command
        .output()
        .unwrap_or_else(|err| panic!("{}: {err}", OsStr::display(&program)));
    assert!(output.status.success(), "{command:?}: {output:?}");
}
