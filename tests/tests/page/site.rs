//! A cluster with its page in a browser.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use podplane_http_client::HttpClient;
use podplane_test_cluster::{Cluster, ClusterBuilder};
use podplane_tests::{
    Network,
    browser::{Browser, Tab},
    builder, peers,
};
use serde_json::{Value, json};

/// The namespace of the users.
const NAMESPACE: &str = "default";

/// A cluster in ledger mode, and a browser.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) browser: Browser,
}

/// A builder of a cluster whose pods have no devices.
pub(crate) fn ledger() -> ClusterBuilder {
    builder(Network::Ledger)
}

impl Site {
    /// Starts both; `None` if `PODPLANE_SKIP` names the browser.
    pub(crate) async fn start(builder: ClusterBuilder) -> Result<Option<Self>> {
        let Some(chromium) = peers::chromium() else {
            return Ok(None);
        };
        let (cluster, browser) = tokio::join!(builder.start(), Browser::start(&chromium));
        let (cluster, browser) = (cluster?, browser?);
        Ok(Some(Self { cluster, browser }))
    }

    /// Ends both, and checks the invariants.
    pub(crate) async fn finish(self) -> Result<()> {
        self.browser.close().await?;
        Ok(self.cluster.finish().await?)
    }

    /// The API server for users with credentials: `https://HOST:PORT`.
    pub(crate) fn address(&self) -> Result<String> {
        let kubeconfig = fs::read_to_string(self.cluster.kubeconfig())?;
        let mut lines = kubeconfig.lines();
        let server = lines.find_map(|line| line.trim().strip_prefix("server: "));
        Ok(server.context("no server in the kubeconfig")?.to_owned())
    }

    /// The address of a view, such as `#/nodes`.
    pub(crate) fn view(&self, fragment: &str) -> Result<String> {
        Ok(format!("{}/ui/{fragment}", self.address()?))
    }

    /// The API server for this process, which may do everything.
    pub(crate) fn admin(&self) -> HttpClient {
        HttpClient::new(self.cluster.server())
    }

    /// Creates an object.
    pub(crate) async fn create(&self, path: &str, object: &Value) -> Result<Value> {
        let answer = self.admin().send_json(Method::POST, path, object).await?;
        answer.document()
    }

    /// A token of a ServiceAccount of that name, which is created with the rights of a ClusterRole,
    /// or with none.
    pub(crate) async fn token(&self, name: &str, role: Option<&str>) -> Result<String> {
        let accounts = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
        self.create(&accounts, &json!({"metadata": {"name": name}}))
            .await?;
        if let Some(role) = role {
            let group = "rbac.authorization.k8s.io";
            let subject = json!({"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE});
            let binding = json!({
                "metadata": {"name": name},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
                "subjects": [subject],
            });
            let bindings = format!("/apis/{group}/v1/clusterrolebindings");
            self.create(&bindings, &binding).await?;
        }
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"});
        let path = format!("{accounts}/{name}/token");
        let answer = self.create(&path, &request).await?;
        let token = answer["status"]["token"].as_str();
        Ok(token
            .with_context(|| format!("no token in {answer}"))?
            .to_owned())
    }

    /// A tab in which an administrator has logged in, at a view.
    pub(crate) async fn logged_in(&self, fragment: &str) -> Result<Tab> {
        let token = self.token("page", Some("cluster-admin")).await?;
        let tab = self.browser.tab().await?;
        tab.open(&self.view(fragment)?).await?;
        log_in(&tab, &token).await?;
        tab.until_text("#connection", "live").await;
        Ok(tab)
    }

    /// Runs `podplane` on the cluster.
    pub(crate) async fn podplane(&self, args: &str) -> Result<()> {
        let output = self.cluster.podplane(args.split_whitespace()).await?;
        drop(output);
        Ok(())
    }
}

/// Types a token into the form, and sends it by the keyboard.
pub(crate) async fn log_in(tab: &Tab, token: &str) -> Result<()> {
    tab.until("document.activeElement?.id === 'token'").await;
    tab.type_text(token).await?;
    tab.press("Enter").await
}

/// Fails if the page has complained. Chromium itself writes a line for each refused request, such
/// as for what a link names and the server does not have, which the page shows.
pub(crate) fn assert_content(tab: &Tab, expected: &[&str]) -> Result<()> {
    let is_expected = |line: &String| expected.iter().any(|part| line.contains(part));
    let complaints = tab.complaints();
    let others: Vec<&String> = complaints
        .iter()
        .filter(|line| !is_expected(line))
        .collect();
    ensure!(others.is_empty(), "the page has complained: {others:#?}");
    Ok(())
}
