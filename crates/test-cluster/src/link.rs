//! Links: the connections between the services of a cluster, forwarded by this process, so that
//! calls can be observed, delayed, failed, and cut off.
//!
//! With `podplane up --links DIR` each service reaches the API server through `DIR/SERVICE.sock`,
//! and a kubelet reaches the CRI runtime of a node through `DIR/cri-NODE.sock`. [`Links`] serves
//! these sockets. Each connection to them has a connection of its own to the server, and both end
//! together, so that a link is invisible to its client. Messages and metadata are forwarded
//! unchanged.

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

use http::HeaderValue;
use tokio::{net::UnixListener, task::JoinSet};
use tonic::Code;

use self::{method::Method, rules::LinkRules};
use crate::{ClusterError, Result, carrier::Carrier, fault::Fault, recording::Recorder};

/// Returns true if CRI has a method of that name.
pub(crate) fn is_of_runtimes(method: &str) -> bool {
    Method::is_of_runtimes(method)
}

/// A way of cutting a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Open connections are closed and new ones refused, as when the server's machine is switched
    /// off.
    Refused,
    /// Nothing passes in either direction, and nobody is told, as when a cable is pulled: open
    /// connections stay, new ones are not answered. Calls that were sent before may be carried out;
    /// their answers arrive when the link is healed, unless the client has given up by then.
    Silent,
}

/// A fault of the calls of a method, or of all calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFault {
    method: Option<String>,
    effect: RuleEffect,
    times: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RuleEffect {
    Delay(Delay),
    Fail(Code),
    Lose(Code),
}

/// A random delay of calls: `least`, and up to `more` in addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Delay {
    least: Duration,
    more: Duration,
    seed: u64,
}

impl Delay {
    /// Returns the delay of the `number`th call of its method: the same for the same seed.
    fn of(self, number: u64) -> Duration {
        let part = fastrand::Rng::with_seed(self.seed.wrapping_add(number)).f64();
        self.least.saturating_add(self.more.mul_f64(part))
    }
}

impl CallFault {
    /// Delays calls by `by` on their way to the server. Where the server sends a stream, as for a
    /// watch, each of its messages is delayed as well, on streams that are already open, too.
    #[must_use]
    pub fn delay(by: Duration) -> Self {
        Self::delay_between(by..=by, 0)
    }

    /// Delays as [`CallFault::delay`] does, but each call by a time of its own in this range. The
    /// times follow from the seed: in every run with it, the first call of a method has the same
    /// delay, the second too, and so on.
    #[must_use]
    pub fn delay_between(by: RangeInclusive<Duration>, seed: u64) -> Self {
        Self::new(RuleEffect::Delay(Delay {
            least: *by.start(),
            more: by.end().saturating_sub(*by.start()),
            seed,
        }))
    }

    /// Fails calls with this code. The server never sees them.
    #[must_use]
    pub fn fail(code: Code) -> Self {
        Self::new(RuleEffect::Fail(code))
    }

    /// Lets the server carry calls out, and gives the client this code in place of the answer.
    #[must_use]
    pub fn lose_answer(code: Code) -> Self {
        Self::new(RuleEffect::Lose(code))
    }

    fn new(effect: RuleEffect) -> Self {
        Self {
            method: None,
            effect,
            times: None,
        }
    }

    /// Limits the fault to calls of one method: `WatchNodes`, or
    /// `podplane.core.v1.NodeService/WatchNodes`. The default is all methods.
    #[must_use]
    pub fn of(mut self, method: impl Into<String>) -> Self {
        self.method = Some(method.into());
        self
    }

