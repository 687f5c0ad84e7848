//! The kubelet with a runtime that we did not write: Debian's containerd with runc and Debian's CNI
//! plugins. Everything else is podplane's, with TLS and the rights of its own certificates.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use podplane_tests::{
    containerd::{Containerd, IMAGE},
    eventually, peers,
    programs::ProgramOutput,
    secure::SecureApiserver,
    service::Service,
};
use serde_json::{Value, json};

const NODE: &str = "n1";
const ALLOCATE: [&str; 2] = ["--allocate-node-cidrs=true", "--cluster-cidr=10.244.0.0/16"];
const TOKEN_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A cluster of one node whose runtime is containerd.
struct ContainerdCluster {
    secure: SecureApiserver,
    containerd: Containerd,
    _services: Vec<Service>,
}

impl ContainerdCluster {
    async fn start() -> Result<Option<Self>> {
        if !peers::program("kubectl") {
            return Ok(None);
        }
        let secure = SecureApiserver::start(&["--authorization-mode=Node,RBAC"]).await?;
        let Some(containerd) = Containerd::start(&secure.path("nodes").join(NODE)).await? else {
            return Ok(None);
        };
        let (ca, key) = (secure.text("pki/ca.crt"), secure.text("pki/ca.key"));
        let signing = [
            "--cluster-signing-cert-file",
            &ca,
            "--cluster-signing-key-file",
            &key,
        ];
        let signing = [&signing[..], &["--root-ca-file", &ca]].concat();
        let mut services = Vec::new();
        for (name, flags) in [
            ("ipam-controller", &ALLOCATE[..]),
            ("controller-manager", &signing),
            ("scheduler", &[]),
        ] {
            services.push(secure.service(name, name, flags).await?);
        }
        secure.issue(&format!("node/{NODE}"));
        Ok(Some(Self {
            secure,
            containerd,
            _services: services,
        }))
    }

    async fn kubelet(&self) -> Result<Service> {
        let nodes_dir = self.secure.text("nodes");
        let endpoint = self.containerd.endpoint();
        let flags = ["--node", NODE, "--nodes-dir", &nodes_dir, &endpoint];
        self.secure.service("kubelet", "node-n1", &flags).await
    }

    /// The file by which host-local has given the address.
    fn lease(&self, address: &str) -> PathBuf {
        let networks = self.secure.path("nodes").join(NODE).join("networks");
        networks.join("containerd-net").join(address)
    }

    fn apply(&self, admin: &impl Fn(&str) -> ProgramOutput, objects: &Value) -> Result<()> {
        let file = self.secure.path("objects.json");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        fs::write(&file, list.to_string())?;
        admin(&format!("apply -f {}", file.display())).ok();
        Ok(())
    }
}

/// A pod that runs a script with busybox's shell.
fn pod(name: &str, policy: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": policy,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", script],
                "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            }],
        },
    })
}

fn read(admin: &impl Fn(&str) -> ProgramOutput, name: &str) -> Value {
    let shown = admin(&format!("get pod {name} -o json"));
    serde_json::from_str(&shown.stdout).unwrap_or_default()
}

