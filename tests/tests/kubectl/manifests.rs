//! A manifest of an object of each kind that people write, as kubectl applies it: from a file, by
//! kustomize, with pruning, and as a chart of helm.

use std::{fs, path::Path};

use podplane_tests::{
    kubectl::{Kubectl, KubectlCase},
    peers,
};

pub(super) const CASES: &[KubectlCase] = &[
    ("apply -f of forty kinds", applied),
    ("apply -k of forty kinds", kustomized),
    ("apply --prune of forty kinds", pruned),
    ("helm install of forty kinds", charted),
];

/// The directory with the manifest and its kustomization.
fn dir() -> String {
    format!("{}/data/mixed", env!("CARGO_MANIFEST_DIR"))
}

/// The number of objects in the manifest, each of another kind.
fn objects() -> usize {
    let text = fs::read_to_string(Path::new(&dir()).join("shop.yaml")).expect("the manifest");
    let kinds = text.lines().filter(|line| line.starts_with("kind: "));
    let count = kinds.count();
    assert!(count >= 40, "{count}");
    count
}

/// Asserts that each line of kubectl's says the same of another object.
fn all(said: &str, what: &str, count: usize) {
    let lines: Vec<_> = said.lines().collect();
    assert!(lines.iter().all(|line| line.ends_with(what)), "{said}");
    assert_eq!(lines.len(), count, "{said}");
}

fn delete(kubectl: &Kubectl) {
    let said = kubectl.run(&format!("delete -f {}/shop.yaml", dir())).ok();
    assert_eq!(said.lines().count(), objects(), "{said}");
}

fn applied(kubectl: &Kubectl) {
    let apply = format!("apply -f {}/shop.yaml", dir());
    all(&kubectl.run(&apply).ok(), " created", objects());
    // kubectl sends a patch where the server has set defaults in lists that are replaced as a
    // whole.
    let again = kubectl.run(&apply).ok();
    let is_same = |line: &str| line.ends_with(" unchanged") || line.ends_with(" configured");
    assert!(again.lines().all(is_same), "{again}");
    assert_eq!(again.lines().count(), objects(), "{again}");
    kubectl.run("rollout status deployment/front").ok();
    let server_side = format!("{apply} --server-side --field-manager=kubectl --force-conflicts");
    all(
        &kubectl.run(&server_side).ok(),
        " serverside-applied",
        objects(),
    );
    let differences = kubectl.run(&format!("diff -f {}/shop.yaml", dir()));
    assert_eq!(differences.code, Some(0), "{differences:?}");
    delete(kubectl);
}

/// A pod names the generated ConfigMap by its name with the hash.
fn kustomized(kubectl: &Kubectl) {
    let said = kubectl.run(&format!("apply -k {}", dir())).ok();
    all(&said, " created", objects() + 1);
    let reference = "-o jsonpath={.spec.containers[0].envFrom[0].configMapRef.name}";
    let name = kubectl.run(&format!("get pod visitor {reference}")).ok();
    assert!(name.starts_with("generated-"), "{name}");
    let colour = kubectl.run(&format!("get cm {name} -o jsonpath={{.data.colour}}"));
    assert_eq!(colour.ok(), "green");
    let said = kubectl.run(&format!("delete -k {}", dir())).ok();
    assert_eq!(said.lines().count(), objects() + 1, "{said}");
}

/// Objects that the manifest does not have any longer go, if kubectl prunes their kind.
fn pruned(kubectl: &Kubectl) {
    kubectl.run(&format!("apply -f {}/shop.yaml", dir())).ok();
    let text = fs::read_to_string(Path::new(&dir()).join("shop.yaml")).expect("the manifest");
    let is_left = |document: &&str| {
        let gone = ["kind: ConfigMap\n", "kind: Job\n", "kind: Ingress\n"];
        !gone.iter().any(|kind| document.contains(kind))
    };
    let left: Vec<_> = text.split("---\n").filter(is_left).collect();
    let file = kubectl.file("left.yaml", &left.join("---\n"));
    let prune = format!(
        "apply --prune -l app.kubernetes.io/part-of=shop -f {}",
        file.display()
    );
    let said = kubectl.run(&prune).ok();
    for gone in [
        "configmap/settings pruned",
        "job.batch/import pruned",
        "ingress.networking.k8s.io/front pruned",
    ] {
        assert!(said.lines().any(|line| line == gone), "{gone}: {said}");
    }
    let pruned = said.lines().filter(|line| line.ends_with(" pruned"));
    assert_eq!(pruned.count(), 3, "{said}");
    kubectl
        .run(&format!("delete --ignore-not-found -f {}/shop.yaml", dir()))
        .ok();
}

/// helm keeps its releases in Secrets, and merges three states of an object in an upgrade.
fn charted(kubectl: &Kubectl) {
    let Some(helm) = peers::helm() else { return };
    let helm = |args: &str| kubectl.client(&helm, args).ok();
    let chart = kubectl.path("shop");
    let manifest = fs::read_to_string(Path::new(&dir()).join("shop.yaml")).expect("the manifest");
    let manifest = manifest.replace("replicas: 2", "replicas: {{ .Values.replicas }}");
    fs::create_dir_all(chart.join("templates")).expect("a directory in the home");
    for (file, text) in [
        ("Chart.yaml", "apiVersion: v2\nname: shop\nversion: 1.0.0\n"),
        ("values.yaml", "replicas: 2\n"),
        ("templates/shop.yaml", &*manifest),
    ] {
        fs::write(chart.join(file), text).expect("a file in the home");
    }
    let chart = chart.display();
    let said = helm(&format!("install shop {chart}"));
    assert!(said.contains("STATUS: deployed"), "{said}");
    let objects_of = format!("get -f {}/shop.yaml -o name", dir());
    let names = kubectl.run(&objects_of).ok();
    assert_eq!(names.lines().count(), objects(), "{names}");
    let replicas = "get deployment front -o jsonpath={.spec.replicas}";
    helm(&format!("upgrade shop {chart} --set replicas=3"));
    assert_eq!(kubectl.run(replicas).ok(), "3");
    helm("rollback shop 1");
    assert_eq!(kubectl.run(replicas).ok(), "2");
    let history = helm("history shop");
    assert!(history.contains("Rollback to 1"), "{history}");
    helm("uninstall shop");
    kubectl.until(&objects_of, |left| {
        left.stdout.is_empty() && left.stderr.matches("NotFound").count() >= objects() - 1
    });
}
