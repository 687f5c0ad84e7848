//! One service of the cluster: a process that is restarted when it dies.

use std::{
    ffi::OsString,
    io::{self, Read as _, Seek as _, SeekFrom},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use backon::{
    BackoffBuilder as _, ConstantBuilder, ExponentialBackoff, ExponentialBuilder, Retryable as _,
};
use podplane_api::printable;
use podplane_client::{Channel, Endpoint, endpoint};
use podplane_host::{
    clock::{self, Instant},
    fs::{self, File},
    process,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    sync::watch,
};
use tokio_util::sync::CancellationToken;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{limits, trust};

/// The time that a process has to end after SIGTERM; then it is killed. Its own tasks have 5 s of
/// these.
const GRACE: Duration = Duration::from_secs(7);
/// The lifetime after which the back-off starts over: a process that lived this long died of
/// something new.
const STABLE: Duration = Duration::from_secs(5);
/// The interval of checks for the file with a service's address.
const LOOK: Duration = Duration::from_millis(2);
/// The time that a service has to listen. Hundreds of nodes in one process take long on a busy
/// machine.
const LISTEN_DEADLINE: Duration = Duration::from_secs(120);
/// The time that a service has to be ready once it listens.
const READY_DEADLINE: Duration = Duration::from_secs(60);
/// The pause between two watches of a service's health.
const HEALTH_RETRY: Duration = Duration::from_millis(20);
/// The part of a log that is shown when a service does not start.
const LAST_LINES: usize = 5;
const LAST_BYTES: u64 = 4096;

/// The log of a service without a file of its own.
pub(crate) const STDERR: &str = "/dev/stderr";

/// The specification of a process.
#[derive(Clone, Debug)]
pub(crate) struct ServiceSpec {
    /// `apiserver`, `kubelet-node-0`, …
    pub(crate) name: String,
    /// The arguments of `podplane`, without the listening address.
    pub(crate) args: Vec<OsString>,
    /// The file for its output.
    pub(crate) log: PathBuf,
    pub(crate) listens: ListenAddress,
    /// The file with its HTTP address, if that is not its listening address.
    pub(crate) http_file: Option<PathBuf>,
}

impl ServiceSpec {
    /// The HTTP address, if it is known; `address` is the listening address.
    pub(crate) fn http_address(&self, address: &str) -> Option<String> {
        let Some(file) = &self.http_file else {
            return Some(address.to_owned());
        };
        let published = fs::read_to_string(file).ok()?;
        Some(published.trim().to_owned())
    }
}

impl ServiceSpec {
    /// Returns true if `name` is the name or the kind of the process.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.name == name || self.args.first().is_some_and(|kind| kind == name)
    }
}

/// The listening address of a service.
#[derive(Clone, Debug)]
pub(crate) enum ListenAddress {
    /// The address in its arguments.
    At(String),
    /// `--listen`, unless it got an address before; the address is published in `file`, and
    /// requested again after a restart.
    AsPublished { listen: String, file: PathBuf },
}

/// A service that is kept running until it is stopped.
#[derive(Debug)]
pub(crate) struct Service {
    spec: ServiceSpec,
    state: watch::Receiver<ServiceState>,
    stop: CancellationToken,
}

/// The state of a service.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceState {
    /// `None` while it waits for its restart, and after it was stopped.
    pub(crate) pid: Option<u32>,
    pub(crate) restarts: u32,
    /// `None` until it is known.
    pub(crate) address: Option<String>,
    /// The description of its last end.
    ended: Option<String>,
    stopped: bool,
}

impl Service {
    /// Returns the service, and the future that keeps it running until `stop`; the caller must
    /// await it.
    pub(crate) fn new(
        spec: ServiceSpec,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let address = match &spec.listens {
            ListenAddress::At(address) => Some(address.clone()),
            ListenAddress::AsPublished { .. } => None,
        };
        let (sender, state) = watch::channel(ServiceState {
            address,
            ..ServiceState::default()
        });
        let service = Self {
            spec: spec.clone(),
            state,
            stop: stop.clone(),
        };
        (service, keep_running(spec, sender, stop))
    }

    pub(crate) fn spec(&self) -> &ServiceSpec {
        &self.spec
    }

    pub(crate) fn state(&self) -> ServiceState {
        self.state.borrow().clone()
    }

