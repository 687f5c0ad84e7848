//! What is done.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Deserializer, de::IntoDeserializer as _};
use serde_json::{Map, Value, json};
use serde_untagged::UntaggedEnumVisitor;

use super::{
    Block, Expect, MOST_NODES, Network, NodeSpec, ObjectRef, Period, Scalar, Several, Signal, Text,
    ViolationKind,
    scalar::{one_of, required},
};

/// A step: one action, and what the invariant checker must find afterwards
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(transform = one_action)]
pub struct Step {
    /// What reports call it. Default: what it does
    pub name: Option<String>,
    /// The violations to be found after this step or at a revision of it, exactly. Default: none
    #[serde(default)]
    pub violations: Vec<ViolationKind>,
    /// How long what is found may take to become what is expected. Default: 20s
    pub settle: Option<Period>,

    /// Make objects what files or the scenario say, as `podplane apply` does: a file beside the scenario, an object, or a list of them
    pub apply: Option<Several<Manifest>>,
    /// Delete objects, and wait until they are gone
    pub delete: Option<Several<Deleted>>,
    /// Set how many pods there should be
    pub scale: Option<Scale>,
    /// Look again and again until all of it holds at once
    pub wait: Option<Wait>,
    /// All of it must hold now
    #[schemars(length(min = 1))]
    pub expect: Option<Vec<Expect>>,
    /// Run a command of this machine
    pub run: Option<Run>,
    /// End a process by a signal; the cluster starts it again
    pub kill: Option<Kill>,
    /// Stop a process, so that it does nothing, until it is resumed
    pub pause: Option<Pause>,
    /// Let a paused process go on
    pub resume: Option<Process>,
    /// Cut a node or a service off
    pub partition: Option<Cut>,
    /// Mend what was cut; `heal: {}` mends everything
    pub heal: Option<Heal>,
    /// Leave no room on a disk
    pub fill_disk: Option<Disk>,
    /// Make room on a disk again
    pub free_disk: Option<Disk>,
    /// Delay or fail the calls that a service makes
    pub calls: Option<Calls>,
    /// Start a service again, with other flags if some are given
    pub restart: Option<Restart>,
    /// Let nodes join
    pub add_nodes: Option<AddNodes>,
    /// End a node: its processes, its Node object, its network and its files
    pub remove_node: Option<Node>,
    /// Switch a node off and on again
    pub reboot_node: Option<Reboot>,
}

/// A file or an object.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum Manifest {
    /// A file, or a directory of files, seen from the scenario's file.
    File(PathBuf),
    /// An object.
    Object(Map<String, Value>),
}

impl<'de> Deserialize<'de> for Manifest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        UntaggedEnumVisitor::new()
            .expecting("a file or an object")
            .string(|file| Ok(Self::File(file.into())))
            .map(|object| object.deserialize().map(Self::Object))
            .deserialize(from)
    }
}

/// What is deleted, and how.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum Deleted {
    /// An object of the namespace default.
    Object(ObjectRef),
    /// One of any namespace.
    How(Deletion),
}

impl<'de> Deserialize<'de> for Deleted {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        UntaggedEnumVisitor::new()
            .expecting("KIND/NAME, or {object: KIND/NAME, namespace: …}")
            .string(|text| ObjectRef::deserialize(text.into_deserializer()).map(Self::Object))
            .map(|how| how.deserialize().map(Self::How))
            .deserialize(from)
    }
}

impl From<&Deleted> for Deletion {
    fn from(deleted: &Deleted) -> Self {
        match deleted {
            Deleted::How(how) => how.clone(),
            Deleted::Object(object) => Self {
                object: object.clone(),
                namespace: None,
                grace_period_seconds: None,
                wait: None,
            },
        }
    }
}

/// How an object is deleted.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Deletion {
    /// KIND/NAME
    pub object: ObjectRef,
    /// Its namespace. Default: default
    pub namespace: Option<String>,
    /// Seconds until it is killed. Default: that of its kind
    pub grace_period_seconds: Option<u32>,
    /// Whether to wait until it is gone. Default: true
    pub wait: Option<bool>,
}

/// How many pods there should be.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// KIND/NAME, such as deployment/web
    pub object: ObjectRef,
    /// Its namespace. Default: default
    pub namespace: Option<String>,
    /// How many
    pub replicas: u32,
}

