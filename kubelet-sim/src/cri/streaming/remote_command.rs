//! Sessions of exec and attach, with the protocols `channel.k8s.io` to `v5.channel.k8s.io`.
//!
//! The client opens a stream for each of its standard streams, one for errors, and from v3 on one
//! for the sizes of its terminal. From v4 on the error stream has a `Status` at the end, with the
//! exit code. v5 is v4, where the client may close standard input alone; with SPDY it always can.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use podplane_error_chain::one_line;
use podplane_host::{clock, task};
use podplane_spdy::{Session, Stream, StreamReader, StreamWriter};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::unix::pipe,
    sync::broadcast::error::RecvError,
};

use super::{StreamRequest, WantedStreams};
use crate::cri::containers::{
    log::LogStream,
    process::{
        ContainerProcess, ProcessError, Processes,
        exec::{ExecCommand, TerminalSize},
    },
};

/// The longest wait for the client's streams, as with other runtimes.
const STREAM_TIMEOUT: Duration = Duration::from_secs(30);
const PIECE: usize = 32 << 10;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RemoteCommandProtocol {
    V1,
    V2,
    V3,
    V4,
    V5,
}

impl RemoteCommandProtocol {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V1 => "channel.k8s.io",
            Self::V2 => "v2.channel.k8s.io",
            Self::V3 => "v3.channel.k8s.io",
            Self::V4 => "v4.channel.k8s.io",
            Self::V5 => "v5.channel.k8s.io",
        }
    }

    /// The latest of those that a client offers; the first if it offers none.
    pub(super) fn choose(offered: &[&str]) -> Option<Self> {
        if offered.is_empty() {
            return Some(Self::V1);
        }
        let all = [Self::V5, Self::V4, Self::V3, Self::V2, Self::V1];
        all.into_iter()
            .find(|version| offered.contains(&version.name()))
    }
}

/// The streams of a client.
struct ClientStreams {
    error: StreamWriter,
    stdin: Option<StreamReader>,
    stdout: Option<StreamWriter>,
    stderr: Option<StreamWriter>,
    sizes: Option<StreamReader>,
}

/// The end of a command, or the reason why there is none.
enum Outcome {
    Exited(i32),
    Failed(String),
}

/// Serves a session until the command has ended, or the client is gone.
pub(super) async fn run(
    mut session: Session,
    request: StreamRequest,
    protocol: RemoteCommandProtocol,
) {
    let wanted = match &request {
        StreamRequest::Exec { streams, .. } | StreamRequest::Attach { streams, .. } => *streams,
        StreamRequest::PortForward(_) => return,
    };
    let accepted = accept_streams(&mut session, wanted, protocol);
    let Ok(Some(streams)) = clock::timeout(STREAM_TIMEOUT, accepted).await else {
        return;
    };
    // A client that is gone opens no more streams; others do not either.
    let gone = async { while session.accept().await.is_some() {} };
    let ClientStreams {
        error,
        stdin,
        stdout,
        stderr,
        sizes,
    } = streams;
    let work = async {
        match request {
            StreamRequest::Exec {
                container,
                processes,
                command,
                ..
            } => {
                exec(
                    container,
                    processes,
                    command,
                    (stdin, stdout, stderr),
                    sizes,
                )
                .await
            }
            StreamRequest::Attach { container, .. } => {
                attach(&container, (stdin, stdout, stderr), sizes).await
            }
            StreamRequest::PortForward(_) => Outcome::Exited(0),
        }
    };
    // The command is killed if the client goes first.
    let outcome = tokio::select! {
        outcome = work => outcome,
        () = gone => return,
    };
    let text = match (protocol >= RemoteCommandProtocol::V4, outcome) {
        (true, outcome) => outcome.status().to_string(),
        (false, Outcome::Exited(0)) => String::new(),
        (false, Outcome::Exited(code)) => exit_message(code),
        (false, Outcome::Failed(reason)) => reason,
    };
    if !text.is_empty() {
        _ = error.send(Bytes::from(text)).await;
    }
    _ = error.finish().await;
}

