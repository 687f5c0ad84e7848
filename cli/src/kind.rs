//! The kinds on command lines: `pods`, `po`, `node/node-0`.

use std::{fmt, str::FromStr};

use podplane_api::{Object, Scope, schema::Type, stored_kinds};

use crate::report::UsageError;

macro_rules! declare_kinds {
    (() $($name:ident: $type:ty,)*) => {
        /// A kind that podplane serves, as the command line and manifests name it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum ResourceKind {
            $($name,)*
        }

        impl ResourceKind {
            const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}
stored_kinds!(declare_kinds!());

/// Evaluates an expression with a type for the kind: `with_kind!(kind, K => get::<K>(name))`.
macro_rules! with_kind {
    // Called back with the list.
    (($kind:expr, $K:ident => $body:expr) $($name:ident: $type:ty,)*) => {
        match $kind {
            $($crate::kind::ResourceKind::$name => {
                type $K = $type;
                $body
            })*
        }
    };
    ($kind:expr, $K:ident => $body:expr) => {
        podplane_api::stored_kinds!(with_kind!($kind, $K => $body))
    };
}
pub(crate) use with_kind;

/// The names and scope of a kind.
struct Schema {
    kind: &'static str,
    plural: &'static str,
    short_names: &'static [&'static str],
    group: &'static str,
    api_version: &'static str,
    scope: Scope,
}

fn schema<K: Object>() -> Schema {
    Schema {
        kind: K::KIND,
        plural: K::PLURAL,
        short_names: K::SHORT_NAMES,
        group: K::GROUP,
        api_version: K::API_VERSION,
        scope: K::SCOPE,
    }
}

impl ResourceKind {
    fn schema(self) -> Schema {
        with_kind!(self, K => schema::<K>())
    }

    /// The kind of a manifest.
    pub(crate) fn of_manifest(api_version: &str, kind: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| {
            let schema = known.schema();
            schema.api_version == api_version && schema.kind == kind
        })
    }

    /// The remedy for a manifest of a kind or a version that is not served.
    pub(crate) fn served(kind: &str) -> String {
        let schemas = || Self::ALL.iter().map(|kind| kind.schema());
        match schemas().find(|schema| schema.kind == kind) {
            Some(Schema { api_version, .. }) => format!("; its version here is {api_version}"),
            None => hint(kind, schemas().map(|schema| schema.kind)),
        }
    }

    /// All words that name a kind, in lower case.
    pub(crate) fn words() -> impl Iterator<Item = (String, Self)> {
        Self::ALL.iter().copied().flat_map(|each| {
            let Schema {
                kind,
                plural,
                short_names,
                group,
                ..
            } = each.schema();
            let full = [kind.to_lowercase(), plural.to_owned()];
            let short = short_names.iter().map(ToString::to_string);
            let with_group = full.clone().map(|name| format!("{name}.{group}"));
            let words = short.chain(full).chain(with_group);
            words.map(move |word| (word, each))
        })
    }

    /// The schema of its fields; `None` for kinds without a published one.
    pub(crate) fn fields(self) -> Option<Type> {
        with_kind!(self, K => Type::of::<K>())
    }

    /// Returns true if its objects are in namespaces.
    pub(crate) fn is_namespaced(self) -> bool {
        self.schema().scope == Scope::Namespaced
    }
}

impl fmt::Display for ResourceKind {
    /// The name in kubectl's output: `pod`, `lease.coordination.k8s.io`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Schema { kind, group, .. } = self.schema();
        f.write_str(&kind.to_lowercase())?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        Ok(())
    }
}

/// A word that does not name a kind.
#[derive(Debug, thiserror::Error)]
#[error(
    "unsupported kind `{0}`{hint}",
    hint = hint(_0, ResourceKind::ALL.iter().map(|kind| kind.schema().plural))
)]
pub(crate) struct UnknownKind(String);

/// The nearest of all names of kinds, or a few of them.
fn hint(word: &str, names: impl Iterator<Item = &'static str>) -> String {
    match podplane_scenario::suggestion(word, names) {
        none if none.is_empty() => {
            "; want one such as nodes, pods or deployments (`kubectl api-resources` lists all)"
                .into()
        }
        nearest => nearest,
    }
}

impl FromStr for ResourceKind {
    type Err = UnknownKind;

    /// Parses a singular, plural or short name, with or without group; case does not matter.
    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let word = text.to_lowercase();
        let is_meant = |kind: &Self| {
            let schema = kind.schema();
            let full = |name: &str| word == name || word == format!("{name}.{}", schema.group);
            schema.short_names.contains(&word.as_str())
                || full(&schema.kind.to_lowercase())
                || full(schema.plural)
        };
        Self::ALL
            .iter()
            .copied()
            .find(is_meant)
            .ok_or_else(|| UnknownKind(text.into()))
    }
}

