//! A client of all members of a cluster.

use std::{fmt, sync::Arc, time::Duration};

use backon::{ExponentialBuilder, Retryable as _};
use podplane_host::clock;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Response, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};

use crate::{
    EtcdConfigError, EtcdError, EtcdFlags, EtcdVersion, transport,
    wire::etcdserverpb::{
        CompactionRequest, LeaseGrantRequest, RangeRequest, RangeResponse, StatusRequest,
        StatusResponse, TxnRequest, TxnResponse, WatchCreateRequest, WatchProgressRequest,
        WatchRequest, WatchResponse, kv_client::KvClient, lease_client::LeaseClient,
        maintenance_client::MaintenanceClient, watch_client::WatchClient, watch_request,
    },
};

/// The limit of one attempt. Within it, a member that works has answered, also after the election
/// of another leader.
const ATTEMPT: Duration = Duration::from_secs(3);
/// The limit of all attempts of a read.
const ALL_ATTEMPTS: Duration = Duration::from_secs(15);
/// The largest answer: a page of a list, or the events of many commits.
const MAX_ANSWER: usize = 512 << 20;

/// A client of an etcd cluster. Cloning shares the connections.
///
/// Calls go to one member as long as it answers, and then to the next.
#[derive(Clone)]
pub struct EtcdClient(Arc<Members>);

struct Members {
    channels: Vec<Channel>,
    /// Modulo their number, the member that calls go to.
    current: watch::Sender<usize>,
}

impl fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdClient")
            .field("members", &self.0.channels.len())
            .finish_non_exhaustive()
    }
}

/// An open watch.
#[derive(Debug)]
pub struct Watching {
    /// The member that serves it.
    member: usize,
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl EtcdClient {
    /// Creates a client. It connects when it is first used.
    ///
    /// # Errors
    ///
    /// [`EtcdConfigError`] for flags that name no members, or files that cannot be used.
    pub fn new(flags: &EtcdFlags) -> Result<Self, EtcdConfigError> {
        let tls = flags.tls()?.map(Arc::new);
        let members = flags.etcd_endpoints.iter();
        let channels = members
            .map(|member| transport::channel(member.clone(), tls.clone()))
            .collect();
        Ok(Self(Arc::new(Members {
            channels,
            current: watch::Sender::new(0),
        })))
    }

    /// Reads keys; tries again until a member answers.
    ///
    /// # Errors
    ///
    /// [`EtcdError`]; [`NoAnswer`](EtcdError::NoAnswer) after 15 s.
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, EtcdError> {
        self.until_answered(|channel| {
            let request = request.clone();
            let mut client = KvClient::new(channel).max_decoding_message_size(MAX_ANSWER);
            async move { client.range(request).await }
        })
        .await
    }

    /// Sends a transaction once. After [`NoAnswer`](EtcdError::NoAnswer) it may be found applied,
    /// now or later.
    ///
    /// # Errors
    ///
    /// [`EtcdError`].
    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, EtcdError> {
        self.once(|channel| {
            let mut client = KvClient::new(channel).max_decoding_message_size(MAX_ANSWER);
            async move { client.txn(request).await }
        })
        .await
    }

    /// Sends a transaction until it is answered: one that may be applied twice.
    ///
    /// # Errors
    ///
    /// As [`range`](Self::range).
    pub async fn repeatable_txn(&self, request: TxnRequest) -> Result<TxnResponse, EtcdError> {
        self.until_answered(|channel| {
            let request = request.clone();
            let mut client = KvClient::new(channel).max_decoding_message_size(MAX_ANSWER);
            async move { client.txn(request).await }
        })
        .await
    }

    /// Forgets the history before a revision; tries again until a member answers.
    ///
    /// # Errors
    ///
    /// [`Compacted`](EtcdError::Compacted) if that is done already; otherwise as
    /// [`range`](Self::range).
    pub async fn compact(&self, revision: i64) -> Result<(), EtcdError> {
        let request = CompactionRequest {
            revision,
            physical: false,
        };
        self.until_answered(|channel| async move { KvClient::new(channel).compact(request).await })
            .await
            .map(drop)
    }

    /// Creates a lease: keys that are written with its id go after this time.
    ///
    /// # Errors
    ///
    /// As [`range`](Self::range).
    pub async fn grant_lease(&self, lifetime: Duration) -> Result<i64, EtcdError> {
        let request = LeaseGrantRequest {
            ttl: i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX),
            id: 0,
        };
        // A lease that is granted twice only expires.
        let granted = self
            .until_answered(|channel| async move {
                LeaseClient::new(channel).lease_grant(request).await
            })
            .await?;
        match granted.error.as_str() {
            "" => Ok(granted.id),
            message => Err(EtcdError::Refused {
                message: message.to_owned(),
            }),
        }
    }

    /// The state of the member that calls go to.
    ///
    /// # Errors
    ///
    /// As [`range`](Self::range).
    pub async fn status(&self) -> Result<StatusResponse, EtcdError> {
        self.until_answered(|channel| async move {
            MaintenanceClient::new(channel)
                .status(StatusRequest {})
                .await
        })
        .await
    }

