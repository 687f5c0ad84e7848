//! Forwards connections, and the calls on them.

use std::{error::Error, future::pending, io, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Body as _, Frame, Incoming},
    client::conn::http2::{self as client, SendRequest},
    rt::Executor,
    server::conn::http2 as server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpStream, UnixListener, UnixStream},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::{either::Either, sync::CancellationToken};
use tonic::{Code, Status};

use super::{
    Cut, Link, LinkServer, bind,
    method::Method,
    rules::{CallEffects, CallEnding},
};
use crate::recording::LinkCall;

type BoxError = Box<dyn Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, BoxError>;

/// The number of messages of a stream that are buffered here; after that, the server waits.
const HELD: usize = 1024;

/// The pause after an error of the operating system, such as too many open files.
const AGAIN: Duration = Duration::from_millis(100);

/// Accepts connections and forwards them, for as long as it is polled.
pub(super) async fn accept(link: Arc<Link>, path: PathBuf, listener: UnixListener) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    let mut state = link.rules.watch();
    let mut failed = false;
    loop {
        while connections.try_join_next().is_some() {}
        let cut = state.borrow_and_update().cut();
        if cut == Some(Cut::Refused) {
            // Without a listener, the kernel refuses connections.
            listener = None;
        }
        let accepted = async {
            if failed {
                sleep(AGAIN).await;
            }
            if listener.is_none() && cut != Some(Cut::Refused) {
                listener = Some(bind(&path)?);
            }
            match (&listener, cut) {
                (Some(bound), None) => Ok(bound.accept().await?.0),
                // New connections wait in the kernel's queue, if there is a listener.
                _ => pending::<io::Result<_>>().await,
            }
        };
        // Dropping either wait loses neither a change nor a connection.
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            accepted = accepted => match accepted {
                Ok(stream) => {
                    failed = false;
                    _ = connections.spawn(carry(link.clone(), stream));
                }
                Err(error) => {
                    if !failed {
                        link.recorder.log(format!("serve {}: {error}", path.display()));
                    }
                    failed = true;
                }
            },
        }
    }
}

/// Forwards one connection until either end closes it.
async fn carry(link: Arc<Link>, downstream: UnixStream) {
    // A server that is not there looks like one that hangs up.
    let Ok(upstream) = link.server.connect().await else {
        return;
    };
    let tasks = Tasks(CancellationToken::new());
    let _ends_with_this = tasks.0.clone().drop_guard();
    let shaken = client::handshake(tasks.clone(), TokioIo::new(upstream)).await;
    let Ok((sender, upstream)) = shaken else {
        return;
    };
    let service = service_fn(|request| call(link.clone(), tasks.clone(), sender.clone(), request));
    let mut served = pin!(
        server::Builder::new(tasks.clone())
            .auto_date_header(false)
            .serve_connection(TokioIo::new(downstream), service)
    );
    // Dropped as soon as it has ended; otherwise later calls would wait in its queue.
    let mut upstream = pin!(async move { upstream.await.is_ok() });
    let mut leaving = false;
    let mut state = link.rules.watch();
    loop {
        let cut = state.borrow_and_update().cut();
        match cut {
            Some(Cut::Refused) => return,
            // A connection that is not polled neither receives nor answers; the rules hold the
            // calls that are under way.
            Some(Cut::Silent) => {
                if state.changed().await.is_err() {
                    return;
                }
                continue;
            }
            None => {}
        }
        // The connections are pinned and polled again; dropping the other wait loses nothing.
        tokio::select! {
            _ = &mut served => return,
            well = &mut upstream, if !leaving => {
                if !well {
                    return;
                }
                // The server has closed its side in order (GOAWAY), and has answered everything.
                leaving = true;
                served.as_mut().graceful_shutdown();
            },
            changed = state.changed() => if changed.is_err() { return },
        }
    }
}

impl LinkServer {
    async fn connect(&self) -> io::Result<Either<TcpStream, UnixStream>> {
        let address = match self {
            Self::Published(file) => tokio::fs::read_to_string(file).await?,
            Self::At(address) => address.clone(),
        };
        let address = address.trim();
        match address.strip_prefix("unix:") {
            Some(path) => UnixStream::connect(path.trim_start_matches("//"))
                .await
                .map(Either::Right),
            None => {
                let stream = TcpStream::connect(address.trim_start_matches("http://")).await?;
                stream.set_nodelay(true)?;
                Ok(Either::Left(stream))
            }
        }
    }
}

async fn call(
    link: Arc<Link>,
    tasks: Tasks,
    mut sender: SendRequest<Body>,
    request: Request<Incoming>,
) -> Result<Response<Body>, BoxError> {
    let begun = Instant::now();
    let method = Method::of(request.uri().path());
    let taken = link.rules.take(&method);
    let mut told = CallRecord::new(&link, method.clone(), begun);
    let (mut head, body) = request.into_parts();
    if let Some(user) = &link.user {
        head.headers.insert("impersonate-user", user.clone());
    }
    let body = if method.takes_one() {
        let (bytes, trailers) = collect(body).await?;
        told.request = bytes.clone();
        whole(bytes, trailers)
    } else {
        body.map_err(Into::into).boxed_unsync()
    };
    link.rules.hold(&taken, begun).await;
    if let Some(CallEnding::Before(code)) = taken.ending {
        return Ok(told.failure(code, "the server never sees it"));
    }
    let response = sender.send_request(Request::from_parts(head, body)).await?;
    let (head, body) = response.into_parts();
    told.code(&head.headers);
    let unary = if method.is_unary() {
        let (bytes, trailers) = collect(body).await?;
        if let Some(trailers) = &trailers {
            told.code(trailers);
        }
        told.answer = bytes.clone();
        link.rules.pass().await;
        Ok((bytes, trailers))
    } else {
        Err(body)
    };
    if let Some(CallEnding::After(code)) = taken.ending {
        return Ok(told.failure(code, "its answer is lost"));
    }
    let body = match unary {
        Ok((bytes, trailers)) => whole(bytes, trailers),
        Err(stream) => forward(link, &tasks, taken, told, stream),
    };
    Ok(Response::from_parts(head, body))
}

