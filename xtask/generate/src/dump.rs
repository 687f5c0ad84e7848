//! The dump of a large cluster for `cargo xtask bench audit`.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde::Serialize as _;
use serde_json::{Value, json, ser::PrettyFormatter};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DumpFormat {
    /// JSON as `kubectl get -o json` prints it
    Json,
    /// YAML as `kubectl get -o yaml` prints it
    Yaml,
}

/// Writes a dump of `nodes` nodes with `pods` pods on each.
pub(crate) fn write(form: DumpFormat, file: &Path, nodes: usize, pods: usize) -> Result<()> {
    let mut out = BufWriter::new(File::create(file).context("failed to create the dump")?);
    let objects = (0..nodes)
        .map(node)
        .chain((0..nodes * pods).map(|index| pod(index, pods)));
    match form {
        DumpFormat::Json => {
            out.write_all(b"{\n    \"apiVersion\": \"v1\",\n    \"items\": [\n")?;
            for (index, object) in objects.enumerate() {
                if index > 0 {
                    out.write_all(b",\n")?;
                }
                indented(&mut out, &object, "        ")?;
            }
            out.write_all(b"\n    ],\n    \"kind\": \"List\",\n    \"metadata\": {\n        \"resourceVersion\": \"\"\n    }\n}\n")?;
        }
        DumpFormat::Yaml => {
            out.write_all(b"apiVersion: v1\nitems:\n")?;
            for object in objects {
                let text = serde_saphyr::to_string(&object).context("failed to write YAML")?;
                for (index, line) in text.lines().enumerate() {
                    let begin = if index == 0 { "- " } else { "  " };
                    writeln!(out, "{begin}{line}")?;
                }
            }
            out.write_all(b"kind: List\nmetadata:\n  resourceVersion: \"\"\n")?;
        }
    }
    out.flush().context("failed to write the dump")
}

/// Writes an object with kubectl's indentation inside a list.
fn indented(out: &mut impl Write, object: &Value, margin: &str) -> Result<()> {
    let mut text = Vec::new();
    let formatter = PrettyFormatter::with_indent(b"    ");
    object.serialize(&mut serde_json::Serializer::with_formatter(
        &mut text, formatter,
    ))?;
    for (index, line) in String::from_utf8(text)?.lines().enumerate() {
        let begin = if index == 0 { "" } else { "\n" };
        write!(out, "{begin}{margin}{line}")?;
    }
    Ok(())
}

fn block(node: usize) -> String {
    format!("10.{}.{}", node / 256, node % 256)
}

fn node(index: usize) -> Value {
    let cidr = format!("{}.0/24", block(index));
    let images: Vec<Value> = (0..20)
        .map(|image| {
            let names = [
                format!("registry.example.com/team/image-{image}@sha256:8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4"),
                format!("registry.example.com/team/image-{image}:1.2.3"),
            ];
            json!({"names": names, "sizeBytes": 12_345_678})
        })
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"creationTimestamp": "2026-11-21T07:00:00Z", "labels": {"kubernetes.io/hostname": format!("worker-{index:05}"), "kubernetes.io/os": "linux"},
            "name": format!("worker-{index:05}"), "resourceVersion": "1", "uid": format!("00000000-0000-0000-0000-{index:012}")},
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
        "status": {"capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"}, "images": images},
    })
}

/// A pod of a ReplicaSet with one container, with the fields that a server and a kubelet write.
fn pod(index: usize, pods: usize) -> Value {
    let (node, slot) = (index / pods, index % pods);
    let ip = format!("{}.{}", block(node), slot + 2);
    let conditions: Vec<Value> = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
        .map(|kind| json!({"lastProbeTime": null, "lastTransitionTime": "2026-11-21T08:00:00Z", "status": "True", "type": kind}))
        .into();
    let tolerations = ["not-ready", "unreachable"]
        .map(|key| json!({"effect": "NoExecute", "key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "tolerationSeconds": 300}));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"annotations": {"checksum/config": "8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4"},
            "creationTimestamp": "2026-11-21T08:00:00Z", "generateName": "web-7c5ddbdf54-",
            "labels": {"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": format!("web-{}", index % 50), "pod-template-hash": "7c5ddbdf54"},
            "name": format!("web-7c5ddbdf54-{index:07}"), "namespace": format!("team-{}", node % 200),
            "ownerReferences": [{"apiVersion": "apps/v1", "blockOwnerDeletion": true, "controller": true, "kind": "ReplicaSet", "name": "web-7c5ddbdf54", "uid": "7d0a4b8e-6f0e-4d61-9f5e-000000000000"}],
            "resourceVersion": format!("{index}"), "uid": format!("5e1b1b5c-3c8e-4c3e-8a52-{index:012}")},
        "spec": {"containers": [{"env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
                "image": "registry.example.com/team/web:1.2.3", "imagePullPolicy": "IfNotPresent",
                "livenessProbe": {"failureThreshold": 3, "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "initialDelaySeconds": 10, "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1},
                "name": "web", "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
                "resources": {"limits": {"memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "volumeMounts": [{"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "kube-api-access", "readOnly": true}]}],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "nodeName": format!("worker-{node:05}"), "preemptionPolicy": "PreemptLowerPriority", "priority": 0,
            "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {}, "serviceAccount": "default", "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30, "tolerations": tolerations,
            "volumes": [{"name": "kube-api-access", "projected": {"defaultMode": 420, "sources": [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}}]}}]},
        "status": {"conditions": conditions,
            "containerStatuses": [{"containerID": format!("containerd://{index:064}"), "image": "registry.example.com/team/web:1.2.3",
                "imageID": "registry.example.com/team/web@sha256:8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4", "lastState": {}, "name": "web", "ready": true,
                "restartCount": 0, "started": true, "state": {"running": {"startedAt": "2026-11-21T08:00:02Z"}}}],
            "hostIP": format!("172.16.{}.{}", node / 256, node % 256), "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "qosClass": "Burstable", "startTime": "2026-11-21T08:00:00Z"},
    })
}
