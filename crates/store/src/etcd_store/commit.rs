//! Commits: transactions of etcd, sent until their outcome is known.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use podplane_etcd::{
    EtcdError,
    wire::etcdserverpb::{
        Compare, RangeRequest, TxnRequest, TxnResponse,
        compare::{CompareTarget, TargetUnion},
    },
};
use podplane_host::{clock, random};
use uuid::Uuid;

use super::{
    COMMIT_LIMIT, EtcdStore, mirror, outcome,
    request::{Requests, put},
    unanswered,
};
use crate::{
    StoreError,
    store::{CommitResult, Revision, Txn, Write},
};

/// A commit, and what tells it from others.
#[derive(Clone, Copy, Debug)]
struct MarkedTxn<'a> {
    txn: &'a Txn,
    /// Written with it if it deletes something: another commit may delete the same.
    mark: Option<Uuid>,
}

impl<'a> MarkedTxn<'a> {
    fn new(txn: &'a Txn) -> Self {
        let mut writes = txn.writes.iter();
        let deletes = writes.any(|write| matches!(write, Write::Delete { .. }));
        Self {
            txn,
            mark: deletes.then(random::uuid),
        }
    }
}

/// The end of one attempt.
enum Attempt {
    Done(Result<CommitResult, StoreError>),
    /// A guard that seemed not to hold does, in a newer state.
    Again,
    /// There was no connection.
    NotSent(String),
    /// The answer was lost.
    Lost(String),
}

impl EtcdStore {
    /// Sends a transaction until etcd has said whether it was applied. After a lost answer the fence
    /// is raised, so that the attempt cannot be applied any more; if it was not until then, the
    /// transaction is sent again.
    pub(super) async fn commit_txn(&self, txn: &Txn) -> Result<CommitResult, StoreError> {
        let marked = MarkedTxn::new(txn);
        let deadline = clock::Instant::now().checked_add(COMMIT_LIMIT);
        let mut began = self.mirror.current();
        let (mut lost, mut not_sent) = (None, None);
        for pause in pauses() {
            if lost.is_some() {
                match self.outcome(marked, began).await {
                    Ok(Some(result)) => return Ok(result),
                    Ok(None) => (lost, began) = (None, self.mirror.current()),
                    Err(error) => lost = Some(error.to_string()),
                }
            }
            if lost.is_none() {
                match self.attempt(marked).await {
                    Attempt::Done(done) => return done,
                    Attempt::Again => not_sent = None,
                    Attempt::NotSent(message) => not_sent = Some(message),
                    Attempt::Lost(message) => lost = Some(message),
                }
            }
            if deadline.is_none_or(|deadline| clock::Instant::now() > deadline) {
                break;
            }
            if lost.is_some() || not_sent.is_some() {
                clock::sleep(pause).await;
            }
        }
        Err(match (lost, not_sent) {
            (Some(message), _) => StoreError::UnknownOutcome { message },
            (None, Some(message)) => StoreError::Unreachable { message },
            (None, None) => StoreError::Unreachable {
                message: "the commit was overtaken by others each time".to_owned(),
            },
        })
    }

    async fn attempt(&self, marked: MarkedTxn<'_>) -> Attempt {
        let txn = marked.txn;
        let lease = match self.lease(txn).await {
            Ok(lease) => lease,
            Err(error) => return Attempt::Done(Err(unanswered(error))),
        };
        let request = match self.request(marked, lease) {
            Ok(request) => request,
            // The mirror may be old.
            Err(StoreError::Conflict { .. }) => return self.refused(txn).await,
            Err(error) => return Attempt::Done(Err(error)),
        };
        let (answer, is_marked) = self.send(request, marked.mark.is_some()).await;
        match answer {
            Ok(response) if response.succeeded => Attempt::Done(self.applied(txn, response).await),
            Ok(_) => self.refused(txn).await,
            Err(EtcdError::NotConnected { message }) => Attempt::NotSent(message),
            Err(EtcdError::NoAnswer { message }) if is_marked => Attempt::Lost(message),
            Err(EtcdError::NoAnswer { message }) => {
                Attempt::Done(Err(StoreError::UnknownOutcome { message }))
            }
            Err(EtcdError::TooLarge) => Attempt::Done(Err(StoreError::TooLarge {
                limit: crate::TxnLimit::EngineBytes,
                size: txn.size(),
            })),
            Err(error) => Attempt::Done(Err(unanswered(error))),
        }
    }

    /// Sends a transaction, whose last write is a mark if it has one. An etcd that has reached its
    /// quota takes nothing but deletions, so it then gets those without the mark. Returns false if
    /// the outcome could not be found out after a lost answer.
    async fn send(
        &self,
        mut request: TxnRequest,
        has_mark: bool,
    ) -> (Result<TxnResponse, EtcdError>, bool) {
        if !has_mark {
            return (self.client.txn(request).await, true);
        }
        match self.client.txn(request.clone()).await {
            Err(EtcdError::NoSpace) => {
                request.success.pop();
                (self.client.txn(request).await, false)
            }
            answer => (answer, true),
        }
    }

