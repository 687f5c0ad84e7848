//! The environment of a container, its command and its arguments.

use std::{collections::BTreeMap, net::IpAddr};

use podplane_api::{
    Object as _, Quantity,
    core::{Container, EnvVarSource, ObjectFieldSelector, Pod, ResourceFieldSelector},
    quantity,
};

use super::{config::ConfigError, sources::PodSources};

/// The properties of a pod that it learns by its environment and by files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PodFacts<'a> {
    /// The pod.
    pub(crate) pod: &'a Pod,
    /// Its addresses, the primary one first.
    pub(crate) ips: &'a [IpAddr],
    /// The addresses of its node.
    pub(crate) host_ips: &'a [IpAddr],
}

/// Environment variables, in the order of their definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment(Vec<(String, String)>);

impl Environment {
    /// The environment of a container: `envFrom`, then `env`, of which a later one replaces an
    /// earlier one of its name.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: a source is missing, or not known here.
    pub(crate) fn of(
        container: &Container,
        facts: PodFacts<'_>,
        sources: &PodSources,
    ) -> Result<Self, ConfigError> {
        let mut environment = Self::default();
        for from in container.env_from.iter().flatten() {
            let prefix = from.prefix.as_deref().unwrap_or_default();
            let values = match (&from.config_map_ref, &from.secret_ref) {
                (Some(map), _) => sources.config_map(&map.name, map.optional)?,
                (_, Some(secret)) => sources.secret(&secret.name, secret.optional)?,
                (None, None) => None,
            };
            for (key, value) in values.unwrap_or_default() {
                environment.set(format!("{prefix}{key}"), text(&key, value)?);
            }
        }
        for variable in container.env.iter().flatten() {
            let name = variable.name.clone();
            let value = match &variable.value_from {
                None => {
                    let value = variable.value.as_deref().unwrap_or_default();
                    Some(environment.expand(value))
                }
                Some(from) => value_from(&name, from, container, facts, sources)?,
            };
            if let Some(value) = value {
                environment.set(name, value);
            }
        }
        Ok(environment)
    }

    fn set(&mut self, name: String, value: String) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, present)) => *present = value,
            None => self.0.push((name, value)),
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The variables in their order.
    pub(crate) fn into_pairs(self) -> Vec<(String, String)> {
        self.0
    }

    /// Replaces `$(NAME)` by the variable's value, if there is one, and `$$` by `$` (source:
    /// Kubernetes' expansion of `command`, `args` and `env`).
    pub(crate) fn expand(&self, text: &str) -> String {
        let mut expanded = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            expanded.push_str(before);
            rest = after;
            if let Some(after) = rest.strip_prefix('$') {
                expanded.push('$');
                rest = after;
                continue;
            }
            let reference = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
            match reference {
                Some((name, after)) => {
                    match self.get(name) {
                        Some(value) => expanded.push_str(value),
                        None => expanded.extend(["$(", name, ")"]),
                    }
                    rest = after;
                }
                None => expanded.push('$'),
            }
        }
        expanded.push_str(rest);
        expanded
    }
}

fn text(key: &str, value: Vec<u8>) -> Result<String, ConfigError> {
    String::from_utf8(value).map_err(|_| ConfigError::NotText(key.to_owned()))
}

fn value_from(
    name: &str,
    from: &EnvVarSource,
    container: &Container,
    facts: PodFacts<'_>,
    sources: &PodSources,
) -> Result<Option<String>, ConfigError> {
    if let Some(field) = &from.field_ref {
        return field_value(field, facts).map(Some);
    }
    if let Some(resource) = &from.resource_field_ref {
        return resource_value(resource, container).map(Some);
    }
    let (object, key, is_optional, values) = if let Some(key) = &from.config_map_key_ref {
        let values = sources.config_map(&key.name, key.optional)?;
        ("ConfigMap", key.key.as_str(), key.optional, values)
    } else if let Some(key) = &from.secret_key_ref {
        let values = sources.secret(&key.name, key.optional)?;
        ("Secret", key.key.as_str(), key.optional, values)
    } else {
        return Err(ConfigError::UnknownSource(name.to_owned()));
    };
    match values.and_then(|mut values| values.remove(key)) {
        Some(value) => text(key, value).map(Some),
        None if is_optional == Some(true) => Ok(None),
        None => Err(ConfigError::MissingKey {
            key: key.to_owned(),
            object,
            of: format!("variable {name}"),
        }),
    }
}

