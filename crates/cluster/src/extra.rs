//! Flags of services as data: `SERVICE.FLAG=VALUE`, which `--extra-config` takes and requests
//! carry.

use std::{collections::BTreeMap, ffi::OsString, fmt, str::FromStr};

use clap::{Arg, Command, error::ErrorKind};
use serde::{Deserialize, Serialize};

use crate::services::{SERVICES, ServiceCatalog};

/// The flags that `up` sets for each process.
const ITS_OWN: [&str; 21] = [
    "address-file",
    "certificate-authority",
    "client-ca-file",
    "client-certificate",
    "client-key",
    "cri-endpoint",
    "data-dir",
    "leader-elect-identity",
    "listen",
    "local-socket",
    "netns-dir",
    "network",
    "node",
    "node-netns",
    "node-network-backend",
    "nodes-dir",
    "server",
    "tls-cert-file",
    "tls-private-key-file",
    "tls-server-name",
    "token-file",
];

/// One flag of one service. [`ExtraFlag::check`] asks the service's parser about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraFlag {
    service: String,
    flag: String,
    /// The value; `None` to remove the flag.
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

/// An invalid flag of a service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtraFlagError {
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
        Ok(Self {
            service: service.into(),
            flag: flag.into(),
            value,
        })
    }
}

impl ExtraFlag {
    /// This value for a flag of a service.
    pub fn new(service: &str, flag: &str, value: &str) -> Self {
        Self {
            service: service.into(),
            flag: flag.into(),
            value: Some(value.into()),
        }
    }

    /// Reads a flag that its service takes.
    pub fn read(text: &str, services: &dyn ServiceCatalog) -> Result<Self, ExtraFlagError> {
        let flag: Self = text.parse()?;
        flag.check(services)?;
        Ok(flag)
    }

    /// Asks the parser of the service's command line whether it takes the flag.
    pub fn check(&self, services: &dyn ServiceCatalog) -> Result<(), ExtraFlagError> {
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
        let command = services.command(service).ok_or_else(|| unknown(None))?;
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
        let alone = command.mut_args(|arg| arg.required(false).env(None::<&str>));
        parse(alone, flag, value).map_err(|message| ExtraFlagError::Value {
            service: service.clone(),
            message,
        })
    }
}

fn parse(command: Command, flag: &str, value: &str) -> Result<(), String> {
    let line = [command.get_name().to_owned(), format!("--{flag}={value}")];
    match command.try_get_matches_from(line) {
        // The flag may need another one, which is given beside it. The service asks for both.
        Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => Err(in_a_line(&error)),
        _ => Ok(()),
    }
}

/// The first line of a parser's error, without the usage.
pub fn in_a_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.trim_start_matches("error: ").to_owned()
}

/// Flags by service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExtraConfig(BTreeMap<String, BTreeMap<String, String>>);

impl ExtraConfig {
    /// The value of a flag, if it is given.
    pub fn get(&self, service: &str, flag: &str) -> Option<&str> {
        self.0.get(service)?.get(flag).map(String::as_str)
    }

    /// Gives a flag this value.
    pub fn set(&mut self, service: &str, flag: &str, value: String) {
        let flags = self.0.entry(service.to_owned()).or_default();
        flags.insert(flag.to_owned(), value);
    }

    /// Takes a flag away, and returns the value that it had.
    pub fn remove(&mut self, service: &str, flag: &str) -> Option<String> {
        let flags = self.0.get_mut(service)?;
        let value = flags.remove(flag);
        self.0.retain(|_, flags| !flags.is_empty());
        value
    }

    /// Each flag: service, flag, value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.0.iter().flat_map(|(service, flags)| {
            let flags = flags.iter();
            flags.map(move |(flag, value)| (service.as_str(), flag.as_str(), value.as_str()))
        })
    }

    /// These flags, overridden by `given`.
    pub fn with(&self, given: &[ExtraFlag]) -> Self {
        let mut all = self.clone();
        for ExtraFlag {
            service,
            flag,
            value,
        } in given
        {
            match value {
                Some(value) => all.set(service, flag, value.clone()),
                None => _ = all.remove(service, flag),
            }
        }
        all
    }

    /// The command line of a process of `service`, with these flags in place of those that `up`
    /// gives too.
    pub fn extend(&self, service: &str, mut args: Vec<OsString>) -> Vec<OsString> {
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
        let each = self.iter();
        let each = each.map(|(service, flag, value)| format!("{service}.{flag}={value}"));
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
    fn refuses_flags_without_a_service_or_value() {
        assert!(refused("scheduler").starts_with("want SERVICE.FLAG=VALUE"));
        assert!(refused("kubelet=3").starts_with("want SERVICE.FLAG=VALUE"));
        let error = refused("etcd.log=debug");
        assert!(
            error.starts_with(r#"no service "etcd": want one of apiserver, "#),
            "{error}"
        );
    }

    #[test]
    fn later_flags_replace_or_remove_earlier_ones() {
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
    fn extra_flags_replace_those_of_up() {
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
