//! Round trips of manifests: every field of a Deployment's pod template, and manifests as people
//! write them.

use std::collections::BTreeSet;

use podplane_api::{apps::Deployment, schema};
use serde_json::Map;

use super::*;

/// The types of which one field at a time is set; the variant selects it.
const UNIONS: &[(&str, &[&str])] = &[
    ("DownwardAPIVolumeFile", &["fieldRef", "resourceFieldRef"]),
    ("EnvFromSource", &["configMapRef", "secretRef"]),
    ("EnvVar", &["value", "valueFrom"]),
    (
        "EnvVarSource",
        &[
            "configMapKeyRef",
            "fieldRef",
            "resourceFieldRef",
            "secretKeyRef",
        ],
    ),
    (
        "LifecycleHandler",
        &["exec", "httpGet", "sleep", "tcpSocket"],
    ),
    ("PodSpec", &["nodeName", "schedulingGates"]),
    ("Probe", &["exec", "grpc", "httpGet", "tcpSocket"]),
    (
        "VolumeProjection",
        &[
            "clusterTrustBundle",
            "configMap",
            "downwardAPI",
            "secret",
            "serviceAccountToken",
        ],
    ),
];
/// The fields that a template may not have.
const FORBIDDEN: [&str; 2] = ["activeDeadlineSeconds", "ephemeralContainers"];
/// The number of fields of the largest union outside of lists; a list has an element for each.
const VARIANTS: usize = 4;

/// Fills in every field of a type, by its published definition.
struct Filler {
    definitions: Map<String, Value>,
    variant: usize,
    /// The next element of a list of unions.
    element: Option<usize>,
    /// The definition and field of every value that was ever filled in.
    filled: BTreeSet<(String, String)>,
}

impl Filler {
    fn of(&mut self, definition: &str) -> Value {
        let choice = self.element.take().unwrap_or(self.variant);
        let schema = self.definitions[definition].clone();
        let Some(properties) = schema["properties"].as_object() else {
            return self.value(definition, "", &schema);
        };
        let kind = definition.rsplit('.').next().unwrap();
        let union = self.union(definition);
        let chosen = (!union.is_empty()).then(|| union[choice % union.len()].clone());
        let mut object = Map::new();
        for (field, schema) in properties {
            let left_out = union.contains(field) && chosen.as_ref() != Some(field);
            if left_out || kind == "PodSpec" && FORBIDDEN.contains(&field.as_str()) {
                continue;
            }
            self.filled.insert((kind.to_owned(), field.clone()));
            let value = self.value(kind, field, schema);
            object.insert(field.clone(), value);
        }
        Value::Object(object)
    }

    /// The fields of a union; empty for other types.
    fn union(&self, definition: &str) -> Vec<String> {
        let kind = definition.rsplit('.').next().unwrap();
        if kind == "Volume" {
            let fields = self.definitions[definition]["properties"].as_object();
            let fields = fields.into_iter().flat_map(Map::keys);
            return fields.filter(|field| *field != "name").cloned().collect();
        }
        let union = UNIONS.iter().find(|(name, _)| *name == kind);
        let fields = union.map_or(&[][..], |(_, fields)| fields);
        fields.iter().map(|field| (*field).to_owned()).collect()
    }

    /// A list with an element for each field of a union, or with one.
    fn list(&mut self, kind: &str, field: &str, items: &Value) -> Value {
        let definition = reference(items).map(str::to_owned);
        let count = definition.map_or(0, |definition| self.union(&definition).len());
        let elements = (0..count.max(1)).map(|element| {
            self.element = (count > 0).then_some(element);
            let mut item = self.value(kind, field, items);
            if kind == "PodSpec" && item["name"].is_string() {
                item["name"] = format!("{}-{element}", field.to_lowercase()).into();
            }
            item
        });
        elements.collect::<Vec<_>>().into()
    }

    fn value(&mut self, kind: &str, field: &str, schema: &Value) -> Value {
        if let Some(definition) = reference(schema) {
            return match definition.rsplit('.').next().unwrap() {
                "IntOrString" => 8080.into(),
                "Quantity" => "1".into(),
                "Time" => "2026-01-01T00:00:00Z".into(),
                "FieldsV1" => json!({"f:a": {}}),
                "ResourceFieldSelector" => {
                    json!({"containerName": "c", "divisor": "1m", "resource": "limits.cpu"})
                }
                _ => self.of(definition),
            };
        }
        match schema["type"].as_str() {
            Some("boolean") => true.into(),
            Some("integer") => match field {
                "hostPort" => 8080.into(),
                _ => (8080 + i64::from(field == "priority")).into(),
            },
            Some("number") => 1.5.into(),
            Some("array") => self.list(kind, field, &schema["items"]),
            Some("object") => match schema.get("additionalProperties") {
                Some(values) if field == "labels" => json!({"app": self.value(kind, "", values)}),
                Some(values) => json!({"cpu": self.value(kind, "", values)}),
                None => json!({"any": [1, "b"]}),
            },
            _ => text(kind, field).into(),
        }
    }
}

