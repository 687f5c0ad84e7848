//! The default ClusterRoles as data.

use std::collections::BTreeMap;

use podplane_api::{
    meta::{LabelSelector, ObjectMeta},
    rbac::{AggregationRule, ClusterRole, PolicyRule},
};

use super::{AUTOUPDATE, BOOTSTRAPPING_LABEL, CUSTOM_OBJECTS};

/// A ClusterRole.
pub(super) struct RoleData {
    pub(super) name: &'static str,
    /// The role that this one is a part of: `admin`, `edit` or `view`.
    part_of: Option<&'static str>,
    is_aggregated: bool,
    rules: &'static [RuleData],
}

/// A rule. Words stand in one text, separated by spaces; `core` is the core group.
struct RuleData {
    verbs: &'static str,
    groups: &'static str,
    resources: &'static str,
    names: &'static str,
    paths: &'static str,
}

const READ: &str = "get list watch";
const WRITE: &str = "create delete deletecollection patch update";
const COLLECT: &str = "delete get update";
const READ_WRITE: &str = "create delete deletecollection get list patch update watch";

/// A rule for objects.
const fn on(verbs: &'static str, groups: &'static str, resources: &'static str) -> RuleData {
    RuleData {
        verbs,
        groups,
        resources,
        names: "",
        paths: "",
    }
}

/// A rule for paths that have no objects.
const fn at(verbs: &'static str, paths: &'static str) -> RuleData {
    RuleData {
        verbs,
        groups: "",
        resources: "",
        names: "",
        paths,
    }
}

impl RuleData {
    /// The rule for objects of these names alone.
    const fn named(self, names: &'static str) -> Self {
        Self { names, ..self }
    }

    fn to_object(&self) -> PolicyRule {
        fn words(text: &str) -> Option<Vec<String>> {
            let words = text.split_whitespace().map(str::to_owned);
            (!text.is_empty()).then(|| words.collect())
        }
        let groups = words(self.groups).map(|mut groups| {
            for group in &mut groups {
                if group == "core" {
                    group.clear();
                }
            }
            groups
        });
        PolicyRule {
            api_groups: groups,
            non_resource_urls: words(self.paths),
            resource_names: words(self.names),
            resources: words(self.resources),
            verbs: words(self.verbs).unwrap_or_default(),
        }
    }
}

impl RoleData {
    pub(super) fn to_object(&self) -> ClusterRole {
        let aggregate_to = |role: &str| format!("rbac.authorization.k8s.io/aggregate-to-{role}");
        let yes = || "true".to_owned();
        let mut metadata = maintained(self.name);
        if let Some(role) = self.part_of {
            let labels = metadata.labels.get_or_insert_default();
            labels.insert(aggregate_to(role), yes());
        }
        let aggregation_rule = self.is_aggregated.then(|| AggregationRule {
            cluster_role_selectors: Some(vec![LabelSelector {
                match_labels: Some(BTreeMap::from([(aggregate_to(self.name), yes())])),
                ..LabelSelector::default()
            }]),
        });
        let rules = self.rules.iter().map(RuleData::to_object);
        ClusterRole {
            aggregation_rule,
            metadata,
            rules: Some(rules.collect()),
        }
    }
}

/// The metadata of an object that the API server maintains.
pub(super) fn maintained(name: &str) -> ObjectMeta {
    let (key, value) = BOOTSTRAPPING_LABEL;
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some(BTreeMap::from([(key.to_owned(), value.to_owned())])),
        annotations: Some(BTreeMap::from([(AUTOUPDATE.to_owned(), "true".to_owned())])),
        ..ObjectMeta::default()
    }
}

const fn role(name: &'static str, rules: &'static [RuleData]) -> RoleData {
    RoleData {
        name,
        part_of: None,
        is_aggregated: false,
        rules,
    }
}

const fn part(of: &'static str, name: &'static str, rules: &'static [RuleData]) -> RoleData {
    RoleData {
        part_of: Some(of),
        ..role(name, rules)
    }
}

