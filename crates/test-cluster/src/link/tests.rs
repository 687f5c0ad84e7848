use std::sync::atomic::{AtomicU64, Ordering};

use futures::{FutureExt as _, StreamExt as _};
use podplane_client::{Channel, endpoint};
use podplane_proto::{
    cloud::{
        GetInstanceRequest, GetInstanceResponse, Instance,
        cloud_service_client::CloudServiceClient,
        cloud_service_server::{CloudService, CloudServiceServer},
    },
    store::{
        BackupRequest, BackupResponse,
        store_service_client::StoreServiceClient,
        store_service_server::{StoreService, StoreServiceServer},
    },
};
use tokio::{
    net::UnixStream,
    sync::{broadcast, oneshot},
};
use tokio_stream::wrappers::{BroadcastStream, TcpListenerStream};
use tonic::{
    Request, Response, Status, metadata::MetadataValue, transport::server::Server as TonicServer,
};

use super::*;

/// A server whose streams send the numbers that the test broadcasts.
#[derive(Clone, Debug)]
struct StreamServer {
    calls: Arc<AtomicU64>,
    said: broadcast::Sender<u8>,
}

#[tonic::async_trait]
impl CloudService for StreamServer {
    async fn get_instance(
        &self,
        request: Request<GetInstanceRequest>,
    ) -> Result<Response<GetInstanceResponse>, Status> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let asked = request.metadata().get("asked").cloned();
        let provider_id = request.into_inner().provider_id;
        if provider_id == "none" {
            let mut status =
                Status::with_details(Code::NotFound, "no such", vec![1, 2, 255].into());
            status
                .metadata_mut()
                .insert_bin("more-bin", MetadataValue::from_bytes(&[0, 9]));
            return Err(status);
        }
        let instance = Instance {
            provider_id,
            ..Instance::default()
        };
        let mut response = Response::new(GetInstanceResponse {
            instance: Some(instance),
        });
        if let Some(asked) = asked {
            response.metadata_mut().insert("answered", asked);
        }
        Ok(response)
    }
}

#[tonic::async_trait]
impl StoreService for StreamServer {
    type BackupStream = futures::stream::BoxStream<'static, Result<BackupResponse, Status>>;

    async fn backup(
        &self,
        _: Request<BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let said = BroadcastStream::new(self.said.subscribe());
        let pieces = said.map(|said| match said {
            Ok(0) | Err(_) => Err(Status::out_of_range("the end")),
            Ok(piece) => Ok(BackupResponse { piece: vec![piece] }),
        });
        Ok(Response::new(pieces.boxed()))
    }
}

/// A server on a port of its own, a link to it, and a client that uses the link.
struct Fixture {
    dir: tempfile::TempDir,
    links: Links,
    backend: StreamServer,
    server: Option<RunningServer>,
}

/// A server in a runtime of its own, which ends with all its connections.
struct RunningServer {
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
    runtime: tokio::runtime::Runtime,
}

impl RunningServer {
    async fn start(backend: &StreamServer, published: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let (ready, listening) = oneshot::channel();
        let backend = backend.clone();
        runtime.handle().spawn(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            ready.send(listener.local_addr().unwrap()).unwrap();
            let server = TonicServer::builder()
                .add_service(CloudServiceServer::new(backend.clone()))
                .add_service(StoreServiceServer::new(backend))
                .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stopped.map(drop));
            server.await.unwrap();
            _ = end.send(());
        });
        fs::write(published, format!("{}\n", listening.await.unwrap())).unwrap();
        Self {
            stop,
            ended,
            runtime,
        }
    }

    /// Ends it abruptly, as SIGKILL does.
    fn kill(self) {
        self.runtime.shutdown_background();
    }

    /// Ends it in order, as SIGTERM does.
    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.ended.await.unwrap();
        self.runtime.shutdown_background();
    }
}

/// A runtime must not be dropped in an asynchronous context, so the server's is shut down in the
/// background.
impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.kill();
        }
    }
}

