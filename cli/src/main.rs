//! `podplane`: the one program that people run. Every service and every tool is a subcommand of it.
//!
//! It contains no logic of services: each is a library, and this program only wires them.
//! [`Command`] is the table of contents; start reading there. Each command is a module of
//! [`commands`] with its `Args` and a `run`, which is not async: a command that enters namespaces
//! must do so before any thread starts, so each creates its own runtime ([`global::block_on`]).

mod any_cluster;
mod commands;
mod explanation;
mod global;
mod kind;
mod manifest;
mod output;
mod page;
mod picture;
mod pod_file;
mod pods;
mod ready;
mod report;
mod services;
mod topology;

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory as _, Parser, Subcommand, error::ContextKind};
use podplane_cluster::{limits, trust};
use rustix::{fs::Mode, process::umask};

use crate::{
    commands::{
        apply, audit, capacity, certs, cni, completion, create, delete, demo, describe, down, exec,
        explain, get, health, kubeconfig, logs, map, node, ping, plan, plugins, replay, restart,
        run, service, status, store, test, top, trace, ui, up,
    },
    global::{GlobalArgs, GlobalOptions},
};

/// Run a small Kubernetes control plane on one machine, to study and test pod IP address management
///
/// Pods get a sandbox and an address; no containers run. A node's pod CIDR is also called its
/// block.
#[derive(Debug, Parser)]
#[command(
    name = "podplane",
    version,
    propagate_version = true,
    max_term_width = 120,
    after_help = "Examples:\n  podplane up --nodes 3 --detach\n  podplane run web --replicas 6 --wait\n  podplane get pods -o wide\n  podplane down\n\nExit codes: 0 done, nothing found; 1 failed, or something found; 2 could not begin: an invalid command line, an input that cannot be used, no server (docs/exit-codes.md)"
)]
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    // The cluster on this machine.
    Up(up::UpArgs),
    Down(down::DownArgs),
    Status(status::StatusArgs),
    Node(node::NodeArgs),
    Restart(restart::RestartArgs),
    Store(store::StoreArgs),
    Kubeconfig(kubeconfig::KubeconfigArgs),
    Health(health::HealthArgs),

    // Objects.
    Top(top::TopArgs),
    Get(get::GetArgs),
    Describe(describe::DescribeArgs),
    Explain(explain::ExplainArgs),
    Logs(logs::LogsArgs),
    Trace(trace::TraceArgs),
    Ui(ui::UiArgs),
    Apply(apply::ApplyArgs),
    Create(create::CreateArgs),
    Delete(delete::DeleteArgs),
    Run(run::RunArgs),

    // The network of pods.
    Ping(ping::PingArgs),
    Exec(exec::ExecArgs),
    Demo(demo::DemoArgs),

    // Tools that need no cluster, or work on any.
    Audit(audit::AuditArgs),
    Map(map::MapArgs),
    Plan(plan::PlanArgs),
    Capacity(capacity::CapacityArgs),
    Certs(certs::CertsArgs),
    Cni(cni::CniArgs),
    Plugins(plugins::PluginsArgs),
    Replay(replay::ReplayArgs),
    Test(test::TestArgs),

    // One service each.
    /// Run the API server: store objects and serve them over gRPC and REST
    #[command(
        after_help = "Examples:\n  podplane apiserver --listen 127.0.0.1:7080 --data-dir ./data\n  podplane get pods --data-dir ./data"
    )]
    Apiserver(service::ServiceArgs<podplane_apiserver::ApiserverConfig>),
    /// Run the IPAM controller: assign each node its pod CIDRs
    #[command(
        after_help = "Examples:\n  podplane ipam-controller --server 127.0.0.1:7080 --allocate-node-cidrs=true --cluster-cidr 10.244.0.0/16"
    )]
    IpamController(service::ServiceArgs<podplane_ipam_controller::IpamControllerConfig>),
    /// Run the controllers: Deployment, ReplicaSet, garbage collector and node lifecycle
    #[command(after_help = "Examples:\n  podplane controller-manager --server 127.0.0.1:7080")]
    ControllerManager(service::ServiceArgs<podplane_controller_manager::ControllerManagerConfig>),
    /// Run the scheduler: assign pods to nodes that have a free address
    #[command(
        after_help = "Examples:\n  podplane scheduler --server 127.0.0.1:7080 --ip-policy resource"
    )]
    Scheduler(service::ServiceArgs<podplane_scheduler::SchedulerConfig>),
    /// Run admission webhooks: request an address for new pods, and refuse to bind a pod to a node
    /// without a free one
    #[command(
        after_help = "Examples:\n  podplane webhook --server 127.0.0.1:7080 --listen 127.0.0.1:9443 --tls-cert-file webhook.pem --tls-private-key-file webhook.pem"
    )]
    Webhook(service::ServiceArgs<podplane_webhook::WebhookConfig>),
    /// Run the kubelet of one or more nodes: create pod sandboxes through CRI
    #[command(
        after_help = "Examples:\n  podplane kubelet --server 127.0.0.1:7080 --node node-0 --nodes-dir ./nodes"
    )]
    Kubelet(service::ServiceArgs<podplane_kubelet::kubelet::KubeletConfig>),
    /// Run the CRI server of one or more nodes: create sandboxes, with CNI plugins for their
    /// network
    #[command(
        after_help = "Examples:\n  podplane cri --node node-0 --nodes-dir ./nodes --network ledger --cni-bin-dir /usr/lib/cni"
    )]
    Cri(service::ServiceArgs<podplane_kubelet::cri::CriConfig>),
    /// Run the agent of one node of another kubelet's: publish how many pods the node has addresses
    /// for
    #[command(
        after_help = "Examples:\n  podplane node-agent --server https://10.0.0.1:6443 --certificate-authority ca.crt --token-file token --node-name node-0\n  podplane node-agent --server https://10.0.0.1:6443 --certificate-authority ca.crt --token-file token --node-name node-0 --unpublish"
    )]
    NodeAgent(service::ServiceArgs<podplane_node_agent::NodeAgentConfig>),
    /// Run a simulated cloud: serve the pod CIDRs of instances from a file, with configurable
    /// latency, errors and rate limits
    #[command(
        after_help = "Examples:\n  podplane cloud --file cloud.yaml --listen unix:cloud.sock --qps 10 --late-ranges 5s\n\nExample of cloud.yaml:\n  instances:\n  - providerID: podplane://node-0\n    networkInterfaces:\n    - name: nic0\n      aliasIpRanges:\n      - ipCidrRange: 10.20.7.0/28"
    )]
    Cloud(service::ServiceArgs<podplane_cloud::CloudServiceConfig>),

    Completion(completion::CompletionArgs),
}

