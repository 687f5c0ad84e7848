//! Stock kubectl, with a webhook in Python that shares no code with the server.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use podplane_pki::{Authority, CertificateTerms, Subject, Usage};

use super::{super::custom_kinds_kubectl::Kubectl, *};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/webhooks/hook.py");

/// The webhook, which ends with this value.
struct PythonHook {
    process: Child,
    port: String,
    authority: String,
    _dir: tempfile::TempDir,
}

impl PythonHook {
    fn start() -> Self {
        let now = podplane_host::clock::timestamp();
        let authority = Authority::create("webhooks", now).unwrap();
        let terms = CertificateTerms {
            subject: Subject::new("hook", "dev"),
            usage: Usage::Server,
            names: vec!["127.0.0.1".parse().unwrap()],
            lifetime: 60 * DEADLINE,
        };
        let credentials = authority.issue(&terms, now).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hook.pem");
        std::fs::write(&file, credentials.key + &credentials.certificate).unwrap();
        let mut process = Command::new("python3")
            .arg(SCRIPT)
            .arg(&file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        let mut lines = BufReader::new(process.stdout.take().unwrap());
        lines.read_line(&mut port).unwrap();
        Self {
            process,
            port: port.trim().to_owned(),
            authority: BASE64.encode(authority.certificate()),
            _dir: dir,
        }
    }

    /// The manifest of a configuration with this one webhook.
    fn manifest(&self, kind: &str, path: &str, resource: &str) -> String {
        let url = format!("https://127.0.0.1:{}{path}", self.port);
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "python"},
            "webhooks": [{
                "name": "python.example.com",
                "clientConfig": {"url": url, "caBundle": self.authority},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}],
            }],
        })
        .to_string()
    }
}

impl Drop for PythonHook {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_what_webhooks_and_policies_say() {
    let server = TestServer::start().await;
    let hook = PythonHook::start();
    let kubectl = Kubectl::of(&server);
    let mutating = hook.manifest("MutatingWebhookConfiguration", "/label", "pods");
    kubectl.run("apply -f -", &mutating).await;
    let validating = hook.manifest("ValidatingWebhookConfiguration", "/check", "configmaps");
    kubectl.run("apply -f -", &validating).await;
    let run = "run a --image=i --restart=Never";
    let output = kubectl.output(&run.split(' ').collect::<Vec<_>>(), "");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{error}");
    assert_eq!(error, "Warning: labelled by system:anonymous\n");
    let labels = kubectl
        .run("get pod a -o jsonpath={.metadata.labels}", "")
        .await;
    assert_eq!(labels, r#"{"run":"a","seen-by":"python"}"#);
    let refused = kubectl
        .fail("create configmap m --from-literal=forbidden=1", "")
        .await;
    assert_eq!(
        refused.trim(),
        "error: failed to create configmap: admission webhook \"python.example.com\" denied the request: no forbidden keys"
    );
    kubectl
        .run("create configmap m --from-literal=a=1", "")
        .await;
    let policy = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: few-keys}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [''], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}
  validations:
  - {expression: '!has(object.data) || size(object.data) < 3', message: at most two keys}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: few-keys}
spec: {policyName: few-keys, validationActions: [Deny]}
";
    kubectl.run("apply -f -", policy).await;
    let patch = r#"patch configmap m --type=merge -p {"data":{"b":"1","c":"2"}}"#;
    let refused = kubectl.fail(patch, "").await;
    assert_eq!(
        refused.trim(),
        "The configmaps \"m\" is invalid: : ValidatingAdmissionPolicy 'few-keys' with binding 'few-keys' denied request: at most two keys"
    );
    let wrong = policy.replace("size(object.data)", "size(object.data");
    let refused = kubectl.fail("apply -f -", &wrong).await;
    assert!(
        refused.contains("spec.validations[0].expression: Invalid value"),
        "{refused}"
    );
    assert!(
        refused.contains("compilation failed: ERROR: <input>:1:"),
        "{refused}"
    );
    server.stop().await;
}