/// The definition that a schema refers to.
fn reference(schema: &Value) -> Option<&str> {
    let reference = schema["$ref"].as_str();
    let reference = reference.or_else(|| schema["allOf"][0]["$ref"].as_str());
    reference?.rsplit('/').next()
}

/// A text that is valid for the field.
fn text(kind: &str, field: &str) -> &'static str {
    match (kind, field) {
        (_, "creationTimestamp" | "deletionTimestamp" | "time") => "2026-01-01T00:00:00Z",
        ("PodSpec", "restartPolicy") => "Always",
        ("PodSpec", "dnsPolicy") => "ClusterFirst",
        ("PodSpec", "preemptionPolicy") => "PreemptLowerPriority",
        ("Toleration", "operator") => "Equal",
        ("Toleration", "effect") => "NoExecute",
        (_, "operator") => "In",
        (_, "imagePullPolicy" | "pullPolicy") => "IfNotPresent",
        (_, "terminationMessagePolicy") => "File",
        (_, "protocol") => "TCP",
        (_, "scheme") => "HTTPS",
        (_, "mountPath" | "path") => "/x",
        ("VolumeMount" | "VolumeDevice", "name") => "volumes-0",
        (_, "whenUnsatisfiable") => "DoNotSchedule",
        (_, "containerName") => "c",
        // The older name of the same field.
        ("PodSpec", "serviceAccount" | "serviceAccountName") => "sa",
        _ => "x",
    }
}

/// Collects the paths at which `kept` differs from `given`, except fields that were not given.
fn lost(given: &Value, kept: &Value, path: &str, found: &mut Vec<String>) {
    match (given, kept) {
        (Value::Object(given), Value::Object(_)) => {
            for (field, value) in given {
                lost(value, &kept[field], &format!("{path}.{field}"), found);
            }
        }
        (Value::Array(given), Value::Array(kept)) if given.len() == kept.len() => {
            for (index, (given, kept)) in given.iter().zip(kept).enumerate() {
                lost(given, kept, &format!("{path}[{index}]"), found);
            }
        }
        _ if given == kept => {}
        _ => found.push(format!("{path}: {given} became {kept}")),
    }
}

/// Collects the paths of fields that were added to the given ones.
fn added(given: &Value, kept: &Value, path: &str, found: &mut BTreeSet<String>) {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            for (field, value) in kept {
                let path = format!("{path}.{field}");
                match given.get(field) {
                    Some(given) => added(given, value, &path, found),
                    None => {
                        found.insert(format!("{path}={value}"));
                    }
                }
            }
        }
        (Value::Array(given), Value::Array(kept)) => {
            for (index, (given, kept)) in given.iter().zip(kept).enumerate() {
                added(given, kept, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

#[tokio::test]
async fn every_field_of_a_pod_template_round_trips() {
    let server = TestServer::start().await;
    let deployments = server.client.namespaced::<Deployment>("default");
    let mut filler = Filler {
        definitions: schema::definitions(),
        variant: 0,
        element: None,
        filled: BTreeSet::new(),
    };
    for variant in 0..VARIANTS {
        filler.variant = variant;
        let template = filler.of("io.k8s.api.core.v1.PodTemplateSpec");
        let given = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": format!("d-{variant}"), "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template}});
        let deployment = Deployment::from_json(given.clone()).unwrap();
        let created = within(deployments.create(&deployment)).await.unwrap();
        let read = within(deployments.get(created.name())).await.unwrap();
        assert_eq!(read, created);
        let mut found = Vec::new();
        lost(&given, &read.to_json().unwrap(), "", &mut found);
        assert_eq!(found, Vec::<String>::new(), "variant {variant}");
        let again = within(deployments.update(&read)).await.unwrap();
        assert_eq!(again, read, "defaults of defaults change nothing");
    }
    // The variants together cover all fields of every type in a template.
    let used: BTreeSet<_> = filler.filled.iter().map(|(kind, _)| kind.clone()).collect();
    for (name, definition) in &filler.definitions {
        let kind = name.rsplit('.').next().unwrap().to_owned();
        let fields = definition["properties"].as_object();
        for field in fields.into_iter().flat_map(Map::keys) {
            let there = filler.filled.contains(&(kind.clone(), field.clone()));
            let ours = name.starts_with("io.k8s.api.core.v1.") && used.contains(&kind);
            assert!(
                there || !ours || FORBIDDEN.contains(&field.as_str()),
                "{kind}.{field} was in no variant"
            );
        }
    }
    server.stop().await;
}

