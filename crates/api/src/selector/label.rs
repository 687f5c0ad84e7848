use std::{collections::BTreeMap, fmt, str::FromStr};

use winnow::{
    ModalResult, Parser,
    ascii::{multispace0, multispace1},
    combinator::{alt, cut_err, delimited, eof, fail, opt, preceded, separated, terminated},
    error::{ContextError, StrContext, StrContextValue},
    token::take_while,
};

use super::SelectorError;
use crate::{core::NodeSelectorRequirement, meta, names};

/// A label selector: `a=b,a!=b,a in (x,y),a notin (x),a,!a,a>1,a<1`, all of which must hold. The empty one holds for everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    Equal(String),
    NotEqual(String),
    In(Vec<String>),
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

impl LabelSelector {
    /// In the order of their keys.
    fn of(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self(requirements)
    }

    /// The requirements of a term of a selector of nodes.
    pub(super) fn of_nodes(requirements: Option<&[NodeSelectorRequirement]>) -> Self {
        let each = requirements.unwrap_or_default().iter().map(|requirement| {
            let values = requirement.values.as_deref().unwrap_or_default();
            Requirement::new(&requirement.key, &requirement.operator, values)
        });
        Self::of(each.collect())
    }

    /// All that several ask for.
    pub(super) fn joined<'a>(selectors: impl IntoIterator<Item = &'a Self>) -> Self {
        Self::of(
            selectors
                .into_iter()
                .flat_map(|one| one.0.clone())
                .collect(),
        )
    }

    /// How many requirements it has.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it holds for every object.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all requirements hold. What an absent label is not, holds.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_by(|key| labels.get(key).map(String::as_str))
    }

    /// The same of labels that are kept in another way: `label` finds the value of a key.
    pub fn matches_by<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0
            .iter()
            .all(|requirement| requirement.holds(label(&requirement.key)))
    }
}

impl From<&meta::LabelSelector> for LabelSelector {
    /// The selector as objects carry it, in the order of its keys, as Kubernetes writes one. An operator that Kubernetes does not have, which
    /// validation refuses, selects nothing.
    fn from(selector: &meta::LabelSelector) -> Self {
        let labels = selector.match_labels.iter().flatten();
        let equal = labels.map(|(key, value)| Requirement {
            key: key.clone(),
            test: Test::Equal(value.clone()),
        });
        let expressions = selector.match_expressions.iter().flatten();
        let compared = expressions.map(|expression| {
            let values = expression.values.as_deref().unwrap_or_default();
            Requirement::new(&expression.key, &expression.operator, values)
        });
        Self::of(equal.chain(compared).collect())
    }
}

impl Requirement {
    /// One as objects carry it. An operator that is none, or has not the values that it needs, is one that nothing meets.
    fn new(key: &str, operator: &str, values: &[String]) -> Self {
        let sorted = || {
            let mut values = values.to_vec();
            values.sort();
            values
        };
        let bound = || match values {
            [bound] => bound.parse().ok(),
            _ => None,
        };
        let test = match operator {
            "In" => Some(Test::In(sorted())),
            "NotIn" => Some(Test::NotIn(sorted())),
            "Exists" => Some(Test::Exists),
            "DoesNotExist" => Some(Test::Absent),
            "Gt" => bound().map(Test::Greater),
            "Lt" => bound().map(Test::Less),
            _ => None,
        };
        Self {
            key: key.to_owned(),
            test: test.unwrap_or_else(|| Test::In(Vec::new())),
        }
    }

    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::Equal(wanted) => value == Some(wanted.as_str()),
            Test::NotEqual(unwanted) => value != Some(unwanted.as_str()),
            Test::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
            Test::NotIn(values) => value.is_none_or(|value| values.iter().all(|one| one != value)),
            Test::Greater(than) => number().is_some_and(|value| value > *than),
            Test::Less(than) => number().is_some_and(|value| value < *than),
        }
    }

    /// The keys and values that must be well-formed.
    fn check(&self) -> Option<(&str, String)> {
        let values = match &self.test {
            Test::In(values) | Test::NotIn(values) => &values[..],
            Test::Equal(value) | Test::NotEqual(value) => std::slice::from_ref(value),
            Test::Exists | Test::Absent | Test::Greater(_) | Test::Less(_) => &[],
        };
        let broken = |text, rules: Vec<String>| rules.into_iter().next().map(|rule| (text, rule));
        broken(&*self.key, names::qualified_name(&self.key)).or_else(|| {
            values
                .iter()
                .find_map(|value| broken(value, names::label_value(value)))
        })
    }
}

