//! The common parts of commands: the data directory, the server's address, and the async runtime.

use std::{
    env,
    future::Future,
    io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use podplane_client::{Client, CredentialFlags, Endpoint};
use podplane_cluster::{
    certificates::ClusterCertificates, data_dir::DataDir, launch, services, trust,
};
use podplane_pki::kubeconfig::AccessFiles;
use tokio::runtime;

use crate::report::{NoAnswer, UnusableInput};

/// Flags of every command.
#[derive(Debug, clap::Args)]
pub(crate) struct GlobalArgs {
    /// Use the cluster in this directory [default: /var/lib/podplane for root, else podplane in
    /// $XDG_STATE_HOME or ~/.local/state]
    ///
    /// Commands that need no cluster ignore it.
    #[arg(
        help_heading = "Global options",
        long,
        env = "PODPLANE_DATA_DIR",
        value_name = "DIR",
        global = true
    )]
    data_dir: Option<PathBuf>,

    /// Connect to the API server at this address: HOST:PORT, a URL, or unix:PATH [default: that of
    /// the cluster in --data-dir]
    ///
    /// Commands that need no API server ignore it.
    #[arg(
        help_heading = "Global options",
        long,
        env = "PODPLANE_SERVER",
        value_name = "ADDR",
        global = true
    )]
    server: Option<Endpoint>,

    /// The credentials for it.
    #[command(flatten, next_help_heading = "Global options")]
    credentials: CredentialFlags,
}

/// The values of the global flags.
#[derive(Clone, Debug)]
pub(crate) struct GlobalOptions {
    /// The cluster's data directory. It may not exist yet.
    pub(crate) data_dir: PathBuf,
    server: Option<Endpoint>,
    credentials: CredentialFlags,
}

impl TryFrom<GlobalArgs> for GlobalOptions {
    type Error = anyhow::Error;

    fn try_from(args: GlobalArgs) -> anyhow::Result<Self> {
        let GlobalArgs {
            data_dir,
            server,
            credentials,
        } = args;
        Ok(Self {
            data_dir: data_dir.map_or_else(default_data_dir, Ok)?,
            server,
            credentials,
        })
    }
}

impl GlobalOptions {
    /// The file into which the API server of `up` writes its address.
    pub(crate) fn address_file(&self) -> PathBuf {
        self.data_dir.join("apiserver.address")
    }

    /// The schedulers of `up` by their sockets; none with `--server`, which may mean another
    /// cluster.
    pub(crate) fn schedulers(&self) -> anyhow::Result<Vec<Endpoint>> {
        if self.server.is_some() {
            return Ok(Vec::new());
        }
        trust::data_dir(&self.data_dir)?;
        let dir = DataDir::layout(&self.data_dir);
        let names = ["scheduler".to_owned(), services::standby("scheduler")];
        let sockets = names.iter().map(|name| dir.socket(name));
        let there = sockets.filter(|socket| socket.exists());
        let addresses = there.map(|socket| Ok(format!("unix:{}", socket.display()).parse()?));
        addresses.collect()
    }

    /// Returns true if `--server` was given.
    pub(crate) fn names_server(&self) -> bool {
        self.server.is_some()
    }

    /// The API server: `--server`, else the one of the cluster in the data directory, with the
    /// credentials of the flags.
    pub(crate) fn server(&self) -> anyhow::Result<Endpoint> {
        let server = match self.server {
            Some(_) => self.address()?,
            None => self.local_server()?,
        };
        Ok(server.with_credentials(&self.own_credentials())?)
    }

    /// The credentials of the flags. If they only say whom to trust, and a node that joined a
    /// cluster elsewhere runs in the data directory: with that node's certificate.
    fn own_credentials(&self) -> CredentialFlags {
        let flags = &self.credentials;
        let is_nobody = flags.client_certificate.is_none() && flags.token_file.is_none();
        let node = (is_nobody && flags.certificate_authority.is_some())
            .then(|| DataDir::new(&self.data_dir).and_then(|dir| dir.running()));
        let node = node.and_then(Result::ok).flatten();
        match node.and_then(|node| node.client_certificate) {
            None => flags.clone(),
            Some(pair) => CredentialFlags {
                client_certificate: Some(pair.clone()),
                client_key: Some(pair),
                ..flags.clone()
            },
        }
    }

    /// The API server of the data directory by its socket, where this user needs no credentials; by
    /// its address if it has no socket, and if credentials are given, which are for that.
    fn local_server(&self) -> anyhow::Result<Endpoint> {
        let address = self.address()?;
        let socket = DataDir::layout(&self.data_dir).apiserver_socket();
        match socket.exists() && self.credentials == CredentialFlags::default() {
            true => Ok(format!("unix:{}", socket.display()).parse()?),
            false => Ok(address),
        }
    }

