//! `podplane webhook` as a real process in front of an API server that does not count addresses:
//! the guard at bind alone keeps nodes within their addresses. The configurations are those of
//! docs/webhook.md.

use anyhow::{Context as _, Result, ensure};
use futures::future::join_all;
use http::Method;
use podplane_api::{
    Object as _,
    admissionregistration::ValidatingWebhookConfiguration,
    core::{Node, Pod, Secret},
};
use podplane_client::{Api, ApiError, Binding, Client, DeleteParams};
use podplane_http_client::{ClientTls, HttpClient};
use podplane_tests::{
    apiserver::Apiserver,
    eventually,
    pods::pod,
    programs::{finish, podplane},
    service::Service,
};
use rustix::process::Signal;
use serde_json::{Value, json};

const PAGE: &str = include_str!("../../docs/webhook.md");
const POD_IPS: &str = "podplane.io/pod-ips";
const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/";
/// The beginning of the webhook's refusals, as the API server passes them on.
const DENIED: &str = "admission webhook \"bindings.podplane.io\" denied the request: node ";
/// A standby takes over within a few seconds.
const ELECTION: [&str; 4] = [
    "--leader-elect=true",
    "--leader-elect-lease-duration=5s",
    "--leader-elect-renew-deadline=4s",
    "--leader-elect-retry-period=500ms",
];

/// An API server that counts no addresses, with the certificates of its webhooks.
struct WebhookCluster {
    dir: tempfile::TempDir,
    apiserver: Apiserver,
    client: Client,
}

/// A running webhook.
struct RunningWebhook {
    service: Service,
    client: HttpClient,
}

impl RunningWebhook {
    async fn is_ready(&self) -> bool {
        let answer = self.client.get("/readyz").await;
        answer.is_ok_and(|answer| answer.code == 200)
    }

    async fn ready(&self) {
        let ready = || self.is_ready();
        assert!(eventually("the webhook is ready", ready, |ready| *ready).await);
    }
}