impl FromStr for LabelSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let requirements = selector
            .parse(text)
            .map_err(|error| SelectorError::Syntax {
                selector: text.to_owned(),
                message: format!("at byte {}: {}", error.offset(), error.inner())
                    .replace('\n', ", "),
            })?;
        let malformed = requirements.iter().find_map(Requirement::check);
        if let Some((word, rule)) = malformed {
            return Err(SelectorError::Label {
                selector: text.to_owned(),
                text: word.to_owned(),
                rule,
            });
        }
        Ok(Self(requirements))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, test }) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match test {
                Test::Exists => write!(f, "{comma}{key}")?,
                Test::Absent => write!(f, "{comma}!{key}")?,
                Test::Equal(value) => write!(f, "{comma}{key}={value}")?,
                Test::NotEqual(value) => write!(f, "{comma}{key}!={value}")?,
                Test::In(values) => write!(f, "{comma}{key} in ({})", values.join(","))?,
                Test::NotIn(values) => write!(f, "{comma}{key} notin ({})", values.join(","))?,
                Test::Greater(than) => write!(f, "{comma}{key}>{than}")?,
                Test::Less(than) => write!(f, "{comma}{key}<{than}")?,
            }
        }
        Ok(())
    }
}

fn selector(input: &mut &str) -> ModalResult<Vec<Requirement>> {
    let nothing = terminated(multispace0, eof).map(|_| Vec::new());
    let requirements = terminated(
        separated(1.., requirement, ','),
        eof.context(expected("a comma or the end")),
    );
    alt((nothing, requirements)).parse_next(input)
}

fn requirement(input: &mut &str) -> ModalResult<Requirement> {
    let absent = preceded('!', cut_err(spaced(word))).map(|key| (key, Test::Absent));
    let present = (word, opt(test)).map(|(key, test)| (key, test.unwrap_or(Test::Exists)));
    let (key, test) = spaced(alt((absent, present))).parse_next(input)?;
    Ok(Requirement {
        key: key.to_owned(),
        test,
    })
}

fn test(input: &mut &str) -> ModalResult<Test> {
    let one = || cut_err(spaced(value)).map(str::to_owned);
    let operator = alt((
        preceded(spaced("=="), one()).map(Test::Equal),
        preceded(spaced("="), one()).map(Test::Equal),
        preceded(spaced("!="), one()).map(Test::NotEqual),
        preceded(spaced(">"), cut_err(integer)).map(Test::Greater),
        preceded(spaced("<"), cut_err(integer)).map(Test::Less),
    ));
    let set = alt((
        preceded((multispace1, "notin"), cut_err(values)).map(Test::NotIn),
        preceded((multispace1, "in"), cut_err(values)).map(Test::In),
    ));
    alt((operator, set)).parse_next(input)
}

fn values(input: &mut &str) -> ModalResult<Vec<String>> {
    let list = separated(1.., spaced(value).map(str::to_owned), ',');
    preceded(multispace0, delimited('(', list, ')'))
        .context(expected("values in parentheses, such as (a,b)"))
        .parse_next(input)
}

fn integer(input: &mut &str) -> ModalResult<i64> {
    spaced(value)
        .try_map(str::parse)
        .context(expected("an integer"))
        .parse_next(input)
}

fn word<'a>(input: &mut &'a str) -> ModalResult<&'a str> {
    alt((
        take_while(1.., is_word),
        fail.context(expected("a label key")),
    ))
    .parse_next(input)
}

/// May be empty: `a=` asks for the empty value.
fn value<'a>(input: &mut &'a str) -> ModalResult<&'a str> {
    take_while(0.., is_word).parse_next(input)
}

