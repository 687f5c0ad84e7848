//! The ranges of Services, which no node's block overlaps: that of the flag, and those of
//! ServiceCIDRs.
//!
//! The latter are one record, `/podplane/service-ranges`, written in the commit of each
//! ServiceCIDR. A commit that gives a node a block guards that the record does not change, and one
//! that adds a range guards that no block is recorded in its way.

use std::collections::BTreeMap;

use ipnet::IpNet;
use podplane_ipam::Family;
use podplane_proto::error::ApiError;
use podplane_store::{Guard, Key, StoreError, Write};
use serde::{Deserialize, Serialize};

use super::{NodeBlockAdmission, record, refusal};
use crate::{admission::CommitAdditions, error};

const RECORD: &str = "/podplane/service-ranges";

/// The prefixes of each ServiceCIDR, by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct RangeRecord(BTreeMap<String, Vec<IpNet>>);

impl RangeRecord {
    fn key() -> Key {
        Key::try_from(RECORD).expect("neither empty nor long")
    }

    fn put(&self) -> Write {
        let value = serde_json::to_vec(self).expect("prefixes have a JSON form");
        Write::Put {
            key: Self::key(),
            value: value.into(),
        }
    }
}

impl NodeBlockAdmission {
    async fn range_record(&self) -> Result<(Guard, RangeRecord), StoreError> {
        let key = RangeRecord::key();
        Ok(match self.engine.get(&key).await? {
            None => (Guard::Absent(key), RangeRecord::default()),
            Some(item) => {
                let revision = item.modified;
                let read = serde_json::from_slice(&item.value()).unwrap_or_else(|error| {
                    tracing::error!(%key, %error, "list of service ranges is not valid; blocks are compared with the flag's alone until the next start");
                    RangeRecord::default()
                });
                (Guard::At { key, revision }, read)
            }
        })
    }

    /// All ranges of Services, and the guard that they do not change.
    pub(super) async fn service_ranges(&self) -> Result<(Guard, Vec<IpNet>), StoreError> {
        let (unchanged, RangeRecord(stored)) = self.range_record().await?;
        let mut all = self.policy.service_ranges.as_slice().to_vec();
        for net in stored.into_values().flatten() {
            if !all.contains(&net) {
                all.push(net);
            }
        }
        Ok((unchanged, all))
    }

    /// The guard and write by which the record has these prefixes of a ServiceCIDR, or no longer
    /// has it.
    pub(crate) async fn record_services(
        &self,
        name: &str,
        nets: &[IpNet],
    ) -> Result<CommitAdditions, ApiError> {
        let (unchanged, mut record) = self.range_record().await.map_err(error::store)?;
        match nets {
            [] => record.0.remove(name),
            nets => record.0.insert(name.to_owned(), nets.to_vec()),
        };
        Ok(CommitAdditions {
            guards: vec![unchanged],
            writes: vec![record.put()],
        })
    }

    /// The record as it is, to be made to agree with the ServiceCIDRs that are read after it.
    pub(crate) async fn recorded_services(&self) -> Result<RecordedServices, StoreError> {
        let (unchanged, found) = self.range_record().await?;
        Ok(RecordedServices { unchanged, found })
    }

    /// The guards that no block shares an address with these prefixes.
    pub(crate) async fn outside_of_blocks(&self, nets: &[IpNet]) -> Result<Vec<Guard>, StoreError> {
        if nets.is_empty() || self.policy.lenient {
            return Ok(Vec::new());
        }
        let (unchanged, lengths) = self.lengths().await?;
        let mut guards = vec![unchanged];
        for net in nets {
            for length in lengths.of(Family::of(net)).range(..net.prefix_len()) {
                let wider = IpNet::new(net.addr(), *length).unwrap_or(*net).trunc();
                guards.push(Guard::NoneUnder(record::exactly(&wider)));
            }
            guards.push(Guard::NoneUnder(record::within(net)));
        }
        Ok(guards)
    }

    /// The first of these prefixes that shares an address with a block, and whose block that is.
    pub(crate) async fn overlapped_by(
        &self,
        nets: &[IpNet],
    ) -> Result<Option<(IpNet, String)>, ApiError> {
        if nets.is_empty() || self.policy.lenient {
            return Ok(None);
        }
        let (records, _) = self.records().await?;
        Ok(nets.iter().find_map(|net| {
            let held = records.iter().find(|held| held.overlaps(net))?;
            Some((*net, refusal::describe_owner(held)))
        }))
    }
}

/// The record of the ranges of Services, as it was read.
#[derive(Debug)]
pub(crate) struct RecordedServices {
    unchanged: Guard,
    found: RangeRecord,
}

impl RecordedServices {
    /// The write by which it has these ranges, and its guard; `None` if it does.
    pub(crate) fn repaired(
        self,
        all: impl IntoIterator<Item = (String, Vec<IpNet>)>,
    ) -> Option<(Guard, Write)> {
        let wanted = RangeRecord(all.into_iter().collect());
        (wanted != self.found).then(|| (self.unchanged, wanted.put()))
    }
}