/// The value of a field of the pod, by Kubernetes' paths.
///
/// # Errors
///
/// [`ConfigError::UnknownField`].
pub(crate) fn field_value(
    field: &ObjectFieldSelector,
    facts: PodFacts<'_>,
) -> Result<String, ConfigError> {
    let PodFacts { pod, ips, host_ips } = facts;
    let spec = pod.spec.as_ref();
    let first = |ips: &[IpAddr]| ips.first().map(ToString::to_string).unwrap_or_default();
    let all = |ips: &[IpAddr]| {
        let each = ips.iter().map(ToString::to_string);
        each.collect::<Vec<_>>().join(",")
    };
    let path = field.field_path.as_str();
    let value = match path {
        "metadata.name" => pod.name().to_owned(),
        "metadata.namespace" => pod.namespace().to_owned(),
        "metadata.uid" => pod.uid().to_owned(),
        "metadata.labels" => lines(pod.metadata.labels.as_ref()),
        "metadata.annotations" => lines(pod.metadata.annotations.as_ref()),
        "spec.nodeName" => spec.and_then(|s| s.node_name.clone()).unwrap_or_default(),
        "spec.serviceAccountName" => spec
            .and_then(|s| s.service_account_name.clone())
            .unwrap_or_default(),
        "status.podIP" => first(ips),
        "status.podIPs" => all(ips),
        "status.hostIP" => first(host_ips),
        "status.hostIPs" => all(host_ips),
        _ => {
            let subscript = |start: &str| path.strip_prefix(start)?.strip_suffix("']");
            let (map, key) = if let Some(key) = subscript("metadata.labels['") {
                (pod.metadata.labels.as_ref(), key)
            } else if let Some(key) = subscript("metadata.annotations['") {
                (pod.metadata.annotations.as_ref(), key)
            } else {
                return Err(ConfigError::UnknownField(path.to_owned()));
            };
            let value = map.and_then(|map| map.get(key));
            value.cloned().unwrap_or_default()
        }
    };
    Ok(value)
}

/// A map as lines `KEY="VALUE"`, sorted, as in files of the downward API.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let each = map.into_iter().flatten();
    let each = each.map(|(key, value)| format!("{key}={value:?}"));
    each.collect::<Vec<_>>().join("\n")
}

/// A request or limit of the container itself, divided and rounded up.
///
/// # Errors
///
/// [`ConfigError::UnknownField`]: another container's, one that is not set, or an invalid divisor.
pub(crate) fn resource_value(
    resource: &ResourceFieldSelector,
    container: &Container,
) -> Result<String, ConfigError> {
    let unknown = || ConfigError::UnknownField(resource.resource.clone());
    let other = resource.container_name.as_deref();
    if other.is_some_and(|other| !other.is_empty() && other != container.name) {
        return Err(unknown());
    }
    let (of, name) = resource.resource.split_once('.').ok_or_else(unknown)?;
    let resources = container.resources.as_ref();
    let map = match of {
        "limits" => resources.and_then(|resources| resources.limits.as_ref()),
        "requests" => resources.and_then(|resources| resources.requests.as_ref()),
        _ => return Err(unknown()),
    };
    let amount = map.and_then(|map| map.get(name)).ok_or_else(unknown)?;
    let one = Quantity("1".into());
    let divisor = resource.divisor.as_ref().unwrap_or(&one);
    let divisor = if divisor.0 == "0" { &one } else { divisor };
    let millis = |quantity: &Quantity| quantity::millis(quantity).map_err(|_| unknown());
    let (amount, divisor) = (millis(amount)?, millis(divisor)?);
    let whole = amount.checked_div(divisor).ok_or_else(unknown)?;
    let rest = amount.checked_rem(divisor).unwrap_or_default();
    Ok(whole.saturating_add(i64::from(rest > 0)).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn environment(env: serde_json::Value) -> Result<Vec<(String, String)>, ConfigError> {
        let container = json!({"name": "c", "env": env,
            "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}}});
        let container: Container = serde_json::from_value(container).unwrap();
        let pod =
            json!({"metadata": {"name": "web-0", "namespace": "shop", "labels": {"app": "web"}}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let facts = PodFacts {
            pod: &pod,
            ips: &["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            host_ips: &["192.0.2.1".parse().unwrap()],
        };
        Environment::of(&container, facts, &PodSources::default()).map(Environment::into_pairs)
    }

    #[test]
    fn expands_variables_that_are_defined_before() {
        let set = environment(json!([
            {"name": "HOST", "value": "db"},
            {"name": "URL", "value": "http://$(HOST):$$(HOST)/$(LATER)$("},
            {"name": "LATER", "value": "$"},
            {"name": "HOST", "value": "$(HOST)-1"},
        ]));
        let want = [
            ("HOST", "db-1"),
            ("URL", "http://db:$(HOST)/$(LATER)$("),
            ("LATER", "$"),
        ];
        let want = want.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(set.unwrap(), want);
    }

    #[test]
    fn takes_fields_of_the_pod() {
        let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let set = environment(json!([
            field("A", "metadata.labels['app']"),
            field("B", "status.podIPs"),
            field("C", "status.hostIP"),
            field("D", "metadata.namespace"),
            {"name": "E", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "F", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        ]));
        let values: Vec<_> = set.unwrap().into_iter().map(|(_, value)| value).collect();
        let want = ["web", "10.0.0.2,fd00::2", "192.0.2.1", "shop", "2", "64"];
        assert_eq!(values, want);
    }

    #[test]
    fn names_what_is_missing() {
        let missing =
            json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]);
        assert_eq!(
            environment(missing).unwrap_err().to_string(),
            "configmap \"m\" not found"
        );
        let optional = json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k", "optional": true}}}]);
        assert_eq!(environment(optional).unwrap(), []);
    }
}
