//! Links: the connections between the services of a cluster, carried by this process, so that calls can be seen, delayed, failed, and cut off.
//!
//! With `podplane up --links DIR` each service reaches the API server through `DIR/SERVICE.sock`, and a kubelet the CRI runtime of a node through
//! `DIR/cri-NODE.sock`. [`Links`] serves these sockets. Each connection there has one of its own to the server, and they end together, so that a client
//! finds with a link what it would find without. Messages and metadata are passed on as they are.

mod carry;
mod method;
mod rules;

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU32},
    time::Duration,
};

use tokio::{net::UnixListener, task::JoinSet};
use tonic::Code;

use self::{method::Method, rules::Rules};
use crate::{ClusterError, Result, carrier::Carrier, fault::Fault, recording::Recorder};

/// Whether CRI has a method of that name.
pub(crate) fn is_of_runtimes(method: &str) -> bool {
    Method::is_of_runtimes(method)
}

/// How a link is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Open connections die, and new ones are refused: as when the server's machine is switched off.
    Refused,
    /// Nothing passes any more, and nobody is told: open connections stay, new ones are not answered. As when a cable is pulled. What a client sent before may have
    /// been carried out; it hears of that when the link is mended, unless it has given up by then.
    Silent,
}

/// What happens to the calls of a method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFault {
    method: Option<String>,
    effect: Effect,
    times: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    Delay(Delay),
    Fail(Code),
    Lose(Code),
}

/// How long calls are held up: `least`, and up to `more` beyond that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Delay {
    least: Duration,
    more: Duration,
    seed: u64,
}

impl Delay {
    /// How long the call is held up that is the `number`th of its method: the same for the same seed.
    fn of(self, number: u64) -> Duration {
        let part = fastrand::Rng::with_seed(self.seed.wrapping_add(number)).f64();
        self.least.saturating_add(self.more.mul_f64(part))
    }
}

impl CallFault {
    /// They reach the server so much later. Where the server sends a stream, as with a watch, each message of it also comes so much later, on streams
    /// that are open already, too.
    #[must_use]
    pub fn delay(by: Duration) -> Self {
        Self::delay_between(by..=by, 0)
    }

    /// As [`CallFault::delay`], but each call by a time of its own between these two. Which, follows from the seed: the first call of a method is held up
    /// as long in every run with it, the second as long, and so on.
    #[must_use]
    pub fn delay_between(by: RangeInclusive<Duration>, seed: u64) -> Self {
        Self::new(Effect::Delay(Delay {
            least: *by.start(),
            more: by.end().saturating_sub(*by.start()),
            seed,
        }))
    }

    /// They fail with this code, and the server never sees them.
    #[must_use]
    pub fn fail(code: Code) -> Self {
        Self::new(Effect::Fail(code))
    }

    /// The server carries them out, and instead of its answer the client gets this code.
    #[must_use]
    pub fn lose_answer(code: Code) -> Self {
        Self::new(Effect::Lose(code))
    }

    fn new(effect: Effect) -> Self {
        Self {
            method: None,
            effect,
            times: None,
        }
    }

    /// Only calls of this method: `WatchNodes`, or `podplane.core.v1.NodeService/WatchNodes`. Else of all.
    #[must_use]
    pub fn of(mut self, method: impl Into<String>) -> Self {
        self.method = Some(method.into());
        self
    }

    /// The method, if it is of one.
    pub(crate) fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// Only so many calls, the next ones. Else all until it is healed.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }
}

impl fmt::Display for CallFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            method,
            effect,
            times,
        } = self;
        match times {
            Some(times) => write!(f, "the next {times} calls")?,
            None => f.write_str("calls")?,
        }
        if let Some(method) = method {
            write!(f, " of {method}")?;
        }
        match effect {
            Effect::Delay(Delay { least, more, .. }) if more.is_zero() => {
                write!(f, " come {least:?} later")
            }
            Effect::Delay(Delay { least, more, .. }) => {
                write!(f, " come {least:?} to {:?} later", *least + *more)
            }
            Effect::Fail(code) => write!(f, " fail with {code:?}"),
            Effect::Lose(code) => write!(f, " are carried out and answered with {code:?}"),
        }
    }
}

/// Where a link leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// The address is in a file, and may be another tomorrow.
    Published(PathBuf),
    /// `HOST:PORT` or `unix:PATH`.
    At(String),
}

/// The links of a cluster, by client. Dropping them ends all connections and removes the sockets.
///
/// A thread of their own carries them: they go on while the test's threads wait for a program that speaks over them.
#[derive(Debug)]
pub struct Links {
    dir: PathBuf,
    recorder: Recorder,
    links: Mutex<BTreeMap<String, Served>>,
    carrier: Carrier,
}

#[derive(Debug)]
struct Served {
    link: Arc<Link>,
    /// Ends when it is dropped, and all connections with it.
    _task: JoinSet<()>,
}

/// One link.
#[derive(Debug)]
struct Link {
    /// Whose calls it carries.
    client: String,
    server: Server,
    rules: Rules,
    recorder: Recorder,
}