    /// The version of the member that serves a watch; `None` if it is in another form than etcd's.
    ///
    /// # Errors
    ///
    /// [`EtcdError`].
    pub async fn version_at(&self, watching: &Watching) -> Result<Option<EtcdVersion>, EtcdError> {
        let mut client = MaintenanceClient::new(self.channel(watching.member));
        let status = client.status(StatusRequest {});
        let status = self.answered(watching.member, status).await?;
        Ok(EtcdVersion::parse(&status.version))
    }

    /// Opens a watch at one member, once.
    ///
    /// # Errors
    ///
    /// [`EtcdError`].
    pub async fn watch(&self, create: WatchCreateRequest) -> Result<Watching, EtcdError> {
        let (member, channel) = self.member();
        let (requests, queue) = mpsc::channel(16);
        let first = watch_request::RequestUnion::CreateRequest(create);
        let first = WatchRequest {
            request_union: Some(first),
        };
        // The queue is new and has room.
        _ = requests.try_send(first);
        let mut request = Request::new(ReceiverStream::new(queue));
        // Such a watch ends when its member loses the leader, instead of standing still.
        let yes = MetadataValue::<Ascii>::from_static("true");
        request.metadata_mut().insert("hasleader", yes);
        let opened = self
            .answered(member, async {
                WatchClient::new(channel)
                    .max_decoding_message_size(MAX_ANSWER)
                    .watch(request)
                    .await
            })
            .await?;
        Ok(Watching {
            member,
            requests,
            responses: opened,
        })
    }

    /// Waits for the next answer of a watch. After an error the watch is over. It ends with one, too,
    /// when another call gets no answer from its member.
    ///
    /// # Errors
    ///
    /// [`EtcdError`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future loses nothing.
    pub async fn next(&self, watching: &mut Watching) -> Result<WatchResponse, EtcdError> {
        let mut current = self.0.current.subscribe();
        let next = tokio::select! {
            next = watching.responses.message() => next,
            _left = current.wait_for(|current| *current != watching.member) => {
                Err(Status::unavailable("its member did not answer another call"))
            }
        };
        let next = next.and_then(|next| next.ok_or_else(|| Status::unavailable("the watch ended")));
        next.map_err(|status| {
            self.leave(watching.member);
            EtcdError::from(status)
        })
    }

    /// Ends a watch whose member has nothing to say although others have: calls, and the next watch,
    /// go to another one. Returns what happened.
    pub fn abandon(&self, watching: Watching) -> EtcdError {
        self.leave(watching.member);
        EtcdError::NoAnswer {
            message: "the watch stood still".to_owned(),
        }
    }

    /// The member that calls go to.
    fn member(&self) -> (usize, Channel) {
        let member = *self.0.current.borrow();
        (member, self.channel(member))
    }

    fn channel(&self, member: usize) -> Channel {
        let channels = &self.0.channels;
        channels[member % channels.len()].clone()
    }

    /// Goes on to the next member, unless another call has done so.
    fn leave(&self, member: usize) {
        self.0.current.send_if_modified(|current| {
            let is_first = *current == member;
            if is_first {
                *current = member.wrapping_add(1);
            }
            is_first
        });
    }

    async fn once<T, F>(&self, call: impl FnOnce(Channel) -> F) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let (member, channel) = self.member();
        self.answered(member, call(channel)).await
    }

    async fn answered<T>(
        &self,
        member: usize,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, EtcdError> {
        let answer = match clock::timeout(ATTEMPT, call).await {
            Ok(answer) => answer.map_err(EtcdError::from),
            Err(_elapsed) => Err(EtcdError::NoAnswer {
                message: format!("no answer within {} s", ATTEMPT.as_secs()),
            }),
        };
        if answer.as_ref().is_err_and(EtcdError::is_transient) {
            self.leave(member);
        }
        answer.map(Response::into_inner)
    }

    async fn until_answered<T, F>(&self, call: impl Fn(Channel) -> F) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut last = EtcdError::NoAnswer {
            message: format!("no answer within {} s", ALL_ATTEMPTS.as_secs()),
        };
        let attempts = || self.once(&call);
        let attempts = attempts
            .retry(backoff())
            .sleep(clock::sleep)
            .when(EtcdError::is_transient)
            .notify(|error, _| last = error.clone());
        let answer = clock::timeout(ALL_ATTEMPTS, attempts).await;
        answer.unwrap_or(Err(last))
    }
}

/// The pauses between attempts: short, since another member is next.
fn backoff() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(10))
        .with_max_delay(Duration::from_millis(500))
        .with_jitter()
        .without_max_times()
}

impl Watching {
    /// Asks for an answer that comes after all events up to now. Does nothing if the watch is over,
    /// or if many requests wait already.
    pub fn request_progress(&self) {
        let progress = watch_request::RequestUnion::ProgressRequest(WatchProgressRequest {});
        let progress = WatchRequest {
            request_union: Some(progress),
        };
        // One that is full has requests that will be answered later than this call.
        _ = self.requests.try_send(progress);
    }
}
