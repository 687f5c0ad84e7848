//! Commits: transactions of etcd, sent until their outcome is known.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use podplane_etcd::{
    EtcdError,
    wire::etcdserverpb::{
        Compare, PutRequest, RequestOp, TxnRequest, TxnResponse,
        compare::{CompareTarget, TargetUnion},
        request_op,
    },
};
use podplane_host::clock;

use super::{COMMIT_LIMIT, EtcdStore, mirror, outcome, request::Requests, unanswered};
use crate::{
    StoreError,
    store::{CommitResult, Revision, Txn, Write},
};

/// The end of one attempt.
enum Attempt {
    Done(Result<CommitResult, StoreError>),
    /// A guard that seemed not to hold does, in a newer state.
    Again,
    /// The answer was lost.
    Lost(String),
}

impl EtcdStore {
    /// Sends a transaction until etcd has said whether it was applied. After a lost answer the
    /// mirror is asked first; if it was not applied until then, it is sent again. Should the first
    /// attempt be applied even later, its guards let only one of both be.
    pub(super) async fn commit_txn(&self, txn: &Txn) -> Result<CommitResult, StoreError> {
        let began = self.mirror.current();
        let deadline = clock::Instant::now().checked_add(COMMIT_LIMIT);
        let mut lost = None;
        for pause in pauses() {
            let lost_since = lost.is_some().then_some(began);
            let attempt = match lost_since {
                None => self.attempt(txn, None).await,
                Some(since) => match self.found(txn, since).await {
                    Ok(None) => self.attempt(txn, lost_since).await,
                    Ok(Some(result)) => Attempt::Done(Ok(result)),
                    Err(error) => Attempt::Lost(error.to_string()),
                },
            };
            match attempt {
                Attempt::Done(done) => return done,
                Attempt::Again => {}
                Attempt::Lost(message) => {
                    lost = Some(message);
                    clock::sleep(pause).await;
                }
            }
            if deadline.is_none_or(|deadline| clock::Instant::now() > deadline) {
                break;
            }
        }
        Err(match lost {
            Some(message) => StoreError::UnknownOutcome { message },
            None => StoreError::Unreachable {
                message: "the commit was overtaken by others each time".to_owned(),
            },
        })
    }

    /// `lost_since` is the mirror's revision before the first attempt, if the answer of one was
    /// lost.
    async fn attempt(&self, txn: &Txn, lost_since: Option<Revision>) -> Attempt {
        let lease = match self.lease(txn).await {
            Ok(lease) => lease,
            Err(error) => return unfinished(lost_since, unanswered(error)),
        };
        let request = {
            let history = self.mirror.history();
            let requests = Requests {
                keys: &self.keys,
                numbers: self.numbers,
                mirror: &history.borrow(),
            };
            requests.transaction(txn, lease)
        };
        let request = match request {
            Ok(request) => request,
            // The mirror may be old.
            Err(StoreError::Conflict { .. }) => return self.refused(txn, lost_since).await,
            Err(error) => return unfinished(lost_since, error),
        };
        match self.client.txn(request).await {
            Ok(response) if response.succeeded => Attempt::Done(self.applied(txn, response).await),
            Ok(_) => self.refused(txn, lost_since).await,
            Err(EtcdError::NoAnswer { message }) => Attempt::Lost(message),
            Err(EtcdError::TooLarge) => {
                let error = StoreError::TooLarge {
                    limit: crate::TxnLimit::EngineBytes,
                    size: txn.size(),
                };
                unfinished(lost_since, error)
            }
            Err(error) => unfinished(lost_since, unanswered(error)),
        }
    }

    /// A commit is visible to readers of this server when it is acknowledged.
    async fn applied(&self, txn: &Txn, response: TxnResponse) -> Result<CommitResult, StoreError> {
        let revision = response.header.map_or(0, |header| header.revision);
        let revision = self.numbers.ours(revision);
        let reached = self
            .freshness
            .reached(&self.mirror, &self.client, &self.keys, revision)
            .await;
        if let Err(error) = reached {
            // It is in etcd, and each later read waits for it.
            tracing::warn!(%revision, error = %error, "commit is not visible yet");
        }
        let previous = mirror::previous(&self.keys, self.numbers, response.responses);
        let mut effects = txn.writes.iter().zip(&previous);
        let changed = effects
            .any(|(write, previous)| matches!(write, Write::Put { .. }) || previous.is_some());
        Ok(CommitResult {
            // One that changed nothing has no revision of its own.
            revision: match changed {
                true => revision,
                false => self.mirror.current(),
            },
            previous,
        })
    }

    /// Finds out which guard did not hold.
    async fn refused(&self, txn: &Txn, lost_since: Option<Revision>) -> Attempt {
        let found = match lost_since {
            Some(since) => self.found(txn, since).await,
            None => self.catch_up().await.map(|_| None),
        };
        match found {
            Ok(None) => {}
            Ok(Some(result)) => return Attempt::Done(Ok(result)),
            Err(error) => return unfinished(lost_since, error),
        }
        let history = self.mirror.history();
        let history = history.borrow();
        let mut guards = txn.guards.iter().enumerate();
        match guards.try_for_each(|(index, guard)| history.check(index, guard)) {
            Err(conflict) => Attempt::Done(Err(conflict)),
            Ok(()) => Attempt::Again,
        }
    }

    /// The result of a transaction whose answer was lost; `None` if it was not applied until now.
    async fn found(&self, txn: &Txn, since: Revision) -> Result<Option<CommitResult>, StoreError> {
        self.catch_up().await?;
        let history = self.mirror.history();
        let history = history.borrow();
        outcome::find(&history, since, txn)
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
        let put = PutRequest {
            key: self.keys.compacted(),
            value: oldest.to_string().into(),
            ..PutRequest::default()
        };
        TxnRequest {
            compare: vec![Compare {
                target: CompareTarget::Mod.into(),
                key: self.keys.compacted(),
                target_union: Some(TargetUnion::ModRevision(unchanged)),
                ..Compare::default()
            }],
            success: vec![RequestOp {
                request: Some(request_op::Request::RequestPut(put)),
            }],
            failure: Vec::new(),
        }
    }
}

/// The end of an attempt by an error that says that it was not applied, which does not hold for an
/// earlier one.
fn unfinished(lost_since: Option<Revision>, error: StoreError) -> Attempt {
    match lost_since {
        None => Attempt::Done(Err(error)),
        Some(_) => Attempt::Lost(error.to_string()),
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
