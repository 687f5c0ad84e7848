//! `exec`: runs a program of this machine in a pod's network namespace, with the pod's host name
//! and resolver.

use std::{
    ffi::OsString,
    io::ErrorKind,
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
};

use podplane_api::core::Pod;
use podplane_cluster::{data_dir::DataDir, namespaces};
use podplane_kubelet::cri::record::SandboxRecord;

use super::{NamespaceArgs, completion::candidates};
use crate::{
    global::{GlobalOptions, block_on},
    kind::ResourceKind,
    pods, report,
};

/// The exit codes of shells for a missing program, and for one that cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Run a host program in the network namespace of a pod
///
/// Only the network, host name and /etc/resolv.conf are the pod's; other files, users and processes
/// are the host's, because pods run no containers. Kernel mode only. Exits with the program's code.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane exec web-0 -- ip address\n  podplane exec web-0 -- ping -c 1 10.244.1.2"
)]
pub(crate) struct ExecArgs {
    /// Name of the pod
    #[arg(add = candidates::of(ResourceKind::Pod))]
    pod: String,

    #[command(flatten)]
    namespace: NamespaceArgs,

    /// Run this program, with these arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: ExecArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let dir = DataDir::new(&global.data_dir)?;
    pods::enter_cluster(&dir)?;
    let pod = block_on(async {
        let pods = global
            .client()?
            .namespaced::<Pod>(args.namespace.namespace.as_str());
        Ok(pods.get(&args.pod).await?)
    })?;
    let (sandbox, network) = pods::sandbox(&dir, &pod)?;
    namespaces::enter_netns(&network.netns)?;
    let SandboxRecord { hostname, dns, .. } = sandbox;
    let named = Some(format!("{hostname}\n")).filter(|_| !hostname.is_empty());
    let files = [
        ("/etc/hostname", named),
        ("/etc/resolv.conf", dns.map(|dns| dns.to_string())),
    ];
    let files: Vec<_> = files
        .into_iter()
        .filter_map(|(path, text)| Some((path, text?)))
        .collect();
    for missing in namespaces::assume_identity(&hostname, &files, &dir.run())? {
        anstream::eprintln!("note: this machine has no {missing}, so the pod has none");
    }
    let Some((program, rest)) = args.command.split_first() else {
        return Ok(ExitCode::from(NOT_FOUND));
    };
    // Returns only on failure: this process becomes the program, and so has its exit code and gets
    // its signals.
    let error = Command::new(program).args(rest).exec();
    let code = if error.kind() == ErrorKind::NotFound {
        NOT_FOUND
    } else {
        NOT_EXECUTABLE
    };
    report::print(
        &anyhow::Error::new(error)
            .context(format!("failed to execute {}", program.to_string_lossy())),
    );
    Ok(ExitCode::from(code))
}
