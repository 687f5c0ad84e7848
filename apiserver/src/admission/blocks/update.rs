//! Transitions of records between one node and the next.

use std::{num::NonZeroUsize, time::Duration};

use ipnet::IpNet;
use podplane_api::jiff::{SignedDuration, Timestamp};
use podplane_host::clock;
use podplane_proto::{
    error::{ApiError, Reason},
    fence::Fence,
    ipam::PodAddress,
};
use podplane_store::{Guard, Key, StoreError, Txn, Write};

use super::{
    NodeBlockAdmission,
    hold::{BlockHold, Claimant},
    record::{self, KeyedBlockRecord, NodeBlockRecord, RecordState},
};
use crate::{
    admission::{addresses, fences},
    error,
};

/// The maximum number of pods that a refused release names.
const NAMED: NonZeroUsize = NonZeroUsize::new(4).expect("not zero");

/// A transition of a record.
#[derive(Clone, Debug)]
pub(crate) enum RecordTransition {
    /// The block fits the configuration.
    Assigned,
    /// The block does not fit the configuration.
    Foreign,
    /// Nothing uses the block any more; it is reserved for this long.
    Quarantined(SignedDuration),
    /// The record is removed.
    Release,
    /// The hold changes.
    Hold(HoldMove),
}

impl RecordTransition {
    /// Returns true if the transition frees the block for another node.
    fn frees(&self) -> bool {
        matches!(self, Self::Quarantined(_) | Self::Release)
    }
}

/// A change of a hold.
#[derive(Clone, Debug)]
pub(crate) enum HoldMove {
    /// The instance takes it or renews it, with the addresses of its sandboxes if known.
    Take(Claimant, Vec<PodAddress>),
    /// The instance ends it.
    End(Claimant),
    /// An operator ends it.
    Forget,
}

/// The identity of a record: a block, a node, and the node's UID.
#[derive(Clone, Debug)]
pub(crate) struct BlockRecordId {
    pub(crate) net: IpNet,
    pub(crate) node: String,
    pub(crate) node_uid: String,
}

impl NodeBlockAdmission {
    /// Applies a transition to a record and returns the new record; `None` if it was removed.
    pub(crate) async fn update(
        &self,
        which: &BlockRecordId,
        to: RecordTransition,
        fence: Option<&Fence>,
    ) -> Result<Option<KeyedBlockRecord>, ApiError> {
        let key = record::key(&which.net, &which.node);
        let key = key.map_err(|error| error::bad_request(error.to_string()))?;
        loop {
            let leads = fences::guard(&self.engine, fence).await?;
            let item = self.engine.get(&key).await.map_err(error::store)?;
            let Some(found) = item.as_deref().and_then(KeyedBlockRecord::read) else {
                return match to {
                    RecordTransition::Release => Ok(None),
                    _ => Err(not_found(which)),
                };
            };
            if found.record.node_uid != which.node_uid {
                return Err(other_owner(which, &found));
            }
            let release_after = self.policy.release_after;
            let record = record_after(&found, &to, clock::timestamp(), release_after)?;
            let no_holders = match to.frees() {
                true => Some(self.no_holders(&found).await?),
                false => None,
            };
            if record.as_ref() == Some(&found.record) {
                return Ok(Some(found));
            }
            let unchanged = Guard::At {
                key: key.clone(),
                revision: found.revision,
            };
            let txn = Txn {
                guards: leads
                    .into_iter()
                    .chain([unchanged])
                    .chain(no_holders)
                    .collect(),
                writes: vec![write(key.clone(), record.as_ref())],
                lifetime: None,
                reclaims: record.is_none(),
            };
            match self.engine.commit(txn).await {
                Ok(committed) => {
                    log_transition(which, &to);
                    return Ok(record.map(|record| KeyedBlockRecord {
                        record,
                        revision: committed.revision,
                        ..found
                    }));
                }
                // The record changed, a pod has reported an address, or another process leads: read
                // again.
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error::store(error)),
            }
        }
    }
}

impl NodeBlockAdmission {
    /// Checks that no stored pod holds an address of the block; the guard ensures it until the
    /// commit. It applies to operators too.
    async fn no_holders(&self, found: &KeyedBlockRecord) -> Result<Guard, ApiError> {
        let holders = addresses::holders(&self.engine, &found.net, NAMED).await;
        let holders = holders.map_err(error::store)?;
        let named = holders
            .iter()
            .map(|holder| format!("{} ({})", holder.pod, holder.address));
        match named.collect::<Vec<_>>().as_slice() {
            [] => Ok(Guard::NoneUnder(addresses::within(&found.net))),
            pods => {
                let more = match pods.len() < NAMED.get() {
                    true => "",
                    false => " and perhaps others",
                };
                let why = format!("and pods have addresses of it: {}{more}", pods.join(", "));
                Err(in_use(found, &why))
            }
        }
    }
}

/// Logs an operator's act.
fn log_transition(which: &BlockRecordId, to: &RecordTransition) {
    let BlockRecordId { net, node, .. } = which;
    if let RecordTransition::Hold(HoldMove::Forget) = to {
        tracing::warn!(%net, node, "hold of a node block ended by an operator");
    }
}

