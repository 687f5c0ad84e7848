use podplane_access::ResourceTarget;
use serde_json::json;

use super::*;
use crate::level::StageSet;

const RECEIVED: &str = "2026-11-23T16:30:00.5Z";
const ENDED: &str = "2026-11-23T16:30:00.750001Z";

fn decision(level: Level) -> Decision {
    Decision {
        level,
        ..Decision::default()
    }
}

fn request(
    decision: Decision,
    verb: &str,
    target: Target<'_>,
    uri: &str,
) -> Option<AuditedRequest> {
    let mut ada = Identity::new("ada", ["dev", "system:authenticated"]);
    ada.uid = "1001".to_owned();
    ada.extra.insert("team".to_owned(), vec!["net".to_owned()]);
    let attributes = Attributes {
        identity: &ada,
        verb,
        target,
    };
    let received = ReceivedRequest {
        audit_id: "id-1".to_owned(),
        uri: &uri.parse().unwrap(),
        source_ips: vec!["10.0.0.9".parse().unwrap()],
        user_agent: "kubectl/v1.33".to_owned(),
        received: RECEIVED.parse().unwrap(),
    };
    AuditedRequest::new(decision, &attributes, received)
}

fn pods<'a>() -> ResourceTarget<'a> {
    ResourceTarget {
        version: "v1",
        resource: "pods",
        namespace: "prod",
        ..ResourceTarget::default()
    }
}

fn create(level: Level) -> AuditedRequest {
    let target = Target::Resource(pods());
    request(
        decision(level),
        "create",
        target,
        "/api/v1/namespaces/prod/pods?dryRun=All",
    )
    .unwrap()
}

fn text(request: &AuditedRequest, stage: Stage) -> String {
    let line = request.line(stage, ENDED.parse().unwrap()).unwrap();
    String::from_utf8(line).unwrap()
}

fn event(request: &AuditedRequest, stage: Stage) -> Value {
    serde_json::from_str(&text(request, stage)).unwrap()
}

#[test]
fn an_event_has_the_fields_of_the_reference_in_its_order() {
    let mut created = create(Level::RequestResponse);
    created.impersonates(&Identity::new("bob", ["ops"]));
    created.authorized(true, "RBAC: allowed");
    created
        .request_object(json!({"metadata": {"name": "web", "uid": "u", "resourceVersion": "7"}}));
    created.responded(ResponseStatus {
        code: 201,
        ..ResponseStatus::default()
    });
    created.response_object(json!({"kind": "Pod"}));
    assert_eq!(
        text(&created, Stage::ResponseComplete),
        concat!(
            r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"id-1","#,
            r#""stage":"ResponseComplete","requestURI":"/api/v1/namespaces/prod/pods?dryRun=All","verb":"create","#,
            r#""user":{"username":"ada","uid":"1001","groups":["dev","system:authenticated"],"extra":{"team":["net"]}},"#,
            r#""impersonatedUser":{"username":"bob","groups":["ops"]},"sourceIPs":["10.0.0.9"],"userAgent":"kubectl/v1.33","#,
            r#""objectRef":{"resource":"pods","namespace":"prod","name":"web","uid":"u","apiVersion":"v1","resourceVersion":"7"},"#,
            r#""responseStatus":{"metadata":{},"code":201},"#,
            r#""requestObject":{"metadata":{"name":"web","resourceVersion":"7","uid":"u"}},"responseObject":{"kind":"Pod"},"#,
            r#""requestReceivedTimestamp":"2026-11-23T16:30:00.500000Z","stageTimestamp":"2026-11-23T16:30:00.750001Z","#,
            r#""annotations":{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":"RBAC: allowed"}}"#,
            "\n"
        )
    );
}

#[test]
fn the_first_stage_is_at_the_time_of_arrival() {
    let event = event(&create(Level::Metadata), Stage::RequestReceived);
    assert_eq!(event["stageTimestamp"], "2026-11-23T16:30:00.500000Z");
    assert_eq!(event["responseStatus"], Value::Null);
}

