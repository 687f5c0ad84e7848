//! The directory of a repair.

use std::{fs, io, path::Path};

use anyhow::Context as _;

use super::{AuditArgs, IpamFlag};
use crate::{output::page, report::UsageError};

/// Refuses a directory that is not empty: an old manifest must not be taken for one of this repair.
pub(super) fn check(dir: &Path) -> anyhow::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| page::not_writable(dir, &error))?,
    };
    if entries.count() > 0 {
        Err(UsageError(format!(
            "--repair {}: the directory is not empty; name a new one",
            dir.display()
        )))?;
    }
    Ok(())
}

/// Writes the files, which are the runbook and manifests, and says so.
pub(super) fn write(dir: &Path, files: &[(String, String)]) -> anyhow::Result<()> {
    page::make_dir(dir)?;
    for (name, text) in files {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    let manifests = match files.len().saturating_sub(1) {
        0 => String::new(),
        1 => " and 1 manifest".into(),
        several => format!(" and {several} manifests"),
    };
    page::wrote(format_args!("{}: RUNBOOK.md{manifests}", dir.display()));
    Ok(())
}

/// The command line that audits standard input in the same way.
pub(super) fn command(args: &AuditArgs) -> String {
    let text = |name: &str, value: &Option<String>| {
        let value = value.as_ref()?;
        // The parser of ranges accepts only digits, colons and the like.
        Some(format!(" --{name} {value}"))
    };
    let length = |name: &str, value: Option<u8>| Some(format!(" --{name} {}", value?));
    let resource = args.pod_ip_resource.as_ref();
    let flags = [
        text("cluster-cidr", &args.cluster_cidr),
        length("node-cidr-mask-size", args.node_cidr_mask_size),
        length("node-cidr-mask-size-ipv4", args.node_cidr_mask_size_ipv4),
        length("node-cidr-mask-size-ipv6", args.node_cidr_mask_size_ipv6),
        text("service-cidr", &args.service_cidr),
        resource.map(|name| format!(" --pod-ip-resource {name}")),
    ];
    let ipam = match args.ipam {
        IpamFlag::Auto => None,
        IpamFlag::PodCidr => Some(" --ipam pod-cidr".to_owned()),
        IpamFlag::Own => Some(" --ipam own".to_owned()),
    };
    let flags: String = flags.into_iter().chain([ipam]).flatten().collect();
    format!("podplane audit -{flags}")
}
