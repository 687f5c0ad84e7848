//! `cni add`, `check`, `del`, `gc`, `status`: one network of a configuration directory, one network
//! namespace.

use std::{
    fmt::Write as _,
    path::{self, Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use podplane_cni::{
    Attachment, NetworkConfigList, Runtime, RuntimeError, ValidAttachment, runtime,
};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha512};

use crate::{commands::duration, output};

/// The network, and where its configuration, its plugins and its cache are.
#[derive(Debug, clap::Args)]
pub(super) struct NetworkArgs {
    /// Name of the network, as in its configuration
    #[arg(value_name = "NET")]
    network: String,

    /// Read the network configurations (.conflist, .conf, .json) in this directory
    #[arg(
        long,
        env = "NETCONFPATH",
        value_name = "DIR",
        default_value = "/etc/cni/net.d"
    )]
    conf_dir: PathBuf,

    /// Find the CNI plugins in these directories, separated by colons or repeated; the first that
    /// has a plugin wins
    #[arg(
        long,
        env = "CNI_PATH",
        value_name = "DIR",
        default_value = "/opt/cni/bin",
        value_delimiter = ':'
    )]
    bin_dir: Vec<PathBuf>,

    /// Cache results in DIR/results
    #[arg(long, value_name = "DIR", default_value = runtime::DEFAULT_CACHE_DIR)]
    cache_dir: PathBuf,

    /// Kill a plugin, with its children, that runs longer than this, such as 30s
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    timeout: Duration,
}

/// One attachment of a network: `add`, `check` and `del`.
#[derive(Debug, clap::Args)]
pub(super) struct AttachmentArgs {
    #[command(flatten)]
    network: NetworkArgs,

    /// Path of the container's network namespace, such as /run/netns/test
    #[arg(value_name = "NETNS")]
    netns: PathBuf,

    /// Name the interface in the container
    #[arg(long, env = "CNI_IFNAME", value_name = "NAME", default_value = "eth0")]
    ifname: String,

    /// Pass these arguments to every plugin, K=V separated by semicolons [default: none]
    #[arg(long, env = "CNI_ARGS", value_name = "ARGS", default_value = "", hide_default_value = true, value_parser = parse_args)]
    args: PluginArgs,

    /// Pass these arguments to the plugins that have them in `capabilities`: a JSON object, such as
    /// '{"ips": ["10.0.0.5"]}' [default: none]
    #[arg(long, env = "CAP_ARGS", value_name = "JSON", default_value = "", hide_default_value = true, value_parser = parse_capability_args)]
    capability_args: Map<String, Value>,

    /// Use this container id [default: cnitool- and a hash of NETNS, as cnitool does]
    #[arg(long, value_name = "ID")]
    container_id: Option<String>,
}

/// A network whose garbage is collected.
#[derive(Debug, clap::Args)]
pub(super) struct GcArgs {
    #[command(flatten)]
    network: NetworkArgs,

    /// Ignored; accepted as by cnitool
    #[arg(value_name = "NETNS", hide = true)]
    netns: Option<PathBuf>,

    /// Keep this attachment, CONTAINER_ID/IFNAME; may be repeated. WARNING: without --keep all
    /// cached attachments are deleted
    #[arg(long, value_name = "ID/IFNAME", value_parser = parse_attachment)]
    keep: Vec<ValidAttachment>,
}

/// A network whose plugins are asked how they are.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    network: NetworkArgs,

    /// Ignored; accepted as by cnitool
    #[arg(value_name = "NETNS", hide = true)]
    netns: Option<PathBuf>,
}

impl NetworkArgs {
    fn load(&self) -> anyhow::Result<(Runtime, NetworkConfigList)> {
        let runtime = Runtime {
            bin_dirs: self.bin_dir.clone(),
            cache_dir: self.cache_dir.clone(),
            spare: None,
            node_netns: None,
            timeout: self.timeout,
        };
        let list = NetworkConfigList::load(&self.conf_dir, &self.network)?;
        Ok((runtime, list))
    }
}

