//! A commit as a transaction of etcd.

use bytes::Bytes;
use podplane_etcd::wire::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RequestOp, TxnRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op,
};

use super::{
    Numbers,
    keys::{KeyRange, KeySpace, following},
};
use crate::{
    StoreError,
    history::History,
    store::{Guard, Key, MAX_WRITES, Prefix, Revision, Txn, Write},
};

/// The parts from which transactions are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requests<'a> {
    pub(super) keys: &'a KeySpace,
    pub(super) numbers: Numbers,
    /// Guards that etcd cannot compare are decided by it, and guarded by that what they depend on
    /// has not changed since.
    pub(super) mirror: &'a History,
}

/// The transaction that puts an empty key, whatever is there.
pub(super) fn put_empty(key: Bytes) -> TxnRequest {
    TxnRequest {
        success: vec![put(key, Bytes::new())],
        ..TxnRequest::default()
    }
}

/// The write of a key that nobody owns.
pub(super) fn put(key: Bytes, value: Bytes) -> RequestOp {
    let put = PutRequest {
        key,
        value,
        ..PutRequest::default()
    };
    RequestOp {
        request: Some(request_op::Request::RequestPut(put)),
    }
}

impl Requests<'_> {
    /// The transaction. Its comparisons hold only if the guards do; if they fail, the guards may
    /// still hold, by a state that is newer than the mirror.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] if a guard does not hold in the mirror, which may be old;
    /// [`StoreError::TooLarge`].
    pub(super) fn transaction(&self, txn: &Txn, lease: i64) -> Result<TxnRequest, StoreError> {
        let mut compare = Vec::with_capacity(txn.guards.len());
        for (index, guard) in txn.guards.iter().enumerate() {
            self.guard(index, guard, &mut compare)?;
        }
        if compare.len() > MAX_WRITES {
            return Err(StoreError::TooLarge {
                limit: crate::TxnLimit::Guards,
                size: compare.len(),
            });
        }
        let writes = txn.writes.iter().map(|write| self.write(write, lease));
        Ok(TxnRequest {
            compare,
            success: writes.collect(),
            failure: Vec::new(),
        })
    }

    fn write(&self, write: &Write, lease: i64) -> RequestOp {
        let request = match write {
            Write::Put { key, value } => request_op::Request::RequestPut(PutRequest {
                key: self.keys.of(key),
                value: value.clone(),
                lease,
                prev_kv: true,
                ..PutRequest::default()
            }),
            Write::Delete { key } => request_op::Request::RequestDeleteRange(DeleteRangeRequest {
                key: self.keys.of(key),
                prev_kv: true,
                ..DeleteRangeRequest::default()
            }),
        };
        RequestOp {
            request: Some(request),
        }
    }

    fn guard(
        &self,
        index: usize,
        guard: &Guard,
        compare: &mut Vec<Compare>,
    ) -> Result<(), StoreError> {
        match guard {
            Guard::Absent(key) => compare.push(absent(self.one(key))),
            Guard::Present(key) => compare.push(comparison(
                self.one(key),
                CompareResult::Greater,
                CompareTarget::Create,
                TargetUnion::CreateRevision(0),
            )),
            Guard::At { key, revision } => compare.push(self.at(key, *revision)),
            Guard::NoneUnder(prefix) => compare.push(absent(self.keys.under(prefix))),
            Guard::OnlyUnder {
                prefix,
                key,
                revision,
            } => self.only_under(prefix, key, *revision, compare),
            Guard::AtMostUnder { prefix, .. } => {
                self.mirror.check(index, guard)?;
                let under = self.mirror.latest_under(prefix);
                let newest = under.map(|item| item.modified).max();
                compare.push(self.none_newer(prefix, newest));
            }
            Guard::NoneNewerUnder { prefix, revision } => {
                compare.push(self.none_newer(prefix, Some(*revision)));
            }
        }
        Ok(())
    }

    fn at(&self, key: &Key, revision: Revision) -> Compare {
        comparison(
            self.one(key),
            CompareResult::Equal,
            CompareTarget::Mod,
            TargetUnion::ModRevision(self.numbers.etcds(revision)),
        )
    }

    /// etcd compares conditions that must all hold, and has no "absent or at a revision": the
    /// mirror decides which.
    fn only_under(
        &self,
        prefix: &Prefix,
        key: &Key,
        revision: Revision,
        compare: &mut Vec<Compare>,
    ) {
        let KeyRange { key: from, end } = self.keys.under(prefix);
        if !prefix.contains(key) {
            compare.push(absent(KeyRange { key: from, end }));
            return;
        }
        let this = self.keys.of(key);
        if from < this {
            compare.push(absent(KeyRange {
                key: from,
                end: this.clone(),
            }));
        }
        compare.push(absent(KeyRange {
            key: following(&this),
            end,
        }));
        compare.push(match self.mirror.latest(key) {
            None => absent(self.one(key)),
            Some(_) => self.at(key, revision),
        });
    }

    /// Nothing under the prefix was put after the revision; `None`: nothing is there. A deletion
    /// does not matter.
    fn none_newer(&self, prefix: &Prefix, revision: Option<Revision>) -> Compare {
        let under = self.keys.under(prefix);
        let Some(revision) = revision else {
            return absent(under);
        };
        let after = self.numbers.etcds(revision).saturating_add(1);
        comparison(
            under,
            CompareResult::Less,
            CompareTarget::Mod,
            TargetUnion::ModRevision(after),
        )
    }

    fn one(&self, key: &Key) -> KeyRange {
        KeyRange {
            key: self.keys.of(key),
            end: Bytes::new(),
        }
    }
}

/// No key of the range is present: for each, the revision of its creation is 0.
fn absent(range: KeyRange) -> Compare {
    comparison(
        range,
        CompareResult::Equal,
        CompareTarget::Create,
        TargetUnion::CreateRevision(0),
    )
}

fn comparison(
    KeyRange { key, end }: KeyRange,
    result: CompareResult,
    target: CompareTarget,
    value: TargetUnion,
) -> Compare {
    Compare {
        result: result.into(),
        target: target.into(),
        key,
        range_end: end,
        target_union: Some(value),
    }
}
