//! `--extra-config SERVICE.FLAG=VALUE`: flags of services that `up` has none for.

use std::{collections::BTreeMap, ffi::OsString, fmt, str::FromStr};

use clap::{Arg, Command, CommandFactory as _};
use serde::{Deserialize, Serialize};

use crate::Cli;

/// The services that have flags. There may be many kubelets and CRI servers, and all have the same.
pub(crate) const SERVICES: [&str; 6] = [
    "apiserver",
    "ipam-controller",
    "controller-manager",
    "scheduler",
    "kubelet",
    "cri",
];

/// What `up` decides for each process.
const ITS_OWN: [&str; 10] = [
    "address-file",
    "cri-endpoint",
    "data-dir",
    "listen",
    "netns-dir",
    "network",
    "node",
    "node-netns",
    "nodes-dir",
    "server",
];

/// One flag of one service, which has it and takes the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtraFlag {
    service: String,
    flag: String,
    /// Absent: it is not given any more.
    value: Option<String>,
}

impl fmt::Display for ExtraFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            service,
            flag,
            value,
        } = self;
        match value {
            Some(value) => write!(f, "{service}.{flag}={value}"),
            None => write!(f, "{service}.{flag}-"),
        }
    }
}

/// Not a flag that a service can be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExtraFlagError {
    #[error(
        "want SERVICE.FLAG=VALUE, such as scheduler.log=debug, or SERVICE.FLAG- to give it no more"
    )]
    Form,
    #[error("no service {name:?}: want one of {}", SERVICES.join(", "))]
    Service { name: String },
    #[error("{service} has no flag --{flag}{}", similar.as_ref().map(|flag| format!("; it has --{flag}")).unwrap_or_default())]
    Flag {
        service: String,
        flag: String,
        similar: Option<String>,
    },
    #[error("--{flag} of {service} is what `up` itself decides")]
    ItsOwn { service: String, flag: String },
    #[error("{service}: {message}")]
    Value { service: String, message: String },
}

impl FromStr for ExtraFlag {
    type Err = ExtraFlagError;

    fn from_str(text: &str) -> Result<Self, ExtraFlagError> {
        let (name, value) = match (text.split_once('='), text.strip_suffix('-')) {
            (Some((name, value)), _) => (name, Some(value.to_owned())),
            (None, Some(name)) => (name, None),
            (None, None) => return Err(ExtraFlagError::Form),
        };
        let (service, flag) = name.split_once('.').ok_or(ExtraFlagError::Form)?;
        if !SERVICES.contains(&service) {
            return Err(ExtraFlagError::Service {
                name: service.into(),
            });
        }
        let extra = Self {
            service: service.into(),
            flag: flag.into(),
            value,
        };
        extra.check()?;
        Ok(extra)
    }
}

impl ExtraFlag {
    /// Whether the service would take it: asked of what reads the service's own command line.
    fn check(&self) -> Result<(), ExtraFlagError> {
        let Self {
            service,
            flag,
            value,
        } = self;
        let unknown = |similar| ExtraFlagError::Flag {
            service: service.clone(),
            flag: flag.clone(),
            similar,
        };
        let program = Cli::command();
        let command = program
            .find_subcommand(service)
            .ok_or_else(|| unknown(None))?;
        let flags = || command.get_arguments().filter_map(Arg::get_long);
        if ITS_OWN.contains(&flag.as_str()) || flag == "die-with-parent" {
            return Err(ExtraFlagError::ItsOwn {
                service: service.clone(),
                flag: flag.clone(),
            });
        }
        if !flags().any(|known| known == flag) {
            let near = flags().find(|known| known.contains(flag) || flag.contains(known));
            return Err(unknown(near.filter(|_| !flag.is_empty()).map(Into::into)));
        }
        let Some(value) = value else { return Ok(()) };
        // This flag alone, and nothing from the environment of `up`.
        let alone = command
            .clone()
            .mut_args(|arg| arg.required(false).env(None::<&str>));
        parse(alone, flag, value).map_err(|message| ExtraFlagError::Value {
            service: service.clone(),
            message,
        })
    }
}

fn parse(command: Command, flag: &str, value: &str) -> Result<(), String> {
    let line = [command.get_name().to_owned(), format!("--{flag}={value}")];
    let parsed = command.try_get_matches_from(line);
    parsed.map(drop).map_err(|error| in_a_line(&error))
}