fn write(key: Key, record: Option<&NodeBlockRecord>) -> Write {
    match record {
        Some(record) => record.put(key),
        None => Write::Delete { key },
    }
}

/// Returns the record after a transition; `None` if it is removed.
fn record_after(
    found: &KeyedBlockRecord,
    to: &RecordTransition,
    now: Timestamp,
    release_after: Option<Duration>,
) -> Result<Option<NodeBlockRecord>, ApiError> {
    use RecordState::{Assigned, Draining, Foreign, Quarantined};
    let record = &found.record;
    let after = |time: SignedDuration| Some(now.saturating_add(time).unwrap_or(now));
    let (state, until) = match (to, record.state) {
        (RecordTransition::Assigned, Assigned | Foreign) => (Assigned, None),
        (RecordTransition::Foreign, Assigned | Foreign) => (Foreign, None),
        (RecordTransition::Quarantined(time), Draining | Quarantined) => {
            not_held(found, now, release_after)?;
            (Quarantined, after(*time))
        }
        (RecordTransition::Release, Draining | Quarantined) => {
            not_held(found, now, release_after)?;
            return Ok(None);
        }
        (RecordTransition::Hold(change), _) => return with_hold(found, change, now).map(Some),
        (RecordTransition::Quarantined(_) | RecordTransition::Release, Assigned | Foreign) => {
            return Err(in_use(found, "which is there"));
        }
        (RecordTransition::Assigned | RecordTransition::Foreign, Draining | Quarantined) => {
            return Err(ApiError::new(
                Reason::Conflict,
                format!("{}, which is gone", of(found)),
            ));
        }
    };
    let hold = record.hold.clone().filter(|_| state != Quarantined);
    Ok(Some(NodeBlockRecord {
        state,
        until,
        hold,
        ..record.clone()
    }))
}

/// The record after a change of its hold.
fn with_hold(
    found: &KeyedBlockRecord,
    change: &HoldMove,
    now: Timestamp,
) -> Result<NodeBlockRecord, ApiError> {
    let record = found.record.clone();
    let (HoldMove::Take(claimant, _) | HoldMove::End(claimant)) = change else {
        return Ok(NodeBlockRecord {
            hold: None,
            ..record
        });
    };
    if let Some(hold) = record.hold.as_ref().filter(|hold| !hold.is_of(claimant)) {
        return Err(of_another(found, hold));
    }
    Ok(match change {
        HoldMove::End(_) | HoldMove::Forget => NodeBlockRecord {
            hold: None,
            ..record
        },
        HoldMove::Take(_, addresses) => {
            let hold = match record.hold {
                Some(hold) => hold.owned_by(claimant),
                None => BlockHold::by(claimant, now),
            };
            match record.state.has_node() {
                // The Lease has the time at which it was heard of, and the pods have its addresses.
                true => NodeBlockRecord {
                    hold: Some(hold),
                    ..record
                },
                // Even if nothing seemed to use the block any more.
                false => NodeBlockRecord {
                    state: RecordState::Draining,
                    until: None,
                    hold: Some(hold.renewed(addresses, now)),
                    ..record
                },
            }
        }
    })
}

/// Checks that no instance holds the block.
fn not_held(
    found: &KeyedBlockRecord,
    now: Timestamp,
    release_after: Option<Duration>,
) -> Result<(), ApiError> {
    let hold = found.record.hold.as_ref();
    let Some(hold) = hold.filter(|hold| !hold.is_over(release_after, now)) else {
        return Ok(());
    };
    let (holder, since, node) = (hold.holder(), hold.since, &found.node);
    let ends = match hold.until(release_after) {
        Some(until) => format!("it ends at {until}, or when the node says so"),
        None => "it ends when the node says so".to_owned(),
    };
    let why = format!(
        "which is gone; {holder} holds the block since {since}, since its sandboxes may have addresses of it; {ends}, by `podplane node remove {node}`, or by `podplane node forget {node}`"
    );
    Err(in_use(found, &why))
}

fn of_another(found: &KeyedBlockRecord, hold: &BlockHold) -> ApiError {
    let (holder, since, node) = (hold.holder(), hold.since, &found.node);
    let why = format!(
        "{}; {holder} holds it since {since}, since its sandboxes may have addresses of it; once they are gone, `podplane node forget {node}` ends that hold",
        of(found)
    );
    ApiError::new(Reason::Forbidden, why)
}

fn of(found: &KeyedBlockRecord) -> String {
    let KeyedBlockRecord {
        net, node, record, ..
    } = found;
    let state = record.state.as_str();
    format!("{net} ({state}) is of node \"{node}\"")
}

fn in_use(found: &KeyedBlockRecord, why: &str) -> ApiError {
    ApiError::new(Reason::InUse, format!("{}, {why}", of(found)))
}

fn not_found(which: &BlockRecordId) -> ApiError {
    let BlockRecordId { net, node, .. } = which;
    ApiError::new(
        Reason::NotFound,
        format!("there is no record of {net} of node \"{node}\""),
    )
}

fn other_owner(which: &BlockRecordId, found: &KeyedBlockRecord) -> ApiError {
    let (wanted, is) = (&which.node_uid, &found.record.node_uid);
    ApiError::new(
        Reason::Conflict,
        format!("{} with the UID {is:?}, not {wanted:?}", of(found)),
    )
}