    fn request(
        &self,
        MarkedTxn { txn, mark }: MarkedTxn<'_>,
        lease: i64,
    ) -> Result<TxnRequest, StoreError> {
        let history = self.mirror.history();
        let requests = Requests {
            keys: &self.keys,
            numbers: self.numbers,
            mirror: &history.borrow(),
        };
        let mut request = requests.transaction(txn, lease)?;
        request.compare.push(self.fence.holds());
        let mark = mark.map(|mark| put(self.keys.mark(), mark.into_bytes().to_vec().into()));
        request.success.extend(mark);
        Ok(request)
    }

    async fn applied(&self, txn: &Txn, response: TxnResponse) -> Result<CommitResult, StoreError> {
        let revision = response.header.map_or(0, |header| header.revision);
        let mut revision = self.numbers.ours(revision);
        let mut previous = mirror::previous(&self.keys, self.numbers, response.responses);
        // Without that of the mark.
        previous.truncate(txn.writes.len());
        let mut effects = txn.writes.iter().zip(&previous);
        let changed = effects
            .any(|(write, previous)| matches!(write, Write::Put { .. }) || previous.is_some());
        if !changed {
            // It has no revision of its own: that of the last commit before it, which the mirror
            // may not have yet.
            self.freshness
                .reached(&self.mirror, &self.client, &self.keys, revision)
                .await?;
            revision = self.mirror.current();
        }
        Ok(CommitResult { revision, previous })
    }

    /// Finds out which guard did not hold.
    async fn refused(&self, txn: &Txn) -> Attempt {
        if let Err(error) = self.catch_up().await {
            return Attempt::Done(Err(error));
        }
        let checked = {
            let history = self.mirror.history();
            let history = history.borrow();
            let mut guards = txn.guards.iter().enumerate();
            guards.try_for_each(|(index, guard)| history.check(index, guard))
        };
        match checked {
            Err(conflict) => Attempt::Done(Err(conflict)),
            Ok(()) => match self.fence.read(&self.client).await {
                Ok(()) => Attempt::Again,
                Err(error) => Attempt::Done(Err(unanswered(error))),
            },
        }
    }

    /// The result of a transaction whose answer was lost; `None` if it was not applied, and never
    /// will be.
    async fn outcome(
        &self,
        MarkedTxn { txn, mark }: MarkedTxn<'_>,
        since: Revision,
    ) -> Result<Option<CommitResult>, StoreError> {
        let raised = self.fence.raise(&self.client).await.map_err(unanswered)?;
        self.freshness
            .reached(
                &self.mirror,
                &self.client,
                &self.keys,
                self.numbers.ours(raised),
            )
            .await?;
        let (candidates, retained) = {
            let history = self.mirror.history();
            let history = history.borrow();
            let candidates = outcome::candidates(&history, since, txn);
            (candidates, outcome::retained(&history, since))
        };
        for found in candidates {
            if self.is_marked(found.revision, mark).await? {
                return Ok(Some(found));
            }
        }
        retained.map(|()| None)
    }

    /// Returns true if the commit of this revision wrote the mark, or there is none.
    async fn is_marked(&self, commit: Revision, mark: Option<Uuid>) -> Result<bool, StoreError> {
        let Some(mark) = mark else {
            return Ok(true);
        };
        let revision = self.numbers.etcds(commit);
        let request = RangeRequest {
            key: self.keys.mark(),
            revision,
            ..RangeRequest::default()
        };
        match self.client.range(request).await {
            Ok(mut answer) => Ok(answer.kvs.pop().is_some_and(|found| {
                found.mod_revision == revision && found.value == mark.as_bytes().as_slice()
            })),
            Err(EtcdError::Compacted) => Err(outcome::compacted()),
            Err(error) => Err(unanswered(error)),
        }
    }

    /// Compacts etcd, unless another server has: the one whose transaction raises the noted
    /// revision does.
    pub(super) async fn compact_etcd(&self, oldest: Revision) -> Result<(), StoreError> {
        let oldest = self.numbers.etcds(oldest);
        let noted = mirror::last_compaction(&self.client, &self.keys).await;
        let noted = noted.map_err(unanswered)?;
        if noted.is_some_and(|(noted, _)| noted >= oldest) {
            return Ok(());
        }
        let unchanged = noted.map_or(0, |(_, modified)| modified);
        match self.client.txn(self.note(oldest, unchanged)).await {
            Ok(note) if note.succeeded => {}
            Ok(_by_another) => return Ok(()),
            // Compaction is the way out.
            Err(EtcdError::NoSpace) => {}
            Err(error) => return Err(unanswered(error)),
        }
        match self.client.compact(oldest).await {
            Ok(()) | Err(EtcdError::Compacted) => Ok(()),
            Err(error) => Err(unanswered(error)),
        }
    }