impl WebhookCluster {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let pki = dir.path().join("pki").display().to_string();
        finish(&mut podplane(["certs", "init", "--dir", &pki])).ok();
        let issue = ["certs", "issue", "serving/webhook", "--dir", &pki];
        finish(&mut podplane(issue)).ok();
        let apiserver = Apiserver::start_with(dir.path(), &["--ip-policy=off"]).await?;
        let client = apiserver.client()?;
        Ok(Self {
            dir,
            apiserver,
            client,
        })
    }

    fn pki(&self, name: &str) -> String {
        self.dir.path().join("pki").join(name).display().to_string()
    }

    async fn node(&self, name: &str, addresses: u32) -> Result<()> {
        let amounts = json!({"pods": "110", POD_IPS: addresses.to_string()});
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name},
            "status": {
                "capacity": amounts, "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }))?;
        self.client.all().create(&node).await?;
        Ok(())
    }

    async fn webhook(&self, name: &str, flags: &[&str]) -> Result<RunningWebhook> {
        let pair = self.pki("serving-webhook.pem");
        let own = ["--tls-cert-file", &pair, "--tls-private-key-file", &pair];
        let service = self.service(name, &[&own, flags].concat()).await?;
        let tls = ClientTls {
            authority: self.pki("ca.crt").into(),
            ..ClientTls::default()
        };
        let client = HttpClient::with_tls(service.address(), &tls)?;
        Ok(RunningWebhook { service, client })
    }

    async fn service(&self, name: &str, flags: &[&str]) -> Result<Service> {
        let dir = self.dir.path().join(name);
        std::fs::create_dir_all(&dir)?;
        let flags = [&["--server", self.apiserver.address()], flags].concat();
        Service::start("webhook", "127.0.0.1:0", &dir, &flags).await
    }

    /// The configurations of the page, for a webhook at an address with this authority.
    fn configurations(&self, address: &str, authority: Option<&str>) -> Result<Vec<String>> {
        let (_, text) = PAGE.split_once("```yaml\n").context("an example")?;
        let (text, _) = text.split_once("```").context("its end")?;
        let bundle = match authority {
            Some(file) => format!("\n    caBundle: {}", base64(file)?),
            None => String::new(),
        };
        let each = text.split("---\n").map(|document| {
            let service = "service: {namespace: podplane-system, name: podplane-webhook, path: ";
            let (before, after) = document.split_once(service).context("a service")?;
            let (path, after) = after.split_once('}').context("a path")?;
            Ok(format!("{before}url: {address}{path}{bundle}{after}"))
        });
        each.collect()
    }

    /// Makes the configurations, or lets them name another address.
    /// With `Fail`, what the webhook has not judged is not done: the machine may be slow.
    async fn configure(&self, webhook: &RunningWebhook, policy: &str) -> Result<()> {
        let authority = self.pki("ca.crt");
        self.configure_at(webhook.service.address(), Some(&authority), policy)
            .await
    }

    async fn configure_at(
        &self,
        address: &str,
        authority: Option<&str>,
        policy: &str,
    ) -> Result<()> {
        let rest = self.apiserver.rest();
        for (plural, text) in ["mutating", "validating"]
            .into_iter()
            .zip(self.configurations(address, authority)?)
        {
            let path = format!("{CONFIGURATIONS}{plural}webhookconfigurations/podplane-webhook");
            let path = format!("{path}?fieldManager=test&force=true");
            let ignore = "failurePolicy: Ignore";
            ensure!(text.contains(ignore), "{text}");
            let text = text.replace(ignore, &format!("failurePolicy: {policy}"));
            let headers = [("content-type", "application/apply-patch+yaml")];
            let answer = rest.exchange(Method::PATCH, &path, &headers, text).await?;
            ensure!(answer.code < 300, "{answer:?}");
        }
        Ok(())
    }

    fn pods(&self) -> Api<Pod> {
        self.client.namespaced("default")
    }

    async fn create(&self, name: &str) -> Result<Pod> {
        Ok(self.pods().create(&pod(name)).await?)
    }

    /// Creates a pod; returns true if the webhook has changed it.
    async fn is_changed(&self, name: String) -> Result<bool> {
        Ok(limits(&self.create(&name).await?) != Value::Null)
    }

    async fn bind(&self, pod: &Pod, node: &str) -> Result<(), ApiError> {
        let binding = Binding {
            name: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
            resource_version: None,
            node_name: node.to_owned(),
        };
        self.pods().bind(&binding).await
    }

    /// Binds a pod. Returns the refusal of the webhook, if it refuses.
    async fn judged(&self, pod: &Pod, node: &str) -> Result<Option<String>> {
        let bind = || self.bind(pod, node);
        let judged = |result: &Result<(), ApiError>| match result {
            Ok(()) => true,
            Err(error) => error.message.starts_with(DENIED),
        };
        let result = eventually("the webhook decides", bind, judged).await;
        Ok(result.err().map(|error| error.message))
    }

    async fn is_refused(&self, pod: &Pod, node: &str) -> Result<bool> {
        let refusal = self.judged(pod, node).await?;
        let why = "has no address for the pod: 0 of ";
        Ok(refusal.is_some_and(|refusal| refusal.contains(why)))
    }

    /// Binds a pod once the node has an address for it.
    async fn bound(&self, pod: &Pod, node: &str) -> Result<()> {
        let bind = || self.bind(pod, node);
        eventually("an address", bind, Result::is_ok).await?;
        Ok(())
    }

    /// Creates a pod and binds it.
    async fn run(&self, name: &str, node: &str) -> Result<()> {
        let pod = self.create(name).await?;
        self.bound(&pod, node).await
    }

    async fn remove(&self, name: &str) -> Result<()> {
        let at_once = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        self.pods().delete(name, &at_once).await?;
        Ok(())
    }
}

/// A file in base64, as `caBundle` is written.
fn base64(file: &str) -> Result<String> {
    let mut program = std::process::Command::new("base64");
    let text = finish(program.arg("--wrap=0").arg(file)).ok();
    Ok(text.trim().to_owned())
}