    /// A receiver of its state.
    pub(crate) fn observe(&self) -> watch::Receiver<ServiceState> {
        self.state.clone()
    }

    /// Waits until the service listens for the first time; returns its address.
    ///
    /// # Errors
    ///
    /// The service ended instead; with the end of its log. A service that cannot start is not
    /// retried before it has run once.
    pub(crate) async fn listening(&self) -> anyhow::Result<String> {
        let mut state = self.state.clone();
        let listens = state.wait_for(|state| state.address.is_some() || state.ended.is_some());
        let state = clock::timeout(LISTEN_DEADLINE, listens)
            .await
            .with_context(|| {
                format!(
                    "{} does not listen; see {}",
                    self.spec.name,
                    self.spec.log.display()
                )
            })?
            .with_context(|| format!("{} was stopped", self.spec.name))?
            .clone();
        match (state.address, state.ended) {
            (Some(address), None) => Ok(address),
            (_, ended) => anyhow::bail!(
                "{} does not start: {}{}",
                self.spec.name,
                ended.unwrap_or_default(),
                last_lines(&self.spec.log).unwrap_or_default()
            ),
        }
    }

    /// Waits until a service that listens is ready: until its health, at the unix socket of its own
    /// or that of its address, is SERVING.
    ///
    /// # Errors
    ///
    /// It ended, or is not ready within [`READY_DEADLINE`]; the service goes on.
    pub(crate) async fn ready(&self, socket: &Path) -> anyhow::Result<()> {
        let ServiceSpec { name, log, .. } = &self.spec;
        let mut state = self.state.clone();
        let address = state.borrow().address.clone();
        let address = address.filter(|address| address.starts_with("unix:"));
        let address = address.unwrap_or_else(|| format!("unix:{}", socket.display()));
        let channel = endpoint::channel(&address.parse::<Endpoint>()?)?;
        let ended = async {
            let ended = state.wait_for(|state| state.ended.is_some()).await;
            ended.ok().and_then(|state| state.ended.clone())
        };
        // Both only wait, so cancelling them loses nothing.
        let ready = tokio::select! {
            ready = clock::timeout(READY_DEADLINE, serving(channel)) => ready,
            ended = ended => anyhow::bail!(
                "{name} ended before it was ready: {}{}",
                ended.unwrap_or_default(),
                last_lines(log).unwrap_or_default()
            ),
        };
        anyhow::ensure!(
            ready.is_ok(),
            "{name} runs and is not ready after {} s; see {}, or ask `podplane health {address}`",
            READY_DEADLINE.as_secs(),
            log.display()
        );
        Ok(())
    }

    /// Asks the service to end. [`Service::stopped`] waits for it.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Kills the service, as a power failure would. [`Service::stopped`] waits for it.
    pub(crate) fn kill(&self) {
        self.stop.cancel();
        let pid = self.state().pid;
        let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            // The task that reaps it updates the state at once, on this thread, so the pid is still
            // its own.
            _ = kill_process(pid, Signal::KILL);
        }
    }

    pub(crate) async fn stopped(&self) {
        // An error means that the task that kept it running is gone, and the process with it.
        _ = self.state.clone().wait_for(|state| state.stopped).await;
    }
}

/// Waits until a server's health is SERVING. Connects as often as needed.
async fn serving(channel: Channel) {
    let watch = async || {
        let mut health = HealthClient::new(channel.clone());
        let watch = health.watch(HealthCheckRequest::default()).await?;
        let mut statuses = watch.into_inner();
        while let Some(answer) = statuses.message().await? {
            if answer.status() == ServingStatus::Serving {
                return Ok(());
            }
        }
        Err(tonic::Status::unavailable("the watch has ended"))
    };
    let patience = ConstantBuilder::new().with_delay(HEALTH_RETRY);
    // Without a limit it never fails.
    _ = watch.retry(patience.without_max_times()).await;
}

