//! Reading the content of a database, and checking that it is complete.

use std::{path::Path, sync::Arc};

use uuid::Uuid;

use super::{
    disk::engine_error,
    error::{Damage, OpenError},
    record::{
        ChangeRecord, FIRST, FORMAT, FORMAT_VERSION, ID, META, OLDEST, PART_BYTES, RawRecord,
        RecordId, UNSPLIT_VERSION, decode, decode_id,
    },
    wal::LoggedRecords,
};
use crate::{
    FIRST_REVISION,
    history::{ChangeId, Changes, History, UnreachableChange},
    store::{Item, Revision},
};

/// Called for each damage; returns an error to stop reading.
pub(super) type OnDamage<'a> = &'a mut dyn FnMut(Damage) -> Result<(), OpenError>;

/// Called for each item that can be read, including earlier versions.
pub(super) type OnItem<'a> = &'a mut dyn FnMut(&Item);

pub(super) struct LoadedStore {
    pub(super) history: History,
    /// Changes that an interrupted compaction left behind.
    pub(super) unreachable: Vec<UnreachableChange>,
    /// Records of the log that are not in sled.
    pub(super) unsettled: Vec<RawRecord>,
    /// The format version of the database.
    pub(super) format: u32,
}

/// The metadata of a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreMeta {
    pub(super) id: Uuid,
    pub(super) first: Revision,
    pub(super) oldest: Revision,
}

impl StoreMeta {
    pub(super) fn new(id: Uuid) -> Self {
        Self {
            id,
            first: FIRST_REVISION,
            oldest: FIRST_REVISION,
        }
    }

    pub(super) fn records(&self) -> Vec<(&'static [u8], Vec<u8>)> {
        let mut records = vec![
            (FORMAT, FORMAT_VERSION.to_be_bytes().to_vec()),
            (ID, self.id.as_bytes().to_vec()),
            (OLDEST, self.oldest.number().to_be_bytes().to_vec()),
        ];
        if self.first > FIRST_REVISION {
            records.push((FIRST, self.first.number().to_be_bytes().to_vec()));
        }
        records
    }

    /// Reads the metadata and the format version.
    fn read(dir: &Path, db: &sled::Db) -> Result<(Self, u32), OpenError> {
        let lacks = |what| OpenError::Corrupt {
            dir: dir.to_owned(),
            damage: Damage::NoMeta(what),
        };
        let get = |key| db.get(key).map_err(|err| engine_error(dir, err));
        let format = get(FORMAT)?
            .and_then(|bytes| Some(u32::from_be_bytes(bytes.as_ref().try_into().ok()?)))
            .ok_or_else(|| lacks("format"))?;
        if !(UNSPLIT_VERSION..=FORMAT_VERSION).contains(&format) {
            return Err(OpenError::Format {
                dir: dir.to_owned(),
                found: format,
            });
        }
        let revision =
            |bytes: sled::IVec| Revision::new(u64::from_be_bytes(bytes.as_ref().try_into().ok()?));
        let id = get(ID)?.and_then(|bytes| Uuid::from_slice(&bytes).ok());
        let oldest = get(OLDEST)?.and_then(revision);
        let first = get(FIRST)?.map_or(Some(FIRST_REVISION), revision);
        let meta = Self {
            id: id.ok_or_else(|| lacks("id"))?,
            first: first.ok_or_else(|| lacks("first"))?,
            oldest: oldest.ok_or_else(|| lacks("oldest"))?,
        };
        Ok((meta, format))
    }
}

/// Reads a database that is not empty, and the log of what it lacks. `reached` is a revision that
/// the store is known to have reached.
pub(super) fn load(
    dir: &Path,
    db: &sled::Db,
    logged: &LoggedRecords,
    reached: Option<Revision>,
    on_damage: OnDamage<'_>,
    on_item: OnItem<'_>,
) -> Result<LoadedStore, OpenError> {
    let (StoreMeta { id, first, oldest }, format) = StoreMeta::read(dir, db)?;
    let mut loading = Loading {
        loaded: LoadedStore {
            history: History::compacted_at(id, first, oldest),
            unreachable: Vec::new(),
            unsettled: Vec::new(),
            format,
        },
        changes: ChangeReader::default(),
        commit: None,
        oldest,
        last: oldest,
        on_damage,
        on_item,
    };
    for entry in db.iter() {
        match entry {
            Ok((key, _)) if key.starts_with(META) => {}
            Ok((key, value)) => loading.record(&key, &value)?,
            Err(err) => {
                // The rest of the database cannot be reached.
                (loading.on_damage)(Damage::Unreadable(err))?;
                break;
            }
        }
    }
    let settled = loading.last;
    for (key, value) in &logged.records {
        let revision = decode_id(key).map(|id| id.change.revision);
        if revision.is_none_or(|revision| revision > settled) {
            loading.record(key, value)?;
            let record = (key.clone(), value.clone());
            loading.loaded.unsettled.push(record);
        }
    }
    if let Some(before) = logged.stray.filter(|stray| *stray > loading.last) {
        (loading.on_damage)(Damage::Log { before })?;
    }
    loading.end(reached)
}

