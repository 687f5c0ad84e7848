//! `podplane ui` for a cluster that may be anywhere: by a kubeconfig, and by an address with a
//! token, with the rights of users who are not administrators.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use podplane_tests::{
    browser::{Screen, Tab},
    listener::PageListener,
    programs::podplane,
};
use serde_json::{Value, json};

use crate::site::{Site, assert_content, ledger};

/// The rights that docs/ui.md names for the page.
fn page_role() -> Value {
    let verbs = json!(["list", "watch"]);
    json!({
        "metadata": {"name": "page"},
        "rules": [
            {"apiGroups": [""], "resources": ["pods", "nodes", "services"], "verbs": verbs},
            {"apiGroups": ["ipam.podplane.io"], "resources": ["blocks"], "verbs": verbs},
        ],
    })
}

/// The path of a file with that content.
fn file(dir: &Path, name: &str, content: &str) -> Result<String> {
    let path = dir.join(name);
    fs::write(&path, content)?;
    Ok(path.display().to_string())
}

impl Site {
    /// A kubeconfig of a user with a token.
    fn kubeconfig(&self, dir: &Path, token: &str) -> Result<String> {
        let own = fs::read_to_string(self.cluster.kubeconfig())?;
        let authority = own.lines().find_map(|line| {
            let line = line.trim();
            line.strip_prefix("certificate-authority-data: ")
        });
        let cluster = json!({
            "server": self.address()?,
            "certificate-authority-data": authority.context("an authority")?,
        });
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "page",
            "clusters": [{"name": "page", "cluster": cluster}],
            "users": [{"name": "page", "user": {"token": token}}],
            "contexts": [{"name": "page", "context": {"cluster": "page", "user": "page"}}],
        });
        file(dir, "kubeconfig", &kubeconfig.to_string())
    }

    /// A tab that has logged in at a listener, at a view.
    async fn at(&self, listener: &PageListener, view: &str) -> Result<Tab> {
        let tab = self.browser.tab().await?;
        tab.open(&listener.login(view)).await?;
        Ok(tab)
    }
}

/// Checks that a long user name does not break the header: its title has what is cut.
async fn has_one_line(tab: &Tab) -> Result<()> {
    let name = "document.querySelector('#user span')";
    for (width, lines) in [(1280, 1), (1200, 1), (360, 4)] {
        let (height, is_dark) = (800, false);
        tab.set_screen(Screen {
            width,
            height,
            is_dark,
        })
        .await?;
        tab.until(&format!(
            "document.querySelector('header').offsetHeight < {} &&
                document.documentElement.scrollWidth <= {width} &&
                {name}.scrollHeight < 30 && {name}.clientWidth > 80 &&
                document.querySelector('#connection').scrollWidth ===
                    document.querySelector('#connection').clientWidth",
            lines * 36 + 12
        ))
        .await;
    }
    tab.until(&format!("{name}.title.includes({name}.innerText)"))
        .await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubeconfig_opens_the_page_with_the_rights_of_its_user() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(1)).await? else {
        return Ok(());
    };
    site.podplane("run web --replicas 1 --wait").await?;
    let dir = tempfile::tempdir()?;
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    site.create(roles, &page_role()).await?;
    let token = site.token("viewer", Some("page")).await?;
    let kubeconfig = site.kubeconfig(dir.path(), &token)?;
    let listener = PageListener::start(podplane(["ui", "--no-open", "--kubeconfig", &kubeconfig]))?;

    let tab = site.at(&listener, "#/nodes").await?;
    tab.until_text("#connection", "live").await;
    tab.until_text("main", "node-0").await;
    tab.until_text("#user", "system:serviceaccount:default:viewer")
        .await;
    has_one_line(&tab).await?;
    // The token is the listener's alone.
    let stored = "document.cookie + JSON.stringify(localStorage) + location.href";
    let stored = tab.evaluate(stored).await?;
    assert!(!stored.to_string().contains(&token), "{stored}");
    // The machine of the nodes is not that of this command, as far as it knows.
    tab.open(&listener.view("#/node/node-0")).await?;
    tab.until_text("main", "10.244.0.").await;
    tab.until_text("main", "on the machine of the node").await;
    assert!(!tab.text("main").await?.contains("Sandboxes"));

    // What the user may not see is named, one part at a time.
    let found = site.cluster.pods().await?;
    let name = found[0].metadata.name.clone().unwrap_or_default();
    tab.open(&listener.view(&format!("#/pod/default/{name}")))
        .await?;
    tab.until_text(".facts", "Running").await;
    for (resource, verb) in [("events", "list"), ("pods/trace", "get")] {
        let refusal = format!("cannot {verb} resource \"{resource}\"");
        tab.until_text("main", &refusal).await;
    }
    let refused = ["/trace", "/events", "/pods/", "/explanation", "/nodes/"];
    assert_content(&tab, &refused)?;
    drop(listener);
    site.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_and_a_token_say_which_right_is_missing() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(1)).await? else {
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    let token = site.token("stranger", None).await?;
    let token = file(dir.path(), "token", &token)?;
    let authority = site.cluster.pki_dir().join("ca.crt").display().to_string();
    let address = site.address()?;
    let mut command = podplane(["ui", "--no-open", "--server", &address]);
    command.args([
        "--token-file",
        &token,
        "--certificate-authority",
        &authority,
    ]);
    let listener = PageListener::start(command)?;
    let tab = site.at(&listener, "#/").await?;
    tab.until_text("#problem", "cannot list resource \"pods\"")
        .await;
    tab.until_text("#connection", "refused").await;
    tab.until_text("#user", "system:serviceaccount:default:stranger")
        .await;

    tab.until_text("#problem", "kubectl create clusterrole page")
        .await;

    // Rights that are given later are used without another login.
    let group = "rbac.authorization.k8s.io";
    let mut half = page_role();
    half["metadata"]["name"] = "half".into();
    half["rules"][0]["resources"] = json!(["pods", "nodes"]);
    site.create(&format!("/apis/{group}/v1/clusterroles"), &half)
        .await?;
    for role in ["half", "cluster-admin"] {
        let subject = json!({"kind": "ServiceAccount", "name": "stranger", "namespace": "default"});
        let binding = json!({
            "metadata": {"name": format!("stranger-{role}")},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        });
        site.create(&format!("/apis/{group}/v1/clusterrolebindings"), &binding)
            .await?;
        tab.evaluate("document.querySelector('#problem button').click()")
            .await?;
        if role == "half" {
            // The map names the Services that have an address.
            tab.until_text("#problem", "cannot list resource \"services\"")
                .await;
        }
    }
    tab.until_text("#connection", "live").await;
    tab.until("document.querySelector('#problem').innerText === ''")
        .await;

    assert_content(&tab, &["/summary/v1alpha1/"])?;
    drop(listener);
    site.finish().await
}
