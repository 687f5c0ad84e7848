//! The runtime, which runs plugin programs as libcni does.
//!
//! The rules are libcni's: lookup, request configuration, environment, chaining of `prevResult`,
//! cache format, error texts. It goes beyond libcni where that leaves the work to its callers: a
//! failed ADD is undone, a DEL continues after a failing plugin, a hanging plugin is killed, and
//! the cache is written atomically.

mod cache;
mod error;
mod exec;
mod probe;
mod request;
mod together;

use std::{
    ffi::OsString,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use podplane_host::clock::Instant;
use podplane_netlink::netns;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    spare::SpareFiles,
    trace::Trace,
    types::{CniResult, NetworkConfigList, Version, validate},
};
pub use cache::CachedAttachment;
pub use error::{PluginError, RuntimeError};
pub use exec::{Conversation, ConversationEnd, Output, Pipes, execute, pipes, spawn};
pub(crate) use exec::{RunningPlugin, Surroundings, find_plugin};

use cache::Cache;
use request::{ChainStep, chain, environment, ipam_step, request};

/// libcni's default directory of the cache.
pub const DEFAULT_CACHE_DIR: &str = "/var/lib/cni";

/// A runtime: the directories of plugins, and the conditions under which they run.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// The directories of plugin programs; the first that has the program wins (`CNI_PATH`).
    pub bin_dirs: Vec<PathBuf>,
    /// The directory in which `results/` holds the cache; libcni's is [`DEFAULT_CACHE_DIR`].
    pub cache_dir: PathBuf,
    /// The spare files for entries of the cache; `None` for new files.
    pub spare: Option<Arc<SpareFiles>>,
    /// The network namespace that plugins are started in; the caller's if `None`.
    pub node_netns: Option<PathBuf>,
    /// The longest time that one plugin may take before it and its process group are killed.
    pub timeout: Duration,
}

/// The facts about one execution of a plugin.
#[derive(Clone, Copy, Debug)]
pub struct PluginExecution<'a> {
    /// The plugin's name.
    pub plugin: &'a str,
    /// The command: `ADD`, `DEL`, …
    pub command: &'static str,
    /// The time it took.
    pub took: Duration,
    /// Set if the plugin refused, or could not be run.
    pub failed: bool,
}

type Observer = Box<dyn Fn(&PluginExecution<'_>) + Send + Sync>;

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Registers an observer of every plugin that any [`Runtime`] of this process executes from now on.
/// Only the first call has an effect.
pub fn observe(observer: impl Fn(&PluginExecution<'_>) + Send + Sync + 'static) {
    _ = OBSERVER.set(Box::new(observer));
}

/// One interface of one container in one network.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    /// The id of the container or of the sandbox.
    pub container_id: String,
    /// The container's network namespace; `None` for a DEL after it is gone.
    pub netns: Option<PathBuf>,
    /// The name of the interface in the container, usually `eth0`.
    pub ifname: String,
    /// `CNI_ARGS`, in order.
    pub args: Vec<(String, String)>,
    /// Capability arguments; each plugin gets those that its `capabilities` ask for.
    pub capability_args: Map<String, Value>,
    /// The trace that collects the steps of operations on the attachment.
    pub trace: Option<Trace>,
}

impl Attachment {
    /// An attachment without arguments.
    #[must_use]
    pub fn new(
        container_id: impl Into<String>,
        netns: Option<PathBuf>,
        ifname: impl Into<String>,
    ) -> Self {
        Self {
            container_id: container_id.into(),
            netns,
            ifname: ifname.into(),
            args: Vec::new(),
            capability_args: Map::new(),
            trace: None,
        }
    }
}

/// An attachment that GC must keep. Its JSON is the specification's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ValidAttachment {
    /// The id of the container.
    #[serde(rename = "containerID", alias = "containerid")]
    pub container_id: String,
    /// The name of the interface in the container.
    pub ifname: String,
}

impl Runtime {
    /// Attaches: runs the chain in order, each plugin with the result of the one before it, and
    /// caches the last result.
    ///
    /// A failed ADD is undone by DEL, in reverse order, unless the cache says that this attachment
    /// existed before.
    ///
    /// # Errors
    /// [`RuntimeError`]; [`RuntimeError::Rollback`] if something may be left behind.
    pub fn add(
        &self,
        list: &NetworkConfigList,
        attachment: &Attachment,
    ) -> Result<CniResult, RuntimeError> {
        self.add_steps(list, &chain(list), attachment)
    }