impl Fixture {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let backend = StreamServer {
            calls: Arc::default(),
            said: broadcast::channel(64).0,
        };
        let published = dir.path().join("server.address");
        let server = RunningServer::start(&backend, &published).await;
        let links = Links::new(dir.path().join("links"), Recorder::default()).unwrap();
        links
            .serve("client", LinkServer::Published(published))
            .unwrap();
        Self {
            dir,
            links,
            backend,
            server: Some(server),
        }
    }

    fn channel(&self) -> Channel {
        self.channel_of("client")
    }

    fn channel_of(&self, client: &str) -> Channel {
        let socket = self.links.dir().join(format!("{client}.sock"));
        let address = format!("unix:{}", socket.display());
        endpoint::channel(&address.parse().unwrap()).unwrap()
    }

    fn calls(&self) -> u64 {
        self.backend.calls.load(Ordering::SeqCst)
    }

    fn say(&self, piece: u8) {
        self.backend.said.send(piece).unwrap();
    }
}

async fn ask(channel: &Channel, id: &str) -> Result<String, Status> {
    let request = GetInstanceRequest {
        provider_id: id.into(),
    };
    let mut client = CloudServiceClient::new(channel.clone());
    let answer = client.get_instance(request).await?.into_inner();
    Ok(answer.instance.unwrap_or_default().provider_id)
}

async fn backup(channel: &Channel) -> tonic::Streaming<BackupResponse> {
    let mut client = StoreServiceClient::new(channel.clone());
    client.backup(BackupRequest {}).await.unwrap().into_inner()
}

async fn next(stream: &mut tonic::Streaming<BackupResponse>) -> Result<u8, Code> {
    match stream.message().await {
        Ok(message) => Ok(message.map_or(0, |message| message.piece[0])),
        Err(status) => Err(status.code()),
    }
}

#[tokio::test]
async fn a_link_forwards_calls_unchanged() {
    let fixture = Fixture::new().await;
    let mut client = CloudServiceClient::new(fixture.channel());
    let mut request = Request::new(GetInstanceRequest {
        provider_id: "a".into(),
    });
    request
        .metadata_mut()
        .insert("asked", MetadataValue::from_static("x"));
    let response = client.get_instance(request).await.unwrap();
    assert_eq!(response.metadata().get("answered").unwrap(), "x");
    let status = client
        .get_instance(GetInstanceRequest {
            provider_id: "none".into(),
        })
        .await
        .unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::NotFound, "no such")
    );
    assert_eq!(status.details(), [1, 2, 255]);
    let more = status.metadata().get_bin("more-bin").unwrap();
    assert_eq!(more.to_bytes().unwrap(), [0, 9][..]);
    assert_eq!(fixture.links.seen("client", "GetInstance").unwrap(), 2);
}

#[tokio::test]
async fn a_link_forwards_a_stream_and_its_end() {
    let fixture = Fixture::new().await;
    let mut stream = backup(&fixture.channel()).await;
    for piece in 1..=50 {
        fixture.say(piece);
    }
    fixture.say(0);
    for piece in 1..=50 {
        assert_eq!(next(&mut stream).await, Ok(piece));
    }
    assert_eq!(next(&mut stream).await, Err(Code::OutOfRange));
}

#[tokio::test]
async fn a_delayed_method_delays_only_its_open_streams() {
    let fixture = Fixture::new().await;
    let channel = fixture.channel();
    let mut stream = backup(&channel).await;
    let late = CallFault::delay(Duration::from_secs(3600)).of("Backup");
    let late = fixture.links.disturb("client", late).unwrap();
    fixture.say(1);
    fixture.say(2);
    // Everything that the server sent before this answer has arrived before it.
    ask(&channel, "a").await.unwrap();
    assert_eq!(next(&mut stream).now_or_never(), None);
    late.heal();
    assert_eq!(next(&mut stream).await, Ok(1));
    assert_eq!(next(&mut stream).await, Ok(2));
}

#[tokio::test]
async fn a_delayed_call_reaches_the_server_later() {
    let fixture = Fixture::new().await;
    let late = CallFault::delay(Duration::from_secs(3600))
        .of("GetInstance")
        .times(1);
    let late = fixture.links.disturb("client", late).unwrap();
    let channel = fixture.channel();
    let mut first = Box::pin(ask(&channel, "first"));
    // The next call is not delayed.
    tokio::select! {
        biased;
        _ = &mut first => panic!("it was not delayed"),
        second = async {
            while fixture.links.seen("client", "GetInstance").unwrap() == 0 {
                tokio::task::yield_now().await;
            }
            ask(&channel, "second").await
        } => assert_eq!(second.unwrap(), "second"),
    }
    assert_eq!(fixture.calls(), 1);
    late.heal();
    assert_eq!(first.await.unwrap(), "first");
}

