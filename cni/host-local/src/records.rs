//! Records: the taken addresses, each with a hash of its file's content. A record has 24 bytes, in
//! memory and in the index.

use std::net::{IpAddr, Ipv6Addr};

/// An address as a number; IPv4 is mapped. A mapped IPv6 address never occurs itself, since it is
/// read as IPv4.
type Key = u128;

const KEY: usize = size_of::<Key>();

/// The records of a directory. See the module.
#[derive(Debug, Default, Clone)]
pub(super) struct Records {
    bytes: Vec<u8>,
    /// The addresses in order; made by the first search.
    sorted: Option<Vec<Key>>,
}

impl Records {
    /// The size of a record in bytes.
    pub(super) const SIZE: usize = KEY + size_of::<u64>();

    /// Records from the bytes of [`Self::as_bytes`]; an incomplete record at the end is dropped.
    pub(super) fn from_bytes(mut bytes: Vec<u8>) -> Self {
        bytes.truncate(bytes.len() / Self::SIZE * Self::SIZE);
        Self {
            bytes,
            sorted: None,
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() / Self::SIZE
    }

    /// Adds an address that has no record yet.
    pub(super) fn push(&mut self, ip: IpAddr, hash: u64) {
        let key = key(ip);
        self.bytes.extend_from_slice(&key.to_be_bytes());
        self.bytes.extend_from_slice(&hash.to_le_bytes());
        if let Some(sorted) = &mut self.sorted
            && let Err(at) = sorted.binary_search(&key)
        {
            sorted.insert(at, key);
        }
    }

    /// Adds the records of addresses that have none yet.
    pub(super) fn append(&mut self, mut others: Self) {
        self.bytes.append(&mut others.bytes);
        self.sorted = None;
    }

    /// Removes an address. The last record moves into its slot, which is returned.
    pub(super) fn remove(&mut self, ip: IpAddr) -> Option<usize> {
        let key = key(ip);
        let bytes = key.to_be_bytes();
        let slot = self.raw().position(|record| record.starts_with(&bytes))?;
        let last = self.bytes.len() - Self::SIZE;
        self.bytes.copy_within(last.., slot * Self::SIZE);
        self.bytes.truncate(last);
        if let Some(sorted) = &mut self.sorted
            && let Ok(at) = sorted.binary_search(&key)
        {
            sorted.remove(at);
        }
        Some(slot)
    }

    /// Returns true if the address has a record.
    pub(super) fn contains(&mut self, ip: IpAddr) -> bool {
        let sorted = match &mut self.sorted {
            Some(sorted) => sorted,
            none => none.insert(sorted_keys(&self.bytes)),
        };
        sorted.binary_search(&key(ip)).is_ok()
    }

    /// The addresses and hashes, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, u64)> {
        self.raw().map(|record| {
            let (mut key, mut hash) = ([0; KEY], [0; 8]);
            key.copy_from_slice(&record[..KEY]);
            hash.copy_from_slice(&record[KEY..]);
            let ip = IpAddr::V6(Ipv6Addr::from_octets(key)).to_canonical();
            (ip, u64::from_le_bytes(hash))
        })
    }

    fn raw(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(Self::SIZE)
    }
}

fn key(ip: IpAddr) -> Key {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn sorted_keys(bytes: &[u8]) -> Vec<Key> {
    let mut keys: Vec<Key> = bytes
        .chunks_exact(Records::SIZE)
        .filter_map(|record| record.first_chunk().copied().map(u128::from_be_bytes))
        .collect();
    keys.sort_unstable();
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_a_removed_address_by_the_last() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (a, b, c) = (ip("10.0.0.1"), ip("fd00::1"), ip("10.0.0.3"));
        let mut records = Records::default();
        records.push(a, 1);
        assert!(records.contains(a) && !records.contains(b));
        records.push(b, 2);
        records.push(c, u64::MAX);
        assert!(records.contains(b) && records.contains(c));
        assert_eq!(records.remove(a), Some(0));
        assert_eq!(records.remove(a), None);
        assert!(!records.contains(a));
        let again = Records::from_bytes(records.as_bytes().to_vec());
        assert_eq!(again.iter().collect::<Vec<_>>(), [(c, u64::MAX), (b, 2)]);
        assert_eq!(again.len(), 2);
    }
}
