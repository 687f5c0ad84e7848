//! `exec`: a program of this machine in a pod's network namespace, with the pod's host name and
//! resolver.

use std::{
    ffi::OsString,
    io::ErrorKind,
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
};

use podplane_api::core::Pod;
use podplane_kubelet::cri::record::Record;

use super::{NamespaceArgs, completion::candidates};
use crate::{
    cluster::{data_dir::DataDir, namespaces, pods},
    global::{Global, block_on},
    kind::Kind,
    report,
};

/// What shells exit with for a program that is not there, and for one that cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Run a program of this machine in a pod's network namespace
///
/// The program has the pod's network, host name and /etc/resolv.conf; all else is this machine's,
/// since no container runs in a pod here. Exits with the program's code.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane exec web-0 -- ip address\n  podplane exec web-0 -- ping -c 1 10.244.1.2"
)]
pub(crate) struct Args {
    /// The pod
    #[arg(add = candidates::of(Kind::Pod))]
    pod: String,

    #[command(flatten)]
    namespace: NamespaceArgs,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
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
    let Record { hostname, dns, .. } = sandbox;
    let named = Some(format!("{hostname}\n")).filter(|_| !hostname.is_empty());
    let files = [
        ("/etc/hostname", named),
        ("/etc/resolv.conf", dns.map(|dns| dns.to_string())),
    ];
    let files: Vec<_> = files
        .into_iter()
        .filter_map(|(path, text)| Some((path, text?)))
        .collect();
    namespaces::assume_identity(&hostname, &files, &dir.run())?;
    let Some((program, rest)) = args.command.split_first() else {
        return Ok(ExitCode::from(NOT_FOUND));
    };
    // Returns only if it cannot: this process becomes the program, and so has its exit code and gets its signals.
    let error = Command::new(program).args(rest).exec();
    let code = if error.kind() == ErrorKind::NotFound {
        NOT_FOUND
    } else {
        NOT_EXECUTABLE
    };
    report::print(
        &anyhow::Error::new(error).context(format!("execute {}", program.to_string_lossy())),
    );
    Ok(ExitCode::from(code))
}
