//! The services as this program has them: each one's parser, and the flags of it that `up` and
//! `restart` take too.
//!
//! A service's crate marks these flags: they are its `ClusterFlags`. Their values travel as data,
//! by service and flag, from here through the settings of the cluster to the service's command
//! line.

use std::{io, path::Path};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, error::ErrorKind, parser::ValueSource};
use podplane_cluster::{
    extra::{ExtraConfig, ExtraFlag},
    services::ServiceCatalog,
    settings::FlagDifference,
};
use podplane_kubelet::{NodeDir, NodeName, cri, cri::record::SandboxRecords, kubelet};
use podplane_proto::ipam::{HoldChange, hold_change::Action};

use crate::commands::service;

/// The services of a cluster.
const TABLE: [ServiceParsers; 6] = [
    ServiceParsers::new::<podplane_apiserver::ApiserverConfig, podplane_apiserver::ClusterFlags>(
        "apiserver",
        "Options of the API server",
    ),
    ServiceParsers::new::<
        podplane_ipam_controller::IpamControllerConfig,
        podplane_ipam_controller::CloudFlags,
    >("ipam-controller", "Options of the IPAM controller"),
    ServiceParsers::new::<podplane_controller_manager::ControllerManagerConfig, NoFlags>(
        "controller-manager",
        "Options of the controller manager",
    ),
    ServiceParsers::new::<podplane_scheduler::SchedulerConfig, NoFlags>(
        "scheduler",
        "Options of the scheduler",
    ),
    ServiceParsers::new::<kubelet::KubeletConfig, NoFlags>("kubelet", "Options of kubelets"),
    ServiceParsers::new::<cri::CriConfig, cri::NodeFlags>("cri", "Options of CRI servers"),
];

/// A service with the parsers of its flags.
struct ServiceParsers {
    name: &'static str,
    heading: &'static str,
    all: fn(Command) -> Command,
    of_cluster: fn(Command) -> Command,
    agree: fn(&[String], &[String]) -> bool,
}

/// The flags of a service of which the user of a cluster sets none.
#[derive(Args, PartialEq)]
struct NoFlags {}

impl ServiceParsers {
    const fn new<C: Args, F: Args + PartialEq>(name: &'static str, heading: &'static str) -> Self {
        Self {
            name,
            heading,
            all: service::ServiceArgs::<C>::augment_args,
            of_cluster: F::augment_args,
            agree: |a, b| parse::<F>(a) == parse::<F>(b),
        }
    }

    /// The flags that `up` takes too.
    fn flags(&self) -> impl Iterator<Item = Arg> {
        let command = (self.of_cluster)(Command::new(self.name));
        let flags: Vec<_> = command.get_arguments().cloned().collect();
        flags.into_iter()
    }
}

/// The flags of a command line alone, without the environment; `None` if they are not valid.
fn parse<F: Args>(line: &[String]) -> Option<F> {
    let command = F::augment_args(Command::new("service").no_binary_name(true));
    let command = command.mut_args(|arg| arg.env(None::<&str>));
    let matches = command.try_get_matches_from(line).ok()?;
    F::from_arg_matches(&matches).ok()
}

/// The services whose crates this program has.
#[derive(Debug)]
pub(crate) struct OwnServices;

impl ServiceCatalog for OwnServices {
    fn command(&self, service: &str) -> Option<Command> {
        let service = TABLE.into_iter().find(|known| known.name == service)?;
        Some((service.all)(Command::new(service.name)))
    }

    fn power_cycle(&self, sandboxes: &Path) -> io::Result<()> {
        SandboxRecords::open(sandboxes.into())?.power_cycle()
    }

    fn end_of_hold(&self, node_dir: &Path, holder: &str) -> Option<HoldChange> {
        let node: NodeName = node_dir.file_name()?.to_str()?.parse().ok()?;
        let dir = NodeDir::new(node_dir.parent()?, &node);
        let identity = kubelet::instance::InstanceIdentity::read(&dir);
        let identity = identity.unwrap_or_else(|error| {
            tracing::warn!(%node, %error, "the node's identity cannot be read");
            None
        });
        let own = identity.filter(|identity| identity.id() == holder)?;
        Some(own.hold(Action::End, Vec::new()))
    }
}

