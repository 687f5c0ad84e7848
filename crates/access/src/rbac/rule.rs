//! A rule that is ready for comparison.

use std::collections::HashSet;

use podplane_api::rbac::PolicyRule;

use super::ALL;
use crate::{
    attributes::{Attributes, Target},
    words,
};

/// The number of words up to which a comparison with each is faster than a hash.
const FEW: usize = 8;

/// Words without order or wildcard.
#[derive(Clone, Debug)]
enum WordSet {
    Few(Box<[Box<str>]>),
    Many(HashSet<Box<str>>),
}

impl WordSet {
    fn of(words: &[String]) -> Self {
        let all = words.iter().map(|word| Box::from(&**word));
        if words.len() <= FEW {
            Self::Few(all.collect())
        } else {
            Self::Many(all.collect())
        }
    }

    fn contains(&self, word: &str) -> bool {
        match self {
            Self::Few(words) => words.iter().any(|own| &**own == word),
            Self::Many(words) => words.contains(word),
        }
    }
}

/// Verbs or groups.
#[derive(Clone, Debug)]
enum Words {
    /// `*`.
    All,
    These(WordSet),
}

impl Words {
    fn of(words: &[String]) -> Self {
        if words.iter().any(|word| word == ALL) {
            return Self::All;
        }
        Self::These(WordSet::of(words))
    }

    /// True for a word of the set. `*` itself is in [`Self::All`] alone.
    fn contains(&self, word: &str) -> bool {
        match self {
            Self::All => true,
            Self::These(words) => words.contains(word),
        }
    }
}

/// Resources: `*`, `pods`, `pods/log` or `*/status`. `pods/*` is a resource and no wildcard.
#[derive(Clone, Debug)]
enum Resources {
    /// `*`, with all subresources.
    All,
    These {
        exact: WordSet,
        /// The part after `*/`.
        of_all: WordSet,
    },
}

impl Resources {
    fn of(resources: &[String]) -> Self {
        if resources.iter().any(|resource| resource == ALL) {
            return Self::All;
        }
        let of_all: Vec<String> = resources
            .iter()
            .filter_map(|resource| resource.strip_prefix("*/").map(str::to_owned))
            .collect();
        Self::These {
            exact: WordSet::of(resources),
            of_all: WordSet::of(&of_all),
        }
    }

    /// True for a requested resource; `combined` is `resource/subresource`.
    fn matches(&self, combined: &str, subresource: &str) -> bool {
        match self {
            Self::All => true,
            Self::These { exact, of_all } => {
                exact.contains(combined) || !subresource.is_empty() && of_all.contains(subresource)
            }
        }
    }

    /// True if every request that `resource`, of a rule, matches is matched.
    fn covers(&self, resource: &str) -> bool {
        match self {
            Self::All => true,
            Self::These { exact, of_all } => {
                exact.contains(resource)
                    || resource
                        .split_once('/')
                        .is_some_and(|(_, subresource)| of_all.contains(subresource))
            }
        }
    }
}

/// A path of a rule; `*` at its end is a wildcard, and nowhere else.
#[derive(Clone, Debug)]
enum PathPattern {
    Exact(Box<str>),
    Prefix(Box<str>),
}

impl PathPattern {
    fn of(path: &str) -> Self {
        if path.ends_with('*') {
            Self::Prefix(Box::from(path.trim_end_matches('*')))
        } else {
            Self::Exact(Box::from(path))
        }
    }

    /// True for a requested path, and for a path of a rule whose requests all match.
    fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(own) => **own == *path,
            Self::Prefix(prefix) => path.starts_with(&**prefix),
        }
    }
}

/// A compiled [`PolicyRule`].
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    verbs: Words,
    groups: Words,
    resources: Resources,
    /// `None` for every name, and for requests without one.
    names: Option<WordSet>,
    paths: Box<[PathPattern]>,
}

impl Rule {
    pub(crate) fn of(rule: &PolicyRule) -> Self {
        let names = words(rule.resource_names.as_ref());
        let paths = words(rule.non_resource_urls.as_ref());
        Self {
            verbs: Words::of(&rule.verbs),
            groups: Words::of(words(rule.api_groups.as_ref())),
            resources: Resources::of(words(rule.resources.as_ref())),
            names: (!names.is_empty()).then(|| WordSet::of(names)),
            paths: paths.iter().map(|path| PathPattern::of(path)).collect(),
        }
    }

