use podplane_access::{Identity, ResourceTarget};

use super::*;
use crate::level::Stage;

/// The cases of the example in Kubernetes' documentation of audit policies: its rules, in words of
/// our own.
const EXAMPLE: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  # Pods whole, but not their subresources.
  - level: RequestResponse
    resources: [{group: "", resources: [pods]}]
  - level: Metadata
    resources: [{group: "", resources: [pods/log, pods/status]}]
  - level: None
    resources: [{group: "", resources: [configmaps], resourceNames: [controller-leader]}]
  - level: None
    users: ["system:kube-proxy"]
    verbs: [watch]
    resources: [{group: "", resources: [endpoints, services]}]
  - level: None
    userGroups: ["system:authenticated"]
    nonResourceURLs: ["/api*", /version]
  - level: Request
    resources: [{group: "", resources: [configmaps]}]
    namespaces: [kube-system]
  - level: Metadata
    resources: [{group: "", resources: [secrets, configmaps]}]
  - level: Request
    resources: [{group: ""}, {group: extensions}]
  - level: Metadata
    omitStages: [RequestReceived]
"#;

/// `VERB RESOURCE[/SUBRESOURCE][.GROUP] NAMESPACE NAME` with `-` for nothing, or `VERB /PATH`.
fn decided(policy: &Policy, user: &str, request: &str) -> Decision {
    let groups: &[&str] = match user {
        "nobody" => &["system:unauthenticated"],
        _ => &["devs", "system:authenticated"],
    };
    let identity = Identity::new(user, groups.iter().copied());
    let words: Vec<&str> = request
        .split(' ')
        .map(|word| if word == "-" { "" } else { word })
        .collect();
    match words[..] {
        [verb, path] => policy.decide(&Attributes::path(&identity, verb, path)),
        [verb, resource, namespace, name] => {
            let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let target = ResourceTarget {
                group,
                version: "v1",
                resource,
                subresource,
                namespace,
                name,
                ..ResourceTarget::default()
            };
            policy.decide(&Attributes::resource(
                &identity,
                verb,
                target.of_request(verb),
            ))
        }
        _ => panic!("{request}"),
    }
}

#[test]
fn decides_as_the_example_of_the_documentation() {
    let policy = Policy::parse(EXAMPLE).unwrap();
    for (user, request, level) in [
        ("ada", "create pods prod -", Level::RequestResponse),
        ("ada", "get pods prod web", Level::RequestResponse),
        ("ada", "get pods/log prod web", Level::Metadata),
        ("ada", "patch pods/status prod web", Level::Metadata),
        // No rule for pods has it: the one for the core group does.
        ("ada", "create pods/binding prod web", Level::Request),
        (
            "ada",
            "get configmaps kube-system controller-leader",
            Level::None,
        ),
        ("ada", "get configmaps kube-system other", Level::Request),
        ("ada", "get configmaps prod other", Level::Metadata),
        ("ada", "list configmaps kube-system -", Level::Request),
        ("ada", "get secrets kube-system s", Level::Metadata),
        ("system:kube-proxy", "watch services - -", Level::None),
        ("system:kube-proxy", "list services - -", Level::Request),
        ("ada", "watch services - -", Level::Request),
        ("ada", "get /api", Level::None),
        ("ada", "get /apis/apps", Level::None),
        ("ada", "get /version", Level::None),
        ("ada", "get /versions", Level::Metadata),
        ("nobody", "get /api", Level::Metadata),
        ("ada", "list nodes - -", Level::Request),
        ("ada", "list things.extensions - -", Level::Request),
        ("ada", "list deployments.apps prod -", Level::Metadata),
    ] {
        let decision = decided(&policy, user, request);
        assert_eq!(decision.level, level, "{user}: {request}");
        assert!(decision.omit_stages.contains(Stage::RequestReceived));
        assert!(!decision.omit_stages.contains(Stage::ResponseComplete));
    }
}

fn one_rule(rule: &str) -> Result<Policy, PolicyError> {
    Policy::parse(&format!(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{rule}]"
    ))
}