    fn note(&self, oldest: i64, unchanged: i64) -> TxnRequest {
        TxnRequest {
            compare: vec![Compare {
                target: CompareTarget::Mod.into(),
                key: self.keys.compacted(),
                target_union: Some(TargetUnion::ModRevision(unchanged)),
                ..Compare::default()
            }],
            success: vec![put(self.keys.compacted(), oldest.to_string().into())],
            failure: Vec::new(),
        }
    }
}

fn pauses() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(10))
        .with_max_delay(Duration::from_millis(500))
        .with_jitter()
        .without_max_times()
        .build()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::Parser as _;
    use podplane_etcd::EtcdFlags;
    use podplane_test_etcd::Etcd;

    use super::*;
    use crate::store::{Guard, Key, Store as _};

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        etcd: EtcdFlags,
    }

    /// An etcd, and a store in it; `None` without etcd.
    async fn opened() -> Option<(Etcd, EtcdStore)> {
        let etcd = Etcd::start(&[])?;
        let flags = Flags::parse_from(["test", "--etcd-endpoints", &etcd.endpoint()]);
        let store = EtcdStore::open(&flags.etcd).await.unwrap();
        Some((etcd, store))
    }

    /// The first attempt of a create comes to etcd after the second one was carried out, and what it
    /// made was deleted.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_attempt_is_not_applied_after_its_outcome_was_decided() {
        let Some((_etcd, store)) = opened().await else {
            return;
        };
        let key = Key::try_from("/pods/a").unwrap();
        let create = Txn::new()
            .guard(Guard::Absent(key.clone()))
            .put(key.clone(), "a");
        let marked = MarkedTxn::new(&create);
        let began = store.mirror.current();
        let late = store.request(marked, 0).unwrap();
        assert_eq!(store.outcome(marked, began).await.unwrap(), None);
        store.commit(create.clone()).await.unwrap();
        store.commit(Txn::new().delete(key.clone())).await.unwrap();
        let applied = store.client.txn(late).await.unwrap();
        assert!(!applied.succeeded);

        // One that was applied is found.
        let began = store.mirror.current();
        let lost = store.request(marked, 0).unwrap();
        let applied = store.client.txn(lost).await.unwrap();
        assert!(applied.succeeded);
        let found = store.outcome(marked, began).await.unwrap().unwrap();
        let revision = applied.header.unwrap().revision;
        assert_eq!(found.revision, store.numbers.ours(revision));
        // It was raised once more than this server knows, by an attempt that came late.
        let put = store.fence.put();
        assert!(store.client.txn(put).await.unwrap().succeeded);
        store.commit(Txn::new().put(key, "b")).await.unwrap();
    }

    /// The answer comes before the event of a commit that etcd applied earlier.
    #[tokio::test]
    async fn a_commit_without_changes_has_a_revision_as_new_as_its_answer() {
        let Some((_etcd, mut store)) = opened().await else {
            return;
        };
        store._follower.shutdown().await;
        let put = Txn::new().put(Key::try_from("/pods/a").unwrap(), "a");
        let request = store.request(MarkedTxn::new(&put), 0).unwrap();
        let answer = store.client.txn(request).await.unwrap();
        let newest = store.numbers.ours(answer.header.unwrap().revision);
        assert!(store.mirror.current() < newest);

        let nothing = Txn::new();
        let (client, keys) = (store.client.clone(), Arc::clone(&store.keys));
        let events = async {
            store
                .mirror
                .follow(client, keys, store.numbers, &store.freshness)
        };
        let (result, _follower) = tokio::join!(store.applied(&nothing, answer), events);
        assert_eq!(result.unwrap().revision, newest);
    }

    /// Two delete what is there, and the answers to both are lost.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_deletion_by_another_is_not_taken_for_the_own() {
        let Some((_etcd, store)) = opened().await else {
            return;
        };
        let key = Key::try_from("/pods/a").unwrap();
        let created = store.commit(Txn::new().put(key.clone(), "a")).await;
        let revision = created.unwrap().revision;
        let delete = Txn::new()
            .guard(Guard::At {
                key: key.clone(),
                revision,
            })
            .delete(key.clone());
        let (first, second) = (MarkedTxn::new(&delete), MarkedTxn::new(&delete));
        let requests = [first, second].map(|marked| store.request(marked, 0).unwrap());
        let mut succeeded = Vec::new();
        for request in requests {
            succeeded.push(store.client.txn(request).await.unwrap().succeeded);
        }
        assert_eq!(succeeded, [true, false]);
        let found = store.outcome(first, revision).await.unwrap().unwrap();
        assert_eq!(found.previous.len(), 1);
        assert_eq!(store.outcome(second, revision).await.unwrap(), None);

        // Later it is not known: a deletion by another is there, and one that is compacted may have
        // been its own.
        store.mirror.compact(store.mirror.current()).unwrap();
        store
            .commit(Txn::new().put(key.clone(), "b"))
            .await
            .unwrap();
        store.commit(Txn::new().delete(key)).await.unwrap();
        let outcome = store.outcome(second, revision).await;
        assert!(matches!(outcome, Err(StoreError::UnknownOutcome { .. })));
    }
}