#[tokio::test]
async fn faults_fail_calls_before_or_after_the_server_sees_them() {
    let fixture = Fixture::new().await;
    let channel = fixture.channel();
    let fail = CallFault::fail(Code::Unavailable)
        .of("GetInstance")
        .times(2);
    let _fail = fixture.links.disturb("client", fail).unwrap();
    let lose = CallFault::lose_answer(Code::DeadlineExceeded).times(1);
    let _lose = fixture.links.disturb("client", lose).unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let answer = ask(&channel, "a").await;
        seen.push((answer.map_err(|status| status.code()), fixture.calls()));
    }
    let unavailable = || Err(Code::Unavailable);
    assert_eq!(
        seen,
        [
            (unavailable(), 0),
            (unavailable(), 0),
            (Err(Code::DeadlineExceeded), 1),
            (Ok("a".into()), 2)
        ]
    );
}

#[tokio::test]
async fn links_of_one_process_share_the_number_of_faults() {
    let fixture = Fixture::new().await;
    let published = fixture.dir.path().join("server.address");
    let served = fixture
        .links
        .serve("other", LinkServer::Published(published));
    served.unwrap();
    let each = ["client", "other"].map(String::from);
    let twice = CallFault::fail(Code::Unavailable).times(2);
    let fault = fixture.links.disturb_each("process", &each, &twice);
    let fault = fault.unwrap();
    assert_eq!(
        fault.what(),
        "process: the next 2 calls fail with Unavailable"
    );
    let channels = each.map(|client| fixture.channel_of(&client));
    let mut failed = 0;
    for channel in channels.iter().cycle().take(6) {
        failed += usize::from(ask(channel, "a").await.is_err());
    }
    assert_eq!((failed, fixture.calls()), (2, 4));
    fault.heal();
}