/// Waiting.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// How long at most. Default: 60s
    pub within: Option<Period>,
    /// What must hold in the end, all at once
    #[schemars(length(min = 1))]
    pub expect: Vec<Expect>,
    /// Report how long it took under this name. It is only reported, and not judged
    pub timing: Option<String>,
}

/// A command.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Run {
    /// The program and its arguments, or a line for sh. It runs beside the scenario's file; `podplane` and `kubectl` in it mean this cluster
    pub command: Command,
    /// The exit code that it must have. Default: 0
    #[serde(default)]
    pub exit_code: i32,
    /// What it must print
    pub stdout: Option<Text>,
    /// What it must print beside
    pub stderr: Option<Text>,
    /// What it reads
    pub stdin: Option<String>,
    /// More variables of its environment
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// How long at most. Default: 60s
    pub within: Option<Period>,
}

/// A command line.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum Command {
    /// For sh.
    Line(String),
    /// The program and its arguments.
    Words(#[schemars(with = "Vec<Scalar>", length(min = 1))] Vec<String>),
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        UntaggedEnumVisitor::new()
            .expecting("a list of the program and its arguments, or a line for sh")
            .string(|line| Ok(Self::Line(line.into())))
            .seq(|words| {
                let words: Vec<Scalar> = words.deserialize()?;
                Ok(Self::Words(words.iter().map(Scalar::to_string).collect()))
            })
            .deserialize(from)
    }
}

/// A process, by the name that `podplane status` shows.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// apiserver, ipam-controller, controller-manager, scheduler, kubelet-NODE or cri-NODE; with a *, one of those that match, chosen by the seed
    pub process: String,
}

/// Killing.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kill {
    /// apiserver, ipam-controller, controller-manager, scheduler, kubelet-NODE or cri-NODE; with a *, one of those that match, chosen by the seed
    pub process: String,
    /// The signal. Default: KILL
    #[serde(default)]
    pub signal: Signal,
}

/// Pausing.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// apiserver, ipam-controller, controller-manager, scheduler, kubelet-NODE or cri-NODE; with a *, one of those that match, chosen by the seed
    pub process: String,
    /// The step takes so long and lets it go on again. Default: it stays paused until `resume`
    #[serde(rename = "for")]
    pub period: Option<Period>,
}

/// A node.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its name; with a *, one of those that match, chosen by the seed
    pub node: String,
}

/// Switching a node off and on again.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reboot {
    /// Its name; with a *, one of those that match, chosen by the seed
    pub node: String,
    /// Wait until each pod that ran on it has another status than before. Default: true
    pub wait: Option<bool>,
}

/// A disk.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = node_or_process)]
pub struct Disk {
    /// That of this node, with all that its kubelet and its CRI server write
    pub node: Option<String>,
    /// Or that of this process, with its database: apiserver
    pub process: Option<String>,
}

/// Cutting off.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = node_or_process)]
pub struct Cut {
    /// The node
    pub node: Option<String>,
    /// Or the service: scheduler, kubelet-node-0, …
    pub process: Option<String>,
    /// From what
    pub from: Side,
}

/// What one can be cut off from.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The API server: no call gets through
    Apiserver,
    /// The node's CRI server
    Cri,
    /// The network of pods (kernel mode)
    Network,
}

/// Mending.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("not" = {"required": ["node", "process"]}))]
pub struct Heal {
    /// The node
    pub node: Option<String>,
    /// Or the service
    pub process: Option<String>,
}

/// What becomes of calls that a service makes.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = one_effect)]
pub struct Calls {
    /// Who makes them: scheduler, kubelet-node-0, …
    pub of: String,
    /// Only calls of this method: RunPodSandbox, BindPod, UpdateNodeStatus, … Default: all
    pub method: Option<String>,
    /// The gRPC code that they fail with: UNAVAILABLE, DEADLINE_EXCEEDED, …
    pub fail: Option<Code>,
    /// How long each is held up
    pub delay: Option<Period>,
    /// Up to so much longer, each by chance, which follows from the seed
    pub jitter: Option<Period>,
    /// How many of them. Default: all, until `clear`
    pub times: Option<u32>,
    /// Whether they are carried out before they fail, so that only the answer is lost. Default: false
    #[serde(default)]
    pub afterwards: bool,
    /// Forget what was said of this service's calls
    #[serde(default)]
    pub clear: bool,
}