/// Waits until the client has opened all of its streams; `None` if it goes away first, or opens
/// another.
async fn accept_streams(
    session: &mut Session,
    wanted: WantedStreams,
    protocol: RemoteCommandProtocol,
) -> Option<ClientStreams> {
    let has_sizes = wanted.tty && protocol >= RemoteCommandProtocol::V3;
    let has_stderr = wanted.stderr && !wanted.tty;
    let (mut error, mut stdin, mut stdout) = (None, None, None);
    let (mut stderr, mut sizes) = (None, None);
    loop {
        if let Some(present) = error.take_if(|_| {
            stdin.is_some() == wanted.stdin
                && stdout.is_some() == wanted.stdout
                && stderr.is_some() == has_stderr
                && sizes.is_some() == has_sizes
        }) {
            return Some(ClientStreams {
                error: present,
                stdin,
                stdout,
                stderr,
                sizes,
            });
        }
        let Stream {
            headers,
            reader,
            writer,
        } = session.accept().await?;
        match headers.get("streamtype") {
            Some("error") => error = Some(writer),
            Some("stdin") => stdin = Some(reader),
            Some("stdout") => stdout = Some(writer),
            Some("stderr") => stderr = Some(writer),
            Some("resize") => sizes = Some(reader),
            _ => {
                tracing::debug!("a client opened a stream of an unknown type");
                return None;
            }
        }
    }
}

type StandardStreams = (
    Option<StreamReader>,
    Option<StreamWriter>,
    Option<StreamWriter>,
);

async fn exec(
    container: Arc<ContainerProcess>,
    processes: Arc<Processes>,
    command: ExecCommand,
    (stdin, stdout, stderr): StandardStreams,
    sizes: Option<StreamReader>,
) -> Outcome {
    let started = task::spawn_blocking(move || processes.exec(&container, command)).await;
    let mut process = match started {
        Ok(Ok(process)) => process,
        Ok(Err(error)) => return Outcome::of_failure(&error),
        Err(panic) => return Outcome::Failed(panic.to_string()),
    };
    let input = process.stdin.take();
    let output = (process.stdout.take(), process.stderr.take());
    let inputs = async {
        tokio::join!(
            send_input(stdin, input),
            set_sizes(sizes, |size| process.resize(size))
        )
    };
    let outputs = async {
        tokio::join!(
            send_output(output.0, stdout.as_ref()),
            send_output(output.1, stderr.as_ref())
        )
    };
    // The end of the output is that of the process, and of all that it left behind.
    let mut outputs = Box::pin(outputs);
    tokio::select! {
        _ = &mut outputs => {}
        _ = async { inputs.await; std::future::pending::<()>().await } => {}
    }
    drop(outputs);
    let code = process.ended().await;
    for writer in [stdout, stderr].into_iter().flatten() {
        _ = writer.finish().await;
    }
    Outcome::Exited(code)
}

/// Serves an attached client until the process has ended.
async fn attach(
    container: &ContainerProcess,
    (stdin, stdout, stderr): StandardStreams,
    sizes: Option<StreamReader>,
) -> Outcome {
    let mut output = container.output().attach();
    let inputs = async {
        let input = async {
            if let Some(mut reader) = stdin {
                attach_input(container, &mut reader).await;
            }
        };
        tokio::join!(input, set_sizes(sizes, |size| container.resize(size)));
        std::future::pending::<()>().await;
    };
    let outputs = async {
        let mut ended = Box::pin(container.ended());
        loop {
            // The process ends after its output: what is left of that comes first.
            let received = tokio::select! {
                biased;
                received = output.recv() => received,
                _ = &mut ended => return None,
            };
            let (stream, piece) = match received {
                Ok(piece) => piece,
                Err(RecvError::Closed) => return None,
                Err(RecvError::Lagged(_)) => {
                    let reason = "the client does not read fast enough: attach again";
                    return Some(Outcome::Failed(reason.to_owned()));
                }
            };
            let writer = match stream {
                LogStream::Stdout => &stdout,
                LogStream::Stderr => &stderr,
            };
            if let (Some(writer), false) = (writer, piece.is_empty())
                && writer.send(Bytes::from_owner(piece)).await.is_err()
            {
                return None;
            }
        }
    };
    let failed = tokio::select! {
        failed = outputs => failed,
        () = inputs => None,
    };
    for writer in [stdout, stderr].into_iter().flatten() {
        _ = writer.finish().await;
    }
    failed.unwrap_or(Outcome::Exited(0))
}

