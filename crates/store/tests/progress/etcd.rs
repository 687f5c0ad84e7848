//! A server that plays one member of etcd with an empty store, and keys of others.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use clap::Parser as _;
use podplane_etcd::{
    EtcdFlags,
    wire::{
        etcdserverpb::{
            AlarmRequest, AlarmResponse, CompactionRequest, CompactionResponse, DefragmentRequest,
            DefragmentResponse, DeleteRangeRequest, DeleteRangeResponse, DowngradeRequest,
            DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse,
            MoveLeaderRequest, MoveLeaderResponse, PutRequest, PutResponse, RangeRequest,
            RangeResponse, RangeStreamResponse, ResponseHeader, SnapshotRequest, SnapshotResponse,
            StatusRequest, StatusResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
            kv_server::{Kv, KvServer},
            maintenance_server::{Maintenance, MaintenanceServer},
            request_op,
            watch_request::RequestUnion,
            watch_server::{Watch, WatchServer},
        },
        mvccpb::{Event, KeyValue},
    },
};
use podplane_host::task;
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};
use tokio_stream::{
    Stream, StreamExt as _,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tonic::{Request, Response, Status, Streaming, transport::Server};

/// The key of the store's record, as flags without a prefix have it.
const RECORD: &[u8] = b"/podplane/store/id";

type Answers = mpsc::Sender<Result<WatchResponse, Status>>;

#[derive(Debug, Default)]
struct FakeState {
    revision: i64,
    progress_requests: usize,
    watches: Vec<Answers>,
}

/// The member. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct FakeEtcd {
    member: Member,
    endpoint: String,
    _serving: JoinSet<()>,
}

#[derive(Clone, Debug)]
struct Member {
    version: &'static str,
    state: Arc<Mutex<FakeState>>,
}

impl FakeEtcd {
    /// Starts a member that says it has this version.
    #[expect(
        clippy::disallowed_methods,
        reason = "tonic's server takes a listener of tokio's"
    )]
    pub(crate) fn start(version: &'static str) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let state = FakeState {
            revision: 1,
            ..FakeState::default()
        };
        let member = Member {
            version,
            state: Arc::new(Mutex::new(state)),
        };
        let server = Server::builder()
            .add_service(KvServer::new(member.clone()))
            .add_service(WatchServer::new(member.clone()))
            .add_service(MaintenanceServer::new(member.clone()));
        let mut serving = JoinSet::new();
        task::spawn(&mut serving, async move {
            let incoming = TcpListenerStream::new(listener);
            // Without it the store finds nobody.
            _ = server.serve_with_incoming(incoming).await;
        });
        Ok(Self {
            member,
            endpoint,
            _serving: serving,
        })
    }

    pub(crate) fn flags(&self) -> EtcdFlags {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            etcd: EtcdFlags,
        }
        Flags::parse_from(["test", "--etcd-endpoints", &self.endpoint]).etcd
    }

    /// Somebody writes a key that is not of the store. Returns its revision.
    pub(crate) fn another_writes(&self) -> i64 {
        let mut state = self.member.lock();
        state.revision += 1;
        state.revision
    }

    pub(crate) fn revision(&self) -> i64 {
        self.member.lock().revision
    }

    pub(crate) fn progress_requests(&self) -> usize {
        self.member.lock().progress_requests
    }
}

impl Member {
    fn lock(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader {
        revision,
        ..ResponseHeader::default()
    })
}

fn not_played<T>() -> Result<T, Status> {
    Err(Status::unimplemented("the test does not need it"))
}

#[tonic::async_trait]
impl Kv for Member {
    type RangeStreamStream = ReceiverStream<Result<RangeStreamResponse, Status>>;

    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let is_record = request.into_inner().key == RECORD;
        let record = is_record.then(|| KeyValue {
            key: RECORD.into(),
            create_revision: 1,
            mod_revision: 1,
            value: r#"{"id": "9f1e5f0c-7f0b-4b1c-9e4b-0d7e5a1f2c3d", "offset": 0}"#.into(),
            ..KeyValue::default()
        });
        Ok(Response::new(RangeResponse {
            header: header(self.lock().revision),
            kvs: record.into_iter().collect(),
            ..RangeResponse::default()
        }))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let (revision, watches) = {
            let mut state = self.lock();
            state.revision += 1;
            (state.revision, state.watches.clone())
        };
        let writes = request.into_inner().success.into_iter();
        let events = writes.filter_map(|write| match write.request {
            Some(request_op::Request::RequestPut(put)) => Some(Event {
                kv: Some(KeyValue {
                    key: put.key,
                    value: put.value,
                    mod_revision: revision,
                    ..KeyValue::default()
                }),
                ..Event::default()
            }),
            _ => None,
        });
        let answer = WatchResponse {
            header: header(revision),
            events: events.collect(),
            ..WatchResponse::default()
        };
        for watch in watches {
            // One that has ended needs no events.
            _ = watch.send(Ok(answer.clone())).await;
        }
        Ok(Response::new(TxnResponse {
            header: header(revision),
            succeeded: true,
            ..TxnResponse::default()
        }))
    }

    async fn range_stream(
        &self,
        _: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        not_played()
    }

    async fn put(&self, _: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        not_played()
    }

    async fn delete_range(
        &self,
        _: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        not_played()
    }

    async fn compact(
        &self,
        _: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        not_played()
    }
}

#[tonic::async_trait]
impl Watch for Member {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (events, written) = mpsc::channel(16);
        let member = self.clone();
        let answers = request.into_inner().map_while(move |request| {
            let request = request.ok()?.request_union?;
            let mut state = member.lock();
            let created = matches!(request, RequestUnion::CreateRequest(_));
            match created {
                true => state.watches.push(events.clone()),
                false => state.progress_requests += 1,
            }
            Some(Ok(WatchResponse {
                header: header(state.revision),
                created,
                ..WatchResponse::default()
            }))
        });
        let answers = answers.merge(ReceiverStream::new(written));
        Ok(Response::new(Box::pin(answers)))
    }
}

#[tonic::async_trait]
impl Maintenance for Member {
    type SnapshotStream = ReceiverStream<Result<SnapshotResponse, Status>>;

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        Ok(Response::new(StatusResponse {
            version: self.version.to_owned(),
            ..StatusResponse::default()
        }))
    }

    async fn alarm(&self, _: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        not_played()
    }

    async fn defragment(
        &self,
        _: Request<DefragmentRequest>,
    ) -> Result<Response<DefragmentResponse>, Status> {
        not_played()
    }

    async fn hash(&self, _: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        not_played()
    }

    async fn hash_kv(&self, _: Request<HashKvRequest>) -> Result<Response<HashKvResponse>, Status> {
        not_played()
    }

    async fn snapshot(
        &self,
        _: Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        not_played()
    }

    async fn move_leader(
        &self,
        _: Request<MoveLeaderRequest>,
    ) -> Result<Response<MoveLeaderResponse>, Status> {
        not_played()
    }

    async fn downgrade(
        &self,
        _: Request<DowngradeRequest>,
    ) -> Result<Response<DowngradeResponse>, Status> {
        not_played()
    }
}