#[test]
fn bodies_are_written_by_level() {
    for (level, has_request, has_response) in [
        (Level::Metadata, false, false),
        (Level::Request, true, false),
        (Level::RequestResponse, true, true),
    ] {
        let mut request = create(level);
        request.request_object(json!({"metadata": {"name": "web"}}));
        request.response_object(json!({"a": 1}));
        let event = event(&request, Stage::ResponseComplete);
        assert_eq!(event["level"], level.name());
        assert_eq!(event["objectRef"]["name"], "web");
        assert_eq!(event["requestObject"].is_object(), has_request);
        assert_eq!(event["responseObject"].is_object(), has_response);
    }
    let target = Target::Resource(pods());
    assert!(request(decision(Level::None), "get", target, "/").is_none());
}

#[test]
fn requests_without_objects_have_no_bodies() {
    let path = Target::Path("/metrics");
    let mut scrape = request(decision(Level::RequestResponse), "get", path, "/metrics").unwrap();
    scrape.request_object(json!({"metadata": {"name": "x"}}));
    scrape.response_object(json!({}));
    let event = event(&scrape, Stage::ResponseComplete);
    for field in ["objectRef", "requestObject", "responseObject"] {
        assert_eq!(event[field], Value::Null, "{field}");
    }
}

#[test]
fn a_token_request_has_no_body_at_any_level() {
    let target = ResourceTarget {
        resource: "serviceaccounts",
        subresource: "token",
        name: "ci",
        ..pods()
    };
    let all = decision(Level::RequestResponse);
    let uri = "/api/v1/namespaces/prod/serviceaccounts/ci/token";
    let mut issued = request(all, "create", Target::Resource(target), uri).unwrap();
    issued.request_object(json!({"spec": {"audiences": ["x"]}}));
    issued.response_object(json!({"status": {"token": "s3cret"}}));
    let line = text(&issued, Stage::ResponseComplete);
    assert!(
        line.contains(r#""level":"Metadata""#) && !line.contains("s3cret"),
        "{line}"
    );
}

#[test]
fn omitted_stages_have_no_line() {
    let omit: StageSet = [Stage::RequestReceived, Stage::Panic].into_iter().collect();
    let decision = Decision {
        omit_stages: omit,
        ..decision(Level::Metadata)
    };
    let request = request(decision, "list", Target::Resource(pods()), "/api/v1/pods").unwrap();
    let now = ENDED.parse().unwrap();
    for stage in Stage::ALL {
        assert_eq!(request.line(stage, now).is_none(), omit.contains(stage));
    }
}

#[test]
fn what_clients_wrote_cannot_forge_a_line() {
    let target = ResourceTarget {
        name: "a\n{\"kind\":\"Event\"}\u{2028}\u{1b}[2J",
        ..pods()
    };
    let mut forged = request(
        decision(Level::RequestResponse),
        "get\r\nx",
        Target::Resource(target),
        "/api/v1/namespaces/prod/pods/a%0A",
    )
    .unwrap();
    forged.annotate("k\n", "v\n");
    forged.responded(ResponseStatus {
        code: 404,
        status: "Failure".to_owned(),
        message: "pods \"a\n\" not found".to_owned(),
        reason: "NotFound".to_owned(),
    });
    let line = text(&forged, Stage::ResponseComplete);
    assert_eq!(line.lines().count(), 1);
    assert!(!line.trim_end().contains(char::is_control));
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["objectRef"]["name"], target.name);
    assert_eq!(event["responseStatus"]["reason"], "NotFound");
}

#[test]
fn bodies_that_are_too_long_are_left_out() {
    let mut large = create(Level::RequestResponse);
    large.request_object(json!({"metadata": {"name": "web"}, "x": "y".repeat(MAX_LINE_BYTES)}));
    let line = text(&large, Stage::ResponseComplete);
    assert!(line.len() < 2000);
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["annotations"]["audit.k8s.io/truncated"], "true");
    assert_eq!(event["objectRef"]["name"], "web");
    assert_eq!(event["requestObject"], Value::Null);
}

#[test]
fn the_first_value_of_an_annotation_stays() {
    let mut request = create(Level::Metadata);
    request.authorized(false, "no rule");
    request.authorized(true, "");
    let event = event(&request, Stage::ResponseComplete);
    assert_eq!(
        event["annotations"]["authorization.k8s.io/decision"],
        "forbid"
    );
    assert_eq!(
        event["annotations"]["authorization.k8s.io/reason"],
        "no rule"
    );
}
