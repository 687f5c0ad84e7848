//! Reading what is on disk, and telling whether it is all there.

use std::path::Path;

use uuid::Uuid;

use super::{
    disk::engine_error,
    error::{Damage, OpenError},
    record::{self, CHANGES, FIRST, FORMAT, FORMAT_VERSION, ID, META, OLDEST},
};
use crate::{
    FIRST_REVISION,
    history::{ChangeId, Changes, History},
    store::{Item, Revision},
};

/// Told of damage: goes on, or ends the reading.
pub(super) type OnDamage<'a> = &'a mut dyn FnMut(Damage) -> Result<(), OpenError>;

/// Told of each item that can be read, also of earlier versions.
pub(super) type OnItem<'a> = &'a mut dyn FnMut(&Item);

pub(super) struct Loaded {
    pub(super) history: History,
    /// What a compaction that was cut short left behind.
    pub(super) unreachable: Vec<ChangeId>,
}

/// What a store is, apart from its content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    pub(super) id: Uuid,
    pub(super) first: Revision,
    pub(super) oldest: Revision,
}

impl Meta {
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

    fn read(dir: &Path, db: &sled::Db) -> Result<Self, OpenError> {
        let lacks = |what| OpenError::Corrupt {
            dir: dir.to_owned(),
            damage: Damage::NoMeta(what),
        };
        let get = |key| db.get(key).map_err(|err| engine_error(dir, err));
        let format = get(FORMAT)?
            .and_then(|bytes| Some(u32::from_be_bytes(bytes.as_ref().try_into().ok()?)))
            .ok_or_else(|| lacks("format"))?;
        if format != FORMAT_VERSION {
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
        Ok(Self {
            id: id.ok_or_else(|| lacks("id"))?,
            first: first.ok_or_else(|| lacks("first"))?,
            oldest: oldest.ok_or_else(|| lacks("oldest"))?,
        })
    }
}

/// Reads a database that is not empty. `reached` is a revision that it is known to have held.
pub(super) fn load(
    dir: &Path,
    db: &sled::Db,
    reached: Option<Revision>,
    on_damage: OnDamage<'_>,
    on_item: OnItem<'_>,
) -> Result<Loaded, OpenError> {
    let Meta { id, first, oldest } = Meta::read(dir, db)?;
    let mut loaded = Loaded {
        history: History::compacted_at(id, first, oldest),
        unreachable: Vec::new(),
    };
    let mut pending: Option<(Changes, u32)> = None;
    for entry in db.iter() {
        let (key, value) = match entry {
            Ok(entry) => entry,
            Err(err) => {
                // The rest cannot be reached.
                on_damage(Damage::Unreadable(err))?;
                break;
            }
        };
        if key.starts_with(META) {
            continue;
        }
        let found = record::decode_id(&key)
            .and_then(|id| Some((id, record::decode(id, &value)?)))
            .filter(|_| key.starts_with(CHANGES));
        let Some((id, found)) = found else {
            let name = record::decode_id(&key).map_or_else(
                || key.escape_ascii().to_string(),
                |id| format!("of place {} in revision {}", id.place, id.revision),
            );
            on_damage(Damage::Record(name))?;
            continue;
        };
        if let Some(item) = &found.change.item {
            on_item(item);
        }
        match &mut pending {
            Some((commit, _)) if commit.revision == id.revision => {
                commit.changes.push(found.change);
            }
            _ => {
                let begun = Changes {
                    revision: id.revision,
                    changes: vec![found.change],
                };
                if let Some(whole) = pending.replace((begun, found.of)) {
                    loaded.apply(whole, oldest, on_damage)?;
                }
            }
        }
    }
    if let Some(whole) = pending {
        loaded.apply(whole, oldest, on_damage)?;
    }
    let found = loaded.history.current();
    if let Some(reached) = reached.filter(|reached| *reached > found) {
        on_damage(Damage::Truncated { found, reached })?;
    }
    Ok(loaded)
}

impl Loaded {
    fn apply(
        &mut self,
        (commit, of): (Changes, u32),
        oldest: Revision,
        on_damage: OnDamage<'_>,
    ) -> Result<(), OpenError> {
        let Changes { revision, changes } = &commit;
        // Compaction leaves parts of commits, and gaps; after it there are none.
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
        // What a compaction left may lack the versions between.
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
