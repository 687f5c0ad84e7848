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
    /// Sends a transaction until etcd has said whether it was applied. A lost answer is resolved by
    /// sending it again: its guards let only one of both be applied, and the mirror shows if that
    /// was an earlier one.
    pub(super) async fn commit_txn(&self, txn: &Txn) -> Result<CommitResult, StoreError> {
        let began = self.mirror.current();
        let deadline = clock::Instant::now().checked_add(COMMIT_LIMIT);
        let mut lost = None;
        for pause in pauses() {
            match self.attempt(txn, lost.is_some().then_some(began)).await {
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
            Err(error) => return Attempt::Done(Err(unanswered(error))),
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
            Err(error) => return Attempt::Done(Err(error)),
        };
        match self.client.txn(request).await {
            Ok(response) if response.succeeded => Attempt::Done(self.applied(txn, response).await),
            Ok(_) => self.refused(txn, lost_since).await,
            Err(EtcdError::NoAnswer { message }) => Attempt::Lost(message),
            Err(EtcdError::TooLarge) => Attempt::Done(Err(StoreError::TooLarge {
                limit: crate::TxnLimit::EngineBytes,
                size: txn.size(),
            })),
            // An earlier attempt may have been applied.
            Err(error) if lost_since.is_some() => Attempt::Lost(error.to_string()),
            Err(error) => Attempt::Done(Err(unanswered(error))),
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
        if let Err(error) = self.catch_up().await {
            return match lost_since {
                Some(_) => Attempt::Lost(error.to_string()),
                None => Attempt::Done(Err(error)),
            };
        }
        let history = self.mirror.history();
        let history = history.borrow();
        if let Some(since) = lost_since
            && let Some(result) = outcome::find(&history, since, txn)
        {
            return Attempt::Done(Ok(result));
        }
        let mut guards = txn.guards.iter().enumerate();
        match guards.try_for_each(|(index, guard)| history.check(index, guard)) {
            Err(conflict) => Attempt::Done(Err(conflict)),
            Ok(()) => Attempt::Again,
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
        let note = self.client.txn(self.note(oldest, unchanged)).await;
        if !note.map_err(unanswered)?.succeeded {
            return Ok(());
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

fn pauses() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(10))
        .with_max_delay(Duration::from_millis(500))
        .with_jitter()
        .without_max_times()
        .build()
}
