//! A whole cluster of single processes, each with a certificate and the rights of its own.

use std::fs;

use anyhow::{Context as _, Result};
use podplane_tests::{
    cri::Cri, eventually, peers, programs::ProgramOutput, secure::SecureApiserver,
    signing::signing_request,
};
use serde_json::{Value, json};

const ALLOCATE: [&str; 2] = ["--allocate-node-cidrs=true", "--cluster-cidr=10.244.0.0/16"];
const NODES: [&str; 2] = ["n1", "n2"];

/// Requests the certificate of a node, and waits for it.
async fn join(secure: &SecureApiserver, admin: &impl Fn(&str) -> ProgramOutput) -> Result<()> {
    let (signer, subject) = (
        "kubernetes.io/kube-apiserver-client-kubelet",
        "/O=system:nodes/CN=system:node:n3",
    );
    let request = signing_request(&secure.path(""), "n3", signer, subject);
    let file = secure.path("n3.json");
    fs::write(&file, request.to_string())?;
    let bootstrap = "--as=system:bootstrap:a --as-group=system:bootstrappers";
    admin(&format!("create {bootstrap} -f {}", file.display())).ok();
    let shown = || async { admin("get csr n3 --no-headers").stdout };
    eventually("the request is answered", shown, |row| {
        row.trim_end().ends_with("Approved,Issued")
    })
    .await;
    Ok(())
}

/// Each namespace has the authority's certificate, however people treat it.
async fn root_certificates(
    secure: &SecureApiserver,
    admin: &impl Fn(&str) -> ProgramOutput,
) -> Result<()> {
    let authority = fs::read_to_string(secure.path("pki/ca.crt"))?;
    let authority = authority.trim();
    let read = "get cm kube-root-ca.crt -n other -o jsonpath={.data.ca\\.crt}";
    let shown = || async { admin(read).stdout };
    let is_right = |text: &String| text.trim() == authority;
    eventually("there are certificates", shown, is_right).await;
    admin(r#"patch cm kube-root-ca.crt -n other --type=merge -p {"data":{"ca.crt":"no"}}"#).ok();
    eventually("the certificates are repaired", shown, is_right).await;
    admin("delete cm kube-root-ca.crt -n other").ok();
    eventually("the certificates are back", shown, is_right).await;
    Ok(())
}

/// A pod has a token as a volume, and its node, as a kubelet does, requests it and reads what the
/// volume is made of.
fn tokens_of_pods(secure: &SecureApiserver, admin: &impl Fn(&str) -> ProgramOutput) -> Result<()> {
    let pods: Value = serde_json::from_str(&admin("get pods -l app=web -o json").ok())?;
    let pods = pods["items"].as_array().context("pods")?;
    let mut on_these_nodes = 0;
    for pod in pods {
        let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or("");
        let volume = text("/spec/volumes/0/name");
        assert!(volume.starts_with("kube-api-access-"), "{pod}");
        let mount = text("/spec/containers/0/volumeMounts/0/mountPath");
        assert_eq!(mount, "/var/run/secrets/kubernetes.io/serviceaccount");
        let request = format!(
            "create token default --bound-object-kind=Pod --bound-object-name={} --bound-object-uid={}",
            text("/metadata/name"),
            text("/metadata/uid")
        );
        for node in NODES {
            let kubelet = secure.kubectl(&format!("node-{node}"))?;
            let is_own = text("/spec/nodeName") == node;
            on_these_nodes += usize::from(is_own);
            let answer = kubelet(&request);
            assert_eq!(answer.code == Some(0), is_own, "{node}: {answer:?}");
        }
    }
    assert!(!pods.is_empty() && on_these_nodes == pods.len(), "{pods:?}");
    let kubelet = secure.kubectl("node-n1")?;
    kubelet("get cm kube-root-ca.crt").ok();
    for args in [
        "get cm other",
        "get cm",
        "get secret a",
        "get cm kube-root-ca.crt -n other",
    ] {
        assert!(kubelet(args).failed(1).contains("forbidden"), "{args}");
    }
    Ok(())
}

/// A workload of each other kind, with what its controller writes besides pods.
async fn use_other_workloads(
    secure: &SecureApiserver,
    admin: &impl Fn(&str) -> ProgramOutput,
) -> Result<()> {
    let template = |app: &str| json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "c", "image": "pause"}]}});
    let selector = |app: &str| json!({"matchLabels": {"app": app}});
    let mut ends = template("job");
    ends["metadata"]["annotations"] = json!({"podplane.io/exit-after": "100ms"});
    ends["spec"]["restartPolicy"] = "Never".into();
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let items = json!([
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "ds"},
         "spec": {"selector": selector("ds"), "template": template("ds")}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "sts"},
         "spec": {"serviceName": "sts", "replicas": 2, "selector": selector("sts"), "template": template("sts")}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "kept"},
         "spec": {"serviceName": "kept", "selector": selector("kept"), "template": template("kept"), "volumeClaimTemplates": [claim],
                  "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"}}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"},
         "spec": {"ttlSecondsAfterFinished": 1, "template": ends}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "sts"},
         "spec": {"selector": {"app": "sts"}, "ports": [{"port": 80}]}},
    ]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let file = secure.path("workloads.json");
    fs::write(&file, list.to_string())?;
    admin(&format!("create -f {}", file.display())).ok();
    admin("rollout status ds/ds --timeout=60s").ok();
    admin("rollout status sts/sts --timeout=60s").ok();
    let has = |what: &'static str, args: &'static str, want: &'static str| async move {
        let shown = || async { admin(args).stdout };
        eventually(what, shown, |shown| shown.trim() == want).await;
    };
    has(
        "there is a claim",
        "get pvc -o name",
        "persistentvolumeclaim/data-kept-0",
    )
    .await;
    has(
        "the finished job is gone",
        "get jobs,pods -l app=job -o name",
        "",
    )
    .await;
    let endpoints = "get endpoints sts -o jsonpath={.subsets[*].addresses[*].targetRef.kind}";
    has("there are endpoints", endpoints, "Pod Pod").await;
    let slices = "get endpointslices -l kubernetes.io/service-name=sts -o jsonpath={.items[*].endpoints[*].targetRef.kind}";
    has("there is a slice", slices, "Pod Pod").await;
    admin("scale sts kept --replicas=0").ok();
    has("the claim went with its pod", "get pvc -o name", "").await;
    for workload in ["ds/ds", "sts/sts"] {
        admin(&format!("set image {workload} c=pause:2")).ok();
        admin(&format!("rollout status {workload} --timeout=60s")).ok();
    }
    admin("delete ds/ds sts/sts sts/kept svc/sts --cascade=foreground").ok();
    has(
        "nothing is left",
        "get ds,sts,pvc,controllerrevisions,endpoints,endpointslices -o name",
        "",
    )
    .await;
    Ok(())
}

