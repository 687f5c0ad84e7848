//! Records on their way from one node to the next.

use ipnet::IpNet;
use podplane_api::jiff::{SignedDuration, Timestamp};
use podplane_proto::{
    error::{ApiError, Reason},
    fence::Fence,
};
use podplane_store::{Guard, Key, StoreError, Txn, Write};

use super::{
    NodeBlocks,
    record::{self, Record, RecordState, Stored},
};
use crate::{admission::fences, error};

/// What is to become of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    /// It fits the configuration.
    Assigned,
    /// It does not.
    Foreign,
    /// Nothing uses it any more; it is kept back for so long.
    Quarantined(SignedDuration),
    /// It goes.
    Release,
    /// Sandboxes of the node that is gone have addresses of it for so long, if they have.
    Held(Option<SignedDuration>),
}

/// Which record: that of a block, a node, and its UID.
#[derive(Clone, Debug)]
pub(crate) struct Which {
    pub(crate) net: IpNet,
    pub(crate) node: String,
    pub(crate) node_uid: String,
}

impl NodeBlocks {
    /// Moves a record on, and returns it as it is then; nothing, if it is gone.
    pub(crate) async fn update(
        &self,
        which: &Which,
        to: Move,
        fence: Option<&Fence>,
    ) -> Result<Option<Stored>, ApiError> {
        let key = record::key(&which.net, &which.node);
        let key = key.map_err(|error| error::bad_request(error.to_string()))?;
        loop {
            let leads = fences::guard(&self.engine, fence).await?;
            let item = self.engine.get(&key).await.map_err(error::store)?;
            let Some(found) = item.as_ref().and_then(Stored::read) else {
                return match to {
                    Move::Release => Ok(None),
                    _ => Err(not_found(which)),
                };
            };
            if found.record.node_uid != which.node_uid {
                return Err(other_owner(which, &found));
            }
            let record = moved(&found, to, Timestamp::now())?;
            if record.as_ref() == Some(&found.record) {
                return Ok(Some(found));
            }
            let unchanged = Guard::At {
                key: key.clone(),
                revision: found.revision,
            };
            let txn = Txn {
                guards: leads.into_iter().chain([unchanged]).collect(),
                writes: vec![write(key.clone(), record.as_ref())],
            };
            match self.engine.commit(txn).await {
                Ok(committed) => {
                    return Ok(record.map(|record| Stored {
                        record,
                        revision: committed.revision,
                        ..found
                    }));
                }
                // It changed, or somebody else leads: look again.
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error::store(error)),
            }
        }
    }
}

fn write(key: Key, record: Option<&Record>) -> Write {
    match record {
        Some(record) => record.put(key),
        None => Write::Delete { key },
    }
}

/// What becomes of a record; nothing, if it goes.
fn moved(found: &Stored, to: Move, now: Timestamp) -> Result<Option<Record>, ApiError> {
    use RecordState::{Assigned, Draining, Foreign, Quarantined};
    let record = &found.record;
    let after = |time: SignedDuration| Some(now.saturating_add(time).unwrap_or(now));
    let (state, until) = match (to, record.state) {
        (Move::Assigned, Assigned | Foreign) => (Assigned, None),
        (Move::Foreign, Assigned | Foreign) => (Foreign, None),
        (Move::Quarantined(time), Draining | Quarantined) => {
            not_held(found, now)?;
            (Quarantined, after(time))
        }
        (Move::Release, Draining | Quarantined) => {
            not_held(found, now)?;
            return Ok(None);
        }
        // Also of one that nobody seemed to use any more.
        (Move::Held(Some(time)), Draining | Quarantined) => (Draining, after(time)),
        (Move::Held(None), Draining) => (Draining, None),
        (Move::Held(None), Quarantined) => return Ok(Some(record.clone())),
        (Move::Quarantined(_) | Move::Release | Move::Held(_), Assigned | Foreign) => {
            return Err(in_use(found, "which is there"));
        }
        (Move::Assigned | Move::Foreign, Draining | Quarantined) => {
            return Err(ApiError::new(
                Reason::Conflict,
                format!("{}, which is gone", of(found)),
            ));
        }
    };
    Ok(Some(Record {
        state,
        until,
        ..record.clone()
    }))
}

/// That no kubelet said that it needs more time.
fn not_held(found: &Stored, now: Timestamp) -> Result<(), ApiError> {
    match (found.record.state, found.record.until) {
        (RecordState::Draining, Some(until)) if until > now => {
            let why = format!("which is gone and whose sandboxes may have addresses until {until}");
            Err(in_use(found, &why))
        }
        _ => Ok(()),
    }
}

fn of(found: &Stored) -> String {
    let Stored {
        net, node, record, ..
    } = found;
    let state = record.state.as_str();
    format!("{net} ({state}) is of node \"{node}\"")
}

fn in_use(found: &Stored, why: &str) -> ApiError {
    ApiError::new(Reason::InUse, format!("{}, {why}", of(found)))
}

fn not_found(which: &Which) -> ApiError {
    let Which { net, node, .. } = which;
    ApiError::new(
        Reason::NotFound,
        format!("there is no record of {net} of node \"{node}\""),
    )
}

fn other_owner(which: &Which, found: &Stored) -> ApiError {
    let (wanted, is) = (&which.node_uid, &found.record.node_uid);
    ApiError::new(
        Reason::Conflict,
        format!("{} with the UID {is:?}, not {wanted:?}", of(found)),
    )
}
