//! Compact storage of nodes by number: a UID in 16 bytes, the names in shared pages.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hasher as _},
    num::NonZeroU32,
};

use hashbrown::HashTable;
use uuid::Uuid;

use super::paged::PagedVec;
use crate::blocks::Owner;

/// The size of a page of names.
const NAMES: usize = 16 * 1024;

/// The number of a node while it holds a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::blocks) struct OwnerId(NonZeroU32);

impl OwnerId {
    pub(super) fn index(self) -> usize {
        usize::try_from(self.0.get() - 1).expect("an index of 32 bits")
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct OwnerRecord {
    /// Zero if the UID is not a UUID.
    uid: Uuid,
    /// The offset of the length byte of the name.
    name: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Owners {
    records: PagedVec<OwnerRecord>,
    /// The numbers that are not in use.
    vacant: Vec<OwnerId>,
    by_uid: HashTable<OwnerId>,
    /// Pages of names, each name after a length byte; no name spans two pages.
    names: Vec<Vec<u8>>,
    /// The bytes of names of nodes that are gone.
    dead: usize,
    /// The owners that do not fit into a record.
    unusual: BTreeMap<OwnerId, UnusualOwner>,
    odd_by_uid: BTreeMap<Box<str>, OwnerId>,
}

/// An owner whose UID is not a UUID or whose name has more than 255 bytes.
#[derive(Clone, Debug, Default)]
struct UnusualOwner {
    uid: Option<Box<str>>,
    name: Option<Box<str>>,
}

impl Owners {
    pub(super) fn find(&self, uid: &str) -> Option<OwnerId> {
        match as_uuid(uid) {
            Some(uuid) => self.find_uuid(uuid),
            None => self.odd_by_uid.get(uid).copied(),
        }
    }

    fn find_uuid(&self, uuid: Uuid) -> Option<OwnerId> {
        let same = |id: &OwnerId| self.record(*id).uid == uuid;
        self.by_uid.find(hash(uuid), same).copied()
    }

    /// The number of the node, assigned if it has none. The name of the first call is kept.
    pub(super) fn intern(&mut self, owner: &Owner) -> OwnerId {
        let uuid = as_uuid(owner.uid());
        let known = match uuid {
            Some(uuid) => self.find_uuid(uuid),
            None => self.odd_by_uid.get(owner.uid()).copied(),
        };
        if let Some(id) = known {
            return id;
        }
        let id = self.vacant.pop().unwrap_or_else(|| {
            let next = u32::try_from(self.records.len() + 1).ok();
            let next = next.and_then(NonZeroU32::new);
            OwnerId(next.expect("more than 2^32 nodes do not fit in memory"))
        });
        let mut unusual = UnusualOwner::default();
        let name = write(&mut self.names, owner.name().as_bytes());
        if name.is_none() {
            unusual.name = Some(owner.name().into());
        }
        self.records.set(
            id.index(),
            OwnerRecord {
                uid: uuid.unwrap_or_default(),
                name: name.unwrap_or_default(),
            },
        );
        match uuid {
            Some(uuid) => {
                let records = &self.records;
                let rehash = |id: &OwnerId| hash(records.get(id.index()).unwrap_or_default().uid);
                self.by_uid.insert_unique(hash(uuid), id, rehash);
            }
            None => {
                unusual.uid = Some(owner.uid().into());
                self.odd_by_uid.insert(owner.uid().into(), id);
            }
        }
        if unusual.uid.is_some() || unusual.name.is_some() {
            self.unusual.insert(id, unusual);
        }
        id
    }

    /// Removes the node; its number may be assigned to another one.
    pub(super) fn remove(&mut self, id: OwnerId) {
        let OwnerRecord { uid, .. } = self.record(id);
        let unusual = self.unusual.remove(&id).unwrap_or_default();
        if unusual.name.is_none() {
            self.dead += 1 + self.name(id).len();
        }
        match unusual.uid {
            Some(text) => {
                self.odd_by_uid.remove(&text);
            }
            None => {
                if let Ok(entry) = self.by_uid.find_entry(hash(uid), |other| *other == id) {
                    entry.remove();
                }
            }
        }
        self.vacant.push(id);
        if self.dead > self.names.len() * (NAMES / 2) {
            self.compact();
        }
    }

    fn record(&self, id: OwnerId) -> OwnerRecord {
        self.records.get(id.index()).unwrap_or_default()
    }

    pub(super) fn name(&self, id: OwnerId) -> &str {
        if let Some(UnusualOwner {
            name: Some(name), ..
        }) = self.unusual.get(&id)
        {
            return name;
        }
        let bytes = written(&self.names, self.record(id).name);
        bytes
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
            .unwrap_or_default()
    }

    pub(super) fn owner(&self, id: OwnerId) -> Owner {
        let unusual = self
            .unusual
            .get(&id)
            .and_then(|unusual| unusual.uid.as_deref());
        match unusual {
            Some(uid) => Owner::new(uid, self.name(id)),
            None => {
                let mut text = Uuid::encode_buffer();
                let uid = self.record(id).uid.hyphenated();
                Owner::new(uid.encode_lower(&mut text), self.name(id))
            }
        }
    }

    /// Rewrites the pages of names without those of nodes that are gone.
    fn compact(&mut self) {
        let old = std::mem::take(&mut self.names);
        self.dead = 0;
        let odd_ones = self.odd_by_uid.values();
        for id in self.by_uid.iter().chain(odd_ones) {
            let mut record = self.record(*id);
            let unusual = self
                .unusual
                .get(id)
                .and_then(|unusual| unusual.name.as_ref());
            if unusual.is_none()
                && let Some(name) = written(&old, record.name)
                && let Some(at) = write(&mut self.names, name)
            {
                record.name = at;
                self.records.set(id.index(), record);
            }
        }
    }
}

/// Appends a name; `None` if there is no room.
fn write(names: &mut Vec<Vec<u8>>, name: &[u8]) -> Option<u32> {
    let length = u8::try_from(name.len()).ok()?;
    if names
        .last()
        .is_none_or(|page| NAMES - page.len() <= name.len())
    {
        names.push(Vec::with_capacity(NAMES));
    }
    let before = (names.len() - 1) * NAMES;
    let page = names.last_mut()?;
    let at = u32::try_from(before + page.len()).ok()?;
    page.push(length);
    page.extend_from_slice(name);
    Some(at)
}

fn written(names: &[Vec<u8>], at: u32) -> Option<&[u8]> {
    let at = usize::try_from(at).ok()?;
    let (length, rest) = names.get(at / NAMES)?.get(at % NAMES..)?.split_first()?;
    rest.get(..usize::from(*length))
}

/// The UID as a UUID, if the conversion loses nothing.
fn as_uuid(uid: &str) -> Option<Uuid> {
    if uid.len() != 36 || uid.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    Uuid::try_parse(uid).ok()
}

/// A hash that is the same in every process.
fn hash(uid: Uuid) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(uid.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uid(number: u16) -> String {
        match number % 3 {
            0 => format!("uid-{number}"),
            1 => Uuid::from_u128(u128::from(number) << 70).to_string(),
            _ => {
                Uuid::from_u128(u128::from(number))
                    .to_string()
                    .to_uppercase()
                    + "A"
            }
        }
    }

    proptest! {
        #[test]
        fn finds_every_owner_by_uid(steps in prop::collection::vec((any::<bool>(), 0..40u16), 1..200)) {
            let mut sut = Owners::default();
            let mut model = BTreeMap::new();
            for (add, number) in steps {
                let name = format!("node-{}", "x".repeat(usize::from(number) * 8));
                let owner = Owner::new(&uid(number), &name);
                if add {
                    let id = sut.intern(&owner);
                    prop_assert_eq!(*model.entry(number).or_insert(id), id);
                } else {
                    prop_assert_eq!(sut.find(&uid(number)), model.get(&number).copied());
                    if let Some(id) = model.remove(&number) {
                        sut.remove(id);
                    }
                }
                for (number, id) in &model {
                    prop_assert_eq!(sut.find(&uid(*number)), Some(*id));
                    let owner = sut.owner(*id);
                    prop_assert_eq!(owner.uid(), uid(*number));
                    prop_assert_eq!(sut.name(*id).len(), 5 + usize::from(*number) * 8);
                }
                prop_assert!(sut.names.len() <= 2 && sut.dead <= NAMES);
            }
        }
    }
}