/// The permission bits that files never grant to group and others.
const OTHERS_WRITE: Mode = Mode::WGRP.union(Mode::WOTH);

fn main() -> ExitCode {
    // Under the name of a plugin it is that plugin: an image has links to one program.
    if let Some(plugin) = called_as()
        .as_deref()
        .and_then(podplane_cni_plugins::plugin)
    {
        return podplane_cni::skel::main(plugin);
    }
    // The CRI server executes this program again, before there is any thread.
    if called_as().as_deref() == Some(podplane_container_init::NAME) {
        return podplane_container_init::run();
    }
    completion::answer();
    podplane_store::end_process_on_panic();
    let Cli { global, command } =
        Cli::try_parse().unwrap_or_else(|error| with_own_usage(error).exit());
    // Files in a data directory must not be writable by others, whatever the user's umask is.
    umask(umask(OTHERS_WRITE) | OTHERS_WRITE);
    if let Err(error) = limits::report_file_size() {
        return report::failure(&anyhow::Error::new(error).context("failed to handle SIGXFSZ"));
    }
    let done = GlobalOptions::try_from(global)
        .and_then(|global| dispatch(command, &global).map_err(|error| global.locate(error)));
    done.unwrap_or_else(|error| report::failure(&error))
}

/// The error with the usage of the command line alone: clap's has the flags whose values are from
/// the environment, too, as if they were required.
fn with_own_usage(mut error: clap::Error) -> clap::Error {
    let own = without_environment(Cli::command()).try_get_matches();
    let own = own.err().filter(|own| own.kind() == error.kind());
    if let Some(usage) = own.as_ref().and_then(|own| own.get(ContextKind::Usage)) {
        error.insert(ContextKind::Usage, usage.clone());
    }
    error
}

fn without_environment(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| arg.env(None::<&str>))
        .mut_subcommands(without_environment)
}

/// The name under which this program was started.
fn called_as() -> Option<String> {
    let path = PathBuf::from(std::env::args_os().next()?);
    Some(path.file_name()?.to_str()?.to_owned())
}

