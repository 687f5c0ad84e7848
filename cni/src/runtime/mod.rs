//! Runs plugin programs: libcni's job.
//!
//! The rules are libcni's: lookup, request configuration, environment, chaining of `prevResult`, cache
//! format, texts. It does better where libcni leaves its callers alone: a failed ADD takes itself back,
//! a DEL goes on past a failing plugin, a hanging plugin is killed, and the cache is written atomically.

mod cache;
mod error;
mod exec;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    netns,
    types::{CniResult, NetworkConfigList, PluginConfig, Version, validate},
};
pub use cache::CachedAttachment;
pub use error::{PluginError, RuntimeError};
pub use exec::{Output, execute, find_plugin};

use cache::Cache;

/// What libcni uses when it is told nothing.
pub const DEFAULT_CACHE_DIR: &str = "/var/lib/cni";

/// Where plugins are found and how they are run.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// Directories of plugin programs, the first hit wins (`CNI_PATH`).
    pub bin_dirs: Vec<PathBuf>,
    /// The directory in which `results/` holds the cache; libcni's is [`DEFAULT_CACHE_DIR`].
    pub cache_dir: PathBuf,
    /// The network namespace that plugins are started in; `None` is the caller's.
    pub node_netns: Option<PathBuf>,
    /// How long one plugin may take before it and its process group are killed.
    pub timeout: Duration,
}

/// One interface of one container in one network.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    /// Id of the container, or of the sandbox.
    pub container_id: String,
    /// The container's network namespace; a DEL goes without once it is gone.
    pub netns: Option<PathBuf>,
    /// Name of the interface inside, usually `eth0`.
    pub ifname: String,
    /// `CNI_ARGS`, in order.
    pub args: Vec<(String, String)>,
    /// Capability arguments; each plugin is given those that its `capabilities` ask for.
    pub capability_args: Map<String, Value>,
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
        }
    }
}

/// An attachment that GC must keep; its JSON is the specification's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ValidAttachment {
    /// Id of the container.
    #[serde(rename = "containerID", alias = "containerid")]
    pub container_id: String,
    /// Name of the interface inside.
    pub ifname: String,
}

/// A step of a chain: a program and the configuration that it is given.
struct Step<'a> {
    program: &'a str,
    config: &'a PluginConfig,
}

impl Runtime {
    /// Attaches: runs the chain in order, each plugin with the result of the one before it, and caches
    /// the last result. On failure what was done is undone, in reverse, by DEL; not so when the cache
    /// says that this attachment was there before.
    ///
    /// # Errors
    /// [`RuntimeError`]; [`RuntimeError::Rollback`] when something may be left behind.
    pub fn add(
        &self,
        list: &NetworkConfigList,
        attachment: &Attachment,
    ) -> Result<CniResult, RuntimeError> {
        self.add_steps(list, &chain(list), attachment)
    }

    /// Detaches: runs the chain in reverse. Every plugin is run, also after one has failed; the cached
    /// result goes when all have succeeded. Deleting what is not there is success.
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

