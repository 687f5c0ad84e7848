//! A key that each commit of this server compares: once it is raised, no earlier attempt of a commit
//! can be applied any more, however late it comes to etcd.

use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use podplane_etcd::{
    EtcdClient, EtcdError,
    wire::etcdserverpb::{
        Compare, RangeRequest, TxnRequest,
        compare::{CompareTarget, TargetUnion},
    },
};

use super::request::put_empty;

/// The fence of this server. Its key is there from the first lost answer on.
#[derive(Debug)]
pub(super) struct Fence {
    key: Bytes,
    /// The key's revision, of its last change; 0 while it is absent.
    revision: AtomicI64,
}

impl Fence {
    pub(super) fn new(key: Bytes) -> Self {
        Self {
            key,
            revision: AtomicI64::new(0),
        }
    }

    /// The comparison that holds until the fence is raised.
    pub(super) fn holds(&self) -> Compare {
        let revision = self.revision.load(Ordering::Acquire);
        Compare {
            target: CompareTarget::Mod.into(),
            key: self.key.clone(),
            target_union: Some(TargetUnion::ModRevision(revision)),
            ..Compare::default()
        }
    }

    /// Raises the fence. Returns the revision from which on it holds: what was sent before is applied
    /// at an earlier one, or not at all.
    ///
    /// # Errors
    ///
    /// Those of [`EtcdClient::repeatable_txn`].
    pub(super) async fn raise(&self, client: &EtcdClient) -> Result<i64, EtcdError> {
        let raised = client.repeatable_txn(self.put()).await?;
        let revision = raised.header.map_or(0, |header| header.revision);
        self.revision.fetch_max(revision, Ordering::AcqRel);
        Ok(revision)
    }

    /// Reads where the fence is: an attempt to raise it may have come late.
    ///
    /// # Errors
    ///
    /// Those of [`EtcdClient::range`].
    pub(super) async fn read(&self, client: &EtcdClient) -> Result<(), EtcdError> {
        let request = RangeRequest {
            key: self.key.clone(),
            ..RangeRequest::default()
        };
        let found = client.range(request).await?.kvs.pop();
        let revision = found.map_or(0, |found| found.mod_revision);
        self.revision.fetch_max(revision, Ordering::AcqRel);
        Ok(())
    }

    /// The transaction that raises the fence. It may be applied more than once.
    pub(super) fn put(&self) -> TxnRequest {
        put_empty(self.key.clone())
    }
}