    /// The method to which the fault is limited.
    pub(crate) fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// Limits the fault to the next `times` calls. The default is all calls until it is healed.
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
            RuleEffect::Delay(Delay { least, more, .. }) if more.is_zero() => {
                write!(f, " come {least:?} later")
            }
            RuleEffect::Delay(Delay { least, more, .. }) => {
                write!(f, " come {least:?} to {:?} later", *least + *more)
            }
            RuleEffect::Fail(code) => write!(f, " fail with {code:?}"),
            RuleEffect::Lose(code) => write!(f, " are carried out and answered with {code:?}"),
        }
    }
}

/// The server to which a link leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkServer {
    /// The file with the server's address, which is read for each connection, because it may
    /// change.
    Published(PathBuf),
    /// The address: `HOST:PORT` or `unix:PATH`.
    At(String),
}

/// The links of a cluster, by client. Dropping them ends all connections and removes the sockets.
///
/// They have a thread of their own: they go on while the test's threads wait for a program that
/// uses them.
#[derive(Debug)]
pub struct Links {
    dir: PathBuf,
    recorder: Recorder,
    links: Mutex<BTreeMap<String, ServedLink>>,
    carrier: Carrier,
}

#[derive(Debug)]
struct ServedLink {
    link: Arc<Link>,
    /// Dropping it ends the link and all its connections.
    _task: JoinSet<()>,
}

/// One link: the connections of a client to a server.
#[derive(Debug)]
struct Link {
    /// The client whose calls it carries.
    client: String,
    server: LinkServer,
    /// The user as whom calls are carried out, if it is not that of this process.
    user: Option<HeaderValue>,
    rules: LinkRules,
    recorder: Recorder,
}

impl Links {
    /// Makes the directory `dir` for the sockets of links, and no links yet.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if the directory cannot be made, or the thread not started.
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

    /// The directory of the sockets, for `podplane up --links`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Serves the socket of a client: `scheduler`, `kubelet-node-0`, or `cri-node-0` for the calls
    /// of a kubelet to the runtime of node-0. A client that has a link keeps it.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if the socket cannot be made, for example because its path is too long
    /// for Linux.
    pub fn serve(&self, client: &str, server: LinkServer) -> Result<()> {
        self.serve_as(client, server, None)
    }

    /// [`Links::serve`] for a client that is to have only the rights of a user at the API server:
    /// each of its calls impersonates that user.
    ///
    /// # Errors
    ///
    /// Those of [`Links::serve`].
    pub fn serve_as(
        &self,
        client: &str,
        server: LinkServer,
        user: Option<&'static str>,
    ) -> Result<()> {
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
            user: user.map(HeaderValue::from_static),
            rules: LinkRules::default(),
            recorder: self.recorder.clone(),
        });
        let mut task = JoinSet::new();
        task.spawn(carry::accept(link.clone(), path, listener));
        links.insert(client.into(), ServedLink { link, _task: task });
        Ok(())
    }

    /// Ends the link of a client, if there is one.
    pub fn end(&self, client: &str) {
        if self.lock().remove(client).is_some() {
            // No other process uses the file, and one that stays does no harm.
            _ = fs::remove_file(self.dir.join(format!("{client}.sock")));
        }
    }

    /// The clients that have links.
    #[must_use]
    pub fn clients(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Cuts a client off until the fault is healed or dropped.
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

    /// Disturbs calls of a client until the fault is healed or dropped. Delays of several faults
    /// add up; of those that fail a call, the first one applies.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoLink`] if there is no such client, [`ClusterError::NoMethod`] if no
    /// service has the method.
    pub fn disturb(&self, client: &str, fault: CallFault) -> Result<Fault> {
        self.disturb_each(client, &[client.into()], &fault)
    }

    /// [`Links::disturb`] for a process with several links; a number of times is the total for all
    /// of them.
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

    /// Returns the number of calls of a method, such as `BindPod`, that a client has made so far.
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

    /// Locks the links. A panic elsewhere does not spoil them: they are consistent between any two
    /// statements.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ServedLink>> {
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

/// Binds a socket at `path`, in place of an old one that is no longer served.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(path),
    }
}

#[cfg(test)]
mod tests;
