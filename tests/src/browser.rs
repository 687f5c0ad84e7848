//! Debian's Chromium without a window, driven by its DevTools protocol over a pair of pipes: no
//! port, and no other program. <https://chromedevtools.github.io/devtools-protocol/> has the
//! methods and events.

use std::{
    collections::HashMap,
    path::Path,
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{Mutex as AsyncMutex, oneshot},
    task::JoinSet,
};

mod tab;

pub use tab::{Screen, Tab};

/// Chromium reads commands from descriptor 3 and writes to 4; a shell gives it the pipes as these.
const START: &str = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";

/// Messages of Chromium that nobody has asked for yet.
#[derive(Debug, Default)]
struct Inbox {
    /// The callers that wait, by the number of their command.
    waiting: HashMap<u64, oneshot::Sender<Value>>,
    /// The events by session.
    events: HashMap<String, Vec<Value>>,
}

/// The connection with Chromium.
#[derive(Debug)]
struct Connection {
    commands: AsyncMutex<ChildStdin>,
    inbox: Mutex<Inbox>,
    last: AtomicU64,
}

impl Connection {
    fn with_inbox<T>(&self, with: impl FnOnce(&mut Inbox) -> T) -> T {
        with(&mut self.inbox.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls a method, of the browser or of a session, and waits for its result.
    async fn call(&self, session: Option<&str>, method: &str, params: Value) -> Result<Value> {
        let id = self.last.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.with_inbox(|inbox| inbox.waiting.insert(id, answer));
        let mut command = json!({"id": id, "method": method, "params": params});
        if let Some(session) = session {
            command["sessionId"] = session.into();
        }
        let mut bytes = serde_json::to_vec(&command)?;
        bytes.push(0);
        self.commands.lock().await.write_all(&bytes).await?;
        let mut answer = answered
            .await
            .with_context(|| format!("Chromium ended before it answered {method}"))?;
        match answer.get("error") {
            Some(error) => bail!("{method}: {error}"),
            None => Ok(answer["result"].take()),
        }
    }

    /// Passes messages on until Chromium ends.
    async fn receive(self: Arc<Self>, messages: ChildStdout) {
        let mut messages = BufReader::new(messages);
        let mut message = Vec::new();
        while matches!(messages.read_until(0, &mut message).await, Ok(1..)) {
            message.pop();
            if let Ok(message) = serde_json::from_slice(&message) {
                self.with_inbox(|inbox| inbox.take(message));
            }
            message.clear();
        }
        self.with_inbox(|inbox| inbox.waiting.clear());
    }
}

impl Inbox {
    fn take(&mut self, message: Value) {
        if let Some(id) = message["id"].as_u64() {
            if let Some(waiting) = self.waiting.remove(&id) {
                // A caller that has gone needs no answer.
                let _ = waiting.send(message);
            }
        } else if let Some(session) = message["sessionId"].as_str() {
            let events = self.events.entry(session.to_owned()).or_default();
            events.push(message);
        }
    }
}

/// A running Chromium with a profile of its own. It ends when this is dropped.
#[derive(Debug)]
pub struct Browser {
    connection: Arc<Connection>,
    _receiver: JoinSet<()>,
    process: Child,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts the program, of [`peers::chromium`](crate::peers::chromium). It accepts every
    /// certificate: the tests' clusters have authorities of their own.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub async fn start(program: &Path) -> Result<Self> {
        let profile = tempfile::tempdir().context("failed to create a profile")?;
        let mut data = std::ffi::OsString::from("--user-data-dir=");
        data.push(profile.path());
        let mut process = Command::new("sh")
            .args(["-c", START, "sh"])
            .arg(program)
            .arg(data)
            .args([
                "--headless=new",
                "--remote-debugging-pipe",
                // Tests run as root, in containers with a small /dev/shm.
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--disable-gpu",
                "--no-first-run",
                "--hide-scrollbars",
                "--ignore-certificate-errors",
                "--disable-background-networking",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("failed to start a shell for Chromium")?;
        let commands = process.stdin.take().context("no pipe to Chromium")?;
        let messages = process.stdout.take().context("no pipe from Chromium")?;
        let connection = Arc::new(Connection {
            commands: AsyncMutex::new(commands),
            inbox: Mutex::default(),
            last: AtomicU64::new(1),
        });
        let mut receiver = JoinSet::new();
        receiver.spawn(Arc::clone(&connection).receive(messages));
        let browser = Self {
            connection,
            _receiver: receiver,
            process,
            _profile: profile,
        };
        let version = browser.call("Browser.getVersion", json!({}));
        version.await.context("Chromium does not start")?;
        Ok(browser)
    }

    async fn call(&self, method: &str, params: Value) -> Result<Value> {
        self.connection.call(None, method, params).await
    }

    /// Opens an empty tab with a session of its own: it shares no cookie with others.
    ///
    /// # Errors
    ///
    /// If Chromium refuses.
    pub async fn tab(&self) -> Result<Tab> {
        let context = self.call("Target.createBrowserContext", json!({})).await?;
        let target = json!({
            "url": "about:blank",
            "browserContextId": context["browserContextId"],
        });
        let target = self.call("Target.createTarget", target).await?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = self.call("Target.attachToTarget", attach).await?;
        let session = attached["sessionId"]
            .as_str()
            .ok_or_else(|| anyhow!("no session in {attached}"))?;
        Tab::new(Arc::clone(&self.connection), session.to_owned()).await
    }

    /// Ends Chromium, and waits until it has.
    ///
    /// # Errors
    ///
    /// If it cannot be told.
    pub async fn close(mut self) -> Result<()> {
        self.call("Browser.close", json!({})).await?;
        self.process
            .wait()
            .await
            .context("failed to wait for Chromium")?;
        Ok(())
    }
}
