//! A cluster writes the values of Secrets into its store and nowhere else. For the audit log, whose
//! policy may want all bodies, the tests of the API server show it.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use podplane_api::{ByteString, core::Secret};
use podplane_tests::{
    Cluster, Network, builder, eventually, peers,
    programs::{ProgramOutput, finish},
};
use serde_json::json;

/// The value of all Secrets.
const MARKER: &str = "hu5h-hu5h-marker";

const SECRET: &str = "
apiVersion: v1
kind: Secret
metadata: {name: applied}
stringData: {key: hu5h-hu5h-marker}
";

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: reads}
spec:
  containers:
  - name: c
    image: registry.k8s.io/pause
    env: [{name: KEY, valueFrom: {secretKeyRef: {name: applied, key: key}}}]
  volumes: [{name: v, secret: {secretName: applied}}]
";

/// The marker as text and in base64, wherever it begins in a longer text: of each encoding the
/// letters that depend on nothing else.
fn forms() -> Vec<String> {
    let mut forms = vec![MARKER.to_owned()];
    for before in 0..3 {
        let bytes = [&vec![b'x'; before][..], MARKER.as_bytes()].concat();
        let encoded = json!(ByteString(bytes));
        let first = (before * 8).div_ceil(6);
        let last = (before + MARKER.len()) * 8 / 6;
        forms.push(encoded.as_str().unwrap()[first..last].to_owned());
    }
    forms
}

fn finds(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

/// All regular files of a directory but those of the store.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && entry.file_name() != "store" {
            files(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_secrets_are_in_the_store_alone() -> Result<()> {
    if !peers::program("kubectl") {
        return Ok(());
    }
    let other = tempfile::tempdir()?;
    let path = |name: &str| other.path().join(name).display().to_string();
    let recording = PathBuf::from(path("recording"));
    fs::create_dir(&recording)?;
    let cluster = builder(Network::Ledger)
        .nodes(1)
        .env("PODPLANE_LOG", "trace")
        .record(&recording);
    let Some(cluster) = Cluster::up(cluster).await? else {
        return Ok(());
    };
    let kubectl = |args: &str| -> ProgramOutput {
        let mut kubectl = Command::new("kubectl");
        kubectl
            .args(args.split_whitespace())
            .env("KUBECONFIG", cluster.kubeconfig())
            .env("HOME", other.path());
        finish(&mut kubectl)
    };
    let (secret, pod, raw) = (path("secret.yaml"), path("pod.yaml"), path("raw.json"));
    fs::write(&secret, SECRET)?;
    fs::write(&pod, POD)?;
    let api = "/api/v1/namespaces/default/secrets";

    // What works.
    kubectl(&format!(
        "create secret generic made --from-literal=key={MARKER}"
    ))
    .ok();
    kubectl(&format!(
        "create configmap made --from-literal=key={MARKER}"
    ))
    .ok();
    kubectl(&format!("apply -f {secret}")).ok();
    kubectl(&format!(
        "apply --server-side --force-conflicts -f {secret}"
    ))
    .ok();
    kubectl(&format!("apply -f {pod}")).ok();
    let patch = format!(r#"{{"stringData":{{"more":"{MARKER}"}}}}"#);
    for form in ["merge", "strategic"] {
        kubectl(&format!("patch secret made --type={form} -p {patch}")).ok();
    }
    let operations = format!(r#"[{{"op":"add","path":"/stringData","value":{{"a":"{MARKER}"}}}}]"#);
    kubectl(&format!("patch secret made --type=json -p {operations}")).ok();
    for args in [
        "get secrets",
        "describe secret made",
        "get secret made -o yaml",
    ] {
        kubectl(args).ok();
    }
    let shown = kubectl("get secret made -o yaml").ok();
    let is_shown = forms()[1..].iter().any(|form| shown.contains(form));
    assert!(is_shown, "the base64 forms are those of values: {shown}");
    kubectl("get secrets -o yaml --watch --request-timeout=1s");
    kubectl("wait --for=condition=Ready pod/reads").ok();
    // What is refused.
    for fields in [
        json!({"data": {"a": MARKER}}),
        json!({"data": MARKER}),
        json!({"type": "kubernetes.io/dockercfg", "stringData": {".dockercfg": MARKER}}),
    ] {
        let mut body = fields;
        body["metadata"]["name"] = "bad".into();
        fs::write(&raw, body.to_string())?;
        let refused = kubectl(&format!("create --raw {api} -f {raw}"));
        assert_ne!(refused.code, Some(0), "{refused:?}");
    }
    let refused = kubectl(&format!(r#"patch secret made -p {{"data":"{MARKER}"}}"#));
    assert_ne!(refused.code, Some(0), "{refused:?}");
    // Over gRPC, which is recorded.
    let secrets = cluster.client().namespaced::<Secret>("default");
    let document = json!({"metadata": {"name": "typed", "namespace": "default"}, "stringData": {"key": MARKER}});
    secrets.create(&serde_json::from_value(document)?).await?;
    let token = kubectl("create token default").ok();
    let owner = json!([{"apiVersion": "v1", "kind": "Secret", "name": "gone", "uid": "gone"}]);
    let owned = json!({"metadata": {"name": "owned", "namespace": "default", "ownerReferences": owner}, "stringData": {"key": MARKER}});
    secrets.create(&serde_json::from_value(owned)?).await?;
    let collected = || async { secrets.get("owned").await.is_err() };
    eventually("the collector deletes", collected, |gone| *gone).await;

    let mut said = vec![
        ("trace".to_owned(), cluster.podplane("trace pod reads").ok()),
        ("metrics".to_owned(), kubectl("get --raw /metrics").ok()),
        ("events".to_owned(), kubectl("get events -o yaml").ok()),
    ];
    said.push(("logs".to_owned(), kubectl("logs reads").ok()));
    kubectl("delete pod reads").ok();
    kubectl("delete secret made applied typed").ok();
    let mut written = Vec::new();
    files(cluster.data_dir(), &mut written);
    files(other.path(), &mut written);
    // These this test itself wrote.
    let own = [&secret, &raw].map(PathBuf::from);
    written.retain(|file| !own.contains(file));
    for name in ["apiserver.log", "recording.jsonl"] {
        assert!(
            written.iter().any(|file| file.ends_with(name)),
            "{written:?}"
        );
    }
    let tokens: Vec<_> = token.trim().split('.').skip(1).collect();
    let forms = [&forms()[..], &[tokens[0].to_owned(), tokens[1].to_owned()]].concat();
    for file in written {
        let bytes = match fs::read(&file) {
            // The cluster goes on: a file may be gone by now.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            bytes => bytes?,
        };
        for form in &forms {
            assert!(!finds(&bytes, form), "{} has {form}", file.display());
        }
    }
    for (what, text) in said {
        for form in &forms {
            assert!(!text.contains(form), "{what} has {form}");
        }
    }
    cluster.finish().await
}