/// The flags of services that are given to `up` or `restart` by their own names.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceFlags(Vec<ExtraFlag>);

impl ServiceFlags {
    /// These, and then those that are given with `--extra-config`, which have the last word.
    pub(crate) fn before(self, extra: Vec<ExtraFlag>) -> Vec<ExtraFlag> {
        self.0.into_iter().chain(extra).collect()
    }
}

impl FromArgMatches for ServiceFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Vec::new();
        for service in TABLE {
            for arg in service.flags() {
                let id = arg.get_id().as_str();
                let source = matches.value_source(id);
                let is_given = matches!(
                    source,
                    Some(ValueSource::CommandLine | ValueSource::EnvVariable)
                );
                let value = matches.get_raw(id).and_then(|mut values| values.next());
                if let (true, Some(flag), Some(value)) = (is_given, arg.get_long(), value) {
                    let value = value.to_str();
                    let value = value.ok_or_else(|| clap::Error::new(ErrorKind::InvalidUtf8))?;
                    given.push(ExtraFlag::new(service.name, flag, value));
                }
            }
        }
        Ok(Self(given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ServiceFlags {
    fn augment_args(command: Command) -> Command {
        // Where there are services, what is said of them can be checked at once.
        let command = command.mut_arg("extra_config", |arg| {
            arg.value_parser(|text: &str| ExtraFlag::read(text, &OwnServices))
        });
        TABLE.into_iter().fold(command, |command, service| {
            let heading = service.heading;
            command.args(service.flags().map(|arg| arg.help_heading(heading)))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The flags of services that are other than those of the cluster that runs. A default agrees with
/// the same value given, and so do two ways to write one value.
pub(crate) fn differences(given: &ExtraConfig, running: &ExtraConfig) -> Vec<FlagDifference> {
    let (mut given, mut running) = (given.clone(), running.clone());
    let mut differences = Vec::new();
    for service in TABLE {
        for arg in service.flags() {
            let Some(flag) = arg.get_long() else { continue };
            let [given, running] =
                [&mut given, &mut running].map(|flags| flags.remove(service.name, flag));
            let line = |value: &Option<String>| -> Vec<String> {
                let value = value.as_ref();
                value
                    .iter()
                    .map(|value| format!("--{flag}={value}"))
                    .collect()
            };
            if !(service.agree)(&line(&given), &line(&running)) {
                let default = arg.get_default_values().first();
                let default = default.map_or("none".into(), |value| value.to_string_lossy());
                differences.push(FlagDifference {
                    flag: format!("--{flag}"),
                    running: running.unwrap_or_else(|| default.clone().into_owned()),
                    given: given.unwrap_or_else(|| default.into_owned()),
                });
            }
        }
    }
    if given != running {
        differences.push(FlagDifference {
            flag: "--extra-config".into(),
            running: running.to_string(),
            given: given.to_string(),
        });
    }
    differences
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::ArgAction;
    use podplane_cluster::services::SERVICES;

    use super::*;
    use crate::commands::{restart, up};

    fn refused(text: &str) -> String {
        let refused = ExtraFlag::read(text, &OwnServices);
        refused.unwrap_err().to_string()
    }

    fn config(flags: &[&str]) -> ExtraConfig {
        let flags: Vec<_> = flags.iter().map(|flag| flag.parse().unwrap()).collect();
        ExtraConfig::default().with(&flags)
    }

    fn differing(running: &[&str], given: &[&str]) -> Vec<String> {
        let differences = differences(&config(given), &config(running));
        let each = differences.into_iter();
        each.map(|each| format!("{}: {} {}", each.flag, each.running, each.given))
            .collect()
    }

    #[test]
    fn refuses_unknown_flags_of_services() {
        let error = refused("kubelet.pods=3");
        assert_eq!(error, "kubelet has no flag --pods; it has --max-pods");
        assert_eq!(refused("cri.colour=red"), "cri has no flag --colour");
        assert_eq!(
            refused("kubelet.node=x"),
            "--node of kubelet is what `up` itself decides"
        );
        let error = refused("kubelet.max-pods=many");
        assert!(
            error.starts_with("kubelet: invalid value 'many' for '--max-pods <N>'"),
            "{error}"
        );
    }

    #[test]
    fn accepts_flags_of_every_service() {
        for text in [
            "apiserver.cluster-cidr=10.0.0.0/8",
            "apiserver.audit-policy-file=policy.yaml",
            "ipam-controller.orphan-quarantine=1",
            "ipam-controller.allocate-node-cidrs=false",
            "controller-manager.log=debug",
            "scheduler.ip-policy=off",
            "kubelet.relist-interval=0.5",
            "cri.cni-timeout=3",
        ] {
            ExtraFlag::read(text, &OwnServices).unwrap();
        }
        assert_eq!(TABLE.map(|service| service.name), SERVICES);
    }

    /// Data has one value for a flag, and `up` has one flag of a name.
    #[test]
    fn service_flags_have_one_value_and_unique_names() {
        let mut names = BTreeSet::new();
        for service in TABLE {
            for arg in service.flags() {
                let name = arg.get_long().unwrap();
                assert!(matches!(arg.get_action(), ArgAction::Set), "{name}");
                assert!(!arg.is_required_set() && !arg.is_positional(), "{name}");
                assert!(names.insert(name.to_owned()), "{name} is of two services");
                let text = format!("{}.{name}-", service.name);
                ExtraFlag::read(&text, &OwnServices).unwrap();
            }
        }
        assert!(names.contains("release-delay"));
    }

    #[test]
    fn up_and_restart_collect_service_flags_as_data() {
        let line = "--release-delay 1m --extra-config scheduler.log=debug --cni-template kubenet";
        for command in [
            up::UpArgs::augment_args(Command::new("up")),
            restart::RestartArgs::augment_args(Command::new("restart")),
        ] {
            let words = std::iter::once("podplane").chain(line.split(' '));
            let matches = command.clone().try_get_matches_from(words).unwrap();
            let ServiceFlags(flags) = ServiceFlags::from_arg_matches(&matches).unwrap();
            let flags: Vec<_> = flags.iter().map(ToString::to_string).collect();
            assert_eq!(
                flags,
                [
                    "ipam-controller.release-delay=1m",
                    "cri.cni-template=kubenet"
                ]
            );
            for wrong in ["--release-delay=soon", "--extra-config=kubelet.pods=3"] {
                let refused = command.clone().try_get_matches_from(["podplane", wrong]);
                assert_eq!(refused.unwrap_err().exit_code(), 2, "{wrong}");
            }
        }
    }

    #[test]
    fn restart_ignores_the_defaults_and_environment_of_up() {
        let mut restart = restart::RestartArgs::augment_args(Command::new("restart"));
        for arg in restart.get_arguments() {
            assert!(arg.get_env().is_none(), "{}", arg.get_id());
            assert!(arg.get_default_values().is_empty(), "{}", arg.get_id());
        }
        let help = restart.render_long_help().to_string();
        assert!(help.contains("--release-delay"), "{help}");
        assert!(!help.contains("default:"), "{help}");
    }

    #[test]
    fn values_agree_however_they_are_written() {
        let zero = "ipam-controller.release-delay=0s";
        assert!(differing(&[], &[zero, "apiserver.release-after=0s"]).is_empty());
        let minute = |text: &str| format!("ipam-controller.release-delay={text}");
        assert!(differing(&[&minute("60s")], &[&minute("1m")]).is_empty());
        assert_eq!(
            differing(&[], &[&minute("1m"), "kubelet.max-pods=3"]),
            [
                "--release-delay: 0s 1m",
                "--extra-config: none kubelet.max-pods=3"
            ]
        );
        let cloud = "ipam-controller.cloud-endpoint=unix:/cloud.sock";
        assert_eq!(
            differing(&[cloud], &[]),
            ["--cloud-endpoint: unix:/cloud.sock none"]
        );
    }
}
