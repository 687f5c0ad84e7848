//! Steps.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Deserializer, de::IntoDeserializer as _};
use serde_json::{Map, Value, json};
use serde_untagged::UntaggedEnumVisitor;

use super::{
    Block, Expect, MOST_NODES, Network, NetworkBackend, NodeSpec, ObjectRef, Period, Scalar,
    Several, Signal, Text, ViolationKind,
    scalar::{one_of, required},
};

/// A step: one action, and what the invariant checker must find afterwards
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(transform = one_action)]
pub struct Step {
    /// The name in reports. Default: a description of its action
    pub name: Option<String>,
    /// The violations that the checker must find after this step, or at a revision during it, and
    /// no others. Default: none
    #[serde(default)]
    pub violations: Vec<ViolationKind>,
    /// The time that the findings may take to become the expected ones. Default: 20s
    pub settle: Option<Period>,
    /// Carry the step out only in runs in which these parameters and values of the matrix have
    /// these values. Default: in every run
    #[serde(default)]
    pub when: BTreeMap<String, Scalar>,

    /// Create or change objects, as `podplane apply` does: a file beside the scenario, an object,
    /// or a list of them
    pub apply: Option<Several<Manifest>>,
    /// Delete objects, and wait until they are gone
    pub delete: Option<Several<Deleted>>,
    /// Set the number of replicas
    pub scale: Option<Scale>,
    /// Wait until all expectations hold at once
    pub wait: Option<Wait>,
    /// Check that all expectations hold now
    #[schemars(length(min = 1))]
    pub expect: Option<Vec<Expect>>,
    /// Run a command on this machine
    pub run: Option<Run>,
    /// End a process by a signal; the cluster restarts it
    pub kill: Option<Kill>,
    /// Pause a process until it is resumed
    pub pause: Option<Pause>,
    /// Resume a paused process
    pub resume: Option<Process>,
    /// Cut a node or a service off
    pub partition: Option<Cut>,
    /// Heal a partition; `heal: {}` heals all of them
    pub heal: Option<Heal>,
    /// Fill a disk
    pub fill_disk: Option<Disk>,
    /// Free a filled disk
    pub free_disk: Option<Disk>,
    /// Delay or fail the calls that a service makes
    pub calls: Option<Calls>,
    /// Restart a service, with other flags if some are given
    pub restart: Option<Restart>,
    /// Add nodes
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
    /// A file, or a directory of files, relative to the scenario's file.
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

/// An object to delete.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum Deleted {
    /// An object of the namespace default.
    Object(ObjectRef),
    /// An object of any namespace, with options.
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

/// The deletion of an object, with options.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Deletion {
    /// KIND/NAME
    pub object: ObjectRef,
    /// Its namespace. Default: default
    pub namespace: Option<String>,
    /// The grace period in seconds. Default: that of its kind
    pub grace_period_seconds: Option<u32>,
    /// Wait until it is gone. Default: true
    pub wait: Option<bool>,
}

/// The number of replicas of an object.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// KIND/NAME, such as deployment/web
    pub object: ObjectRef,
    /// Its namespace. Default: default
    pub namespace: Option<String>,
    /// The number of replicas
    pub replicas: u32,
}

/// A wait for expectations.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// The time limit. Default: 60s
    pub within: Option<Period>,
    /// The expectations that must hold in the end, all at once
    #[schemars(length(min = 1))]
    pub expect: Vec<Expect>,
    /// The name under which the time that it took is reported. The time is never judged
    pub timing: Option<String>,
}

/// A command.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Run {
    /// The program and its arguments, or a line for sh. It runs in the directory of the scenario's
    /// file; `podplane` and `kubectl` in it use this cluster
    pub command: Command,
    /// The exit code that it must have. Default: 0
    #[serde(default)]
    pub exit_code: i32,
    /// The text that it must print to standard output
    pub stdout: Option<Text>,
    /// The text that it must print to standard error
    pub stderr: Option<Text>,
    /// The text on its standard input
    pub stdin: Option<String>,
    /// More variables of its environment
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The time limit. Default: 60s
    pub within: Option<Period>,
}