/// The limits of the first container.
fn limits(pod: &Pod) -> Value {
    let pod = serde_json::to_value(pod).unwrap_or_default();
    pod["spec"]["containers"][0]["resources"]["limits"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhook_adds_requests_and_keeps_nodes_within_their_addresses() -> Result<()> {
    let cluster = WebhookCluster::start().await?;
    cluster.node("small", 2).await?;
    cluster.node("burst", 3).await?;
    let webhook = cluster.webhook("a", &["--leader-elect=false"]).await?;
    webhook.ready().await;
    cluster.configure(&webhook, "Fail").await?;

    let first = cluster.create("first").await?;
    assert_eq!(limits(&first), json!({POD_IPS: "1"}));
    let mut system = pod("system");
    system.metadata.namespace = Some("kube-system".to_owned());
    let system = cluster.client.all().create(&system).await?;
    assert_eq!(limits(&system), Value::Null);
    let mut host = pod("host");
    host.spec.get_or_insert_default().host_network = Some(true);
    let host = cluster.pods().create(&host).await?;
    assert_eq!(limits(&host), Value::Null);

    cluster.bound(&first, "small").await?;
    cluster.run("second", "small").await?;
    let third = cluster.create("third").await?;
    let refusal = cluster.judged(&third, "small").await?.unwrap_or_default();
    let counts = "0 of 2 IPs free: 2 pods, 0 orphaned (held by default/first, default/second)";
    assert!(refusal.ends_with(counts), "{refusal}");
    // A pod on the node's network needs no address.
    assert_eq!(cluster.judged(&host, "small").await?, None);
    // The address of a pod that is gone is free once the watch has shown it.
    cluster.remove("first").await?;
    cluster.bound(&third, "small").await?;

    let mut burst = Vec::new();
    for n in 0..12 {
        burst.push(cluster.create(&format!("burst-{n}")).await?);
    }
    let refused = burst.iter().map(|pod| cluster.is_refused(pod, "burst"));
    let refused: Vec<_> = join_all(refused).await.into_iter().collect::<Result<_>>()?;
    assert_eq!(refused.iter().filter(|refused| !**refused).count(), 3);

    cluster.configure(&webhook, "Ignore").await?;
    // Nothing stops without it.
    webhook.service.kill()?;
    let pod = cluster.create("unguarded").await?;
    assert_eq!(limits(&pod), Value::Null);
    cluster.bind(&pod, "small").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_and_knows_what_is_bound() -> Result<()> {
    let cluster = WebhookCluster::start().await?;
    cluster.node("small", 2).await?;
    let leader = cluster.webhook("a", &ELECTION).await?;
    leader.ready().await;
    let standby = cluster.webhook("b", &ELECTION).await?;
    cluster.configure(&leader, "Fail").await?;
    for name in ["first", "second"] {
        cluster.run(name, "small").await?;
    }
    let third = cluster.create("third").await?;
    assert!(cluster.is_refused(&third, "small").await?);
    assert!(!standby.is_ready().await, "only the leader is ready");

    leader.service.kill()?;
    standby.ready().await;
    cluster.configure(&standby, "Fail").await?;
    assert!(cluster.is_refused(&third, "small").await?);
    cluster.remove("second").await?;
    cluster.bound(&third, "small").await?;

    // In order: the lead is free at once.
    let next = cluster.webhook("c", &ELECTION).await?;
    standby.service.signal(Signal::TERM)?;
    next.ready().await;
    cluster.configure(&next, "Fail").await?;
    let fourth = cluster.create("fourth").await?;
    assert!(cluster.is_refused(&fourth, "small").await?);
    assert!(standby.service.ended().await);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhook_makes_its_certificate_and_publishes_the_authority() -> Result<()> {
    let cluster = WebhookCluster::start().await?;
    cluster.node("small", 1).await?;
    let files = cluster.dir.path().join("files");
    std::fs::create_dir_all(&files)?;
    let flags = [
        "--certificate-secret=kube-system/webhook",
        "--certificate-hosts=127.0.0.1",
        "--certificate-dir",
        files.to_str().context("a path in UTF-8")?,
        "--leader-elect=false",
    ];
    let webhook = cluster.service("a", &flags).await?;
    cluster
        .configure_at(webhook.address(), None, "Ignore")
        .await?;
    let secrets = cluster.client.namespaced::<Secret>("kube-system");
    let authority = || async {
        let secret = secrets.get("webhook").await.ok()?;
        Some(secret.data?.get("ca.crt")?.0.clone())
    };
    let first = authority().await.context("an authority")?;
    let mut count = 0;
    let mut asked = || {
        count += 1;
        cluster.is_changed(format!("pod-{count}"))
    };
    let is_good = |asked: &Result<bool>| matches!(asked, Ok(true));
    eventually("the authority is trusted", &mut asked, is_good).await?;

    // Lost with its key: all trust a new one soon.
    secrets.delete("webhook", &DeleteParams::default()).await?;
    let is_new = |found: &Option<Vec<u8>>| found.as_ref().is_some_and(|found| *found != first);
    eventually("a new authority", &authority, is_new).await;
    let configurations = cluster.client.all::<ValidatingWebhookConfiguration>();
    let bundle = || async {
        let configuration = configurations.get("podplane-webhook").await.ok()?;
        let webhook = configuration.webhooks?.into_iter().next()?;
        Some(webhook.client_config.ca_bundle?.0)
    };
    eventually("it is published", &bundle, is_new).await;
    eventually("it is served", &mut asked, is_good).await?;
    Ok(())
}