    /// True if the rule allows the request.
    pub(crate) fn allows(&self, request: &RuleRequest<'_>) -> bool {
        self.verbs.contains(request.verb)
            && match &request.target {
                RuleTarget::Path(path) => self.paths.iter().any(|own| own.matches(path)),
                RuleTarget::Resource {
                    group,
                    combined,
                    subresource,
                    name,
                } => {
                    self.groups.contains(group)
                        && self.resources.matches(combined, subresource)
                        && self.names.as_ref().is_none_or(|names| names.contains(name))
                }
            }
    }

    /// True if the rule allows all that `grant` does.
    pub(crate) fn covers(&self, grant: &Grant<'_>) -> bool {
        self.verbs.contains(grant.verb)
            && match grant.target {
                GrantTarget::Path(path) => self.paths.iter().any(|own| own.matches(path)),
                GrantTarget::Resource {
                    group,
                    resource,
                    name,
                } => {
                    self.groups.contains(group)
                        && self.resources.covers(resource)
                        && self
                            .names
                            .as_ref()
                            .is_none_or(|names| name.is_some_and(|name| names.contains(name)))
                }
            }
    }

    /// True if the rule alone covers all combinations of a rule of objects. That takes a comparison
    /// for each word, where the combinations may be too many to look at.
    pub(crate) fn covers_whole(&self, rule: &PolicyRule) -> bool {
        fn each(words: &[String], covers: impl Fn(&str) -> bool) -> bool {
            words.iter().all(|word| covers(word))
        }
        let names = words(rule.resource_names.as_ref());
        let paths = words(rule.non_resource_urls.as_ref());
        paths.is_empty()
            && each(&rule.verbs, |verb| self.verbs.contains(verb))
            && each(words(rule.api_groups.as_ref()), |group| {
                self.groups.contains(group)
            })
            && each(words(rule.resources.as_ref()), |resource| {
                self.resources.covers(resource)
            })
            && self
                .names
                .as_ref()
                .is_none_or(|own| !names.is_empty() && each(names, |name| own.contains(name)))
    }
}

/// The part of a request that rules look at.
#[derive(Clone, Debug)]
pub(crate) struct RuleRequest<'a> {
    verb: &'a str,
    target: RuleTarget<'a>,
}

#[derive(Clone, Debug)]
enum RuleTarget<'a> {
    Path(&'a str),
    Resource {
        group: &'a str,
        combined: String,
        subresource: &'a str,
        name: &'a str,
    },
}

impl<'a> RuleRequest<'a> {
    pub(crate) fn of(attributes: &Attributes<'a>) -> Self {
        let target = match attributes.target {
            Target::Path(path) => RuleTarget::Path(path),
            Target::Resource(target) => RuleTarget::Resource {
                group: target.group,
                combined: match target.subresource {
                    "" => target.resource.to_owned(),
                    subresource => format!("{}/{subresource}", target.resource),
                },
                subresource: target.subresource,
                name: target.name,
            },
        };
        Self {
            verb: attributes.verb,
            target,
        }
    }
}

/// One verb of a rule for one resource or path, and for one name or all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant<'a> {
    pub(crate) verb: &'a str,
    pub(crate) target: GrantTarget<'a>,
}

/// The target of a [`Grant`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum GrantTarget<'a> {
    Path(&'a str),
    Resource {
        group: &'a str,
        resource: &'a str,
        name: Option<&'a str>,
    },
}

/// Rules that are ready for comparison.
#[derive(Clone, Debug, Default)]
pub struct CompiledRules(Vec<Rule>);

impl CompiledRules {
    /// Compiles rules.
    pub fn of(rules: &[PolicyRule]) -> Self {
        Self(rules.iter().map(Rule::of).collect())
    }

    /// True if one of the rules allows the request, whoever sends it.
    pub fn allow(&self, attributes: &Attributes<'_>) -> bool {
        self.allow_request(&RuleRequest::of(attributes))
    }

    pub(crate) fn allow_request(&self, request: &RuleRequest<'_>) -> bool {
        self.0.iter().any(|rule| rule.allows(request))
    }
}