    /// Detaches: runs the chain in reverse. Every plugin is run, also after one has failed. The
    /// cached result is removed when all have succeeded. Deleting a missing attachment is success.
    ///
    /// # Errors
    /// [`RuntimeError`]; call again later.
    pub fn del(
        &self,
        list: &NetworkConfigList,
        attachment: &Attachment,
    ) -> Result<(), RuntimeError> {
        self.del_steps(list, &chain(list), attachment)
    }

    /// Checks that an attachment agrees with its cached result.
    ///
    /// # Errors
    /// [`RuntimeError`] of the first plugin that disagrees.
    pub fn check(
        &self,
        list: &NetworkConfigList,
        attachment: &Attachment,
    ) -> Result<(), RuntimeError> {
        if !list.is_at_least(Version::V0_4_0) {
            return Err(RuntimeError::CheckUnsupported(list.cni_version.clone()));
        }
        if list.disable_check {
            return Ok(());
        }
        let steps = chain(list);
        self.validate_names(&steps, "check", list, attachment)?;
        let previous = self.previous_result(list, attachment)?;
        for step in steps {
            let config = request(
                list,
                step.config,
                &attachment.capability_args,
                previous.as_ref(),
            );
            self.run(&step, "check", "CHECK", Some(attachment), config)?;
        }
        Ok(())
    }

    /// Deletes every cached attachment of the network that is not `valid`, then passes the valid
    /// ones to the plugins (from version 1.1.0 on).
    ///
    /// With `None`, every cached attachment is deleted, and the plugins run GC without a list.
    ///
    /// # Errors
    /// All that failed; the rest was done.
    pub fn gc(
        &self,
        list: &NetworkConfigList,
        valid: Option<&[ValidAttachment]>,
    ) -> Result<(), RuntimeError> {
        if list.disable_gc {
            return Ok(());
        }
        let mut errors = Vec::new();
        for entry in self
            .cached()?
            .into_iter()
            .filter(|entry| entry.network == list.name)
        {
            let Attachment {
                container_id,
                ifname,
                ..
            } = &entry.attachment;
            let is_entry =
                |v: &ValidAttachment| v.container_id == *container_id && v.ifname == *ifname;
            if !valid.unwrap_or_default().iter().any(is_entry) {
                let deleted = self.del(list, &entry.attachment);
                errors.extend(deleted.err().map(|source| RuntimeError::Stale {
                    container_id: container_id.clone(),
                    ifname: ifname.clone(),
                    source: Box::new(source),
                }));
            }
        }
        if list.is_at_least(Version::V1_1_0) {
            for step in chain(list) {
                let mut config = request(list, step.config, &Map::new(), None);
                if let (Value::Object(config), Some(valid)) = (&mut config, valid) {
                    let valid = serde_json::json!(valid);
                    config.insert("cni.dev/attachments".to_owned(), valid.clone());
                    config.insert("cni.dev/valid-attachments".to_owned(), valid);
                }
                errors.extend(self.run(&step, "gc", "GC", None, config).err());
            }
        }
        RuntimeError::join(errors)
    }

    /// Asks the plugins whether an ADD can be served now. Below version 1.1.0 nothing is asked.
    ///
    /// # Errors
    /// [`RuntimeError`] of the first plugin that cannot; its code is 50 or 51.
    pub fn status(&self, list: &NetworkConfigList) -> Result<(), RuntimeError> {
        if !list.is_at_least(Version::V1_1_0) {
            return Ok(());
        }
        for step in chain(list) {
            let config = request(list, step.config, &Map::new(), None);
            self.run(&step, "status", "STATUS", None, config)?;
        }
        Ok(())
    }

    /// [`add`](Self::add) of the IPAM plugin alone: addresses without devices. It gets exactly the
    /// input that the list's first plugin would pass on to it.
    ///
    /// # Errors
    /// [`RuntimeError`].
    pub fn ipam_add(
        &self,
        list: &NetworkConfigList,
        attachment: &Attachment,
    ) -> Result<CniResult, RuntimeError> {
        self.add_steps(list, &[ipam_step(list)?], attachment)
    }