/// A code of gRPC.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(missing_docs, reason = "the names are gRPC's")]
pub enum Code {
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl From<Code> for tonic::Code {
    fn from(code: Code) -> Self {
        match code {
            Code::Cancelled => Self::Cancelled,
            Code::Unknown => Self::Unknown,
            Code::InvalidArgument => Self::InvalidArgument,
            Code::DeadlineExceeded => Self::DeadlineExceeded,
            Code::NotFound => Self::NotFound,
            Code::AlreadyExists => Self::AlreadyExists,
            Code::PermissionDenied => Self::PermissionDenied,
            Code::ResourceExhausted => Self::ResourceExhausted,
            Code::FailedPrecondition => Self::FailedPrecondition,
            Code::Aborted => Self::Aborted,
            Code::OutOfRange => Self::OutOfRange,
            Code::Unimplemented => Self::Unimplemented,
            Code::Internal => Self::Internal,
            Code::Unavailable => Self::Unavailable,
            Code::DataLoss => Self::DataLoss,
            Code::Unauthenticated => Self::Unauthenticated,
        }
    }
}

/// Starting again.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// apiserver, ipam-controller, controller-manager, scheduler, kubelet-NODE or cri-NODE; kubelet and cri are all of their kind
    pub service: String,
    /// Its new flags; those that are not named stay. All kubelets have the same, and so have all CRI servers
    #[serde(default)]
    pub flags: BTreeMap<String, Scalar>,
}

/// New nodes.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AddNodes {
    /// Their names; node-{0..9} stands for ten of them
    pub names: Several<String>,
    /// Labels of theirs, which are there before they are given blocks
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Whether their pods get real interfaces. Default: as those of the cluster
    pub network: Option<Network>,
    /// The block that the node already has when it joins; of one node only
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<Block>,
}

impl AddNodes {
    /// Each of them.
    pub fn each(&self) -> Vec<NodeSpec> {
        let names = self.names.0.iter().flat_map(|name| numbered(name));
        let node = |name| NodeSpec {
            name,
            network: self.network,
            labels: self.labels.clone(),
            pod_cidr: self.pod_cidr,
        };
        names.map(node).collect()
    }
}

/// The names that `node-{0..9}` stands for; a name without that for itself.
fn numbered(name: &str) -> Vec<String> {
    let parts = || {
        let (before, rest) = name.split_once('{')?;
        let (range, after) = rest.split_once('}')?;
        let (first, last) = range.split_once("..")?;
        let numbers = first.parse::<u32>().ok()?..=last.parse().ok()?;
        Some(
            numbers
                .take(MOST_NODES as usize + 1)
                .map(|number| format!("{before}{number}{after}"))
                .collect(),
        )
    };
    parts().unwrap_or_else(|| vec![name.to_owned()])
}

/// The keys of a step that are actions.
pub const ACTIONS: [&str; 18] = [
    "apply",
    "delete",
    "scale",
    "wait",
    "expect",
    "run",
    "kill",
    "pause",
    "resume",
    "partition",
    "heal",
    "fillDisk",
    "freeDisk",
    "calls",
    "restart",
    "addNodes",
    "removeNode",
    "rebootNode",
];

fn one_action(schema: &mut Schema) {
    let mut each = required(&ACTIONS);
    // Without an action only the invariants are checked.
    each.push(json!({
        "required": ["violations"],
        "properties": {"violations": {"minItems": 1}},
        "not": {"anyOf": each},
    }));
    schema.insert("oneOf".into(), each.into());
}

fn node_or_process(schema: &mut Schema) {
    one_of(schema, &["node", "process"]);
}

fn one_effect(schema: &mut Schema) {
    let clears = json!({"required": ["clear"], "properties": {"clear": {"not": {"const": false}}}});
    let disturbs = json!({"anyOf": required(&["fail", "delay", "jitter"])});
    schema.insert("oneOf".into(), json!([clears, disturbs]));
    let fails = json!({"anyOf": [{"required": ["fail"]}, {"properties": {"afterwards": {"const": false}}}]});
    schema.insert("dependentSchemas".into(), json!({"afterwards": fails}));
}
