//! Nodes by number, each known once: a UID in 16 bytes, a name among all the others.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::num::NonZeroU32;

use hashbrown::HashTable;
use uuid::Uuid;

use super::paged::Paged;
use crate::blocks::Owner;

/// Bytes of a page of names.
const NAMES: usize = 16 * 1024;

/// Stands for a node as long as it holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::blocks) struct OwnerId(NonZeroU32);

impl OwnerId {
    pub(super) fn index(self) -> usize {
        usize::try_from(self.0.get() - 1).expect("an index of 32 bits")
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Zero if it is no UUID.
    uid: Uuid,
    /// Where the name begins, with its length.
    name: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Owners {
    records: Paged<Record>,
    /// Those that stand for nobody now.
    vacant: Vec<OwnerId>,
    by_uid: HashTable<OwnerId>,
    /// Names, each behind its length in a byte; none is in two pages.
    names: Vec<Vec<u8>>,
    /// How many of those bytes are of nodes that are gone.
    dead: usize,
    /// What no record has room for.
    odd: BTreeMap<OwnerId, Odd>,
    odd_by_uid: BTreeMap<Box<str>, OwnerId>,
}

/// A UID that is no UUID, a name of more than 255 bytes.
#[derive(Clone, Debug, Default)]
struct Odd {
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

    /// The number of the node, which it is given if it has none. A name is that of the first time.
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
        let mut odd = Odd::default();
        let name = write(&mut self.names, owner.name().as_bytes());
        if name.is_none() {
            odd.name = Some(owner.name().into());
        }
        self.records.set(
            id.index(),
            Record {
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
                odd.uid = Some(owner.uid().into());
                self.odd_by_uid.insert(owner.uid().into(), id);
            }
        }
        if odd.uid.is_some() || odd.name.is_some() {
            self.odd.insert(id, odd);
        }
        id
    }

    /// Forgets the node; its number may become another's.
    pub(super) fn remove(&mut self, id: OwnerId) {
        let Record { uid, .. } = self.record(id);
        let odd = self.odd.remove(&id).unwrap_or_default();
        if odd.name.is_none() {
            self.dead += 1 + self.name(id).len();
        }
        match odd.uid {
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

    fn record(&self, id: OwnerId) -> Record {
        self.records.get(id.index()).unwrap_or_default()
    }

    pub(super) fn name(&self, id: OwnerId) -> &str {
        if let Some(Odd {
            name: Some(name), ..
        }) = self.odd.get(&id)
        {
            return name;
        }
        let bytes = written(&self.names, self.record(id).name);
        bytes
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
            .unwrap_or_default()
    }

    pub(super) fn owner(&self, id: OwnerId) -> Owner {
        let odd = self.odd.get(&id).and_then(|odd| odd.uid.as_deref());
        match odd {
            Some(uid) => Owner::new(uid, self.name(id)),
            None => {
                let mut text = Uuid::encode_buffer();
                let uid = self.record(id).uid.hyphenated();
                Owner::new(uid.encode_lower(&mut text), self.name(id))
            }
        }
    }

    /// Writes the names anew, without those of nodes that are gone.
    fn compact(&mut self) {
        let old = std::mem::take(&mut self.names);
        self.dead = 0;
        let odd_ones = self.odd_by_uid.values();
        for id in self.by_uid.iter().chain(odd_ones) {
            let mut record = self.record(*id);
            let odd = self.odd.get(id).and_then(|odd| odd.name.as_ref());
            if odd.is_none()
                && let Some(name) = written(&old, record.name)
                && let Some(at) = write(&mut self.names, name)
            {
                record.name = at;
                self.records.set(id.index(), record);
            }
        }
    }
}

/// `None` if there is no room.
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

/// The UID as a UUID, if that has all that there is in the text.
fn as_uuid(uid: &str) -> Option<Uuid> {
    if uid.len() != 36 || uid.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    Uuid::try_parse(uid).ok()
}

/// The same in every process.
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
        fn every_node_is_known_by_its_uid_and_name(steps in prop::collection::vec((any::<bool>(), 0..40u16), 1..200)) {
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