impl Links {
    /// Links in a directory of their own, which is made.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if it cannot be made.
    pub fn new(dir: impl Into<PathBuf>, recorder: Recorder) -> Result<Self> {
        let dir = dir.into();
        fs::create_dir_all(&dir).map_err(ClusterError::io(format!(
            "make the directory {}",
            dir.display()
        )))?;
        let started = Carrier::start("links", || Ok(()));
        let (carrier, ()) = started.map_err(ClusterError::io("start a thread for links"))?;
        Ok(Self {
            dir,
            recorder,
            links: Mutex::default(),
            carrier,
        })
    }

    /// What `podplane up --links` is told.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Serves the socket of a client: `scheduler`, `kubelet-node-0`, `cri-node-0` for what a kubelet asks of the runtime of node-0. One that is served is left as it is.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if it cannot be had; a path longer than Linux takes among the reasons.
    pub fn serve(&self, client: &str, server: Server) -> Result<()> {
        let mut links = self.lock();
        if links.contains_key(client) {
            return Ok(());
        }
        let path = self.dir.join(format!("{client}.sock"));
        let _carrier = self.carrier.runtime().enter();
        let listener =
            bind(&path).map_err(ClusterError::io(format!("listen on {}", path.display())))?;
        let link = Arc::new(Link {
            client: client.into(),
            server,
            rules: Rules::default(),
            recorder: self.recorder.clone(),
        });
        let mut task = JoinSet::new();
        task.spawn(carry::accept(link.clone(), path, listener));
        links.insert(client.into(), Served { link, _task: task });
        Ok(())
    }

    /// Ends the link of a client that is no more.
    pub fn end(&self, client: &str) {
        if self.lock().remove(client).is_some() {
            // Nobody else has it, and a file that stays harms nobody.
            _ = fs::remove_file(self.dir.join(format!("{client}.sock")));
        }
    }

    /// The clients that there are links of.
    #[must_use]
    pub fn clients(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Cuts a client off, until the fault is healed or dropped.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoLink`] if there is no such client.
    pub fn cut(&self, client: &str, cut: Cut) -> Result<Fault> {
        let link = self.link(client)?;
        let what = match cut {
            Cut::Refused => format!("{client} is cut off: connections are refused"),
            Cut::Silent => format!("{client} is cut off: nothing is answered"),
        };
        let id = link.rules.cut(cut);
        Ok(self.fault(what, move || link.rules.mend(id)))
    }

    /// Has something happen to calls of a client, until the fault is healed or dropped. What several faults do adds up; of those that fail a call the first does.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoLink`] if there is no such client, [`ClusterError::NoMethod`] if no service has the method.
    pub fn disturb(&self, client: &str, fault: CallFault) -> Result<Fault> {
        self.disturb_each(client, &[client.into()], &fault)
    }

    /// [`Links::disturb`] for a process that has several links: what is for so many calls is for so many of all of them together.
    pub(crate) fn disturb_each(
        &self,
        process: &str,
        clients: &[String],
        fault: &CallFault,
    ) -> Result<Fault> {
        if let Some(name) = &fault.method {
            Method::check(name)?;
        }
        let links: Vec<_> = clients
            .iter()
            .map(|client| self.link(client))
            .collect::<Result<_>>()?;
        let left = fault.times.map(|times| Arc::new(AtomicU32::new(times)));
        let added = links.into_iter().map(|link| {
            let id = link.rules.add(fault.clone(), left.clone());
            (link, id)
        });
        let added: Vec<_> = added.collect();
        Ok(self.fault(format!("{process}: {fault}"), move || {
            for (link, id) in added {
                link.rules.remove(id);
            }
        }))
    }

    /// How many calls of a method a client has made so far: `BindPod`.
    ///
    /// # Errors
    ///
    /// As [`Links::disturb`].
    pub fn seen(&self, client: &str, method: &str) -> Result<u64> {
        Method::check(method)?;
        Ok(self.link(client)?.rules.seen(method))
    }

    fn fault(&self, what: String, undo: impl FnOnce() + Send + Sync + 'static) -> Fault {
        Fault::new(what, self.recorder.clone(), undo)
    }

    fn link(&self, client: &str) -> Result<Arc<Link>> {
        let links = self.lock();
        let found = links.get(client).map(|served| served.link.clone());
        found.ok_or_else(|| ClusterError::NoLink {
            client: client.into(),
            clients: links.keys().cloned().collect(),
        })
    }

    /// What the mutex guards is whole between any two statements.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Served>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for client in self.clients() {
            self.end(&client);
        }
    }
}

/// Checks that some service has a method: `BindPod`, or `podplane.core.v1.PodService/BindPod`.
///
/// # Errors
///
/// [`ClusterError::NoMethod`] if none has.
pub fn check_method(name: &str) -> Result<()> {
    Method::check(name)
}

/// A socket at `path`, in the place of one that nobody serves any more.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(path),
    }
}

#[cfg(test)]
mod tests;