#[tokio::test]
async fn a_cut_link_refuses_calls_until_it_heals() {
    let fixture = Fixture::new().await;
    let channel = fixture.channel();
    let mut stream = backup(&channel).await;
    let cut = fixture.links.cut("client", Cut::Refused).unwrap();
    assert!(next(&mut stream).await.is_err());
    let socket = fixture.links.dir().join("client.sock");
    while let Ok(stream) = UnixStream::connect(&socket).await {
        drop(stream);
        tokio::task::yield_now().await;
    }
    assert!(ask(&channel, "a").await.is_err());
    assert_eq!(fixture.calls(), 1, "the stream alone");
    cut.heal();
    let asked = async {
        loop {
            match ask(&channel, "a").await {
                Ok(answer) => return answer,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    assert_eq!(asked.await, "a");
}

#[tokio::test]
async fn a_silent_link_holds_calls_until_it_heals() {
    let fixture = Fixture::new().await;
    let channel = fixture.channel();
    let mut stream = backup(&channel).await;
    let cut = fixture.links.cut("client", Cut::Silent).unwrap();
    fixture.say(1);
    let late = fixture.channel();
    let mut asked = Box::pin(ask(&late, "a"));
    // Enough time for anything that would pass.
    for _ in 0..1000 {
        assert!((&mut asked).now_or_never().is_none());
        assert!(next(&mut stream).now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    assert_eq!(fixture.calls(), 1, "the stream alone");
    cut.heal();
    assert_eq!(next(&mut stream).await, Ok(1));
    assert_eq!(asked.await.unwrap(), "a");
}

/// The thread blocks, as in a test that waits for a program that uses a link.
#[test]
fn links_work_while_their_creating_thread_blocks() {
    let ours = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let fixture = ours.block_on(Fixture::new());
    let others = tokio::runtime::Runtime::new().unwrap();
    let channel = others.block_on(async { fixture.channel() });
    assert_eq!(others.block_on(ask(&channel, "a")).unwrap(), "a");
}

#[tokio::test]
async fn retries_to_serve_a_healed_link() {
    let fixture = Fixture::new().await;
    let channel = fixture.channel();
    let socket = fixture.links.dir().join("client.sock");
    let cut = fixture.links.cut("client", Cut::Refused).unwrap();
    while UnixStream::connect(&socket).await.is_ok() {}
    fs::remove_file(&socket).unwrap();
    fs::create_dir(&socket).unwrap();
    cut.heal();
    assert!(ask(&channel, "a").await.is_err());
    fs::remove_dir(&socket).unwrap();
    while ask(&channel, "a").await.is_err() {}
}

#[tokio::test]
async fn a_silent_link_accepts_connections_after_a_refusal_heals() {
    let fixture = Fixture::new().await;
    let refused = fixture.links.cut("client", Cut::Refused).unwrap();
    let socket = fixture.links.dir().join("client.sock");
    while UnixStream::connect(&socket).await.is_ok() {}
    let silent = fixture.links.cut("client", Cut::Silent).unwrap();
    refused.heal();
    while UnixStream::connect(&socket).await.is_err() {
        tokio::task::yield_now().await;
    }
    let channel = fixture.channel();
    let mut asked = Box::pin(ask(&channel, "a"));
    for _ in 0..1000 {
        assert!((&mut asked).now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    silent.heal();
    assert_eq!(asked.await.unwrap(), "a");
}

#[tokio::test]
async fn a_dead_server_ends_the_connection_and_its_successor_is_found() {
    let mut fixture = Fixture::new().await;
    let published = fixture.dir.path().join("server.address");
    let channel = fixture.channel();
    let mut stream = backup(&channel).await;
    fixture.server.take().unwrap().kill();
    assert!(next(&mut stream).await.is_err());
    assert!(ask(&channel, "a").await.is_err());
    let server = RunningServer::start(&fixture.backend, &published).await;
    assert_eq!(ask(&channel, "a").await.unwrap(), "a");
    server.stop().await;
    fixture.server = Some(RunningServer::start(&fixture.backend, &published).await);
    let asked = async {
        // One more call may still go over the connection that the first server has closed in order.
        loop {
            if let Ok(answer) = ask(&channel, "b").await {
                return answer;
            }
        }
    };
    assert_eq!(asked.await, "b");
}

#[tokio::test]
async fn a_call_delayed_beyond_the_servers_shutdown_fails() {
    let mut fixture = Fixture::new().await;
    let server = fixture.server.take().unwrap();
    let late = CallFault::delay(Duration::from_secs(3600)).of("GetInstance");
    let late = fixture.links.disturb("client", late).unwrap();
    let channel = fixture.channel();
    let mut asked = Box::pin(ask(&channel, "a"));
    let stopped = async {
        while fixture.links.seen("client", "GetInstance").unwrap() == 0 {
            tokio::task::yield_now().await;
        }
        server.stop().await;
    };
    tokio::select! {
        biased;
        _ = &mut asked => panic!("it was not delayed"),
        () = stopped => {}
    }
    // Calls meanwhile find no server; after them the link has seen the GOAWAY.
    let mut others = StoreServiceClient::new(channel.clone());
    for _ in 0..20 {
        assert!(others.backup(BackupRequest {}).await.is_err());
    }
    late.heal();
    let answer = tokio::time::timeout(crate::DEADLINE, asked).await;
    assert!(answer.expect("it does not wait for ever").is_err());
}

#[tokio::test]
async fn names_unknown_links_and_methods() {
    let fixture = Fixture::new().await;
    let fault = |method: &str| CallFault::fail(Code::Internal).of(method);
    let error = |client: &str, method: &str| {
        let disturbed = fixture.links.disturb(client, fault(method));
        disturbed.unwrap_err().to_string()
    };
    assert_eq!(
        error("nobody", "GetInstance"),
        "no link of nobody; there are links of: client"
    );
    assert_eq!(
        error("client", "RunPodSandboxes"),
        "no service has a method RunPodSandboxes; did you mean RunPodSandbox?"
    );
    fixture
        .links
        .disturb("client", fault("podplane.core.v1.PodService/BindPod"))
        .unwrap()
        .heal();
}