fn dispatch(command: Command, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(args) => up::run(args, global),
        Command::Down(args) => down::run(args, global),
        Command::Status(args) => status::run(args, global),
        Command::Node(args) => node::run(args, global),
        Command::Restart(args) => restart::run(args, global),
        Command::Store(args) => store::run(args, global),
        Command::Kubeconfig(args) => kubeconfig::run(args, global),
        Command::Health(args) => health::run(&args, global),
        Command::Top(args) => top::run(args, global),
        Command::Get(args) => get::run(args, global),
        Command::Describe(args) => describe::run(args, global),
        Command::Explain(args) => explain::run(args, global),
        Command::Logs(args) => logs::run(args, global),
        Command::Trace(args) => trace::run(args, global),
        Command::Ui(args) => ui::run(args, global),
        Command::Apply(args) => apply::run(args, global),
        Command::Create(args) => create::run(args, global),
        Command::Delete(args) => delete::run(args, global),
        Command::Run(args) => run::run(args, global),
        Command::Ping(args) => ping::run(args, global),
        Command::Exec(args) => exec::run(args, global),
        Command::Demo(args) => demo::run(args, global),
        Command::Audit(args) => audit::run(args, global),
        Command::Map(args) => map::run(args, global),
        Command::Plan(args) => plan::run(&args),
        Command::Capacity(args) => capacity::run(&args, global),
        Command::Certs(args) => certs::run(args),
        Command::Cni(args) => cni::run(args),
        Command::Plugins(args) => plugins::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Test(args) => test::run(args),
        Command::Apiserver(args) => {
            let dir = args.config.data_dir.as_deref();
            dir.map_or(Ok(()), trust::claim)?;
            service::run(args, podplane_apiserver::run)
        }
        Command::IpamController(args) => service::run(args, podplane_ipam_controller::run),
        Command::ControllerManager(args) => service::run(args, podplane_controller_manager::run),
        Command::Scheduler(args) => service::run(args, podplane_scheduler::run),
        Command::Webhook(args) => service::run(args, podplane_webhook::run),
        Command::Kubelet(args) => {
            trust::claim(&args.config.nodes_dir)?;
            service::run(args, podplane_kubelet::kubelet::run)
        }
        Command::Cri(args) => {
            trust::claim(&args.config.nodes_dir)?;
            service::run(args, podplane_kubelet::cri::run)
        }
        Command::NodeAgent(args) => service::run(args, podplane_node_agent::run),
        Command::Cloud(args) => service::run(args, podplane_cloud::run),
        Command::Completion(args) => completion::run(args, global),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_tree_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_of_every_command_has_an_example() {
        fn check(command: &clap::Command) {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                help.contains("Example") && help.contains("podplane "),
                "{}: {help:?}",
                command.get_name()
            );
            assert!(command.get_about().is_some(), "{}", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn usage_errors_exit_with_2() {
        for line in [
            "podplane",
            "podplane get",
            "podplane get sheep",
            "podplane get pods -o tables",
            "podplane apply",
            "podplane delete",
            "podplane --server nowhere get pods",
        ] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}: {error}");
        }
    }

    #[test]
    fn parses_the_flags_of_each_service() {
        for line in [
            "podplane apiserver --listen 127.0.0.1:0 --data-dir /d --log debug",
            "podplane ipam-controller --server 127.0.0.1:1 --cluster-cidr 10.244.0.0/16 --die-with-parent=1",
            "podplane controller-manager --server 127.0.0.1:1 --concurrent-gc-syncs 1",
            "podplane scheduler --server 127.0.0.1:1 --ip-policy off --log-format json",
            "podplane kubelet --server 127.0.0.1:1 --node node-0 --nodes-dir /n",
            "podplane cri --node node-0 --nodes-dir /n --network ledger",
            "podplane node-agent --server 127.0.0.1:1 --node-name n --ipam calico --orphan-grace 1m",
            "podplane cloud --file /f --error-rate 0.1 --seed 7",
        ] {
            if let Err(error) = Cli::try_parse_from(line.split(' ')) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn accepts_global_flags_after_the_command() {
        for line in [
            "podplane --data-dir /d --server 127.0.0.1:1 get pods",
            "podplane get pods --data-dir /d --server 127.0.0.1:1",
        ] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            let global = GlobalOptions::try_from(cli.global).unwrap();
            assert_eq!(global.data_dir.to_str(), Some("/d"));
            assert_eq!(global.server().unwrap().to_string(), "http://127.0.0.1:1");
        }
    }
}