/// What is wrong with a command line, without what its usage is.
pub(crate) fn in_a_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.trim_start_matches("error: ").to_owned()
}

/// Flags by service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct ExtraConfig(BTreeMap<String, BTreeMap<String, String>>);

impl ExtraConfig {
    /// These, and those that are `given`.
    pub(crate) fn with(&self, given: &[ExtraFlag]) -> Self {
        let mut all = self.clone();
        for ExtraFlag {
            service,
            flag,
            value,
        } in given
        {
            let flags = all.0.entry(service.clone()).or_default();
            match value {
                Some(value) => _ = flags.insert(flag.clone(), value.clone()),
                None => _ = flags.remove(flag),
            }
        }
        all.0.retain(|_, flags| !flags.is_empty());
        all
    }

    /// The command line of a process of `service`, in which a flag that `up` gives too has this value.
    pub(crate) fn extend(&self, service: &str, mut args: Vec<OsString>) -> Vec<OsString> {
        for (flag, value) in self.0.get(service).into_iter().flatten() {
            let (alone, joined) = (format!("--{flag}"), format!("--{flag}="));
            if let Some(at) = args.iter().position(|arg| *arg == *alone) {
                args.drain(at..(at + 2).min(args.len()));
            }
            args.retain(|arg| !arg.as_encoded_bytes().starts_with(joined.as_bytes()));
            args.push(format!("{joined}{value}").into());
        }
        args
    }
}

impl fmt::Display for ExtraConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = self.0.iter().flat_map(|(service, flags)| {
            let named = move |(flag, value)| format!("{service}.{flag}={value}");
            flags.iter().map(named)
        });
        match each.collect::<Vec<_>>().as_slice() {
            [] => f.write_str("none"),
            each => f.write_str(&each.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ExtraFlag {
        let flag: ExtraFlag = text.parse().unwrap();
        assert_eq!(flag.to_string(), text);
        flag
    }

    fn refused(text: &str) -> String {
        text.parse::<ExtraFlag>().unwrap_err().to_string()
    }

    #[test]
    fn a_flag_that_no_service_has_is_refused_before_anything_starts() {
        assert!(refused("scheduler").starts_with("want SERVICE.FLAG=VALUE"));
        assert!(refused("kubelet=3").starts_with("want SERVICE.FLAG=VALUE"));
        let error = refused("etcd.log=debug");
        assert!(
            error.starts_with(r#"no service "etcd": want one of apiserver, "#),
            "{error}"
        );
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
    fn every_service_is_known_with_its_flags() {
        for text in [
            "apiserver.cluster-cidr=10.0.0.0/8",
            "ipam-controller.orphan-quarantine=1",
            "ipam-controller.allocate-node-cidrs=false",
            "controller-manager.log=debug",
            "scheduler.ip-policy=off",
            "kubelet.relist-interval=0.5",
            "cri.cni-timeout=3",
        ] {
            parse(text);
        }
    }

    #[test]
    fn what_is_given_takes_the_place_of_what_was() {
        let first = ExtraConfig::default().with(&[
            parse("kubelet.max-pods=3"),
            parse("kubelet.relist-interval=1"),
            parse("cri.cni-timeout=3"),
        ]);
        let then = first.with(&[parse("kubelet.max-pods=4"), parse("cri.cni-timeout-")]);
        assert_eq!(
            then.to_string(),
            "kubelet.max-pods=4, kubelet.relist-interval=1"
        );
        let text = serde_json::to_string(&then).unwrap();
        assert_eq!(serde_json::from_str::<ExtraConfig>(&text).unwrap(), then);
    }

    #[test]
    fn a_flag_that_up_gives_too_is_given_once() {
        let extra = ExtraConfig::default().with(&[
            parse("ipam-controller.cluster-cidr=10.0.0.0/8"),
            parse("ipam-controller.allocate-node-cidrs=false"),
        ]);
        let args = [
            "ipam-controller",
            "--cluster-cidr",
            "10.244.0.0/16",
            "--compat",
            "none",
            "--allocate-node-cidrs=true",
        ];
        let args = args.map(Into::into).to_vec();
        assert_eq!(
            extra.extend("ipam-controller", args.clone()),
            [
                "ipam-controller",
                "--compat",
                "none",
                "--allocate-node-cidrs=false",
                "--cluster-cidr=10.0.0.0/8"
            ]
        );
        assert_eq!(extra.extend("scheduler", args.clone()), args);
    }
}