/// The first operand of a command: a kind, or `KIND/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KindOperand {
    kind: ResourceKind,
    name: Option<String>,
}

impl FromStr for KindOperand {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Ok(match text.split_once('/') {
            Some((kind, name)) => Self {
                kind: kind.parse()?,
                name: Some(name.into()),
            },
            None => Self {
                kind: text.parse()?,
                name: None,
            },
        })
    }
}

/// The operands of a command, as objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Targets {
    /// All of a kind, or those that a selector picks.
    All(ResourceKind),
    /// These, in this order; at least one.
    Named(Vec<(ResourceKind, String)>),
}

impl Targets {
    /// `KIND`, `KIND NAME…` or `KIND/NAME…`.
    ///
    /// # Errors
    ///
    /// [`UsageError`] if the forms are mixed or a name is empty.
    pub(crate) fn new(what: KindOperand, rest: &[String]) -> Result<Self, UsageError> {
        let KindOperand { kind, name } = what;
        let mut named = Vec::with_capacity(rest.len() + 1);
        match name {
            None if rest.is_empty() => return Ok(Self::All(kind)),
            None => named.extend(rest.iter().map(|name| (kind, name.clone()))),
            Some(first) => {
                named.push((kind, first));
                for operand in rest {
                    named.push(pair(operand)?);
                }
            }
        }
        match named
            .iter()
            .find(|(_, name)| name.is_empty() || name.contains('/'))
        {
            None => Ok(Self::Named(named)),
            Some((_, name)) => Err(UsageError(format!(
                "invalid name {name:?}: want KIND NAME… or KIND/NAME…"
            ))),
        }
    }
}

fn pair(operand: &str) -> Result<(ResourceKind, String), UsageError> {
    let mixed = || {
        UsageError(format!(
            "invalid operand {operand:?}: must be KIND/NAME, as the operand before it"
        ))
    };
    let (kind, name) = operand.split_once('/').ok_or_else(mixed)?;
    let kind = kind
        .parse()
        .map_err(|error: UnknownKind| UsageError(error.to_string()))?;
    Ok((kind, name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_names_of_kubectl() {
        for (text, want) in [
            ("pods", ResourceKind::Pod),
            ("po", ResourceKind::Pod),
            ("Pod", ResourceKind::Pod),
            ("no", ResourceKind::Node),
            ("ev", ResourceKind::Event),
            ("ns", ResourceKind::Namespace),
            ("lease", ResourceKind::Lease),
            ("leases.coordination.k8s.io", ResourceKind::Lease),
        ] {
            assert_eq!(text.parse::<ResourceKind>().unwrap(), want, "{text}");
        }
        for text in ["", "sheep", "pods.apps", "le"] {
            assert!(text.parse::<ResourceKind>().is_err(), "{text}");
        }
        let refused = |text: &str| text.parse::<ResourceKind>().unwrap_err().to_string();
        assert_eq!(
            refused("nodez"),
            "unsupported kind `nodez`; did you mean \"nodes\"?"
        );
        assert_eq!(
            refused("sheep"),
            "unsupported kind `sheep`; want one such as nodes, pods or deployments (`kubectl api-resources` lists all)"
        );
        assert_eq!(ResourceKind::Lease.to_string(), "lease.coordination.k8s.io");
        assert_eq!(
            ResourceKind::of_manifest("v1", "Pod"),
            Some(ResourceKind::Pod)
        );
        assert_eq!(ResourceKind::of_manifest("apps/v1", "Pod"), None);
    }

    #[test]
    fn operands_name_objects() {
        let targets = |words: &[&str]| {
            let rest: Vec<_> = words[1..].iter().map(ToString::to_string).collect();
            Targets::new(words[0].parse().unwrap(), &rest).map_err(|error| error.0)
        };
        let pod = |name: &str| (ResourceKind::Pod, name.to_owned());
        assert_eq!(targets(&["po"]), Ok(Targets::All(ResourceKind::Pod)));
        assert_eq!(
            targets(&["po", "a", "b"]),
            Ok(Targets::Named(vec![pod("a"), pod("b")]))
        );
        assert_eq!(
            targets(&["po/a", "node/b"]),
            Ok(Targets::Named(vec![
                pod("a"),
                (ResourceKind::Node, "b".into())
            ]))
        );
        for wrong in [
            &["po/a", "b"][..],
            &["po/"],
            &["po", "a/b"],
            &["po/a", "sheep/b"],
        ] {
            assert!(targets(wrong).is_err(), "{wrong:?}");
        }
    }
}
