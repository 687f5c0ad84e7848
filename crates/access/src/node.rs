//! The node authorizer: what a kubelet may do.
//!
//! A node may read its own Node, the pods that are bound to it, what these refer to, and the
//! Services; write what it reports; and get tokens for the ServiceAccounts of its pods. The
//! reference's rules are those with `AuthorizeNodeWithSelectors`. What depends on the content of a
//! write is [NodeRestriction's](crate::restriction), which must judge each write that is allowed
//! here.
//!
//! The answer is never `Deny`: RBAC may allow more.

use std::sync::LazyLock;

use crate::{
    attributes::{Attributes, ResourceTarget, Target},
    authorizer::Decision,
    bootstrap,
    rbac::CompiledRules,
    relations::{RelatedKind, Relations},
};

/// The rules of all nodes, for kinds without a rule of their own below.
static RULES: LazyLock<CompiledRules> =
    LazyLock::new(|| CompiledRules::of(&bootstrap::node_rules()));

/// The namespace of the Leases by which nodes say that they are alive.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The answer to a request of a node. Whoever is not a node gets no opinion.
pub fn authorize(attributes: &Attributes<'_>, relations: &impl Relations) -> Decision {
    let Some(node) = attributes.identity.node_name() else {
        return Decision::no_opinion("");
    };
    if node.is_empty() {
        let user = &attributes.identity.user;
        return Decision::no_opinion(format!("unknown node for user {user:?}"));
    }
    let request = NodeRequest {
        node,
        verb: attributes.verb,
        relations,
    };
    if let Target::Resource(target) = &attributes.target {
        match (target.group, target.resource) {
            ("", "nodes") => return request.authorize_node(target),
            ("", "pods") => return request.authorize_pod(target),
            ("", "serviceaccounts") => return request.authorize_account(target),
            ("", "secrets") => return request.authorize_read(target, RelatedKind::Secret),
            ("", "configmaps") => return request.authorize_read(target, RelatedKind::ConfigMap),
            ("", "persistentvolumeclaims") => return request.authorize_claim(target),
            ("", "persistentvolumes") => {
                return request.authorize_get(target, RelatedKind::PersistentVolume);
            }
            ("resource.k8s.io", "resourceclaims") => {
                return request.authorize_get(target, RelatedKind::ResourceClaim);
            }
            ("resource.k8s.io", "resourceslices") => return request.authorize_slice(target),
            ("storage.k8s.io", "volumeattachments") => {
                return request.authorize_get(target, RelatedKind::VolumeAttachment);
            }
            ("storage.k8s.io", "csinodes") => return request.authorize_csi_node(target),
            ("coordination.k8s.io", "leases") => return request.authorize_lease(target),
            ("ipam.podplane.io", "blocks") => return request.authorize_block(target),
            _ => (),
        }
    }
    if RULES.allow(attributes) {
        Decision::allow("")
    } else {
        Decision::no_opinion("")
    }
}

/// A request of a known node.
struct NodeRequest<'a, R> {
    node: &'a str,
    verb: &'a str,
    relations: &'a R,
}

