//! The calls of access.tsv against a running server.

mod grpc;

pub(super) use grpc::call_grpc;
use podplane_access::{Requirement, RequirementOperator};

use super::*;

/// A UID that no object has, so that no allowed write changes anything.
const NO_UID: &str = "none";

/// A line of the table.
#[derive(Debug)]
struct Call {
    line: &'static str,
    identity: &'static str,
    verb: &'static str,
    group: &'static str,
    /// The plural name, or a path.
    resource: &'static str,
    subresource: &'static str,
    namespace: &'static str,
    name: &'static str,
    selector: &'static str,
    is_allowed: bool,
    by: &'static str,
}

fn calls() -> Vec<Call> {
    let lines = TABLE.lines().filter(|line| !line.starts_with(['#', '@']));
    let call = |line: &'static str| {
        let cells = line.split('\t');
        let cells = cells.map(|cell| if cell == "-" { "" } else { cell });
        let [identity, verb, kind, namespace, name, selector, answer, by] =
            cells.collect::<Vec<_>>().try_into().expect(line);
        let (kind, subresource) = match kind.starts_with('/') {
            true => (kind, ""),
            false => kind.rsplit_once('/').unwrap_or((kind, "")),
        };
        let (resource, group) = match kind.starts_with('/') {
            true => (kind, ""),
            false => kind.split_once('.').unwrap_or((kind, "")),
        };
        Call {
            line,
            identity,
            verb,
            group,
            resource,
            subresource,
            namespace,
            name,
            selector,
            is_allowed: answer == "allow",
            by,
        }
    };
    lines.map(call).collect()
}

impl Call {
    /// The method, path and body over REST; `None` for what is no request over REST.
    fn rest(&self) -> Option<(Method, String, Value)> {
        if self.resource.starts_with('/') {
            let method = self.verb.to_uppercase().parse().unwrap();
            return Some((method, self.resource.to_owned(), Value::Null));
        }
        let needs_name = !matches!(self.verb, "list" | "watch" | "deletecollection" | "create")
            || !self.subresource.is_empty();
        if needs_name && self.name.is_empty() {
            return None;
        }
        // The records of one node; there are no blocks over REST.
        if (self.verb, self.resource) == ("list", "blocks") && !self.name.is_empty() {
            return None;
        }
        let object = json!({"metadata": {"uid": NO_UID}});
        let (method, body) = match self.verb {
            "get" | "list" | "watch" => (Method::GET, Value::Null),
            "create" => (Method::POST, json!({"metadata": {}})),
            "update" => (Method::PUT, object),
            "patch" => (Method::PATCH, json!("{")),
            "delete" => (Method::DELETE, json!({"preconditions": {"uid": NO_UID}})),
            "deletecollection" => (Method::DELETE, Value::Null),
            _ => return None,
        };
        let mut path = match self.group {
            "" => "/api/v1".to_owned(),
            group => format!("/apis/{group}/v1"),
        };
        if !self.namespace.is_empty() && self.resource != "namespaces" {
            path = format!("{path}/namespaces/{}", self.namespace);
        }
        path = format!("{path}/{}", self.resource);
        for part in [self.name, self.subresource] {
            if !part.is_empty() {
                path = format!("{path}/{part}");
            }
        }
        // A revision that is none ends an allowed watch.
        let watch = match self.verb {
            "watch" => "&watch=true&resourceVersion=x",
            _ => "",
        };
        let selector = self.selector.replace('=', "%3D").replace('!', "%21");
        Some((
            method,
            format!("{path}?dryRun=All&fieldSelector={selector}{watch}"),
            body,
        ))
    }
}

#[tokio::test]
async fn every_call_of_the_table_has_its_answer_over_rest() {
    let server = GatedServer::with_cluster().await;
    let (mut wrong, mut skipped, mut asked) = (Vec::new(), Vec::new(), 0);
    for call in calls() {
        let Some((method, path, body)) = call.rest() else {
            skipped.push(call.line);
            continue;
        };
        asked += 1;
        let answer = server.ask(call.identity, method, &path, &body).await;
        let message = &answer.body["message"];
        // The handler would have served something else than what was judged.
        let is_other = message.to_string().contains("was authorized for");
        let is_broken = answer.code == 401 || answer.code >= 500 && answer.code != 501;
        if is_refused(&answer) == call.is_allowed || is_other || is_broken {
            wrong.push(format!("{}: {} {message}", call.line, answer.code));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Verbs that are no requests, and names that a path must have.
    assert_eq!((asked, skipped.len()), COUNTS_OF_REST, "{skipped:#?}");
    server.stop().await;
}

/// The numbers of calls asked and skipped.
const COUNTS_OF_REST: (usize, usize) = (543, 29);

#[tokio::test]
async fn every_call_of_the_table_has_its_reason_in_a_review() {
    let server = GatedServer::with_cluster().await;
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let users = TABLE.lines().filter_map(|line| line.strip_prefix('@'));
    let users: std::collections::BTreeMap<&str, (&str, Vec<&str>)> = users
        .map(|line| {
            let [name, user, groups] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            (name, (user, groups.split(',').collect()))
        })
        .collect();
    let mut wrong = Vec::new();
    for call in calls() {
        let (user, groups) = &users[call.identity];
        let mut spec = json!({"user": user, "groups": groups});
        if call.resource.starts_with('/') {
            spec["nonResourceAttributes"] = json!({"path": call.resource, "verb": call.verb});
        } else {
            let selected = call.selector.strip_prefix("metadata.name=");
            let selected = selected.filter(|_| matches!(call.verb, "list" | "watch"));
            let namespace = match (call.resource, call.namespace) {
                ("namespaces", "") => selected.unwrap_or(call.name),
                (_, namespace) => namespace,
            };
            // A request for the list of a kind is not in the namespace that it names.
            let namespace = match (call.resource, call.verb) {
                ("namespaces", "list" | "watch") => "",
                _ => namespace,
            };
            let requirements = crate::authorization::requirements(call.selector);
            let requirement = |one: &Requirement| {
                let operator = match one.operator {
                    RequirementOperator::NotEquals => "NotIn",
                    _ => "In",
                };
                json!({"key": one.key, "operator": operator, "values": one.values})
            };
            let requirements: Vec<_> = requirements.iter().map(requirement).collect();
            spec["resourceAttributes"] = json!({
                "verb": call.verb, "group": call.group, "version": "v1",
                "resource": call.resource, "subresource": call.subresource,
                "namespace": namespace, "name": selected.unwrap_or(call.name),
            });
            if !requirements.is_empty() {
                spec["resourceAttributes"]["fieldSelector"] = json!({"requirements": requirements});
            }
        }
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
        let answer = server.ask("root", Method::POST, path, &review).await;
        let status = &answer.body["status"];
        let reason = status["reason"].as_str().unwrap_or_default();
        let is_by = match call.by.split_once('/') {
            Some((kind, name)) => reason.starts_with(&format!("RBAC: allowed by {kind} \"{name}")),
            None => !reason.starts_with("RBAC: allowed"),
        };
        if answer.code != 201 || status["allowed"] != call.is_allowed || !is_by {
            wrong.push(format!("{}: {}", call.line, answer.body));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    server.stop().await;
}
