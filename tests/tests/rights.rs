//! A whole cluster of single processes, each with a certificate and the rights of its own.

use std::{fs, path::Path, process::Stdio};

use anyhow::Result;
use podplane_tests::{
    eventually, peers,
    programs::{ProgramOutput, bin_dir, podplane},
    secure::SecureApiserver,
    signing::signing_request,
};
use serde_json::Value;

const ALLOCATE: [&str; 2] = ["--allocate-node-cidrs=true", "--cluster-cidr=10.244.0.0/16"];
const NODES: [&str; 2] = ["n1", "n2"];

/// A CRI server, which is no client; killed when it is dropped.
struct Cri(std::process::Child);

impl Cri {
    fn start(node: &str, dir: &Path) -> Result<Self> {
        let nodes_dir = dir.join("nodes");
        fs::create_dir_all(nodes_dir.join(node))?;
        let mut cri = podplane(["cri", "--node", node, "--network", "ledger"]);
        cri.arg("--nodes-dir").arg(&nodes_dir);
        cri.arg("--cni-bin-dir").arg(bin_dir().canonicalize()?);
        cri.arg("--netns-dir").arg(dir.join("netns"));
        let log = fs::File::create(dir.join(format!("cri-{node}.log")))?;
        Ok(Self(cri.stdout(Stdio::null()).stderr(log).spawn()?))
    }
}

impl Drop for Cri {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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
    let _controllers = secure
        .service("controller-manager", "controller-manager", &signing)
        .await?;
    let _scheduler = secure.service("scheduler", "scheduler", &[]).await?;
    let nodes_dir = secure.text("nodes");
    let mut running = Vec::new();
    for node in NODES {
        secure.issue(&format!("node/{node}"));
        let cri = Cri::start(node, &dir)?;
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
    }
    // The controllers write whatever they may have to.
    admin("create pdb web --selector=app=web --min-available=1").ok();
    let budget = "get pdb web -o jsonpath={.status.currentHealthy}";
    let healthy = || async { admin(budget).stdout };
    eventually("the budget counts", healthy, |healthy| healthy == "4").await;
    admin("set image deployment web pause=registry.k8s.io/pause:3.10").ok();
    admin("rollout status deployment web").ok();
    admin("create namespace other").ok();
    let account = || async { admin("get sa default -n other -o name").stdout };
    eventually("there is an account", account, |found| !found.is_empty()).await;
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