    /// [`del`](Self::del) of the IPAM plugin alone.
    ///
    /// # Errors
    /// [`RuntimeError`].
    pub fn ipam_del(
        &self,
        list: &NetworkConfigList,
        attachment: &Attachment,
    ) -> Result<(), RuntimeError> {
        self.del_steps(list, &[ipam_step(list)?], attachment)
    }

    /// All attachments in the cache, of all networks.
    ///
    /// # Errors
    /// [`RuntimeError::Cache`].
    pub fn cached(&self) -> Result<Vec<CachedAttachment>, RuntimeError> {
        self.cache().list()
    }

    /// The cached result of an attachment, in the format of the list's version.
    #[must_use]
    pub fn cached_result(
        &self,
        list: &NetworkConfigList,
        attachment: &Attachment,
    ) -> Option<CniResult> {
        self.previous_result(list, attachment).ok().flatten()
    }

    fn add_steps(
        &self,
        list: &NetworkConfigList,
        steps: &[ChainStep<'_>],
        attachment: &Attachment,
    ) -> Result<CniResult, RuntimeError> {
        self.validate_names(steps, "add", list, attachment)?;
        // A repeated ADD fails (`duplicate allocation`), and must not be undone: the attachment may
        // be in use. An unreadable entry counts as one that may be.
        let is_live = self.is_cached(list, attachment);
        let mut result = None;
        for (index, step) in steps.iter().enumerate() {
            let config = request(
                list,
                step.config,
                &attachment.capability_args,
                result.as_ref(),
            );
            let added = self
                .run(step, "add", "ADD", Some(attachment), config)
                .and_then(|output| {
                    let parsed = CniResult::parse(&output, &list.cni_version);
                    parsed.map_err(|error| step.failed("add", error.into()))
                });
            match added {
                Ok(added) => result = Some(added),
                Err(error) if is_live => return Err(error),
                Err(error) => {
                    return Err(self.roll_back(list, &steps[..=index], attachment, error));
                }
            }
        }
        let result = result.unwrap_or_default();
        match self.cache().write(list, attachment, &result.to_value()) {
            Ok(()) => Ok(result),
            Err(error) => Err(self.roll_back(list, steps, attachment, error)),
        }
    }

    /// Undoes an ADD. The failed step is deleted too: it may have done a part of its work.
    fn roll_back(
        &self,
        list: &NetworkConfigList,
        steps: &[ChainStep<'_>],
        attachment: &Attachment,
        add: RuntimeError,
    ) -> RuntimeError {
        let not_run = match &add {
            RuntimeError::Netns(_) => true,
            RuntimeError::Plugin { source, .. } => source.is_not_run(),
            _ => false,
        };
        let ran = if not_run {
            &steps[..steps.len() - 1]
        } else {
            steps
        };
        match self.del_steps(list, ran, attachment) {
            Ok(()) => add,
            Err(rollback) => RuntimeError::Rollback {
                add: Box::new(add),
                rollback: Box::new(rollback),
            },
        }
    }

    fn del_steps(
        &self,
        list: &NetworkConfigList,
        steps: &[ChainStep<'_>],
        attachment: &Attachment,
    ) -> Result<(), RuntimeError> {
        self.validate_names(steps, "delete", list, attachment)?;
        let previous = self.previous_result(list, attachment);
        let previous = previous.unwrap_or_else(|error| {
            // A DEL continues without the entry, as if there had never been one.
            tracing::warn!(
                error = error.message(),
                "going on without the cached result"
            );
            None
        });
        let previous = previous.filter(|_| list.is_at_least(Version::V0_4_0));
        let mut errors = Vec::new();
        for step in steps.iter().rev() {
            let config = request(
                list,
                step.config,
                &attachment.capability_args,
                previous.as_ref(),
            );
            errors.extend(
                self.run(step, "delete", "DEL", Some(attachment), config)
                    .err(),
            );
        }
        RuntimeError::join(errors)?;
        self.cache().remove(&list.name, attachment)
    }

    /// Runs one plugin. `attachment` is `None` for GC and STATUS, which are not about one
    /// container.
    fn run(
        &self,
        step: &ChainStep<'_>,
        action: &'static str,
        command: &'static str,
        attachment: Option<&Attachment>,
        config: Value,
    ) -> Result<Vec<u8>, RuntimeError> {
        let program = find_plugin(step.program, &self.bin_dirs)
            .map_err(|error| step.failed(action, error))?;
        let mut env = environment(command, attachment, &self.bin_dirs);
        let stdin = crate::types::json::compact(&config);
        let trace = attachment.and_then(|attachment| attachment.trace.as_ref());
        let name = || format!("{command} {}", step.program);
        let begun = trace.and_then(|trace| trace.begin(name, step.program));
        env.extend(
            trace
                .iter()
                .flat_map(|trace| trace.environment(begun.as_ref())),
        );
        let mut steps = Vec::new();
        let output = self.execute(
            step.program,
            command,
            &program,
            stdin.as_bytes(),
            &env,
            &mut steps,
        );
        if let (Some(trace), Some(begun)) = (trace, begun) {
            let error = match &output {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(error) => Some(error.message()),
            };
            trace.end(begun, &steps, error);
        }
        let output = output?.map_err(|error| step.failed(action, error))?;
        Ok(output.stdout)
    }

    /// Executes a program in the node's namespace, and logs its standard error.
    fn execute(
        &self,
        plugin: &str,
        command: &'static str,
        program: &Path,
        stdin: &[u8],
        env: &[(&'static str, OsString)],
        steps: &mut Vec<u8>,
    ) -> Result<Result<Output, PluginError>, RuntimeError> {
        let began = Instant::now();
        let node = self.node_netns.as_deref();
        let node = node.map(netns::open_mounted).transpose()?;
        let around = Surroundings {
            timeout: Some(self.timeout),
            netns: node.as_ref().map(AsFd::as_fd),
        };
        let started = RunningPlugin::start(program, stdin, env, around);
        let output = started.and_then(|running| running.finish(steps));
        if let Some(observer) = OBSERVER.get() {
            observer(&PluginExecution {
                plugin,
                command,
                took: began.elapsed(),
                failed: output.is_err(),
            });
        }
        let stderr = match &output {
            Ok(output) => String::from_utf8_lossy(&output.stderr),
            Err(PluginError::Refused { stderr, .. }) => stderr.as_str().into(),
            Err(_) => "".into(), // Part of the error.
        };
        for line in stderr.lines() {
            tracing::info!(plugin, command, line, "plugin's log");
        }
        Ok(output)
    }

    /// Checks names in libcni's order: first the lookup of the first plugin, then the names. Both
    /// come before the cache is read, since names are parts of its file names.
    fn validate_names(
        &self,
        steps: &[ChainStep<'_>],
        action: &'static str,
        list: &NetworkConfigList,
        attachment: &Attachment,
    ) -> Result<(), RuntimeError> {
        if let Some(first) = steps.first() {
            find_plugin(first.program, &self.bin_dirs)
                .map_err(|error| first.failed(action, error))?;
        }
        validate::container_id(&attachment.container_id)
            .and_then(|()| validate::network_name(&list.name))
            .and_then(|()| validate::interface_name(&attachment.ifname))
            .map_err(RuntimeError::Invalid)
    }

    /// The cached result, in the format of the list's version.
    fn previous_result(
        &self,
        list: &NetworkConfigList,
        attachment: &Attachment,
    ) -> Result<Option<CniResult>, RuntimeError> {
        let unreadable = |reason: String| RuntimeError::CachedResult {
            network: list.name.clone(),
            reason,
        };
        let entry = self.cache().read(&list.name, attachment);
        let value = entry.map_err(unreadable)?.and_then(|entry| entry.result);
        let Some(value) = value else { return Ok(None) };
        let result = CniResult::from_value(&value, &list.cni_version);
        let result = result.map_err(|error| unreadable(error.to_string()))?;
        let version = list.cni_version.parse().unwrap_or(result.version);
        Ok(Some(result.with_version(version)))
    }

    fn is_cached(&self, list: &NetworkConfigList, attachment: &Attachment) -> bool {
        !matches!(self.cache().read(&list.name, attachment), Ok(None))
    }

    fn cache(&self) -> Cache<'_> {
        Cache {
            dir: &self.cache_dir,
            spare: self.spare.as_deref(),
        }
    }
}