    /// Checks that an attachment is as its cached result says.
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
        let previous = self.previous_result(list, attachment);
        for step in chain(list) {
            let config = request(
                list,
                step.config,
                &attachment.capability_args,
                previous.as_ref(),
            );
            self.run(&step, "check", "CHECK", Some((list, attachment)), config)?;
        }
        Ok(())
    }

    /// Deletes every cached attachment of the network that is not `valid`, then tells the plugins
    /// (from version 1.1.0 on) which ones are. `None` means that nothing is known about what is valid:
    /// then the plugins are not told either, and every cached attachment goes.
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
                errors.extend(self.del(list, &entry.attachment).err());
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

    /// Asks the plugins whether an ADD can be served now; below 1.1.0 nothing is asked.
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

    /// [`add`](Self::add) of the IPAM plugin alone: addresses without devices. It gets the very input
    /// that the list's first plugin would pass on to it.
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

    /// All attachments of the cache, of all networks.
    ///
    /// # Errors
    /// [`RuntimeError::Cache`].
    pub fn cached(&self) -> Result<Vec<CachedAttachment>, RuntimeError> {
        self.cache().list()
    }

    /// The cached result of an attachment.
    #[must_use]
    pub fn cached_result(
        &self,
        list: &NetworkConfigList,
        attachment: &Attachment,
    ) -> Option<CniResult> {
        let value = self.cache().read(&list.name, attachment)?.result?;
        CniResult::from_value(&value, &list.cni_version).ok()
    }

    fn add_steps(
        &self,
        list: &NetworkConfigList,
        steps: &[Step<'_>],
        attachment: &Attachment,
    ) -> Result<CniResult, RuntimeError> {
        // An ADD that is repeated fails (`duplicate allocation`), and must not take down what lives.
        let is_live = self.cache().read(&list.name, attachment).is_some();
        let mut result = None;
        for (index, step) in steps.iter().enumerate() {
            let config = request(
                list,
                step.config,
                &attachment.capability_args,
                result.as_ref(),
            );
            let added = self
                .run(step, "add", "ADD", Some((list, attachment)), config)
                .and_then(|output| {
                    let parsed = CniResult::parse(&output, &list.cni_version);
                    parsed.map_err(|error| failed(step, "add", error.into()))
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

    /// Undoes an ADD. The step that failed is deleted too: what it did before it failed is not known.
    fn roll_back(
        &self,
        list: &NetworkConfigList,
        steps: &[Step<'_>],
        attachment: &Attachment,
        add: RuntimeError,
    ) -> RuntimeError {
        let not_run = match &add {
            RuntimeError::Invalid(_) | RuntimeError::Netns(_) => true,
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
        steps: &[Step<'_>],
        attachment: &Attachment,
    ) -> Result<(), RuntimeError> {
        let previous = self
            .previous_result(list, attachment)
            .filter(|_| list.is_at_least(Version::V0_4_0));
        let mut errors = Vec::new();
        for step in steps.iter().rev() {
            let config = request(
                list,
                step.config,
                &attachment.capability_args,
                previous.as_ref(),
            );
            errors.extend(
                self.run(step, "delete", "DEL", Some((list, attachment)), config)
                    .err(),
            );
        }
        RuntimeError::join(errors)?;
        self.cache().remove(&list.name, attachment)
    }

    /// Runs one plugin. The attachment is absent for GC and STATUS, which are about no container.
    fn run(
        &self,
        step: &Step<'_>,
        action: &'static str,
        command: &'static str,
        subject: Option<(&NetworkConfigList, &Attachment)>,
        config: Value,
    ) -> Result<Vec<u8>, RuntimeError> {
        let program = find_plugin(step.program, &self.bin_dirs)
            .map_err(|error| failed(step, action, error))?;
        if let Some((list, attachment)) = subject {
            validate::container_id(&attachment.container_id).map_err(RuntimeError::Invalid)?;
            validate::network_name(&list.name).map_err(RuntimeError::Invalid)?;
            validate::interface_name(&attachment.ifname).map_err(RuntimeError::Invalid)?;
        }
        let env = environment(
            command,
            subject.map(|(_, attachment)| attachment),
            &self.bin_dirs,
        );
        let stdin = crate::types::json::compact(&config);
        let execute = || execute(&program, stdin.as_bytes(), &env, Some(self.timeout));
        let output = match &self.node_netns {
            Some(path) => netns::in_netns(path, execute)?,
            None => execute(),
        };
        let stderr = match &output {
            Ok(output) => String::from_utf8_lossy(&output.stderr),
            Err(PluginError::Refused { stderr, .. }) => stderr.as_str().into(),
            Err(_) => "".into(), // Part of the error.
        };
        if !stderr.is_empty() {
            tracing::info!(
                plugin = step.program,
                command,
                stderr = stderr.trim_end(),
                "plugin's log"
            );
        }
        let output = output.map_err(|error| failed(step, action, error))?;
        Ok(output.stdout)
    }

    fn previous_result(
        &self,
        list: &NetworkConfigList,
        attachment: &Attachment,
    ) -> Option<CniResult> {
        self.cached_result(list, attachment)
    }

    fn cache(&self) -> Cache<'_> {
        Cache {
            dir: &self.cache_dir,
        }
    }
}

fn failed(step: &Step<'_>, action: &'static str, source: PluginError) -> RuntimeError {
    RuntimeError::Plugin {
        plugin: step.program.to_owned(),
        action,
        source,
    }
}

fn plugin_type(config: &PluginConfig) -> &str {
    config
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn chain(list: &NetworkConfigList) -> Vec<Step<'_>> {
    list.plugins
        .iter()
        .map(|config| Step {
            program: plugin_type(config),
            config,
        })
        .collect()
}

fn ipam_step(list: &NetworkConfigList) -> Result<Step<'_>, RuntimeError> {
    let first = list
        .plugins
        .first()
        .ok_or_else(|| RuntimeError::NoIpam(String::new()))?;
    let ipam = first
        .get("ipam")
        .and_then(|ipam| ipam.get("type"))
        .and_then(Value::as_str);
    let program = ipam.filter(|name| !name.is_empty());
    let program = program.ok_or_else(|| RuntimeError::NoIpam(plugin_type(first).to_owned()))?;
    Ok(Step {
        program,
        config: first,
    })
}

/// The configuration that a plugin is given (CNI 1.1 §Deriving request configuration).
fn request(
    list: &NetworkConfigList,
    plugin: &PluginConfig,
    capability_args: &Map<String, Value>,
    previous: Option<&CniResult>,
) -> Value {
    let mut config = plugin.clone();
    config.insert("name".to_owned(), list.name.clone().into());
    config.insert("cniVersion".to_owned(), list.cni_version.clone().into());
    if let Some(previous) = previous {
        config.insert("prevResult".to_owned(), previous.to_value());
    }
    let asked =
        |key: &str| plugin.get("capabilities").and_then(|c| c.get(key)) == Some(&Value::Bool(true));
    let given = capability_args.iter().filter(|(key, _)| asked(key));
    let given: Map<_, _> = given
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if !given.is_empty() {
        config.insert("runtimeConfig".to_owned(), Value::Object(given));
    }
    let mut config = Value::Object(config);
    config.sort_all_objects();
    config
}

fn environment(
    command: &'static str,
    attachment: Option<&Attachment>,
    bin_dirs: &[PathBuf],
) -> Vec<(&'static str, OsString)> {
    let args = attachment.map(|a| {
        a.args
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect::<Vec<_>>()
    });
    let netns = attachment
        .and_then(|a| a.netns.as_deref())
        .map(Path::as_os_str);
    let mut path = OsString::new();
    for (index, dir) in bin_dirs.iter().enumerate() {
        if index > 0 {
            path.push(":");
        }
        path.push(dir);
    }
    vec![
        ("CNI_COMMAND", command.into()),
        (
            "CNI_CONTAINERID",
            attachment
                .map(|a| a.container_id.clone().into())
                .unwrap_or_default(),
        ),
        ("CNI_NETNS", netns.map(OsString::from).unwrap_or_default()),
        ("CNI_ARGS", args.unwrap_or_default().join(";").into()),
        (
            "CNI_IFNAME",
            attachment
                .map(|a| a.ifname.clone().into())
                .unwrap_or_default(),
        ),
        ("CNI_PATH", path),
    ]
}