async fn collect(body: Incoming) -> Result<(Bytes, Option<HeaderMap>), BoxError> {
    let collected = body.collect().await?;
    let trailers = collected.trailers().cloned();
    Ok((collected.to_bytes(), trailers))
}

fn whole(bytes: Bytes, trailers: Option<HeaderMap>) -> Body {
    let body = Full::new(bytes);
    match trailers {
        Some(trailers) => {
            let body = body.with_trailers(async { Some(Ok(trailers)) });
            body.map_err(|never| match never {}).boxed_unsync()
        }
        // An answer without messages has its status in its headers, which must then end the stream:
        // some clients accept no frame after them.
        None => body.map_err(|never| match never {}).boxed_unsync(),
    }
}

/// Forwards a stream, and delays each part of it as the rules say.
fn forward(
    link: Arc<Link>,
    tasks: &Tasks,
    call: CallEffects,
    told: CallRecord,
    mut body: Incoming,
) -> Body {
    if body.is_end_stream() {
        return whole(Bytes::new(), None);
    }
    let (sender, arrived) = mpsc::channel(HELD);
    // This task reads ahead, so that parts that arrive together are delayed together.
    tasks.execute(async move {
        while let Some(frame) = body.frame().await {
            let last = frame.is_err();
            if sender.send((Instant::now(), frame)).await.is_err() || last {
                return;
            }
        }
    });
    let parts = stream::unfold((arrived, told), move |(mut arrived, mut told)| {
        let (link, call) = (link.clone(), call.clone());
        async move {
            let (at, frame) = arrived.recv().await?;
            link.rules.hold(&call, at).await;
            if let Ok(frame) = &frame {
                told.saw(frame);
            }
            Some((frame.map_err(BoxError::from), (arrived, told)))
        }
    });
    StreamBody::new(parts).boxed_unsync()
}

/// Records a call when it is dropped, which is when the call is over.
struct CallRecord {
    link: Arc<Link>,
    method: Method,
    begun: Instant,
    call: LinkCall,
    /// The bodies of single messages; empty for streams.
    request: Bytes,
    answer: Bytes,
    messages: Messages,
}

impl CallRecord {
    fn new(link: &Arc<Link>, method: Method, begun: Instant) -> Self {
        Self {
            link: link.clone(),
            begun,
            call: LinkCall {
                client: link.client.clone(),
                method: method.path().trim_start_matches('/').into(),
                ..LinkCall::default()
            },
            method,
            request: Bytes::new(),
            answer: Bytes::new(),
            messages: Messages::default(),
        }
    }

    fn code(&mut self, headers: &HeaderMap) {
        let code = headers
            .get("grpc-status")
            .and_then(|value| value.to_str().ok());
        if let Some(code) = code.and_then(|text| text.parse().ok()) {
            self.call.code = Some(Code::from_i32(code));
        }
    }

    fn saw(&mut self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            self.messages.saw(data);
        }
        if let Some(trailers) = frame.trailers_ref() {
            self.code(trailers);
        }
    }

    /// Builds the answer that the client gets in place of the server's.
    fn failure(mut self, code: Code, why: &'static str) -> Response<Body> {
        self.call.fault = Some(why);
        self.call.code = Some(code);
        let text = format!("injected: {} failed; {why}", self.call.method);
        let response = Status::new(code, text).into_http::<Full<Bytes>>();
        response.map(|body| body.map_err(|never| match never {}).boxed_unsync())
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        self.call.took = self.begun.elapsed();
        self.call.messages = self.messages.count;
        let Self {
            method,
            request,
            answer,
            ..
        } = self;
        let said = || (method.request(request), method.answer(answer));
        self.link.recorder.call(&self.call, said);
    }
}

/// Counts the messages of a stream. Each has a prefix with its length.
#[derive(Debug, Default)]
struct Messages {
    count: u64,
    /// Bytes of the prefix seen so far.
    prefix: Vec<u8>,
    /// Bytes of the message to come.
    left: usize,
}

impl Messages {
    fn saw(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.left > 0 {
                let taken = self.left.min(data.len());
                self.left -= taken;
                data = &data[taken..];
                continue;
            }
            self.prefix.push(data[0]);
            data = &data[1..];
            if let [_, length @ ..] = &self.prefix[..]
                && let Ok(length) = <[u8; 4]>::try_from(length)
            {
                self.left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                self.prefix.clear();
                self.count += 1;
            }
        }
    }
}

/// The tasks of one connection, which end with it.
#[derive(Clone, Debug)]
struct Tasks(CancellationToken);

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Tasks {
    #[expect(
        clippy::disallowed_methods,
        reason = "hyper owns these tasks by their channels, and the token ends them"
    )]
    fn execute(&self, task: F) {
        let ended = self.0.clone();
        tokio::spawn(async move {
            // A task that is dropped here loses its call, which ends with the connection anyhow.
            tokio::select! {
                () = ended.cancelled_owned() => {}
                _ = task => {}
            }
        });
    }
}