/// A command line.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum Command {
    /// A line for sh.
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
    /// apiserver, ipam-controller, controller-manager, scheduler, kubelet-NODE or cri-NODE; with a
    /// `*`, one of those that match, chosen by the seed
    pub process: String,
}

/// A signal to a process.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kill {
    /// apiserver, ipam-controller, controller-manager, scheduler, kubelet-NODE or cri-NODE; with a
    /// `*`, one of those that match, chosen by the seed
    pub process: String,
    /// The signal. Default: KILL
    #[serde(default)]
    pub signal: Signal,
}

/// A pause of a process.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// apiserver, ipam-controller, controller-manager, scheduler, kubelet-NODE or cri-NODE; with a
    /// `*`, one of those that match, chosen by the seed
    pub process: String,
    /// The length of the pause, after which the step resumes the process. Default: it stays paused
    /// until `resume`
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

/// A reboot of a node.
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
    /// The disk of this node, with all files that its kubelet and its CRI server write
    pub node: Option<String>,
    /// The disk of this process, with its database: apiserver
    pub process: Option<String>,
}

/// A partition of a node or a service.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = node_or_process)]
pub struct Cut {
    /// The node
    pub node: Option<String>,
    /// The service, in place of a node: scheduler, kubelet-node-0, …
    pub process: Option<String>,
    /// The side from which it is cut off
    pub from: Side,
}

/// The side that a node or a service is cut off from.
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

/// The end of a partition. Without a node and a service, of all partitions.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("not" = {"required": ["node", "process"]}))]
pub struct Heal {
    /// The node
    pub node: Option<String>,
    /// The service, in place of a node
    pub process: Option<String>,
}

/// A disturbance of the calls that a service makes.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = one_effect)]
pub struct Calls {
    /// The service that makes the calls: scheduler, kubelet-node-0, …
    pub of: String,
    /// Only calls of this method: RunPodSandbox, BindPod, UpdateNodeStatus, … Default: all
    pub method: Option<String>,
    /// The gRPC code that they fail with: UNAVAILABLE, DEADLINE_EXCEEDED, …
    pub fail: Option<Code>,
    /// The delay of each call
    pub delay: Option<Period>,
    /// The upper limit of an additional random delay, which follows from the seed
    pub jitter: Option<Period>,
    /// The number of calls that are disturbed. Default: all, until `clear`
    pub times: Option<u32>,
    /// Carry out the calls before they fail, so that only the answers are lost. Default: false
    #[serde(default)]
    pub afterwards: bool,
    /// End the disturbances of this service's calls
    #[serde(default)]
    pub clear: bool,
}

/// A status code of gRPC.
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

/// A restart of a service.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// apiserver, ipam-controller, controller-manager, scheduler, kubelet-NODE or cri-NODE; kubelet
    /// and cri are all of their kind
    pub service: String,
    /// Its new flags; flags that are not named stay. All kubelets have the same flags, and so have
    /// all CRI servers
    #[serde(default)]
    pub flags: BTreeMap<String, Scalar>,
}

/// New nodes.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AddNodes {
    /// Their names; node-{0..9} stands for ten of them
    pub names: Several<String>,
    /// Their labels, set before they are given blocks
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The network of their pods. Default: as those of the cluster
    pub network: Option<Network>,
    /// The way in which they reach the pods of other nodes. Default: as those of the cluster
    pub node_network_backend: Option<NetworkBackend>,
    /// The block that the node already has when it joins; for one node only
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<Block>,
}

impl AddNodes {
    /// Returns a specification of each node.
    pub fn each(&self) -> Vec<NodeSpec> {
        let names = self.names.0.iter().flat_map(|name| numbered(name));
        let node = |name| NodeSpec {
            name,
            network: self.network,
            node_network_backend: self.node_network_backend,
            labels: self.labels.clone(),
            pod_cidr: self.pod_cidr,
        };
        names.map(node).collect()
    }
}

/// Expands `node-{0..9}` to ten names; any other name stands for itself.
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