async fn keep_running(
    spec: ServiceSpec,
    state: watch::Sender<ServiceState>,
    stop: CancellationToken,
) {
    let mut waits = backoff();
    let mut address = None;
    while !stop.is_cancelled() {
        let started = Instant::now();
        let ended = match start(&spec, address.as_deref()) {
            Ok(child) => {
                state.send_modify(|state| state.pid = child.id());
                run(&spec, child, &mut address, &state, &stop).await
            }
            Err(error) => Some(format!("{error:#}")),
        };
        state.send_modify(|state| state.pid = None);
        let Some(ended) = ended else { break };
        if started.elapsed() > STABLE {
            waits = backoff();
        }
        let wait = waits.next().unwrap_or(STABLE);
        tracing::warn!(service = spec.name, ended, restart_in = ?wait, "service ended");
        state.send_modify(|state| state.ended = Some(ended));
        // Cancelling either wait loses nothing.
        tokio::select! {
            () = stop.cancelled() => {}
            () = clock::sleep(wait) => state.send_modify(|state| state.restarts += 1),
        }
    }
    state.send_modify(|state| state.stopped = true);
}

/// Waits until the process ends, and describes its end; `None` if it was stopped.
async fn run(
    spec: &ServiceSpec,
    mut child: Child,
    address: &mut Option<String>,
    state: &watch::Sender<ServiceState>,
    stop: &CancellationToken,
) -> Option<String> {
    if let (ListenAddress::AsPublished { file, .. }, None) = (&spec.listens, &address) {
        // Each arm only waits, so cancelling it loses nothing: `wait` is cancel safe and the file
        // stays.
        let found = tokio::select! {
            ended = child.wait() => return Some(describe(ended)),
            () = stop.cancelled() => None,
            found = published(file) => Some(found),
        };
        if let Some(found) = found {
            state.send_modify(|state| state.address = Some(found.clone()));
            *address = Some(found);
        }
    }
    // As above.
    tokio::select! {
        ended = child.wait() => return Some(describe(ended)),
        () = stop.cancelled() => {}
    }
    terminate(&spec.name, child).await;
    None
}

/// Settings of services that are inherited from the environment of `up`.
const PASSED_ON: [&str; 7] = [
    "PODPLANE_ALLOWED_HOSTS",
    "PODPLANE_CNI_CONCURRENCY",
    "PODPLANE_CNI_TIMEOUT",
    "PODPLANE_GC_INTERVAL",
    "PODPLANE_INJECT_PATCH",
    "PODPLANE_LOG",
    "PODPLANE_LOG_FORMAT",
];

fn start(spec: &ServiceSpec, address: Option<&str>) -> anyhow::Result<Child> {
    let log =
        open_log(&spec.log).with_context(|| format!("failed to open {}", spec.log.display()))?;
    let mut command =
        Command::new(std::env::current_exe().context("failed to find the program's own file")?);
    command.args(&spec.args);
    if let ListenAddress::AsPublished { listen, file } = &spec.listens {
        if address.is_none() {
            remove_stale(file)?;
        }
        command
            .arg("--listen")
            .arg(address.map_or(&**listen, without_scheme))
            .arg("--address-file")
            .arg(file);
    }
    // The environment was meant for `up`, except the settings of services for which it has no flag.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("PODPLANE_") && !PASSED_ON.contains(&&*text) {
            command.env_remove(&name);
        }
    }
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("failed to share the log")?)
        .stderr(log);
    process::spawn_async(&mut command).with_context(|| format!("failed to start {}", spec.name))
}

/// The address to listen on that was published as this one.
pub(crate) fn without_scheme(address: &str) -> &str {
    address.strip_prefix("https://").unwrap_or(address)
}

/// Opens a log for appending. Standard error may be a socket, which cannot be opened by its name.
fn open_log(path: &Path) -> io::Result<File> {
    if path == Path::new(STDERR) {
        Ok(io::stderr().as_fd().try_clone_to_owned()?.into())
    } else {
        trust::append(path)
    }
}

fn remove_stale(file: &Path) -> anyhow::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

/// Waits for the file with the address, which appears in one step.
async fn published(file: &Path) -> String {
    let read = async || fs::read_to_string_async(file).await;
    loop {
        let forever = ConstantBuilder::new().with_delay(LOOK).without_max_times();
        if let Ok(address) = read.retry(forever).await {
            return address.trim().to_owned();
        }
    }
}

async fn terminate(name: &str, mut child: Child) {
    let pid = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // Not reaped yet, so the pid is still its own.
        _ = kill_process(pid, Signal::TERM);
    }
    if clock::timeout(GRACE, child.wait()).await.is_err() {
        tracing::warn!(service = name, grace = ?GRACE, "service does not end; killing it");
        if let Err(error) = child.kill().await {
            tracing::error!(service = name, %error, "service cannot be killed");
        }
    }
}

