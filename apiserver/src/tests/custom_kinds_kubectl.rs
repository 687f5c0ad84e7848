//! kubectl with custom kinds: the definitions of network plugins and of the Gateway API, and what
//! users do with their objects.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use super::*;

/// kubectl with a home of its own.
pub(super) struct Kubectl {
    server: String,
    home: tempfile::TempDir,
}

impl Kubectl {
    pub(super) fn of(server: &TestServer) -> Self {
        Self {
            server: format!("http://{}", server.address),
            home: tempfile::tempdir().unwrap(),
        }
    }

    pub(super) fn output(&self, args: &[&str], input: &str) -> Output {
        let mut command = Command::new("kubectl");
        command
            .args(["--server", &self.server])
            .args(args)
            .env("HOME", self.home.path())
            .env_remove("KUBECONFIG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        child.wait_with_output().unwrap()
    }

    /// The output of a command that succeeds.
    pub(super) async fn run(&self, args: &str, input: &str) -> String {
        let words: Vec<_> = args.split_whitespace().collect();
        let output = tokio::task::block_in_place(|| self.output(&words, input));
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "kubectl {args}: {out}{err}");
        out
    }

    /// The error of a command that fails.
    pub(super) async fn fail(&self, args: &str, input: &str) -> String {
        let words: Vec<_> = args.split_whitespace().collect();
        let output = tokio::task::block_in_place(|| self.output(&words, input));
        assert!(!output.status.success(), "kubectl {args}");
        text(&output.stderr)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/crds")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kinds_of_network_plugins_are_installed_and_their_objects_kept() {
    let server = TestServer::start().await;
    let kubectl = Kubectl::of(&server);
    let data = data();
    let data = data.to_str().unwrap();
    for file in ["calico", "cilium", "gateway-api", "multus", "whereabouts"] {
        kubectl
            .run(&format!("apply -f {data}/{file}.yaml"), "")
            .await;
    }
    let established = "wait --for=condition=Established crd --all --timeout=20s";
    kubectl.run(established, "").await;
    let objects = format!("{data}/objects.yaml");
    let applied = kubectl.run(&format!("apply -f {objects}"), "").await;
    assert_eq!(applied.lines().count(), 11, "{applied}");
    let again = kubectl.run(&format!("apply -f {objects}"), "").await;
    assert!(
        again.lines().all(|line| line.ends_with(" unchanged")),
        "{again}"
    );
    let diff = kubectl.run(&format!("diff -f {objects}"), "").await;
    assert_eq!(diff, "");

    let class = kubectl.run("get gc class --no-headers", "").await;
    let words: Vec<_> = class.split_whitespace().collect();
    assert_eq!(
        words[..3],
        ["class", "example.com/controller", "Unknown"],
        "{class}"
    );
    let wide = kubectl.run("get gatewayclasses -o wide", "").await;
    assert!(
        wide.contains("DESCRIPTION") && wide.contains("the only one"),
        "{wide}"
    );
    let identity = kubectl.run("get ciliumid 1234 --no-headers", "").await;
    assert_eq!(
        identity.split_whitespace().nth(1),
        Some("default"),
        "{identity}"
    );
    // Two groups have this plural.
    let pools = kubectl
        .run(
            "get ippools.crd.projectcalico.org pool -o jsonpath={.spec.ipipMode}",
            "",
        )
        .await;
    assert_eq!(pools, "Never");
    let pool = kubectl
        .run("get ippools.whereabouts.cni.cncf.io -A --no-headers", "")
        .await;
    assert!(pool.contains("10.0.0.0-24"), "{pool}");
    let category = kubectl.run("get cilium -o name", "").await;
    assert_eq!(category.lines().count(), 2, "{category}");
    let older = kubectl
        .run(
            "get referencegrants.v1beta1.gateway.networking.k8s.io grant -o jsonpath={.apiVersion}",
            "",
        )
        .await;
    assert_eq!(older, "gateway.networking.k8s.io/v1beta1");

    let immutable = r#"{"spec":{"controllerName":"example.com/other"}}"#;
    let refused = kubectl
        .fail(&format!("patch gc class --type=merge -p {immutable}"), "")
        .await;
    assert!(refused.contains("Value is immutable"), "{refused}");
    let refused = kubectl.fail(
        "apply -f -",
        "apiVersion: cilium.io/v2alpha1\nkind: CiliumPodIPPool\nmetadata: {name: wide}\nspec: {ipv4: {cidrs: [10.0.0.0/8], maskSize: 33}}\n",
    );
    let refused = refused.await;
    assert!(
        refused.contains("spec.ipv4.maskSize in body should be less than or equal to 32"),
        "{refused}"
    );

    let deleted = kubectl
        .run(&format!("delete -f {data}/whereabouts.yaml"), "")
        .await;
    assert_eq!(deleted.lines().count(), 3, "{deleted}");
    let gone = kubectl
        .fail("get ippools.whereabouts.cni.cncf.io", "")
        .await;
    assert!(
        gone.contains("the server doesn't have a resource type"),
        "{gone}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_explained_described_patched_and_scaled() {
    let server = TestServer::start().await;
    let kubectl = Kubectl::of(&server);
    kubectl
        .run("apply -f -", &custom_kinds::widgets().to_string())
        .await;
    kubectl
        .run(
            "wait --for=condition=Established crd/widgets.example.com --timeout=20s",
            "",
        )
        .await;
    let explained = kubectl.run("explain widgets.spec", "").await;
    assert!(explained.contains("KIND:       Widget"), "{explained}");
    assert!(
        explained.contains("size\t<integer> -required-"),
        "{explained}"
    );
    let older = kubectl.run("explain widgets.spec --output plaintext-openapiv2", "");
    let older = older.await;
    assert!(older.contains("KIND:     Widget"), "{older}");
    assert!(older.contains("size\t<integer> -required-"), "{older}");
    let mut widget = custom_kinds::widget("a");
    widget["spec"]["replicas"] = 1.into();
    let created = kubectl
        .run("create -f - --save-config", &widget.to_string())
        .await;
    assert_eq!(created, "widget.example.com/a created\n");
    let patch = r#"{"status":{"ready":false}}"#;
    kubectl
        .run(
            &format!("patch wd a --subresource=status --type=merge -p {patch}"),
            "",
        )
        .await;
    let patch = r#"{"status":{"ready":true}}"#;
    kubectl
        .run(
            &format!("patch wd a --subresource=status --type=merge -p {patch}"),
            "",
        )
        .await;
    let ready = kubectl
        .run("get widget a -o jsonpath={.status.ready}", "")
        .await;
    assert_eq!(ready, "true");
    let described = kubectl.run("describe widget a", "").await;
    assert!(described.contains("Ready:  true"), "{described}");
    kubectl.run("scale widget/a --replicas=3", "").await;
    let replicas = kubectl
        .run("get widget a -o jsonpath={.spec.replicas}", "")
        .await;
    assert_eq!(replicas, "3");
    kubectl.run("label widget a tier=one", "").await;
    kubectl.run("annotate widget a note=one", "").await;
    let selected = kubectl.run("get all -l tier=one -o name", "").await;
    assert_eq!(selected, "widget.example.com/a\n");
    let fields = kubectl
        .run("get wd --field-selector=spec.color=red -o name", "")
        .await;
    assert_eq!(fields, "widget.example.com/a\n");
    let mut changed = widget.clone();
    changed["spec"]["size"] = 7.into();
    let changed = changed.to_string();
    let applied = kubectl.run("apply -f -", &changed).await;
    assert_eq!(applied, "widget.example.com/a configured\n");
    let diff = kubectl.run("diff -f -", &changed).await;
    assert_eq!(diff, "");
    let applied = kubectl
        .run(
            "apply --server-side --force-conflicts -f -",
            &widget.to_string(),
        )
        .await;
    assert!(applied.contains("serverside-applied"), "{applied}");
    let strategic = kubectl
        .fail("patch widget a --type=strategic -p {}", "")
        .await;
    assert!(
        strategic.contains("strategic merge patch is not supported")
            || strategic.contains("unknown format")
            || strategic.contains("415"),
        "{strategic}"
    );
    let gone = kubectl.run("delete widgets --all", "").await;
    assert!(gone.contains("\"a\" deleted"), "{gone}");
    kubectl.run("delete crd widgets.example.com", "").await;
    server.stop().await;
}