impl<R: Relations> NodeRequest<'_, R> {
    fn authorize_node(&self, target: &ResourceTarget<'_>) -> Decision {
        let node = self.node;
        match (target.subresource, self.verb) {
            // NodeRestriction compares the name, which a creation does not have here.
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => {
                Decision::allow("")
            }
            // By name and not by relation: a kubelet reads its Node before it exists.
            ("", "get" | "list" | "watch") => match target.name {
                name if name == node => Decision::allow(""),
                "" => Decision::no_opinion(format!(
                    "node '{node}' cannot read all nodes, only its own Node object"
                )),
                name => Decision::no_opinion(format!(
                    "node '{node}' cannot read '{name}', only its own Node object"
                )),
            },
            _ => Decision::no_opinion(""),
        }
    }

    fn authorize_pod(&self, target: &ResourceTarget<'_>) -> Decision {
        match (target.subresource, self.verb) {
            ("", "get") => self.authorize_bound_pod(target),
            ("", "list" | "watch") => {
                if target.selected_value("spec.nodeName") == Some(self.node) {
                    Decision::allow("")
                } else if target.name.is_empty() {
                    Decision::no_opinion(
                        "can only list/watch pods with spec.nodeName field selector",
                    )
                } else {
                    self.authorize_bound_pod(target)
                }
            }
            // NodeRestriction demands a mirror pod, or a pod of this node.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                Decision::allow("")
            }
            _ => Decision::no_opinion(""),
        }
    }

    fn authorize_bound_pod(&self, target: &ResourceTarget<'_>) -> Decision {
        let ResourceTarget {
            namespace, name, ..
        } = *target;
        if name.is_empty() {
            Decision::no_opinion("No Object name found")
        } else if self.relations.is_bound(namespace, name, self.node) {
            Decision::allow("")
        } else {
            self.unrelated()
        }
    }

    /// A node reads the accounts of its pods, for their pull secrets, and gets tokens for them.
    fn authorize_account(&self, target: &ResourceTarget<'_>) -> Decision {
        if (self.verb, target.subresource) != ("get", "") {
            return self.authorize_token(target);
        }
        match (target.namespace, target.name) {
            ("", _) => Decision::no_opinion("can only read namespaced object of this type"),
            (_, "") => Decision::no_opinion("No Object name found"),
            (namespace, account) => self.related(
                self.relations
                    .runs_service_account(self.node, namespace, account),
            ),
        }
    }

    fn authorize_token(&self, target: &ResourceTarget<'_>) -> Decision {
        if self.verb != "create" || target.name.is_empty() {
            return Decision::no_opinion("can only create tokens for individual service accounts");
        }
        if target.subresource != "token" {
            return Decision::no_opinion("can only create token subresource of serviceaccount");
        }
        let (namespace, account) = (target.namespace, target.name);
        self.related(
            self.relations
                .runs_service_account(self.node, namespace, account),
        )
    }

    /// Reads of single objects in a namespace, also by a list or watch of one name.
    fn authorize_read(&self, target: &ResourceTarget<'_>, kind: RelatedKind) -> Decision {
        if !matches!(self.verb, "get" | "list" | "watch") {
            return Decision::no_opinion("can only read resources of this type");
        }
        if !target.subresource.is_empty() {
            return Decision::no_opinion("cannot read subresource");
        }
        if target.namespace.is_empty() {
            return Decision::no_opinion("can only read namespaced object of this type");
        }
        self.authorize_related(target, kind)
    }

    fn authorize_get(&self, target: &ResourceTarget<'_>, kind: RelatedKind) -> Decision {
        if self.verb != "get" {
            return Decision::no_opinion("can only get individual resources of this type");
        }
        if !target.subresource.is_empty() {
            return Decision::no_opinion("cannot get subresource");
        }
        self.authorize_related(target, kind)
    }

    /// A node reports the size of a claim's volume. NodeRestriction demands that nothing else
    /// changes.
    fn authorize_claim(&self, target: &ResourceTarget<'_>) -> Decision {
        let kind = RelatedKind::PersistentVolumeClaim;
        match (target.subresource, self.verb) {
            ("status", "update" | "patch") => self.authorize_related(target, kind),
            ("status", _) => Decision::no_opinion("can only get/update/patch this type"),
            _ => self.authorize_get(target, kind),
        }
    }

    fn authorize_csi_node(&self, target: &ResourceTarget<'_>) -> Decision {
        if !matches!(self.verb, "get" | "create" | "update" | "patch" | "delete") {
            return Decision::no_opinion(
                "can only get, create, update, patch, or delete a CSINode",
            );
        }
        if !target.subresource.is_empty() {
            return Decision::no_opinion("cannot authorize CSINode subresources");
        }
        // NodeRestriction compares the name of a creation.
        if self.verb != "create" && target.name != self.node {
            return Decision::no_opinion(
                "can only access CSINode with the same name as the requesting node",
            );
        }
        Decision::allow("")
    }

    fn authorize_slice(&self, target: &ResourceTarget<'_>) -> Decision {
        if !target.subresource.is_empty() {
            return Decision::no_opinion("cannot authorize ResourceSlice subresources");
        }
        match self.verb {
            // NodeRestriction demands that it is of this node.
            "create" => Decision::allow(""),
            "get" | "update" | "patch" | "delete" => {
                self.authorize_related(target, RelatedKind::ResourceSlice)
            }
            "watch" | "list" | "deletecollection" => {
                match target.selected_value("spec.nodeName") == Some(self.node) {
                    true => Decision::allow(""),
                    false => Decision::no_opinion(
                        "can only list/watch/deletecollection resourceslices with nodeName field \
                         selector",
                    ),
                }
            }
            _ => Decision::no_opinion(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, \
                 create, update, patch, delete, deletecollection",
            ),
        }
    }

    fn authorize_related(&self, target: &ResourceTarget<'_>, kind: RelatedKind) -> Decision {
        let ResourceTarget {
            namespace, name, ..
        } = *target;
        if name.is_empty() {
            return Decision::no_opinion("No Object name found");
        }
        self.related(self.relations.is_related(self.node, kind, namespace, name))
    }

    fn related(&self, is_related: bool) -> Decision {
        match is_related {
            true => Decision::allow(""),
            false => self.unrelated(),
        }
    }

    fn authorize_lease(&self, target: &ResourceTarget<'_>) -> Decision {
        if !matches!(self.verb, "get" | "create" | "update" | "patch" | "delete") {
            return Decision::no_opinion(
                "can only get, create, update, patch, or delete a node lease",
            );
        }
        if target.namespace != LEASE_NAMESPACE {
            return Decision::no_opinion(format!(
                "can only access leases in the {LEASE_NAMESPACE:?} system namespace"
            ));
        }
        // NodeRestriction compares the name of a creation.
        if self.verb != "create" && target.name != self.node {
            return Decision::no_opinion(
                "can only access node lease with the same name as the requesting node",
            );
        }
        Decision::allow("")
    }

    /// A node reads the records of its own blocks, and says which of their addresses its sandboxes
    /// may use.
    fn authorize_block(&self, target: &ResourceTarget<'_>) -> Decision {
        if !matches!(
            (self.verb, target.subresource),
            ("list", "") | ("update", "hold")
        ) {
            return Decision::no_opinion("can only list blocks, and take and end holds of them");
        }
        if target.name != self.node {
            return Decision::no_opinion("can only list and hold its own blocks");
        }
        Decision::allow("")
    }

    fn unrelated(&self) -> Decision {
        let node = self.node;
        Decision::no_opinion(format!(
            "no relationship found between node '{node}' and this object"
        ))
    }
}