    /// The API server's address for other programs, and the files by which they know each other:
    /// those of the flags, else the administrator's of the cluster in the data directory.
    pub(crate) fn access(&self) -> anyhow::Result<(Endpoint, AccessFiles)> {
        let address = self.address()?;
        let is_ours = self.server.is_none() && self.credentials == CredentialFlags::default();
        let files = match is_ours {
            true => ClusterCertificates::of(&DataDir::layout(&self.data_dir)).administrator(),
            false => self.credentials.files(),
        };
        Ok((address, files))
    }

    /// The port of another process with the credentials for it, if it has TLS: those of the flags,
    /// else the administrator's of the cluster in the data directory.
    pub(crate) fn for_port(&self, address: &Endpoint) -> anyhow::Result<Endpoint> {
        let certificates = ClusterCertificates::of(&DataDir::layout(&self.data_dir));
        let credentials = match self.credentials == CredentialFlags::default() {
            _ if !address.has_tls() => return Ok(address.clone()),
            true if certificates.exist() => certificates.for_ports(),
            _ => self.credentials.clone(),
        };
        Ok(address.clone().with_credentials(&credentials)?)
    }

    /// The credentials of the flags.
    pub(crate) fn credentials(&self) -> &CredentialFlags {
        &self.credentials
    }

    fn address(&self) -> anyhow::Result<Endpoint> {
        if let Some(server) = &self.server {
            return Ok(server.clone());
        }
        let file = self.address_file();
        trust::data_dir(&self.data_dir)?;
        match trust::read_to_string(&file) {
            Ok(address) => Ok(address.trim().parse().with_context(|| {
                format!("failed to read the server's address in {}", file.display())
            })?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(UnusableInput(anyhow::anyhow!(
                "no cluster runs in {}: start one with `podplane up`, or name another with --data-dir or --server",
                self.data_dir.display()
            ))
            .into()),
            Err(error) => Err(error).with_context(|| {
                format!("failed to read the server's address in {}", file.display())
            }),
        }
    }

    /// Adds the server's address to an error that says it did not answer.
    pub(crate) fn locate(&self, error: anyhow::Error) -> anyhow::Error {
        match self.server() {
            Ok(server) if self.server.is_some() => NoAnswer::locate(error, server, ""),
            Ok(server) => {
                let dir = self.data_dir.display();
                let hint = format!(": `podplane up` starts the cluster in {dir} again");
                NoAnswer::locate(error, server, &hint)
            }
            Err(_) => error,
        }
    }

    /// A client of that server. To be called inside [`block_on`].
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.server()?)?)
    }
}

impl GlobalOptions {
    /// Runs work that waits for the cluster; fails at once if the cluster of the data directory
    /// ends meanwhile.
    ///
    /// # Errors
    ///
    /// The work's, or that the cluster ended.
    pub(crate) async fn while_running<T>(
        &self,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let dir = DataDir::new(&self.data_dir)?;
        if self.names_server() || !dir.is_locked()? {
            return work.await;
        }
        // The other arm only waits, and the work is given up when the cluster ends.
        tokio::select! {
            done = work => done,
            ended = launch::ended(&dir) => {
                ended?;
                anyhow::bail!("the cluster in {} ended meanwhile", dir.path().display())
            }
        }
    }
}

/// Runs a client command on one thread; no thread starts before.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?
        .block_on(work)
}

/// The directory for state, not for configuration or cache: a cluster survives a reboot and need
/// not be backed up.
fn default_data_dir() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/podplane"));
    }
    let absolute = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(Path::new(".local/state"))))
        .map(|state| state.join("podplane"))
        .context("neither XDG_STATE_HOME nor HOME is set: pass --data-dir")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn global(data_dir: &Path) -> GlobalOptions {
        GlobalOptions {
            data_dir: data_dir.into(),
            server: None,
            credentials: CredentialFlags::default(),
        }
    }

    #[test]
    fn the_server_is_found_in_the_data_directory() {
        let dir = tempfile::tempdir().unwrap();
        let global = global(dir.path());
        fs::write(global.address_file(), "127.0.0.1:7080\n").unwrap();
        assert_eq!(
            global.server().unwrap().to_string(),
            "http://127.0.0.1:7080"
        );
    }

    #[test]
    fn suggests_up_if_no_cluster_runs() {
        let dir = tempfile::tempdir().unwrap();
        let error = global(dir.path()).server().unwrap_err().to_string();
        let want = format!(
            "no cluster runs in {}: start one with `podplane up`",
            dir.path().display()
        );
        assert!(error.starts_with(&want), "{error}");
    }
}