async fn wait(
    admin: &impl Fn(&str) -> ProgramOutput,
    name: &str,
    path: &str,
    want: impl Into<Value>,
) -> Value {
    let want = want.into();
    let look = || async { read(admin, name) };
    let what = format!("{name}: {path} is {want}");
    eventually(&what, look, |pod| pod.pointer(path) == Some(&want)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_run_in_containerd() -> Result<()> {
    let Some(cluster) = ContainerdCluster::start().await? else {
        return Ok(());
    };
    let admin = cluster.secure.kubectl("admin")?;
    let kubelet = cluster.kubelet().await?;
    let account = || async { admin("get configmap kube-root-ca.crt -o name").stdout };
    eventually("pods can have tokens", account, |found| !found.is_empty()).await;

    // A container serves its own address, which it knows by its environment.
    let serve = "echo $POD_IP > /tmp/index.html; exec httpd -f -p 8080 -h /tmp";
    cluster.apply(&admin, &json!([pod("web", "Always", serve)]))?;
    let web = wait(&admin, "web", "/status/containerStatuses/0/ready", true).await;
    assert_eq!(web["status"]["phase"], "Running", "{web}");
    let id = web["status"]["containerStatuses"][0]["containerID"].clone();
    assert!(
        id.as_str()
            .is_some_and(|id| id.starts_with("containerd://")),
        "{web}"
    );
    let address = web["status"]["podIP"]
        .as_str()
        .context("an address")?
        .to_owned();
    let block = admin("get node n1 -o jsonpath={.spec.podCIDR}").ok();
    let block: IpNet = block.parse()?;
    assert!(
        block.contains(&address.parse::<std::net::IpAddr>()?),
        "{web}"
    );
    assert!(cluster.lease(&address).exists());

    run_to_the_end(&cluster, &admin, &address).await?;
    wait_with_a_reason(&cluster, &admin).await?;

    // Another kubelet finds the containers of the first, and leaves them as they are.
    drop(kubelet);
    let kubelet = cluster.kubelet().await?;
    cluster.apply(&admin, &json!([pod("later", "Never", "exit 0")]))?;
    wait(&admin, "later", "/status/phase", "Succeeded").await;
    let same = read(&admin, "web");
    assert_eq!(
        same["status"]["containerStatuses"][0]["containerID"], id,
        "{same}"
    );
    assert_eq!(
        same["status"]["containerStatuses"][0]["restartCount"], 0,
        "{same}"
    );
    assert_eq!(same["status"]["podIP"], address.as_str(), "{same}");

    admin("delete pod web --timeout=60s").ok();
    assert!(!cluster.lease(&address).exists(), "the address is free");
    admin("delete pods --all --timeout=60s").ok();
    // The kubelet removes them once it sees that the objects are gone.
    let pods = cluster.secure.path("nodes/n1/pods");
    let left = || async { fs::read_dir(&pods).map_or(0, Iterator::count) };
    eventually("no file of a pod is left", left, |left| *left == 0).await;
    drop(kubelet);
    Ok(())
}

/// Containers that exit: by `restartPolicy` the pod ends with them, or they start again.
async fn run_to_the_end(
    cluster: &ContainerdCluster,
    admin: &impl Fn(&str) -> ProgramOutput,
    address: &str,
) -> Result<()> {
    let get = format!("wget -q -O - http://{address}:8080/ | grep -qx {address}");
    let mut files = pod(
        "files",
        "Never",
        &format!(
            "test -s {TOKEN_DIR}/token && test -s {TOKEN_DIR}/ca.crt && grep -qx made /data/file && test $GREETING = hello"
        ),
    );
    let data = json!({"name": "data", "mountPath": "/data"});
    let spec = &mut files["spec"];
    spec["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    spec["containers"][0]["volumeMounts"] = json!([data]);
    spec["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "settings"}}]);
    spec["initContainers"] = json!([{
        "name": "make", "image": IMAGE, "volumeMounts": [data],
        "command": ["/bin/sh", "-c", "echo made > /data/file"],
    }]);
    let settings = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "settings"}, "data": {"GREETING": "hello"}});
    let objects = json!([
        settings,
        files,
        pod("client", "Never", &get),
        pod("fails", "Never", "exit 3"),
        pod("crashes", "Always", "exit 1"),
    ]);
    cluster.apply(admin, &objects)?;
    for name in ["client", "files"] {
        wait(admin, name, "/status/phase", "Succeeded").await;
    }
    let failed = wait(admin, "fails", "/status/phase", "Failed").await;
    let end = &failed["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(end["exitCode"], 3, "{failed}");
    let reason = "/status/containerStatuses/0/state/waiting/reason";
    let crashed = wait(admin, "crashes", reason, "CrashLoopBackOff").await;
    let container = &crashed["status"]["containerStatuses"][0];
    assert!(container["restartCount"].as_i64() >= Some(1), "{crashed}");
    let last = &container["lastState"]["terminated"];
    assert_eq!(
        (&last["exitCode"], &last["reason"]),
        (&json!(1), &json!("Error"))
    );
    Ok(())
}

/// Containers that cannot start: their pods wait with the reason, and have their addresses.
async fn wait_with_a_reason(
    cluster: &ContainerdCluster,
    admin: &impl Fn(&str) -> ProgramOutput,
) -> Result<()> {
    let mut absent = pod("absent", "Always", "exit 0");
    absent["spec"]["containers"][0]["image"] = json!("podplane.local/absent:1");
    absent["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    let mut unpulled = pod("unpulled", "Always", "exit 0");
    unpulled["spec"]["containers"][0]["image"] = json!("127.0.0.1:1/absent:1");
    let mut network_disk = pod("network-disk", "Always", "exit 0");
    let spec = &mut network_disk["spec"];
    spec["volumes"] = json!([{"name": "v", "nfs": {"server": "nfs", "path": "/"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    cluster.apply(admin, &json!([absent, unpulled, network_disk]))?;
    for (name, reason) in [
        ("absent", "ErrImageNeverPull"),
        ("unpulled", "ImagePullBackOff"),
        ("network-disk", "CreateContainerConfigError"),
    ] {
        let path = "/status/containerStatuses/0/state/waiting/reason";
        let pod = wait(admin, name, path, reason).await;
        assert_eq!(pod["status"]["phase"], "Pending", "{pod}");
        assert!(pod["status"]["podIP"].is_string(), "{pod}");
    }
    let message = "/status/containerStatuses/0/state/waiting/message";
    let disk = read(admin, "network-disk");
    assert_eq!(
        disk.pointer(message),
        Some(&json!(
            "volume v: nfs volumes are not supported by this kubelet"
        ))
    );
    Ok(())
}