/// Gives an attached client the input of a container; the next one waits until it has finished.
async fn attach_input(container: &ContainerProcess, reader: &mut StreamReader) {
    let mut stdin = container.stdin.lock().await;
    while let Some(piece) = reader.next().await {
        let Some(open) = stdin.as_mut() else {
            return;
        };
        if open.write_all(&piece).await.is_err() {
            break;
        }
    }
    if container.closes_stdin {
        *stdin = None;
    }
}

/// Sends what a client types, and closes the input at its end.
async fn send_input(reader: Option<StreamReader>, input: Option<pipe::Sender>) {
    let (Some(mut reader), Some(mut input)) = (reader, input) else {
        return;
    };
    while let Some(piece) = reader.next().await {
        if input.write_all(&piece).await.is_err() {
            // The process has closed it. The rest is read, so that the session goes on.
            while reader.next().await.is_some() {}
            return;
        }
    }
}

async fn send_output(reader: Option<pipe::Receiver>, writer: Option<&StreamWriter>) {
    let Some(mut reader) = reader else {
        return;
    };
    let mut piece = vec![0; PIECE];
    loop {
        // An error is the end of a terminal.
        let length = reader.read(&mut piece).await.unwrap_or(0);
        if length == 0 {
            return;
        }
        if let Some(writer) = writer
            && writer
                .send(Bytes::copy_from_slice(&piece[..length]))
                .await
                .is_err()
        {
            return;
        }
    }
}

/// Applies the sizes that a client sends, a JSON object each.
async fn set_sizes(reader: Option<StreamReader>, apply: impl Fn(TerminalSize)) {
    let Some(mut reader) = reader else {
        return;
    };
    while let Some(piece) = reader.next().await {
        let sizes = serde_json::Deserializer::from_slice(&piece).into_iter::<TerminalSize>();
        // One that cannot be read changes nothing.
        sizes.flatten().for_each(&apply);
    }
}

fn exit_message(code: i32) -> String {
    format!("command terminated with non-zero exit code: exit status {code}")
}

impl Outcome {
    fn of_failure(error: &ProcessError) -> Self {
        Self::Failed(one_line(error).to_string())
    }

    /// The `Status` that Kubernetes' clients read.
    fn status(&self) -> Value {
        match self {
            Self::Exited(0) => json!({"metadata": {}, "status": "Success"}),
            Self::Exited(code) => json!({
                "metadata": {},
                "status": "Failure",
                "message": exit_message(*code),
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Self::Failed(reason) => json!({
                "metadata": {},
                "status": "Failure",
                "message": format!("Internal error occurred: error executing command in container: {reason}"),
                "reason": "InternalError",
                "details": {"causes": [{"message": reason}]},
                "code": 500,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chooses_the_latest_protocol_that_both_know() {
        let choose = RemoteCommandProtocol::choose;
        let all = ["v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io"];
        assert_eq!(choose(&all), Some(RemoteCommandProtocol::V5));
        assert_eq!(choose(&all[1..]), Some(RemoteCommandProtocol::V4));
        assert_eq!(choose(&[]), Some(RemoteCommandProtocol::V1));
        assert_eq!(choose(&["v9.channel.k8s.io"]), None);
    }

    #[test]
    fn exit_codes_have_the_form_of_kubernetes() {
        let status = Outcome::Exited(7).status();
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(status["details"]["causes"][0]["reason"], "ExitCode");
        assert_eq!(status["details"]["causes"][0]["message"], "7");
        assert_eq!(Outcome::Exited(0).status()["status"], "Success");
    }
}