const fn aggregated(name: &'static str, part_of: Option<&'static str>) -> RoleData {
    RoleData {
        part_of,
        is_aggregated: true,
        ..role(name, &[])
    }
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";
const COORDINATION: &str = "coordination.k8s.io";
const CLUSTER_CIDRS: &str = "networking.x-k8s.io";
const AUTOSCALING: &str = "autoscaling";
const DISCOVERY: &str = "discovery.k8s.io";
const NETWORKING: &str = "networking.k8s.io";
const NODE_API: &str = "node.k8s.io";
const DEVICES: &str = "resource.k8s.io";
const STORAGE: &str = "storage.k8s.io";

const EVENTS: RuleData = on("create patch update", "core events.k8s.io", "events");
const TOKEN_REVIEWS: RuleData = on("create", AUTHENTICATION, "tokenreviews");
const ACCESS_REVIEWS: RuleData = on("create", AUTHORIZATION, "subjectaccessreviews");

/// What every process of podplane writes besides objects: the spans of pods' journeys.
const SPANS: RuleData = on("create", "trace.podplane.io", "spans");
/// Kubernetes elects by Leases of other names.
const fn lease(name: &'static str) -> RuleData {
    on("get update", COORDINATION, "leases").named(name)
}

const NODE_RULES: [RuleData; 26] = [
    SPANS,
    TOKEN_REVIEWS,
    on(
        "create",
        AUTHORIZATION,
        "localsubjectaccessreviews subjectaccessreviews",
    ),
    on(READ, "core", "services"),
    on("create get list watch", "core", "nodes"),
    on("patch update", "core", "nodes/status"),
    on("patch update", "core", "nodes"),
    EVENTS,
    on(READ, "core", "pods"),
    on("create delete", "core", "pods"),
    on("patch update", "core", "pods/status"),
    on("create", "core", "pods/eviction"),
    // The node authorizer limits these to what the node's pods refer to.
    on(READ, "core", "configmaps secrets"),
    on("get", "core", "persistentvolumeclaims persistentvolumes"),
    on("get", "core", "endpoints"),
    on(
        "create get list watch",
        CERTIFICATES,
        "certificatesigningrequests",
    ),
    on("create delete get patch update", COORDINATION, "leases"),
    on("get", STORAGE, "volumeattachments"),
    on("create", "core", "serviceaccounts/token"),
    on("get patch update", "core", "persistentvolumeclaims/status"),
    on(READ, STORAGE, "csidrivers"),
    on("create delete get patch update", STORAGE, "csinodes"),
    on(READ, NODE_API, "runtimeclasses"),
    on("get", DEVICES, "resourceclaims"),
    on("deletecollection", DEVICES, "resourceslices"),
    on("get", "core", "serviceaccounts"),
];

pub(super) fn node_rules() -> Vec<PolicyRule> {
    NODE_RULES.iter().map(RuleData::to_object).collect()
}

/// The workloads.
const WORKLOADS: &str = "daemonsets deployments deployments/scale replicasets replicasets/scale \
                         statefulsets statefulsets/scale";

pub(super) const ROLES: [RoleData; 39] = [
    role("cluster-admin", &[on("*", "*", "*"), at("*", "*")]),
    aggregated("admin", None),
    aggregated("edit", Some("admin")),
    aggregated("view", Some("edit")),
    part(
        "admin",
        "system:aggregate-to-admin",
        &[
            on("create", AUTHORIZATION, "localsubjectaccessreviews"),
            on(
                READ_WRITE,
                "rbac.authorization.k8s.io",
                "rolebindings roles",
            ),
        ],
    ),
    part(
        "edit",
        "system:aggregate-to-edit",
        &[
            on(
                READ,
                "core",
                "pods/attach pods/exec pods/portforward secrets",
            ),
            on("impersonate", "core", "serviceaccounts"),
            on(WRITE, "core", "pods pods/attach pods/exec pods/portforward"),
            on("create", "core", "pods/eviction"),
            on(
                WRITE,
                "core",
                "configmaps persistentvolumeclaims replicationcontrollers \
                 replicationcontrollers/scale secrets serviceaccounts services",
            ),
            on("create", "core", "serviceaccounts/token"),
            on(WRITE, "core events.k8s.io", "events"),
            on(WRITE, "apps", WORKLOADS),
            on(WRITE, AUTOSCALING, "horizontalpodautoscalers"),
            on(WRITE, "batch", "cronjobs jobs"),
            on(WRITE, NETWORKING, "ingresses networkpolicies"),
            on(WRITE, "policy", "poddisruptionbudgets"),
            on(READ_WRITE, COORDINATION, "leases"),
            on(WRITE, DEVICES, "resourceclaims resourceclaimtemplates"),
        ],
    ),
    part(
        "view",
        "system:aggregate-to-view",
        &[
            on(
                READ,
                "core",
                "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods \
                 replicationcontrollers replicationcontrollers/scale serviceaccounts services \
                 services/status",
            ),
            on(
                READ,
                "core",
                "bindings limitranges namespaces/status pods/log pods/status \
                 replicationcontrollers/status resourcequotas resourcequotas/status",
            ),
            on(READ, "core events.k8s.io", "events"),
            on(READ, DISCOVERY, "endpointslices"),
            // In a RoleBinding, this allows to read its own namespace.
            on(READ, "core", "namespaces"),
            on(
                READ,
                "apps",
                "controllerrevisions daemonsets daemonsets/status deployments deployments/scale \
                 deployments/status replicasets replicasets/scale replicasets/status statefulsets \
                 statefulsets/scale statefulsets/status",
            ),
            on(
                READ,
                AUTOSCALING,
                "horizontalpodautoscalers horizontalpodautoscalers/status",
            ),
            on(READ, "batch", "cronjobs cronjobs/status jobs jobs/status"),
            on(
                READ,
                NETWORKING,
                "ingresses ingresses/status networkpolicies",
            ),
            on(
                READ,
                DEVICES,
                "resourceclaims resourceclaims/status resourceclaimtemplates",
            ),
            on(
                READ,
                "policy",
                "poddisruptionbudgets poddisruptionbudgets/status",
            ),
        ],
    ),
    role(
        "system:discovery",
        &[at(
            "get",
            "/api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* /readyz /version /version/",
        )],
    ),
    role(
        "system:public-info-viewer",
        &[at("get", "/healthz /livez /readyz /version /version/")],
    ),
    role(
        "system:basic-user",
        &[
            on(
                "create",
                AUTHORIZATION,
                "selfsubjectaccessreviews selfsubjectrulesreviews",
            ),
            on("create", AUTHENTICATION, "selfsubjectreviews"),
        ],
    ),
    role(
        "system:monitoring",
        &[at(
            "get",
            "/healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/*",
        )],
    ),
    role("system:auth-delegator", &[TOKEN_REVIEWS, ACCESS_REVIEWS]),
    role("system:node", &NODE_RULES),
    role(
        "system:node-proxier",
        &[
            on("list watch", "core", "endpoints services"),
            on(READ, "core", "nodes"),
            EVENTS,
            on("list watch", NETWORKING, "servicecidrs"),
            on("list watch", DISCOVERY, "endpointslices"),
        ],
    ),
    role(
        "system:node-problem-detector",
        &[
            on("get", "core", "nodes"),
            on("patch", "core", "nodes/status"),
            EVENTS,
        ],
    ),
    role(
        "system:node-bootstrapper",
        &[on(
            "create get list watch",
            CERTIFICATES,
            "certificatesigningrequests",
        )],
    ),
    role(
        "system:kubelet-api-admin",
        &[
            on(READ, "core", "nodes"),
            on("proxy", "core", "nodes"),
            on(
                "*",
                "core",
                "nodes/log nodes/metrics nodes/proxy nodes/stats",
            ),
        ],
    ),
    role(
        "system:service-account-issuer-discovery",
        &[at(
            "get",
            "/.well-known/openid-configuration /openid/v1/jwks",
        )],
    ),
    role(
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        &[on(
            "create",
            CERTIFICATES,
            "certificatesigningrequests/nodeclient",
        )],
    ),
    role(
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        &[on(
            "create",
            CERTIFICATES,
            "certificatesigningrequests/selfnodeclient",
        )],
    ),
    role(
        "system:certificates.k8s.io:kube-apiserver-client-approver",
        &[on("approve", CERTIFICATES, "signers").named("kubernetes.io/kube-apiserver-client")],
    ),
    role(
        "system:certificates.k8s.io:kube-apiserver-client-kubelet-approver",
        &[on("approve", CERTIFICATES, "signers")
            .named("kubernetes.io/kube-apiserver-client-kubelet")],
    ),
    role(
        "system:certificates.k8s.io:kubelet-serving-approver",
        &[on("approve", CERTIFICATES, "signers").named("kubernetes.io/kubelet-serving")],
    ),
    role(
        "system:certificates.k8s.io:legacy-unknown-approver",
        &[on("approve", CERTIFICATES, "signers").named("kubernetes.io/legacy-unknown")],
    ),
    role(
        "system:kube-scheduler",
        &[
            EVENTS,
            on("create", COORDINATION, "leases"),
            on("get update", COORDINATION, "leases").named("kube-scheduler"),
            on(READ, "core", "nodes"),
            on("delete get list watch", "core", "pods"),
            on("create", "core", "bindings pods/binding"),
            on("patch update", "core", "pods/status"),
            on(READ, "core", "namespaces replicationcontrollers services"),
            on(READ, "apps", "replicasets statefulsets"),
            on(READ, "policy", "poddisruptionbudgets"),
            on(READ, "core", "persistentvolumeclaims persistentvolumes"),
            TOKEN_REVIEWS,
            ACCESS_REVIEWS,
            on(
                READ,
                STORAGE,
                "csidrivers csinodes csistoragecapacities volumeattachments",
            ),
            on(READ, DEVICES, "deviceclasses resourceslices"),
            on(
                "create delete get list patch update watch",
                DEVICES,
                "resourceclaims",
            ),
            on(
                "get list patch update watch",
                DEVICES,
                "resourceclaims/status",
            ),
            on("update", "core", "pods/finalizers"),
        ],
    ),
    role(
        "system:volume-scheduler",
        &[
            on(
                "get list patch update watch",
                "core",
                "persistentvolumeclaims persistentvolumes",
            ),
            on(READ, STORAGE, "storageclasses"),
        ],
    ),
    role(
        "system:kube-dns",
        &[on("list watch", "core", "endpoints services")],
    ),
    role(
        "system:persistent-volume-provisioner",
        &[
            on("create delete get list watch", "core", "persistentvolumes"),
            on("get list update watch", "core", "persistentvolumeclaims"),
            on(READ, STORAGE, "storageclasses"),
            on("watch", "core", "events"),
            EVENTS,
        ],
    ),
    role(
        "system:kube-controller-manager",
        &[
            EVENTS,
            on("create", COORDINATION, "leases"),
            on("get update", COORDINATION, "leases").named("kube-controller-manager"),
            on("create", "core", "secrets serviceaccounts"),
            on("delete", "core", "secrets"),
            on(
                "get",
                "core",
                "configmaps namespaces secrets serviceaccounts",
            ),
            on("update", "core", "secrets serviceaccounts"),
            TOKEN_REVIEWS,
            ACCESS_REVIEWS,
            on("list watch", "*", "*"),
            on("create", "core", "serviceaccounts/token"),
        ],
    ),
    role(
        "system:controller:clusterrole-aggregation-controller",
        &[on(
            "escalate get list patch update watch",
            "rbac.authorization.k8s.io",
            "clusterroles",
        )],
    ),
    role(
        "system:controller:certificate-controller",
        &[
            on(
                "delete get list watch",
                CERTIFICATES,
                "certificatesigningrequests",
            ),
            on(
                "update",
                CERTIFICATES,
                "certificatesigningrequests/approval certificatesigningrequests/status",
            ),
            on("approve", CERTIFICATES, "signers")
                .named("kubernetes.io/kube-apiserver-client-kubelet"),
            on("sign", CERTIFICATES, "signers").named(
                "kubernetes.io/kube-apiserver-client kubernetes.io/kube-apiserver-client-kubelet \
                 kubernetes.io/kubelet-serving kubernetes.io/legacy-unknown",
            ),
            ACCESS_REVIEWS,
            EVENTS,
        ],
    ),
    role(
        "system:controller:service-account-controller",
        &[on("create", "core", "serviceaccounts"), EVENTS],
    ),
    role(
        "system:controller:root-ca-cert-publisher",
        &[on("create update", "core", "configmaps"), EVENTS],
    ),
    // What podplane's own processes need besides.
    role(
        "system:podplane:scheduler",
        &[
            lease("podplane-scheduler"),
            SPANS,
            // The priority of pods that do not exist yet, which `podplane explain` asks about.
            on(READ, "scheduling.k8s.io", "priorityclasses"),
        ],
    ),
    role(
        "system:podplane:controller-manager",
        &[
            SPANS,
            on(
                "create",
                "core",
                "configmaps endpoints persistentvolumeclaims pods",
            ),
            on("create", "apps", "controllerrevisions replicasets"),
            on("create", "discovery.k8s.io", "endpointslices"),
            // The garbage collector's, for the kinds that it collects; Kubernetes' has them for
            // everything, subresources included. They are the right to the election's Lease, too.
            on(
                COLLECT,
                "core",
                "configmaps endpoints limitranges namespaces nodes persistentvolumeclaims \
                 persistentvolumes pods podtemplates replicationcontrollers resourcequotas secrets \
                 serviceaccounts services",
            ),
            on(
                COLLECT,
                "admissionregistration.k8s.io",
                "mutatingwebhookconfigurations validatingadmissionpolicies \
                 validatingadmissionpolicybindings validatingwebhookconfigurations",
            ),
            on(COLLECT, "apiextensions.k8s.io", "customresourcedefinitions"),
            on(COLLECT, "apiregistration.k8s.io", "apiservices"),
            on(
                COLLECT,
                "apps",
                "controllerrevisions daemonsets deployments replicasets statefulsets",
            ),
            on(COLLECT, "autoscaling", "horizontalpodautoscalers"),
            on(COLLECT, "batch", "cronjobs jobs"),
            on(COLLECT, COORDINATION, "leases"),
            on(COLLECT, "discovery.k8s.io", "endpointslices"),
            on(
                COLLECT,
                "networking.k8s.io",
                "ingressclasses ingresses ipaddresses networkpolicies servicecidrs",
            ),
            on(COLLECT, "node.k8s.io", "runtimeclasses"),
            on(
                COLLECT,
                "resource.k8s.io",
                "deviceclasses resourceclaims resourceclaimtemplates resourceslices",
            ),
            on(
                COLLECT,
                "storage.k8s.io",
                "csidrivers csinodes csistoragecapacities storageclasses volumeattachments \
                 volumeattributesclasses",
            ),
            on(COLLECT, "policy", "poddisruptionbudgets"),
            on(COLLECT, "scheduling.k8s.io", "priorityclasses"),
            on(
                COLLECT,
                "rbac.authorization.k8s.io",
                "clusterrolebindings clusterroles rolebindings roles",
            ),
            on(COLLECT, CERTIFICATES, "certificatesigningrequests"),
            on(COLLECT, CLUSTER_CIDRS, "clustercidrs"),
            // The other controllers'.
            on("update", "core", "nodes/status"),
            on(
                "update",
                "apps",
                "daemonsets/status deployments/status replicasets/status statefulsets/status",
            ),
            on("update", "batch", "jobs/status"),
            on("update", "policy", "poddisruptionbudgets/status"),
            on(
                "update",
                CERTIFICATES,
                "certificatesigningrequests/approval certificatesigningrequests/status",
            ),
            on("approve", CERTIFICATES, "signers")
                .named("kubernetes.io/kube-apiserver-client-kubelet"),
            on("sign", CERTIFICATES, "signers").named(
                "kubernetes.io/kube-apiserver-client kubernetes.io/kube-apiserver-client-kubelet \
                 kubernetes.io/kubelet-serving",
            ),
        ],
    ),
    // Its rules are those of the custom kinds that are served.
    role(CUSTOM_OBJECTS, &[]),
    role(
        "system:podplane:ipam-controller",
        &[
            EVENTS,
            SPANS,
            on("create", COORDINATION, "leases"),
            lease("podplane-ipam-controller"),
            on(READ, "core", "nodes pods"),
            on("update", "core", "nodes nodes/podcidrs nodes/status"),
            on("delete", "core", "pods"),
            on("list update", "ipam.podplane.io", "blocks"),
            on(
                "create get list update watch",
                CLUSTER_CIDRS,
                "clustercidrs",
            ),
        ],
    ),
    // One process for several nodes: the rules of a node, for all of them.
    role(
        "system:podplane:kubelets",
        &[
            SPANS,
            on(READ, "core", "pods services"),
            on("create get list patch update watch", "core", "nodes"),
            on("patch update", "core", "nodes/status pods/status"),
            on("create delete", "core", "pods"),
            EVENTS,
            on("create delete get patch update", COORDINATION, "leases"),
            on("list", "ipam.podplane.io", "blocks"),
            on("update", "ipam.podplane.io", "blocks/hold"),
        ],
    ),
    role(
        "system:podplane:route-agent",
        &[on("list watch", "core", "nodes")],
    ),
];
