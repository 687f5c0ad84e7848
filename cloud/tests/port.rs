//! The cloud's port: each sort of client, with TLS, at a unix socket, and without authentication.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{path::PathBuf, time::Duration};

use clap::Parser as _;
use podplane_client::{CredentialFlags, Endpoint, endpoint};
use podplane_cloud::CloudServiceConfig;
use podplane_host::{clock, fs, task};
use podplane_http_client::{ClientTls, HttpClient};
use podplane_pki::{CertificateOwner, PkiDir};
use podplane_proto::cloud::{GetInstanceRequest, cloud_service_client::CloudServiceClient};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Code;

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    config: CloudServiceConfig,
}

/// A running cloud with one instance, and certificates of one authority.
struct CloudFixture {
    dir: tempfile::TempDir,
    stop: CancellationToken,
    served: JoinSet<()>,
    address: String,
}

impl CloudFixture {
    async fn start(flags: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let now = clock::timestamp();
        let pki = PkiDir::open(&dir.path().join("pki"), "test", now).unwrap();
        let node = CertificateOwner::Node("node-0".into());
        let own = CertificateOwner::Serving("cloud".into());
        let others = [
            CertificateOwner::Admin,
            CertificateOwner::Monitoring,
            node,
            own,
        ];
        for owner in others.into_iter().chain(CertificateOwner::PROCESSES) {
            let terms = owner.terms(&[], Duration::from_secs(3600));
            pki.ensure(&owner.to_string(), &terms, now).unwrap();
        }
        let file = dir.path().join("cloud.yaml");
        fs::write(&file, "instances:\n- providerID: podplane://node-0\n").unwrap();
        let path = dir.path().to_str().unwrap();
        let flags = flags.replace("DIR", path);
        let common = ["cloud", "--file", file.to_str().unwrap()];
        let published = dir.path().join("address");
        let publish = ["--address-file", published.to_str().unwrap()];
        let words = common
            .into_iter()
            .chain(publish)
            .chain(flags.split_whitespace());
        let config = Line::try_parse_from(words).unwrap().config;
        let stop = CancellationToken::new();
        let run = podplane_cloud::run(config, stop.clone());
        let mut served = JoinSet::new();
        task::spawn(&mut served, async { run.await.unwrap() });
        let address = loop {
            match fs::read_to_string(&published) {
                Ok(address) => break address.trim().to_owned(),
                Err(_) => clock::sleep(Duration::from_millis(5)).await,
            }
            assert!(served.try_join_next().is_none(), "the cloud has ended");
        };
        Self {
            dir,
            stop,
            served,
            address,
        }
    }

    async fn secure() -> Self {
        let pair = "DIR/pki/serving-cloud.pem";
        let own = "--client-ca-file DIR/pki/ca.crt --local-socket DIR/cloud.sock";
        let flags = format!("--tls-cert-file {pair} --tls-private-key-file {pair} {own}");
        Self::start(&flags).await
    }

    fn pki(&self, name: &str) -> PathBuf {
        self.dir.path().join("pki").join(name)
    }

    /// Asks for the instance with the certificate of that name, or with none.
    async fn ask(&self, address: &str, certificate: Option<&str>) -> Result<String, tonic::Status> {
        let pair = certificate.map(|name| self.pki(&format!("{name}.pem")));
        let credentials = CredentialFlags {
            certificate_authority: Some(self.pki("ca.crt")),
            client_certificate: pair.clone(),
            client_key: pair,
            ..CredentialFlags::default()
        };
        let server: Endpoint = address.parse().unwrap();
        let server = server.with_credentials(&credentials).unwrap();
        let mut client = CloudServiceClient::new(endpoint::channel(&server).unwrap());
        let provider_id = "podplane://node-0".to_owned();
        let answer = client
            .get_instance(GetInstanceRequest { provider_id })
            .await?;
        Ok(answer.into_inner().instance.unwrap().provider_id)
    }

    /// The code of a GET with the certificate of that name, or with none.
    async fn get(&self, certificate: Option<&str>, path: &str) -> u16 {
        let tls = match certificate {
            Some(name) => ClientTls::of_dir(&self.pki(""), name),
            None => ClientTls {
                authority: self.pki("ca.crt"),
                ..ClientTls::default()
            },
        };
        let client = HttpClient::with_tls(&self.address, &tls).unwrap();
        client.get(path).await.unwrap().code
    }

    async fn end(mut self) {
        self.stop.cancel();
        self.served.join_next().await.unwrap().unwrap();
    }
}

fn refused(user: &str) -> (Code, String) {
    let method = "/podplane.cloud.v1.CloudService/GetInstance";
    let why = format!("forbidden: User \"{user}\" cannot post path \"{method}\"");
    (Code::PermissionDenied, why)
}

#[tokio::test]
async fn only_the_ipam_controller_and_masters_may_ask_for_instances() {
    let cloud = CloudFixture::secure().await;
    assert!(cloud.address.starts_with("https://"), "{}", cloud.address);
    for known in ["ipam-controller", "admin"] {
        let answer = cloud.ask(&cloud.address, Some(known)).await;
        assert_eq!(answer.unwrap(), "podplane://node-0", "{known}");
    }
    for (certificate, user) in [
        (None, "system:anonymous"),
        (Some("node-node-0"), "system:node:node-0"),
        (Some("scheduler"), "system:kube-scheduler"),
        (Some("monitoring"), "prometheus"),
    ] {
        let refusal = cloud.ask(&cloud.address, certificate).await.unwrap_err();
        assert_eq!(
            (refusal.code(), refusal.message().to_owned()),
            refused(user)
        );
    }
    cloud.end().await;
}

#[tokio::test]
async fn everyone_reads_health_and_monitoring_reads_metrics() {
    let cloud = CloudFixture::secure().await;
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(cloud.get(None, path).await, 200, "{path}");
    }
    for (certificate, code) in [
        (None, 403),
        (Some("ipam-controller"), 403),
        (Some("monitoring"), 200),
        (Some("admin"), 200),
    ] {
        let got = cloud.get(certificate, "/metrics").await;
        assert_eq!(got, code, "{certificate:?}");
    }
    cloud.end().await;
}

#[tokio::test]
async fn the_local_socket_is_of_the_own_user() {
    use std::os::unix::fs::PermissionsExt as _;

    let cloud = CloudFixture::secure().await;
    let socket = cloud.dir.path().join("cloud.sock");
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let address = format!("unix:{}", socket.display());
    cloud.ask(&address, None).await.unwrap();
    cloud.end().await;
}

#[tokio::test]
async fn without_certificates_only_an_open_port_answers() {
    let closed = CloudFixture::start("").await;
    let refusal = closed.ask(&closed.address, None).await.unwrap_err();
    let got = (refusal.code(), refusal.message().to_owned());
    assert_eq!(got, refused("system:anonymous"));
    closed.end().await;
    let open = CloudFixture::start("--authentication=none").await;
    open.ask(&open.address, None).await.unwrap();
    open.end().await;
}
