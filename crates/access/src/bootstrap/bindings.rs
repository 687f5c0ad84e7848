//! The default ClusterRoleBindings as data.

use podplane_api::rbac::{ClusterRoleBinding, RoleRef, Subject};

use super::{CUSTOM_OBJECTS, roles::maintained};
use crate::{identity, rbac};

/// A ClusterRoleBinding.
pub(super) struct BindingData {
    name: &'static str,
    role: &'static str,
    subjects: &'static [SubjectData],
}

enum SubjectData {
    User(&'static str),
    Group(&'static str),
    /// In `kube-system`.
    ServiceAccount(&'static str),
}

use SubjectData::{Group, ServiceAccount, User};

/// A binding that has its role's name.
const fn bound(role: &'static str, subjects: &'static [SubjectData]) -> BindingData {
    BindingData {
        name: role,
        role,
        subjects,
    }
}

pub(super) const BINDINGS: [BindingData; 25] = [
    bound("cluster-admin", &[Group(identity::MASTERS)]),
    bound("system:discovery", &[Group(identity::AUTHENTICATED)]),
    bound("system:basic-user", &[Group(identity::AUTHENTICATED)]),
    bound(
        "system:public-info-viewer",
        &[
            Group(identity::AUTHENTICATED),
            Group(identity::UNAUTHENTICATED),
        ],
    ),
    bound("system:monitoring", &[Group(identity::MONITORING)]),
    // The node authorizer allows nodes what they need; a binding would allow it without limits.
    bound("system:node", &[]),
    bound("system:node-proxier", &[User(identity::KUBE_PROXY)]),
    bound("system:kube-scheduler", &[User(identity::SCHEDULER)]),
    bound("system:volume-scheduler", &[User(identity::SCHEDULER)]),
    bound("system:kube-dns", &[ServiceAccount("kube-dns")]),
    bound(
        "system:kube-controller-manager",
        &[User(identity::CONTROLLER_MANAGER)],
    ),
    bound(
        "system:service-account-issuer-discovery",
        &[Group(identity::SERVICE_ACCOUNTS)],
    ),
    bound(
        "system:controller:clusterrole-aggregation-controller",
        &[ServiceAccount("clusterrole-aggregation-controller")],
    ),
    bound(
        "system:controller:certificate-controller",
        &[ServiceAccount("certificate-controller")],
    ),
    bound(
        "system:controller:service-account-controller",
        &[ServiceAccount("service-account-controller")],
    ),
    bound(
        "system:controller:root-ca-cert-publisher",
        &[ServiceAccount("root-ca-cert-publisher")],
    ),
    bound("system:podplane:scheduler", &[User(identity::SCHEDULER)]),
    bound(
        "system:podplane:controller-manager",
        &[User(identity::CONTROLLER_MANAGER)],
    ),
    bound(CUSTOM_OBJECTS, &[User(identity::CONTROLLER_MANAGER)]),
    bound(
        "system:podplane:ipam-controller",
        &[User("system:podplane:ipam-controller")],
    ),
    bound(
        "system:podplane:kubelets",
        &[User("system:podplane:kubelets")],
    ),
    bound(
        "system:podplane:route-agent",
        &[User("system:podplane:route-agent")],
    ),
    // By these, nodes join and renew their certificates; the reference's installers make them.
    BindingData {
        name: "system:podplane:node-bootstrapper",
        role: "system:node-bootstrapper",
        subjects: &[Group(identity::BOOTSTRAPPERS)],
    },
    BindingData {
        name: "system:podplane:approve-node-client",
        role: "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        subjects: &[Group(identity::BOOTSTRAPPERS)],
    },
    BindingData {
        name: "system:podplane:approve-node-renewal",
        role: "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        subjects: &[Group(identity::NODES)],
    },
];

pub(super) fn to_object(data: &BindingData) -> ClusterRoleBinding {
    let subjects = data.subjects.iter().map(|subject| {
        let (kind, name) = match subject {
            User(name) => ("User", *name),
            Group(name) => ("Group", *name),
            ServiceAccount(name) => ("ServiceAccount", *name),
        };
        let is_account = matches!(subject, ServiceAccount(_));
        Subject {
            api_group: (!is_account).then(|| rbac::GROUP.to_owned()),
            kind: kind.to_owned(),
            name: name.to_owned(),
            namespace: is_account.then(|| "kube-system".to_owned()),
        }
    });
    let subjects: Vec<Subject> = subjects.collect();
    ClusterRoleBinding {
        metadata: maintained(data.name),
        role_ref: RoleRef {
            api_group: Some(rbac::GROUP.to_owned()),
            kind: "ClusterRole".to_owned(),
            name: data.role.to_owned(),
        },
        subjects: (!subjects.is_empty()).then_some(subjects),
    }
}