/// A manifest as people write them.
const RICH: &str = r#"{
  "apiVersion": "apps/v1", "kind": "Deployment",
  "metadata": {"name": "web", "namespace": "default", "labels": {"app.kubernetes.io/name": "web"},
    "annotations": {"example.com/owner": "team-a"}},
  "spec": {
    "replicas": 3,
    "selector": {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["front", "back"]}]},
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
    "template": {
      "metadata": {"labels": {"app": "web", "tier": "front"}, "annotations": {"prometheus.io/scrape": "true"}},
      "spec": {
        "serviceAccountName": "web",
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm":
          {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}}]}},
        "initContainers": [{"name": "migrate", "image": "registry.example:5000/migrate", "command": ["sh", "-c"], "args": ["exit 0"]}],
        "containers": [{
          "name": "web", "image": "nginx:1.27", "ports": [{"name": "http", "containerPort": 8080}],
          "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}, {"name": "EMPTY", "value": ""},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}],
          "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"cpu": "0.1"}},
          "livenessProbe": {"httpGet": {"port": "http", "path": "/healthz"}, "initialDelaySeconds": 5},
          "readinessProbe": {"grpc": {"port": 9000}},
          "lifecycle": {"preStop": {"httpGet": {"port": 8080}}},
          "volumeMounts": [{"name": "config", "mountPath": "/etc/web"}, {"name": "scratch", "mountPath": "/tmp"}]
        }, {"name": "digest", "image": "sidecar@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}],
        "volumes": [{"name": "config", "configMap": {"name": "web"}}, {"name": "scratch"}, {"name": "secret", "secret": {"secretName": "web"}},
          {"name": "all", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "ca"}}]}},
          {"name": "host", "hostPath": {"path": "/var/log"}}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
      }
    }
  }
}"#;

#[tokio::test]
async fn a_manifest_gets_only_the_defaults_of_the_reference() {
    let server = TestServer::start().await;
    let deployments = server.client.namespaced::<Deployment>("default");
    let given: Value = serde_json::from_str(RICH).unwrap();
    let deployment = Deployment::from_json(given.clone()).unwrap();
    let created = within(deployments.create(&deployment)).await.unwrap();
    let mut kept = created.to_json().unwrap();
    for field in ["uid", "creationTimestamp", "resourceVersion"] {
        kept["metadata"].as_object_mut().unwrap().remove(field);
    }
    let (mut missing, mut found) = (Vec::new(), BTreeSet::new());
    lost(&given, &kept, "", &mut missing);
    assert_eq!(missing, Vec::<String>::new());
    added(&given, &kept, "", &mut found);
    let spec = ".spec.template.spec";
    let of_container = |path: &str, policy: &str| {
        [
            format!("{spec}.{path}.imagePullPolicy=\"{policy}\""),
            format!("{spec}.{path}.terminationMessagePath=\"/dev/termination-log\""),
            format!("{spec}.{path}.terminationMessagePolicy=\"File\""),
        ]
    };
    let mut want: BTreeSet<String> = [
        ".metadata.generation=1",
        ".spec.progressDeadlineSeconds=600",
        ".spec.revisionHistoryLimit=10",
        ".spec.strategy.rollingUpdate.maxUnavailable=\"25%\"",
        ".status={}",
    ]
    .map(str::to_owned)
    .into();
    want.extend(
        [
            "restartPolicy=\"Always\"",
            "dnsPolicy=\"ClusterFirst\"",
            "schedulerName=\"default-scheduler\"",
            "securityContext={}",
            "serviceAccount=\"web\"",
            "terminationGracePeriodSeconds=30",
            "initContainers[0].resources={}",
            "containers[1].resources={}",
            "containers[0].ports[0].protocol=\"TCP\"",
            "containers[0].env[0].valueFrom.fieldRef.apiVersion=\"v1\"",
            "containers[0].env[2].valueFrom.resourceFieldRef.divisor=\"0\"",
            "containers[0].livenessProbe.failureThreshold=3",
            "containers[0].livenessProbe.httpGet.scheme=\"HTTP\"",
            "containers[0].livenessProbe.periodSeconds=10",
            "containers[0].livenessProbe.successThreshold=1",
            "containers[0].livenessProbe.timeoutSeconds=1",
            "containers[0].readinessProbe.failureThreshold=3",
            "containers[0].readinessProbe.grpc.service=\"\"",
            "containers[0].readinessProbe.periodSeconds=10",
            "containers[0].readinessProbe.successThreshold=1",
            "containers[0].readinessProbe.timeoutSeconds=1",
            "containers[0].lifecycle.preStop.httpGet.path=\"/\"",
            "containers[0].lifecycle.preStop.httpGet.scheme=\"HTTP\"",
            "volumes[0].configMap.defaultMode=420",
            "volumes[1].emptyDir={}",
            "volumes[2].secret.defaultMode=420",
            "volumes[3].projected.defaultMode=420",
            "volumes[3].projected.sources[0].serviceAccountToken.expirationSeconds=3600",
            "volumes[4].hostPath.type=\"\"",
        ]
        .map(|default| format!("{spec}.{default}")),
    );
    want.extend(of_container("initContainers[0]", "Always"));
    want.extend(of_container("containers[0]", "IfNotPresent"));
    want.extend(of_container("containers[1]", "IfNotPresent"));
    assert_eq!(found, want);
    server.stop().await;
}
