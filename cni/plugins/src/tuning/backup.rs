//! The backup of an interface: its former attributes, kept in a file until DEL restores them. Name
//! and content are the reference's, so that each program restores what the other one has changed.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use podplane_cni::{
    skel::{Call, text},
    types::{CniError, json},
};
use podplane_netlink::{Link, Netlink, Request};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use serde_json::ser::{PrettyFormatter, Serializer};

use super::config::{TuningConfig, parse_mac};

/// The former values of the attributes that are changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Backup {
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    promisc: Option<bool>,
    #[serde(skip_serializing_if = "is_zero")]
    mtu: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    allmulti: Option<bool>,
    #[serde(
        rename = "txQLen",
        alias = "txqlen",
        skip_serializing_if = "Option::is_none"
    )]
    tx_queue_length: Option<u32>,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Backup {
    /// The attributes of `link` that the configuration changes.
    pub(super) fn of(link: &Link, config: &TuningConfig) -> Self {
        let TuningConfig {
            data_dir: _,
            sysctls: _,
            mac,
            promiscuous,
            mtu,
            all_multicast,
            tx_queue_length,
        } = config;
        Self {
            mac: mac.as_ref().map(|_| link.mac_text()).unwrap_or_default(),
            promisc: promiscuous.then_some(link.is_promiscuous),
            mtu: mtu.map(|_| link.mtu).unwrap_or_default(),
            allmulti: all_multicast.map(|_| link.is_all_multicast),
            tx_queue_length: tx_queue_length.map(|_| link.tx_queue_length),
        }
    }

    /// Restores an interface, trying every attribute. Returns the failures.
    pub(super) fn restore(&self, inside: &mut Netlink, index: u32) -> Vec<String> {
        let Self {
            mac,
            promisc,
            mtu,
            allmulti,
            tx_queue_length,
        } = self;
        let mut requests = Vec::new();
        if *mtu != 0 {
            requests.push(("MTU", Request::mtu(index, *mtu)));
        }
        let mut faults = Vec::new();
        if !mac.is_empty() {
            match parse_mac(mac) {
                Ok(mac) => requests.push(("MAC address", Request::mac(index, &mac))),
                Err(error) => faults.push(format!("failed to restore MAC address: {error}")),
            }
        }
        match promisc {
            Some(true) => requests.push(("promiscuous mode", Request::promiscuous(index))),
            Some(false) => requests.push(("promiscuous mode", Request::not_promiscuous(index))),
            None => {}
        }
        match allmulti {
            Some(true) => requests.push(("all-multicast mode", Request::all_multicast(index))),
            Some(false) => requests.push(("all-multicast mode", Request::not_all_multicast(index))),
            None => {}
        }
        if let Some(length) = tx_queue_length {
            let request = Request::tx_queue_length(index, *length);
            requests.push(("transmit queue length", request));
        }
        for (what, request) in requests {
            if let Err(error) = inside.execute([request]) {
                faults.push(format!("failed to restore {what}: {}", text(&error)));
            }
        }
        faults
    }

    /// Formats the backup with Go's indentation.
    fn to_json(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let formatter = PrettyFormatter::with_indent(b" ");
        let mut serializer = Serializer::with_formatter(&mut bytes, formatter);
        // A structure of plain values and a writer in memory: neither of serde_json's two ways to
        // fail applies.
        let written = self.serialize(&mut serializer);
        debug_assert!(written.is_ok());
        bytes
    }
}

/// The backup file of an attachment.
#[derive(Debug, Clone)]
pub(super) struct BackupFile {
    dir: PathBuf,
    path: PathBuf,
    ifname: String,
}

impl BackupFile {
    pub(super) fn of(call: &Call, dir: &Path) -> Self {
        let Call {
            container_id,
            ifname,
            ..
        } = call;
        Self {
            dir: dir.to_owned(),
            path: dir.join(format!("{container_id}_{ifname}.json")),
            ifname: ifname.clone(),
        }
    }

    /// The path of the file until it is complete. No attachment's file ends like this.
    fn unfinished(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".tmp");
        path.into()
    }

    /// Writes the file, whole or not at all, replacing an earlier one.
    pub(super) fn write(&self, backup: &Backup) -> Result<(), CniError> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir);
        made.map_err(|error| {
            let dir = self.dir.display();
            CniError::internal(format!("failed to create backup directory: {dir}: {error}"))
        })?;
        self.place(&backup.to_json()).map_err(|error| {
            let (ifname, path) = (&self.ifname, self.path.display());
            CniError::internal(format!(
                "failed to save file {ifname}.json: {path}: {error}"
            ))
        })
    }

    /// Gives the file its name after its content: otherwise a DEL of the reference could read half
    /// a file.
    fn place(&self, content: &[u8]) -> io::Result<()> {
        match self.place_unnamed(content) {
            // The file system has no unnamed files, or the caller lacks the capability for them.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL | Errno::PERM) => {}
            placed => return Ok(placed?),
        }
        let unfinished = self.unfinished();
        let write = || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(&unfinished)?.write_all(content)?;
            fs::rename(&unfinished, &self.path)
        };
        write().inspect_err(|_| _ = fs::remove_file(&unfinished))
    }

    fn place_unnamed(&self, content: &[u8]) -> rustix::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.dir, flags, Mode::RUSR | Mode::WUSR)?;
        let mut rest = content;
        while !rest.is_empty() {
            let n = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?;
            rest = rest.get(n..).unwrap_or_default();
        }
        let link = || rustix::fs::linkat(&file, c"", CWD, &self.path, AtFlags::EMPTY_PATH);
        match link() {
            Err(Errno::EXIST) => {
                rustix::fs::unlink(&self.path)?;
                link()
            }
            linked => linked,
        }
    }

    /// Reads the backup. `None` if the file is missing or cannot be parsed.
    pub(super) fn read(&self) -> Result<Option<Backup>, CniError> {
        let bytes = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|error| {
                let path = json::go_quote(&self.path.to_string_lossy());
                CniError::internal(format!("failed to open file {path}: {error}"))
            })?,
        };
        Ok(json::read_folded(&bytes).ok())
    }

    /// Removes the file, and what a killed ADD has left of it.
    pub(super) fn remove(&self) -> Result<(), CniError> {
        for path in [&self.path, &self.unfinished()] {
            match fs::remove_file(path) {
                Err(error)
                    if !matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) =>
                {
                    let path = path.display();
                    return Err(CniError::internal(format!(
                        "failed to remove file {path}: {error}"
                    )));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_equals_that_of_the_reference() {
        let backup = Backup {
            mac: "c2:11:22:33:44:55".to_owned(),
            promisc: Some(false),
            mtu: 1500,
            allmulti: Some(true),
            tx_queue_length: Some(0),
        };
        let text = "{\n \"mac\": \"c2:11:22:33:44:55\",\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": true,\n \"txQLen\": 0\n}";
        assert_eq!(String::from_utf8(backup.to_json()).unwrap(), text);
        let read: Backup = json::read_folded(text.as_bytes()).unwrap();
        assert_eq!(read, backup);
        assert_eq!(Backup::default().to_json(), b"{}");
    }
}