impl AttachmentArgs {
    fn attachment(&self) -> anyhow::Result<Attachment> {
        // As in cnitool: the same namespace has the same id, whatever the working directory.
        let netns = path::absolute(&self.netns).context("failed to find the working directory")?;
        let id = self.container_id.clone();
        Ok(Attachment {
            container_id: id.unwrap_or_else(|| container_id(&netns)),
            netns: Some(netns),
            ifname: self.ifname.clone(),
            args: self.args.0.clone(),
            capability_args: self.capability_args.clone(),
            trace: None,
        })
    }
}

pub(super) fn add(args: &AttachmentArgs) -> anyhow::Result<()> {
    let (runtime, list) = args.network.load()?;
    let result = runtime.add(&list, &args.attachment()?).map_err(readable)?;
    output::line(result.to_json())
}

pub(super) fn check(args: &AttachmentArgs) -> anyhow::Result<()> {
    let (runtime, list) = args.network.load()?;
    runtime.check(&list, &args.attachment()?).map_err(readable)
}

pub(super) fn del(args: &AttachmentArgs) -> anyhow::Result<()> {
    let (runtime, list) = args.network.load()?;
    runtime.del(&list, &args.attachment()?).map_err(readable)
}

pub(super) fn gc(args: &GcArgs) -> anyhow::Result<()> {
    let (runtime, list) = args.network.load()?;
    let valid = (!args.keep.is_empty()).then_some(args.keep.as_slice());
    runtime.gc(&list, valid).map_err(readable)
}

pub(super) fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let (runtime, list) = args.network.load()?;
    runtime.status(&list).map_err(readable)
}

/// libcni's message on one line, and the code of the plugin's error, which the message leaves out.
fn readable(error: RuntimeError) -> anyhow::Error {
    let code = error.cni_error().map(|error| error.code);
    let code = code.map_or_else(String::new, |code| format!(" (code {code})"));
    anyhow::anyhow!("{}{code}", error.message())
}

/// cnitool's id for a namespace: the first 10 bytes of the path's SHA-512.
fn container_id(netns: &Path) -> String {
    let hash = Sha512::digest(netns.as_os_str().as_encoded_bytes());
    let mut id = "cnitool-".to_owned();
    for byte in &hash[..10] {
        _ = write!(id, "{byte:02x}");
    }
    id
}

/// Pairs for `CNI_ARGS`, in order.
#[derive(Debug, Clone)]
struct PluginArgs(Vec<(String, String)>);

fn parse_args(text: &str) -> Result<PluginArgs, String> {
    let pair = |pair: &str| match pair.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() && !value.contains('=') => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err(format!("invalid CNI_ARGS pair {pair:?}: want K=V;K=V")),
    };
    let pairs = text.split(';').filter(|_| !text.is_empty()).map(pair);
    pairs.collect::<Result<_, _>>().map(PluginArgs)
}

fn parse_capability_args(text: &str) -> Result<Map<String, Value>, String> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text).map_err(|error| format!("want a JSON object: {error}"))
}

fn parse_attachment(text: &str) -> Result<ValidAttachment, String> {
    let (id, ifname) = text
        .split_once('/')
        .filter(|(id, ifname)| !id.is_empty() && !ifname.is_empty())
        .ok_or("want ID/IFNAME, such as web-0/eth0")?;
    Ok(ValidAttachment {
        container_id: id.to_owned(),
        ifname: ifname.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ids_equal_those_of_cnitool() {
        // printf /run/netns/test | sha512sum
        let id = container_id(Path::new("/run/netns/test"));
        assert_eq!(id, "cnitool-8ae22670664f2caaa6b3");
    }

    #[test]
    fn parses_arguments_as_key_value_pairs() {
        let pairs = |text| parse_args(text).map(|args| args.0);
        let want = [("A", "b"), ("C", "d")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(pairs("A=b;C=d"), Ok(want.to_vec()));
        assert_eq!(pairs(""), Ok(Vec::new()));
        for bad in ["A", "A=", "=b", "A=b;", "A=b=c"] {
            assert!(pairs(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn capability_arguments_are_an_object() {
        assert_eq!(parse_capability_args("").map(|map| map.len()), Ok(0));
        assert_eq!(
            parse_capability_args(r#"{"ips": []}"#).map(|map| map.len()),
            Ok(1)
        );
        assert!(parse_capability_args("[]").is_err());
    }
}