fn describe(ended: io::Result<ExitStatus>) -> String {
    ended.map_or_else(|error| error.to_string(), limits::described)
}

/// The end of a log, indented, for a terminal.
pub(crate) fn last_lines(log: &Path) -> io::Result<String> {
    if log == Path::new(STDERR) {
        return Ok(String::new());
    }
    let mut file = trust::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
    let shown = last
        .iter()
        .map(|line| format!("\n    {}", printable::line(line)));
    Ok(shown.collect())
}

/// From 50 ms, doubled up to a second: soon enough after an accident, and cheap for a process that
/// dies at once every time.
fn backoff() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(1))
        .without_max_times()
        .build()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use podplane_proto::DESCRIPTORS;
    use podplane_service_runtime::{
        Process, Services, Tasks,
        server::{Listen, Listener},
    };

    use super::*;

    /// A service that listens at a socket.
    struct ListeningService {
        service: Service,
        socket: PathBuf,
        /// Makes it ready.
        listed: CancellationToken,
        tasks: Tasks,
        _state: watch::Sender<ServiceState>,
    }

    async fn listening_service(dir: &Path) -> ListeningService {
        let socket = dir.join("a.sock");
        let listener = Listener::bind(&Listen::Unix(socket.clone())).await.unwrap();
        let mut process = Process::new(DESCRIPTORS);
        process.serve(listener, Services::default());
        let listed = CancellationToken::new();
        process.ready_when("first list", listed.clone().cancelled_owned());
        let mut tasks = Tasks::new(CancellationToken::new());
        process.start(&mut tasks).await;
        let (_state, state) = watch::channel(ServiceState::default());
        let service = Service {
            spec: ServiceSpec {
                name: "a".into(),
                args: Vec::new(),
                log: dir.join("a.log"),
                listens: ListenAddress::At("127.0.0.1:1".into()),
                http_file: None,
            },
            state,
            stop: CancellationToken::new(),
        };
        ListeningService {
            service,
            socket,
            listed,
            tasks,
            _state,
        }
    }

    #[tokio::test]
    async fn a_service_is_ready_once_its_health_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let ListeningService {
            service,
            socket,
            listed,
            tasks,
            _state,
        } = listening_service(dir.path()).await;
        let stop = tasks.stop();
        let order = std::sync::Mutex::new(Vec::new());
        let happened = |event| order.lock().unwrap().push(event);
        let ready = async {
            service.ready(&socket).await.unwrap();
            happened("ready");
        };
        let lists = async {
            let address = format!("unix:{}", socket.display());
            let channel = endpoint::channel(&address.parse().unwrap()).unwrap();
            let mut health = HealthClient::new(channel);
            let check = health.check(HealthCheckRequest::default()).await;
            let status = check.unwrap().into_inner().status();
            assert_eq!(status, ServingStatus::NotServing);
            happened("listed");
            listed.cancel();
        };
        let work = async {
            tokio::join!(ready, lists);
            stop.cancel();
        };
        let (_, ()) = tokio::join!(tasks.run(), work);
        assert_eq!(*order.lock().unwrap(), ["listed", "ready"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_readiness_ends() {
        let dir = tempfile::tempdir().unwrap();
        let listening = listening_service(dir.path()).await;
        let mut serving = pin!(listening.tasks.run());
        let error = tokio::select! {
            _ = &mut serving => panic!("the server ended"),
            ready = listening.service.ready(&listening.socket) => ready.unwrap_err().to_string(),
        };
        let begins = "a runs and is not ready after 60 s; see ";
        assert!(error.starts_with(begins), "{error}");
        assert!(error.contains("podplane health unix:/"), "{error}");
    }

    #[test]
    fn last_lines_of_a_log_escape_control_characters() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("a.log");
        let lines = (1..=LAST_LINES).map(|n| format!("{n} \u{1b}]0;title\u{7}\u{202e}end\n"));
        fs::write(&log, lines.collect::<String>()).unwrap();
        let shown = last_lines(&log).unwrap();
        let expected = "\n    1 \\u{1b}]0;title\\u{7}\\u{202e}end\n    2 ";
        assert!(shown.starts_with(expected), "{shown:?}");
        let drives = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!shown.contains(drives), "{shown:?}");
    }
}