/// The state of reading records, which come in the order of their commits.
struct Loading<'a> {
    loaded: LoadedStore,
    changes: ChangeReader,
    /// The commit that is being read, and the number of changes that it should have.
    commit: Option<(Changes, u32)>,
    oldest: Revision,
    /// The last revision of a record.
    last: Revision,
    on_damage: OnDamage<'a>,
    on_item: OnItem<'a>,
}

impl Loading<'_> {
    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), OpenError> {
        if let Some(id) = decode_id(key) {
            self.last = self.last.max(id.change.revision);
        }
        let read = self.changes.read(key, value);
        self.take(read)
    }

    /// Applies what was read last, and checks that the history goes to `reached`.
    fn end(mut self, reached: Option<Revision>) -> Result<LoadedStore, OpenError> {
        let read = self.changes.end();
        self.take(read)?;
        if let Some(whole) = self.commit.take() {
            self.loaded.apply(whole, self.oldest, self.on_damage)?;
        }
        let found = self.loaded.history.current();
        if let Some(reached) = reached.filter(|reached| *reached > found) {
            (self.on_damage)(Damage::Truncated { found, reached })?;
        }
        Ok(self.loaded)
    }

    fn take(&mut self, read: ReadOutcome) -> Result<(), OpenError> {
        for found in read {
            let (revision, record) = match found {
                Ok(found) => found,
                Err(damage) => {
                    (self.on_damage)(damage)?;
                    continue;
                }
            };
            if let Some(item) = &record.change.item {
                (self.on_item)(item);
            }
            match &mut self.commit {
                Some((commit, _)) if commit.revision == revision => {
                    commit.changes.push(record.change);
                }
                commit => {
                    let begun = Changes {
                        revision,
                        changes: vec![record.change],
                    };
                    if let Some(whole) = commit.replace((begun, record.of)) {
                        self.loaded.apply(whole, self.oldest, self.on_damage)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Assembles changes from their records, which come in key order.
#[derive(Default)]
struct ChangeReader {
    /// A change whose value has not been read completely, and the bytes read so far.
    split: Option<(ChangeId, ChangeRecord, Vec<u8>)>,
}

/// The changes that a record completes, or the damage it shows.
type ReadOutcome = Vec<Result<(Revision, ChangeRecord), Damage>>;

impl ChangeReader {
    fn read(&mut self, key: &[u8], value: &[u8]) -> ReadOutcome {
        let Some(RecordId { change: id, part }) = decode_id(key) else {
            let mut read = self.end();
            read.push(Err(Damage::Record(key.escape_ascii().to_string())));
            return read;
        };
        let unreadable = || {
            let part = part.map_or_else(String::new, |part| format!("part {part} "));
            let ChangeId { revision, place } = id;
            Err(Damage::Record(format!(
                "{part}of place {place} in revision {revision}"
            )))
        };
        let Some(part) = part else {
            let mut read = self.end();
            match decode(id, value) {
                Some(record) if record.missing > 0 => {
                    let found = Vec::with_capacity(record.missing);
                    self.split = Some((id, record, found));
                }
                Some(record) => read.push(Ok((id.revision, record))),
                None => read.push(unreadable()),
            }
            return read;
        };
        match &mut self.split {
            Some((of, record, found))
                if *of == id
                    && usize::from(part) * PART_BYTES == found.len()
                    && value.len() == PART_BYTES.min(record.missing - found.len()) =>
            {
                found.extend_from_slice(value);
                match found.len() == record.missing {
                    true => self.end(),
                    false => Vec::new(),
                }
            }
            _ => vec![unreadable()],
        }
    }

    /// Ends the change that is being read: no more parts of it follow.
    fn end(&mut self) -> ReadOutcome {
        let Some((id, mut record, found)) = self.split.take() else {
            return Vec::new();
        };
        let Some(item) = record
            .change
            .item
            .as_mut()
            .filter(|_| found.len() == record.missing)
        else {
            return vec![Err(Damage::Value {
                key: record.change.key,
                revision: id.revision,
                found: found.len(),
                of: record.missing,
            })];
        };
        let whole = Item::new(item.key.clone(), &found, item.created, item.modified);
        *item = Arc::new(whole);
        record.missing = 0;
        vec![Ok((id.revision, record))]
    }
}

impl LoadedStore {
    fn apply(
        &mut self,
        (commit, of): (Changes, u32),
        oldest: Revision,
        on_damage: OnDamage<'_>,
    ) -> Result<(), OpenError> {
        let Changes { revision, changes } = &commit;
        // Compaction leaves parts of commits, and gaps; later commits have none.
        if *revision > oldest {
            let found = u32::try_from(changes.len()).unwrap_or(u32::MAX);
            if found != of {
                on_damage(Damage::Torn {
                    revision: *revision,
                    found,
                    of,
                })?;
            }
            if *revision != self.history.current().next() {
                on_damage(Damage::Missing { before: *revision })?;
            }
        }
        // The changes that a compaction left may lack the versions in between.
        let checked = changes.iter().filter(|_| *revision > oldest);
        for item in checked.filter_map(|change| change.item.as_ref()) {
            let before = self.history.latest(&item.key);
            if item.created != before.map_or(item.modified, |before| before.created) {
                on_damage(Damage::Created {
                    key: item.key.clone(),
                    revision: *revision,
                })?;
            }
        }
        self.unreachable.extend(self.history.apply(commit));
        Ok(())
    }
}