/// Objects of a custom kind that own each other, while their kind is served and no longer.
async fn collect_custom_objects(
    secure: &SecureApiserver,
    admin: &impl Fn(&str) -> ProgramOutput,
) -> Result<()> {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster",
            "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    let file = secure.path("gadgets.json");
    fs::write(&file, definition.to_string())?;
    admin(&format!("create -f {}", file.display())).ok();
    let granted = "get clusterrole system:podplane:custom-object-collector -o jsonpath={.rules}";
    let granted = || async { admin(granted).stdout };
    let want = r#"[{"apiGroups":["example.com"],"resources":["gadgets"],"verbs":["delete","get","patch"]}]"#;
    eventually("the collector may", granted, |rules| rules == want).await;
    let create = |name: &str, owner: Option<Value>| -> Result<Value> {
        let owners: Vec<_> = owner.into_iter().collect();
        let gadget = json!({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": name, "ownerReferences": owners}});
        fs::write(&file, gadget.to_string())?;
        let made = admin(&format!("create -f {} -o json", file.display())).ok();
        let made: Value = serde_json::from_str(&made)?;
        let uid = &made["metadata"]["uid"];
        Ok(
            json!({"apiVersion": "example.com/v1", "kind": "Gadget", "name": name, "uid": uid, "blockOwnerDeletion": true}),
        )
    };
    let parent = create("parent", None)?;
    let child = create("child", Some(parent))?;
    create("grandchild", Some(child))?;
    admin("delete gadget child --cascade=orphan --timeout=60s").ok();
    assert_eq!(admin("get gadgets -o name").ok().lines().count(), 2);
    let owners = "get gadget grandchild -o jsonpath={.metadata.ownerReferences}";
    assert_eq!(admin(owners).ok(), "");
    admin("delete gadgets --all --cascade=foreground --timeout=60s").ok();
    admin("delete crd gadgets.example.com").ok();
    let granted = || async {
        admin("get clusterrole system:podplane:custom-object-collector -o jsonpath={.rules}")
    };
    eventually("the collector may no more", granted, |shown| {
        shown.code == Some(0) && !shown.stdout.contains("gadgets")
    })
    .await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_process_works_with_the_rights_of_its_own_certificate() -> Result<()> {
    if !peers::program("kubectl") {
        return Ok(());
    }
    let secure = SecureApiserver::start(&["--authorization-mode=Node,RBAC"]).await?;
    let dir = secure.path("");
    let _ipam = secure
        .service("ipam-controller", "ipam-controller", &ALLOCATE)
        .await?;
    let (ca, key) = (secure.text("pki/ca.crt"), secure.text("pki/ca.key"));
    let signing = ["--cluster-signing-cert-file", &ca];
    let signing = [signing, ["--cluster-signing-key-file", &key]].concat();
    let signing = [&signing[..], &["--root-ca-file", &ca]].concat();
    let _controllers = secure
        .service("controller-manager", "controller-manager", &signing)
        .await?;
    let _scheduler = secure.service("scheduler", "scheduler", &[]).await?;
    let nodes_dir = secure.text("nodes");
    let mut running = Vec::new();
    for node in NODES {
        secure.issue(&format!("node/{node}"));
        let cri = Cri::start(node, &dir, &[])?;
        let flags = ["--node", node, "--nodes-dir", &nodes_dir];
        let name = format!("node-{node}");
        running.push((cri, secure.service("kubelet", &name, &flags).await?));
    }

    let admin = secure.kubectl("admin")?;
    admin("create deployment web --image=registry.k8s.io/pause --replicas=4").ok();
    let ready = || async {
        let shown = admin("get deployment web -o jsonpath={.status.readyReplicas}");
        shown.stdout
    };
    eventually("four pods are ready", ready, |ready| ready == "4").await;
    let nodes: Value = serde_json::from_str(&admin("get nodes -o json").ok())?;
    for node in nodes["items"].as_array().into_iter().flatten() {
        assert!(node["spec"]["podCIDR"].is_string(), "{node}");
        // The CRI servers refuse containers, and the nodes say so.
        let conditions = node["status"]["conditions"].to_string();
        assert!(conditions.contains("no container runs"), "{node}");
    }
    // The controllers write whatever they may have to.
    admin("create pdb web --selector=app=web --min-available=1").ok();
    let budget = "get pdb web -o jsonpath={.status.currentHealthy}";
    let healthy = || async { admin(budget).stdout };
    eventually("the budget counts", healthy, |healthy| healthy == "4").await;
    admin("set image deployment web pause=registry.k8s.io/pause:3.10").ok();
    admin("rollout status deployment web").ok();
    use_other_workloads(&secure, &admin).await?;
    collect_custom_objects(&secure, &admin).await?;
    admin("create namespace other").ok();
    let account = || async { admin("get sa default -n other -o name").stdout };
    eventually("there is an account", account, |found| !found.is_empty()).await;
    root_certificates(&secure, &admin).await?;
    tokens_of_pods(&secure, &admin)?;
    join(&secure, &admin).await?;
    admin("delete deployment web --cascade=orphan").ok();
    let owned = "get rs -o jsonpath={.items[*].metadata.ownerReferences}";
    let owned = || async { admin(owned).stdout };
    eventually("no set has an owner", owned, String::is_empty).await;
    admin("delete rs -l app=web --cascade=foreground").ok();
    let left = || async { admin("get pods -o name").stdout };
    eventually("no pod is left", left, String::is_empty).await;

    // Nobody was refused anything on the way.
    for file in fs::read_dir(&dir)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            let log = fs::read_to_string(&path)?;
            let refused = log.lines().find(|line| line.contains("is forbidden"));
            assert_eq!(refused, None, "{}", path.display());
        }
    }
    // And each is refused what is not its own.
    for (name, args, may) in [
        ("node-n1", "get node n1", true),
        ("node-n1", "get node n2", false),
        ("node-n1", "get nodes", false),
        ("node-n1", "delete node n1", false),
        ("node-n1", "get pods -A", false),
        (
            "node-n1",
            "label node n1 node-restriction.kubernetes.io/pool=a",
            false,
        ),
        ("node-n1", "label node n2 a=b", false),
        ("scheduler", "get nodes", true),
        ("scheduler", "label node n1 a=b", false),
        ("ipam-controller", "get deployments", false),
        (
            "ipam-controller",
            "create clusterrolebinding a --clusterrole=cluster-admin --user=a",
            false,
        ),
        (
            "controller-manager",
            "create clusterrolebinding a --clusterrole=cluster-admin --user=a",
            false,
        ),
        ("route-agent", "get nodes", true),
        ("route-agent", "get pods", false),
    ] {
        let said = secure.kubectl(name)?(args);
        let refused = said.code != Some(0) && said.stderr.contains("forbidden");
        assert_eq!(!refused, may, "{name}: {args}: {said:?}");
    }
    Ok(())
}
