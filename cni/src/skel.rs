//! The skeleton of all plugin programs: environment, versions, errors, exit codes.
//!
//! The order of the checks is the reference's, and observable.

mod gc;
mod ipam;

use std::{
    ffi::OsString,
    io::{self, Read, Write},
    panic::{self, PanicHookInfo},
    path::PathBuf,
    process::ExitCode,
};

use podplane_host::fs;
use podplane_netlink::netns;

pub use gc::valid_attachments;
pub use ipam::{Addresses, IpamPlugin};
pub use podplane_error_chain::one_line as text;

use crate::{
    trace::StepPrinter,
    types::{
        CniError, CniResult, ResultError, Version, code,
        go_json::{self, GoType},
        json, validate, version_triple as triple,
    },
};

/// The parameters of a plugin's call. Fields that a command does not require may be empty.
#[derive(Debug, Clone)]
pub struct Call {
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_PATH`.
    pub path: Vec<PathBuf>,
    /// The configuration, as received.
    pub stdin: Vec<u8>,
    /// The configuration's `cniVersion`, checked.
    pub version: Version,
    /// The sink for the steps of the call.
    pub tell: StepPrinter,
}

/// The work of a plugin. It must not print on standard output, nor read the environment.
pub trait Plugin {
    /// The program's name.
    fn name(&self) -> &'static str;

    /// The supported versions of the specification, oldest first.
    fn versions(&self) -> &'static [Version] {
        &Version::ALL
    }

    /// Attaches the container.
    ///
    /// # Errors
    /// The error to print.
    fn add(&self, call: &Call) -> Result<CniResult, CniError>;

    /// Detaches the container. Missing resources count as success.
    ///
    /// # Errors
    /// The error to print.
    fn del(&self, call: &Call) -> Result<(), CniError>;

    /// Checks that an attachment is as it was made.
    ///
    /// # Errors
    /// The error to print.
    fn check(&self, call: &Call) -> Result<(), CniError>;

    /// Deletes the resources that belong to no valid attachment.
    ///
    /// # Errors
    /// The error to print.
    fn gc(&self, call: &Call) -> Result<(), CniError>;

    /// Checks that an ADD can be served.
    ///
    /// # Errors
    /// The error to print; code 50 or 51.
    fn status(&self, call: &Call) -> Result<(), CniError>;
}

/// The `prevResult` of the configuration, if there is one.
///
/// # Errors
/// Code 999, with the reference's text.
pub fn previous_result(call: &Call) -> Result<Option<CniResult>, CniError> {
    let invalid = |why: &dyn std::fmt::Display| {
        CniError::internal(format!("could not parse prevResult: {why}"))
    };
    let document = json::parse_folded(&call.stdin);
    let document = document.map_err(|error| invalid(&json::go_error(&error)))?;
    let previous = document.get("prevresult");
    let previous = previous.map(|value| CniResult::from_value(value, call.version.as_str()));
    previous.transpose().map_err(|error| match error {
        ResultError::Json(error) => invalid(&json::go_error(&error)),
        error => invalid(&error),
    })
}

/// The name of the configuration's network. It was validated before the plugin was called.
///
/// # Errors
/// Code 999.
pub fn network_name(call: &Call) -> Result<String, CniError> {
    let document = json::parse_folded(&call.stdin);
    let document = document.map_err(|error| CniError::internal(json::go_error(&error)))?;
    let name = document.get("name").and_then(|name| name.as_str());
    Ok(name.unwrap_or_default().to_owned())
}

/// The `main` function of a plugin program.
pub fn main(plugin: &dyn Plugin) -> ExitCode {
    panic::set_hook(Box::new(answer_panic));
    let env = |key: &str| std::env::var_os(key);
    let answer = answer(plugin, &env, &mut io::stdin(), &mut io::stderr());
    let (text, code) = match answer {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(error) => (error.to_json(), ExitCode::FAILURE),
    };
    match print(&text) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE, // Standard output has no reader.
    }
}

/// Ends the program with an error that the runtime can parse. It is a hook, so that it works in
/// every thread, and with every panic strategy.
#[expect(clippy::exit, reason = "there is nowhere to return to")]
fn answer_panic(info: &PanicHookInfo<'_>) {
    _ = writeln!(io::stderr(), "{info}");
    _ = print(&CniError::internal("internal error: the plugin panicked").to_json());
    std::process::exit(1);
}

/// Writes to standard output without the standard library's buffer.
fn print(text: &str) -> rustix::io::Result<()> {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let n = rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stdout(), rest))?;
        rest = rest.get(n..).unwrap_or_default();
    }
    Ok(())
}

/// [`main`] without a process. Returns the text for standard output.
///
/// # Errors
/// The error to print there instead, with exit code 1.
pub fn answer(
    plugin: &dyn Plugin,
    env: &dyn Fn(&str) -> Option<OsString>,
    stdin: &mut dyn Read,
    stderr: &mut dyn Write,
) -> Result<String, CniError> {
    let environment = match Environment::read(env) {
        Err(error) if error.code == code::INVALID_ENVIRONMENT && is_unset(env, "CNI_COMMAND") => {
            about(plugin, stderr);
            return Ok(String::new());
        }
        other => other?,
    };
    if environment.command == "VERSION" {
        return Ok(version_answer(plugin.versions()));
    }
    let mut config = Vec::with_capacity(4096);
    let read = stdin.read_to_end(&mut config);
    read.map_err(|error| {
        CniError::new(
            code::IO_FAILURE,
            format!("error reading from stdin: {error}"),
        )
    })?;
    check_name(&config)?;
    let Environment {
        command,
        call: mut call_env,
    } = environment;
    call_env.stdin = config;
    call_env.tell = StepPrinter::new(plugin.name(), env);
    let versions = plugin.versions();
    match command.as_str() {
        "ADD" => {
            call_env.version = exact(&config_version(&call_env.stdin)?, versions)?;
            refuse_own_netns(&call_env, env)?;
            let result = plugin.add(&call_env)?;
            Ok(result.with_version(call_env.version).to_json())
        }
        "DEL" => {
            call_env.version = exact(&config_version(&call_env.stdin)?, versions)?;
            refuse_own_netns(&call_env, env)?;
            plugin.del(&call_env).map(|()| String::new())
        }
        "CHECK" => {
            let written = config_version(&call_env.stdin)?;
            call_env.version = since(&written, "CHECK", Version::V0_4_0, versions)?;
            plugin.check(&call_env).map(|()| String::new())
        }
        "GC" => {
            let written = config_version(&call_env.stdin)?;
            call_env.version = since(&written, "GC", Version::V1_1_0, versions)?;
            plugin.gc(&call_env).map(|()| String::new())
        }
        "STATUS" => {
            let written = config_version(&call_env.stdin)?;
            call_env.version = since(&written, "STATUS", Version::V1_1_0, versions)?;
            plugin.status(&call_env).map(|()| String::new())
        }
        other => Err(CniError::new(
            code::INVALID_ENVIRONMENT,
            format!("unknown CNI_COMMAND: {other}"),
        )),
    }
}

fn is_unset(env: &dyn Fn(&str) -> Option<OsString>, key: &str) -> bool {
    env(key).is_none_or(|value| value.is_empty())
}

/// The beginning of the line that a plugin of ours prints when it is run without `CNI_COMMAND`; the
/// version follows. It distinguishes our plugins from others.
#[must_use]
pub fn about_prefix(plugin: &str) -> String {
    format!("CNI {plugin} plugin podplane ")
}

/// Prints information for a person who runs the program by hand.
fn about(plugin: &dyn Plugin, stderr: &mut dyn Write) {
    let versions = texts(plugin.versions()).join(", ");
    let text = format!(
        "{}{}\nCNI protocol versions supported: {versions}\n",
        about_prefix(plugin.name()),
        env!("CARGO_PKG_VERSION")
    );
    _ = stderr.write_all(text.as_bytes());
}

fn texts(versions: &[Version]) -> Vec<&'static str> {
    versions.iter().map(|version| version.as_str()).collect()
}

fn version_answer(versions: &[Version]) -> String {
    let latest = Version::LATEST.as_str();
    let quoted: Vec<_> = versions
        .iter()
        .map(|version| format!("\"{version}\""))
        .collect();
    let quoted = quoted.join(",");
    format!("{{\"cniVersion\":\"{latest}\",\"supportedVersions\":[{quoted}]}}\n")
}

struct Environment {
    command: String,
    call: Call,
}

impl Environment {
    fn read(env: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, CniError> {
        type Check = fn(&str) -> Result<(), CniError>;
        const ATTACHMENT: &[&str] = &["ADD", "CHECK", "DEL"];
        const WITH_PLUGINS: &[&str] = &["ADD", "CHECK", "DEL", "GC", "STATUS"];
        let value = |key| env(key).unwrap_or_default().to_string_lossy().into_owned();
        let unchecked: Check = |_| Ok(());
        let command = value("CNI_COMMAND");
        let required: [(&str, &[&str], Check); 4] = [
            ("CNI_CONTAINERID", ATTACHMENT, validate::container_id),
            ("CNI_NETNS", &["ADD", "CHECK"], unchecked),
            ("CNI_IFNAME", ATTACHMENT, validate::interface_name),
            ("CNI_PATH", WITH_PLUGINS, unchecked),
        ];
        let mut missing = Vec::new();
        if command.is_empty() {
            missing.push("CNI_COMMAND");
        }
        for (key, commands, check) in required {
            if commands.contains(&command.as_str()) {
                let value = value(key);
                if value.is_empty() {
                    missing.push(key);
                } else {
                    check(&value)?;
                }
            }
        }
        if !missing.is_empty() {
            let msg = format!("required env variables [{}] missing", missing.join(","));
            return Err(CniError::new(code::INVALID_ENVIRONMENT, msg));
        }
        let call = Call {
            container_id: value("CNI_CONTAINERID"),
            netns: value("CNI_NETNS"),
            ifname: value("CNI_IFNAME"),
            args: value("CNI_ARGS"),
            path: std::env::split_paths(&env("CNI_PATH").unwrap_or_default()).collect(),
            stdin: Vec::new(),
            version: Version::default(),
            tell: StepPrinter::default(),
        };
        Ok(Self { command, call })
    }
}

/// Checks the network's name, for every command.
fn check_name(stdin: &[u8]) -> Result<(), CniError> {
    static CONFIG: GoType = GoType::Struct(&[("name", GoType::String)]);
    let config = decode(stdin, &CONFIG, "error unmarshall network config")?;
    validate::network_name(config["name"].as_str().unwrap_or_default())
}

/// The version as written.
fn config_version(stdin: &[u8]) -> Result<String, CniError> {
    static CONFIG: GoType = GoType::Struct(&[("cniVersion", GoType::String)]);
    let config = decode(stdin, &CONFIG, "decoding version from network config")?;
    let version = config["cniversion"].as_str();
    Ok(version.unwrap_or_default().to_owned())
}

fn decode(stdin: &[u8], kind: &GoType, what: &str) -> Result<serde_json::Value, CniError> {
    let undecodable = |text| CniError::new(code::DECODING_FAILURE, format!("{what}: {text}"));
    go_json::decode(stdin, kind).map_err(undecodable)
}

fn incompatible(msg: &str) -> CniError {
    CniError::new(code::INCOMPATIBLE_VERSION, msg)
}

fn exact(version: &str, supported: &[Version]) -> Result<Version, CniError> {
    // An absent version means the oldest.
    let version = if version.is_empty() {
        Version::V0_1_0.as_str()
    } else {
        version
    };
    let known = version.parse().ok();
    let known = known.filter(|version| supported.contains(version));
    known.ok_or_else(|| {
        let supported = json::go_quote_list(&texts(supported));
        incompatible("incompatible CNI versions").with_details(format!(
            "config is {}, plugin supports {supported}",
            json::go_quote(version)
        ))
    })
}

/// The version of a configuration, for a command that exists since the version `first`.
fn since(
    version: &str,
    command: &str,
    first: Version,
    supported: &[Version],
) -> Result<Version, CniError> {
    let text = if version.is_empty() {
        Version::V0_1_0.as_str()
    } else {
        version
    };
    let written = triple(text).map_err(|error| CniError::new(code::DECODING_FAILURE, error))?;
    if written < first.triple() {
        return Err(incompatible(&format!(
            "config version does not allow {command}"
        )));
    }
    if written > Version::LATEST.triple() {
        return Err(incompatible(&format!(
            "plugin version does not allow {command}"
        )));
    }
    exact(version, supported)
}

/// Refuses to work on the plugin's own namespace. The reference notices only after the work is
/// done, and does not undo it; here the check comes first.
fn refuse_own_netns(call: &Call, env: &dyn Fn(&str) -> Option<OsString>) -> Result<(), CniError> {
    let allowed = env("CNI_NETNS_OVERRIDE").unwrap_or_default();
    if allowed == "1" || allowed.eq_ignore_ascii_case("true") {
        return Ok(());
    }
    let Ok(theirs) = fs::open(&call.netns) else {
        return Ok(());
    };
    let Ok(own) = netns::current() else {
        return Ok(());
    };
    if netns::is_same(&own, &theirs).unwrap_or(false) {
        let msg = "plugin's netns and netns from CNI_NETNS should not be the same";
        return Err(CniError::new(code::INVALID_NETNS, msg));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
