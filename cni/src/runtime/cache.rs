//! The cache of attachments: one file each, in libcni's format. With it a DEL needs only ids.

use std::{
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use podplane_host::fs;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Attachment, RuntimeError};
use crate::{
    spare::SpareFiles,
    types::{NetworkConfigList, json},
};

const KIND: &str = "cniCacheV1";

/// An attachment that was added and not deleted.
#[derive(Debug, Clone, PartialEq)]
pub struct CachedAttachment {
    /// The network's name.
    pub network: String,
    /// The attachment, with the arguments it was added with.
    pub attachment: Attachment,
    /// The configuration it was added with, as written. Empty in entries of an older format.
    pub config: Vec<u8>,
    /// The result, in the format of the plugin's version.
    pub result: Option<Value>,
}

/// An entry as stored; the order of fields is libcni's.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CachedEntry {
    kind: String,
    container_id: String,
    config: Option<String>, // Go writes null for a list made without text.
    if_name: String,
    network_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    netns: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cni_args: Option<Vec<(String, String)>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capability_args: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
}

/// The directory of entries.
#[derive(Debug)]
pub(super) struct Cache<'a> {
    pub(super) dir: &'a Path,
    pub(super) spare: Option<&'a SpareFiles>,
}

impl Cache<'_> {
    fn results(&self) -> PathBuf {
        self.dir.join("results")
    }

    fn path(&self, network: &str, attachment: &Attachment) -> PathBuf {
        let Attachment {
            container_id,
            ifname,
            ..
        } = attachment;
        self.results()
            .join(format!("{network}-{container_id}-{ifname}"))
    }

    /// Writes an entry in one step: readers find the old one, the new one, or none.
    pub(super) fn write(
        &self,
        list: &NetworkConfigList,
        attachment: &Attachment,
        result: &Value,
    ) -> Result<(), RuntimeError> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let path = self.path(&list.name, attachment);
        let entry = CachedEntry {
            kind: KIND.to_owned(),
            container_id: attachment.container_id.clone(),
            config: Some(STANDARD.encode(&list.bytes)),
            if_name: attachment.ifname.clone(),
            network_name: list.name.clone(),
            netns: attachment
                .netns
                .as_deref()
                .map(path_text)
                .unwrap_or_default(),
            cni_args: Some(attachment.args.clone()).filter(|args| !args.is_empty()),
            capability_args: Some(attachment.capability_args.clone())
                .filter(|args| !args.is_empty()),
            result: Some(result.clone()),
        };
        let text = json::compact(&entry);
        let failed = |source| RuntimeError::Cache {
            action: "write",
            path: path.clone(),
            source,
        };
        if let Some(spare) = self.spare {
            let written = self
                .make_dir()
                .and_then(|()| spare.write(&path, text.as_bytes()));
            return written.map_err(failed);
        }
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        // No attachment's file has such a name: it begins with the network's name, which cannot
        // begin with a dot.
        let temporary = self
            .results()
            .join(format!(".{}-{serial}.tmp", std::process::id()));
        let write = || {
            self.make_dir()?;
            let mut options = fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = fs::open_with(&options, &temporary)?;
            io::Write::write_all(&mut file, text.as_bytes())?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|source| {
            _ = fs::remove_file(&temporary);
            failed(source)
        })
    }

    fn make_dir(&self) -> io::Result<()> {
        fs::create_private_dir_all(self.results())
    }

    /// Reads the entry of an attachment, if there is one.
    ///
    /// # Errors
    /// The reason why the file is not an entry.
    pub(super) fn read(
        &self,
        network: &str,
        attachment: &Attachment,
    ) -> Result<Option<CachedAttachment>, String> {
        // As in libcni, a file that cannot be opened counts as missing.
        let Ok(text) = fs::read(self.path(network, attachment)) else {
            return Ok(None);
        };
        let mut entry = parse(&text)?;
        if entry.network.is_empty() {
            // The older format is the bare result; its owner is known by the file's name only.
            network.clone_into(&mut entry.network);
            entry.attachment = attachment.clone();
        }
        // The file's name is ambiguous: `-` is legal in all its parts.
        let same = entry.network == network
            && entry.attachment.container_id == attachment.container_id
            && entry.attachment.ifname == attachment.ifname;
        Ok(same.then_some(entry))
    }

    /// Removes the entry of an attachment, even if it is unreadable. An entry of another attachment
    /// with the same file name stays.
    pub(super) fn remove(
        &self,
        network: &str,
        attachment: &Attachment,
    ) -> Result<(), RuntimeError> {
        if let Ok(None) = self.read(network, attachment) {
            return Ok(());
        }
        let path = self.path(network, attachment);
        let removed = match self.spare {
            Some(spare) => spare.remove(&path),
            None => fs::remove_file(&path),
        };
        match removed {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(RuntimeError::Cache {
                action: "remove",
                path,
                source,
            }),
            _ => Ok(()),
        }
    }

    /// All entries that can be read and name their owner, in lexical order of their files.
    pub(super) fn list(&self) -> Result<Vec<CachedAttachment>, RuntimeError> {
        let dir = self.results();
        let failed = |source| RuntimeError::Cache {
            action: "read",
            path: dir.clone(),
            source,
        };
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut paths = Vec::new();
        for entry in entries {
            paths.push(entry.map_err(failed)?.path());
        }
        paths.sort();
        let texts = paths.iter().filter_map(|path| fs::read(path).ok());
        let parsed = texts.filter_map(|text| parse(&text).ok());
        let named = parsed.filter(|entry| {
            let Attachment {
                container_id,
                ifname,
                ..
            } = &entry.attachment;
            ![&entry.network, container_id, ifname].contains(&&String::new())
        });
        Ok(named.collect())
    }
}

fn parse(text: &[u8]) -> Result<CachedAttachment, String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| json::go_error(&error))?;
    if value.get("kind").is_none_or(|kind| kind != KIND) {
        if !value.is_object() {
            return Err("it is neither an entry nor a result".to_owned());
        }
        return Ok(CachedAttachment {
            network: String::new(),
            attachment: Attachment::new("", None, ""),
            config: Vec::new(),
            result: Some(value),
        });
    }
    let entry: CachedEntry = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let config = STANDARD.decode(entry.config.unwrap_or_default());
    Ok(CachedAttachment {
        network: entry.network_name,
        attachment: Attachment {
            container_id: entry.container_id,
            netns: Some(entry.netns)
                .filter(|netns| !netns.is_empty())
                .map(PathBuf::from),
            ifname: entry.if_name,
            args: entry.cni_args.unwrap_or_default(),
            capability_args: entry.capability_args.unwrap_or_default(),
            trace: None,
        },
        config: config.map_err(|error| format!("config: {error}"))?,
        result: entry.result,
    })
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
