use serde_json::{Value, json};

use super::*;

fn pod(volumes: &Value) -> Pod {
    let mounts: Vec<_> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| {
            let name = volume["name"].as_str().unwrap();
            json!({"name": name, "mountPath": format!("/{name}")})
        })
        .collect();
    let pod = json!({
        "metadata": {"name": "web-0", "namespace": "shop", "labels": {"app": "web"}},
        "spec": {"volumes": volumes, "containers": [{"name": "c", "volumeMounts": mounts}],
            "hostAliases": [{"ip": "10.9.9.9", "hostnames": ["db", "cache"]}]},
    });
    serde_json::from_value(pod).unwrap()
}

fn of(pod: &Pod) -> Result<BTreeMap<String, VolumeContent>, ConfigError> {
    let facts = PodFacts {
        pod,
        ips: &["10.0.0.2".parse().unwrap()],
        host_ips: &[],
    };
    let token = (("api".to_owned(), "token".to_owned()), "s3cret".to_owned());
    let tokens = ProjectedTokens::from([token]);
    contents(
        &app_containers(pod)[0],
        facts,
        &PodSources::default(),
        &tokens,
    )
}

#[test]
fn makes_directories_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let pod_dir = PodDir::new(dir.path().join("uid"));
    let pod = pod(&json!([
        {"name": "scratch", "emptyDir": {}},
        {"name": "api", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token"}},
            {"downwardAPI": {"items": [{"path": "labels/all", "fieldRef": {"fieldPath": "metadata.labels"}, "mode": 256}]}},
        ]}},
    ]));
    let contents = of(&pod).unwrap();
    for _ in 0..2 {
        pod_dir
            .write("c", &contents, Some("127.0.0.1 localhost\n"))
            .unwrap();
    }
    let volumes = dir.path().join("uid/volumes");
    let mode = |path: &str| {
        let metadata = fs::metadata(volumes.join(path)).unwrap();
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(
        fs::read_to_string(volumes.join("api/token")).unwrap(),
        "s3cret"
    );
    let labels = fs::read_to_string(volumes.join("api/labels/all")).unwrap();
    assert_eq!(labels, "app=\"web\"");
    assert_eq!((mode("scratch"), mode("api/labels/all")), (0o777, 0o400));
    let mounts = pod_dir
        .mounts(&app_containers(&pod)[0], &contents, true)
        .unwrap();
    let mounts: Vec<_> = mounts
        .iter()
        .map(|m| (m.container_path.as_str(), m.readonly))
        .collect();
    assert_eq!(
        mounts,
        [("/scratch", false), ("/api", true), ("/etc/hosts", false)]
    );
    pod_dir.remove().unwrap();
    pod_dir.remove().unwrap();
}

#[test]
fn names_what_it_cannot_make() {
    let text = |volume: Value| of(&pod(&json!([volume]))).unwrap_err().to_string();
    assert_eq!(
        text(json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}})),
        "volume v: persistentVolumeClaim volumes are not supported by this kubelet"
    );
    assert_eq!(
        text(json!({"name": "v", "configMap": {"name": "m"}})),
        "configmap \"m\" not found"
    );
    let escape = json!({"name": "v", "downwardAPI": {"items": [
        {"path": "../x", "fieldRef": {"fieldPath": "metadata.name"}}]}});
    assert!(text(escape).contains("must stay in the volume"));
}

#[test]
fn hosts_have_the_pods_addresses_and_aliases() {
    let pod = pod(&json!([]));
    let facts = PodFacts {
        pod: &pod,
        ips: &["10.0.0.2".parse().unwrap()],
        host_ips: &[],
    };
    let hosts = hosts(facts, "web-0").unwrap();
    assert!(hosts.contains("10.0.0.2\tweb-0\n"), "{hosts}");
    assert!(hosts.ends_with("10.9.9.9\tdb\tcache\n"), "{hosts}");
}