fn is_word(character: char) -> bool {
    !character.is_whitespace() && !"=!(),<>".contains(character)
}

fn spaced<'a, T>(
    parser: impl Parser<&'a str, T, winnow::error::ErrMode<ContextError>>,
) -> impl Parser<&'a str, T, winnow::error::ErrMode<ContextError>> {
    delimited(multispace0, parser, multispace0)
}

fn expected(what: &'static str) -> StrContext {
    StrContext::Expected(StrContextValue::Description(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn requirements_hold_or_do_not() {
        let labels = labels(&[("app", "web"), ("tier", ""), ("example.com/n", "5")]);
        let holds = [
            "",
            " ",
            "app",
            "app=web",
            "app==web",
            "app = web",
            "app!=db",
            "none!=db",
            "!none",
            "! none",
            "tier=",
            "tier",
            "app in (db,web)",
            "app in (db, web)",
            "app notin (db)",
            "none notin (db)",
            "app=web,tier=,!none",
            "tier in ()",
            "example.com/n>4",
            "example.com/n < 6",
            "app=web , tier",
        ];
        for text in holds {
            assert!(
                text.parse::<LabelSelector>().unwrap().matches(&labels),
                "{text}"
            );
        }
        let fails = [
            "none",
            "!app",
            "app=db",
            "app!=web",
            "app in (db)",
            "app notin (web)",
            "none in (db)",
            "app=web,none",
            "app>1",
            "example.com/n>5",
        ];
        for text in fails {
            assert!(
                !text.parse::<LabelSelector>().unwrap().matches(&labels),
                "{text}"
            );
        }
    }

    #[test]
    fn a_selector_of_an_object_is_one_of_text() {
        let selector = meta::LabelSelector {
            match_labels: Some(labels(&[("app", "web")])),
            match_expressions: Some(
                [
                    ("tier", "In", &["front"][..]),
                    ("old", "DoesNotExist", &[]),
                    ("app", "Exists", &[]),
                    ("env", "NotIn", &["test"]),
                ]
                .map(|(key, operator, values)| meta::LabelSelectorRequirement {
                    key: key.to_owned(),
                    operator: operator.to_owned(),
                    values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
                })
                .to_vec(),
            ),
        };
        let text = "app=web,app,env notin (test),!old,tier in (front)";
        assert_eq!(LabelSelector::from(&selector), text.parse().unwrap());
        assert_eq!(LabelSelector::from(&selector).to_string(), text);
        let all = LabelSelector::from(&meta::LabelSelector::default());
        assert!(all.is_empty());
    }

    #[test]
    fn a_key_may_begin_like_an_operator() {
        for key in ["in", "notin", "inside", "notinside"] {
            assert!(
                key.parse::<LabelSelector>()
                    .unwrap()
                    .matches(&labels(&[(key, "x")])),
                "{key}"
            );
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_place() {
        for text in [
            ",",
            "a,",
            ",a",
            "a=b=c",
            "a in",
            "a in b",
            "a in (b",
            "!",
            "a b",
            "=b",
            "a>b",
            "(a)",
            "a in (b) c",
        ] {
            assert!(
                matches!(
                    text.parse::<LabelSelector>(),
                    Err(SelectorError::Syntax { .. })
                ),
                "{text}"
            );
        }
        let error = "a in b".parse::<LabelSelector>().unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"unable to parse selector "a in b": at byte 5: expected values in parentheses, such as (a,b)"#
        );
        assert!(matches!(
            "a/b/c=d".parse::<LabelSelector>(),
            Err(SelectorError::Label { .. })
        ));
        assert!(matches!(
            "a=-".parse::<LabelSelector>(),
            Err(SelectorError::Label { .. })
        ));
    }

    #[test]
    fn what_is_printed_parses_to_the_same() {
        for text in ["a", "!a", "a in (b,c)", "a notin (b)", "a>1", "a<1,b"] {
            assert_eq!(text.parse::<LabelSelector>().unwrap().to_string(), text);
        }
    }
}