#[test]
fn a_rule_matches_by_all_of_its_lists() {
    for (rule, request, matches) in [
        ("", "get pods prod web", true),
        ("", "get /livez", true),
        ("users: [ada]", "get pods prod web", true),
        ("users: [bob]", "get pods prod web", false),
        ("users: [ada], verbs: [list]", "get pods prod web", false),
        ("userGroups: [x, devs]", "get /livez", true),
        ("userGroups: [x]", "get /livez", false),
        // `*` is not a verb, a user or a namespace.
        ("verbs: ['*']", "get pods prod web", false),
        ("users: ['*']", "get pods prod web", false),
        ("namespaces: ['*']", "get pods prod web", false),
        ("namespaces: [prod]", "get pods prod web", true),
        ("namespaces: [prod]", "get pods/log prod web", true),
        ("namespaces: [prod]", "list pods - -", false),
        ("namespaces: ['']", "list pods - -", true),
        ("namespaces: ['']", "get nodes - n1", true),
        ("namespaces: ['']", "get /livez", false),
        ("namespaces: ['']", "get pods prod web", false),
        // A request for one Namespace is inside it.
        ("namespaces: [prod]", "get namespaces - prod", true),
        ("namespaces: ['']", "get namespaces - prod", false),
        ("resources: [{}]", "get pods prod web", true),
        ("resources: [{}]", "get deployments.apps prod web", false),
        (
            "resources: [{group: apps}]",
            "get deployments/scale.apps prod web",
            true,
        ),
        (
            "resources: [{resources: ['*']}]",
            "get pods/log prod web",
            true,
        ),
        (
            "resources: [{resources: ['*']}]",
            "get deployments.apps prod web",
            false,
        ),
        (
            "resources: [{resources: [pods]}]",
            "get pods/log prod web",
            false,
        ),
        (
            "resources: [{resources: [pods/log]}]",
            "get pods/log prod web",
            true,
        ),
        (
            "resources: [{resources: [pods/log]}]",
            "get pods prod web",
            false,
        ),
        (
            "resources: [{resources: ['pods/*']}]",
            "get pods/log prod web",
            true,
        ),
        (
            "resources: [{resources: ['pods/*']}]",
            "get pods prod web",
            true,
        ),
        (
            "resources: [{resources: ['pods/*']}]",
            "get nodes/status - n1",
            false,
        ),
        (
            "resources: [{resources: ['*/status']}]",
            "get nodes/status - n1",
            true,
        ),
        (
            "resources: [{resources: ['*/status']}]",
            "get nodes - n1",
            false,
        ),
        (
            "resources: [{resources: ['*/*']}]",
            "get pods/log prod web",
            false,
        ),
        (
            "resources: [{resources: ['*'], resourceNames: [web]}]",
            "get pods prod web",
            true,
        ),
        (
            "resources: [{resources: ['*'], resourceNames: [web]}]",
            "list pods prod -",
            false,
        ),
        (
            "resources: [{resources: [pods], resourceNames: ['']}]",
            "list pods prod -",
            true,
        ),
        ("nonResourceURLs: ['*']", "get /livez", true),
        ("nonResourceURLs: ['*']", "get pods prod web", false),
        ("nonResourceURLs: [/livez]", "get /livez/ping", false),
        ("nonResourceURLs: ['/livez*']", "get /livez/ping", true),
        ("nonResourceURLs: ['/livez/*']", "get /livez", false),
        (
            "users:, verbs:, resources:, namespaces:",
            "get /livez",
            true,
        ),
    ] {
        let rule = match rule {
            "" => "{level: Request}".to_owned(),
            rule => format!("{{level: Request, {rule}}}"),
        };
        let level = decided(&one_rule(&rule).unwrap(), "ada", request).level;
        assert_eq!(level == Level::Request, matches, "{rule} {request}");
        assert_eq!(level == Level::None, !matches, "{rule} {request}");
    }
}

#[test]
fn stages_and_managed_fields_come_from_the_rule_and_the_policy() {
    let policy = Policy::parse(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nmetadata: {name: x}\nomitManagedFields: true\n\
         omitStages: [Panic]\nrules:\n- {level: Request, verbs: [get]}\n\
         - {level: Metadata, verbs: [list], omitStages: [RequestReceived], omitManagedFields: false}",
    )
    .unwrap();
    for (request, stages, omits) in [
        ("get pods prod web", &[Stage::Panic][..], true),
        (
            "list pods prod -",
            &[Stage::Panic, Stage::RequestReceived],
            false,
        ),
        ("create pods prod -", &[Stage::Panic], true),
    ] {
        let decision = decided(&policy, "ada", request);
        assert_eq!(
            decision.omit_stages,
            stages.iter().copied().collect(),
            "{request}"
        );
        assert_eq!(decision.omit_managed_fields, omits, "{request}");
    }
}

#[test]
fn refusals_name_the_field_and_the_rule() {
    for (rule, message) in [
        ("{}", "rules[0]: missing field `level`"),
        (
            "{level: metadata}",
            "rules[0].level: unknown variant `metadata`",
        ),
        (
            "{level: None}, {level: None, resorces: []}",
            "rules[1].resorces: unknown field `resorces`",
        ),
        (
            "{level: None, resources: [{group: '', resource: [pods]}]}",
            "rules[0].resources[0].resource: unknown field",
        ),
        (
            "{level: None, verbs: get}",
            "rules[0].verbs: invalid type: string \"get\"",
        ),
        (
            "{level: None, omitStages: [Never]}",
            "rules[0].omitStages[0]: unknown variant `Never`",
        ),
        (
            "{level: None, nonResourceURLs: [livez]}",
            "rules[0].nonResourceURLs[0]: \"livez\" must begin",
        ),
        (
            "{level: None, nonResourceURLs: ['']}",
            "rules[0].nonResourceURLs[0]: \"\" must begin",
        ),
        (
            "{level: None, nonResourceURLs: [/a*/b]}",
            "rules[0].nonResourceURLs[0]: \"/a*/b\" must not",
        ),
        (
            "{level: None, nonResourceURLs: [/é**]}",
            "rules[0].nonResourceURLs[0]: \"/é**\" must not",
        ),
        (
            "{level: None, nonResourceURLs: [/a], namespaces: [x]}",
            "rules[0].nonResourceURLs: a rule cannot have both",
        ),
        (
            "{level: None, nonResourceURLs: [/a], resources: [{}]}",
            "rules[0].nonResourceURLs: a rule cannot have both",
        ),
        (
            "{level: None, resources: [{}, {group: rbac/v1}]}",
            "rules[0].resources[1].group: \"rbac/v1\"",
        ),
        (
            "{level: None, resources: [{group: '*'}]}",
            "rules[0].resources[0].group: \"*\"",
        ),
        (
            "{level: None, resources: [{resourceNames: [a]}]}",
            "rules[0].resources[0].resourceNames: needs",
        ),
        ("", "rules: must have at least one rule"),
    ] {
        let error = one_rule(rule).unwrap_err().to_string();
        assert!(error.starts_with(message), "{rule}: {error}");
    }
    for (text, message) in [
        ("", "apiVersion and kind must be"),
        ("[]", "apiVersion and kind must be"),
        (
            "{apiVersion: audit.k8s.io/v1beta1, kind: Policy}",
            "apiVersion and kind must be",
        ),
        (
            "{apiVersion: audit.k8s.io/v1, kind: Policy, rule: []}",
            "rule: unknown field `rule`",
        ),
        (
            "{apiVersion: audit.k8s.io/v1, kind: Policy, kind: Policy}",
            "invalid YAML",
        ),
        ("a: [", "invalid YAML"),
    ] {
        let error = Policy::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(message), "{text}: {error}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let rules = "{level: None, nonResourceURLs: [a, b]}, {level: None, resources: [{group: A}]}";
    let error = one_rule(rules).unwrap_err().to_string();
    assert_eq!(error.lines().count(), 3, "{error}");
}
