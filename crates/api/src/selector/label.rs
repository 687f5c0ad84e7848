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

/// A label selector: `a=b,a!=b,a in (x,y),a notin (x),a,!a,a>1,a<1`, all of which must hold. The
/// empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Requirement {
    key: String,
    test: LabelTest,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LabelTest {
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
    /// Creates a selector; requirements are sorted by key.
    fn of(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self(requirements)
    }

    /// The requirements of a term of a node selector.
    pub(super) fn of_nodes(requirements: Option<&[NodeSelectorRequirement]>) -> Self {
        let each = requirements.unwrap_or_default().iter().map(|requirement| {
            let values = requirement.values.as_deref().unwrap_or_default();
            Requirement::new(&requirement.key, &requirement.operator, values)
        });
        Self::of(each.collect())
    }

    /// The conjunction of several selectors.
    pub(super) fn joined<'a>(selectors: impl IntoIterator<Item = &'a Self>) -> Self {
        Self::of(
            selectors
                .into_iter()
                .flat_map(|one| one.0.clone())
                .collect(),
        )
    }

    /// The number of requirements.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// True if the selector matches every object.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if all requirements hold. Negative requirements hold for an absent label.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_by(|key| labels.get(key).map(String::as_str))
    }

    /// Like [`Self::matches`] for labels in another form: `label` returns the value of a key.
    pub fn matches_by<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0
            .iter()
            .all(|requirement| requirement.holds(label(&requirement.key)))
    }
}

impl From<&meta::LabelSelector> for LabelSelector {
    /// Converts the selector of an object, sorted by key, as Kubernetes writes one. An invalid
    /// operator, which validation refuses, matches nothing.
    fn from(selector: &meta::LabelSelector) -> Self {
        let labels = selector.match_labels.iter().flatten();
        let equal = labels.map(|(key, value)| Requirement {
            key: key.clone(),
            test: LabelTest::Equal(value.clone()),
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
    /// Converts a requirement of an object. One with an invalid operator, or without the values
    /// that it needs, never holds.
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
            "In" => Some(LabelTest::In(sorted())),
            "NotIn" => Some(LabelTest::NotIn(sorted())),
            "Exists" => Some(LabelTest::Exists),
            "DoesNotExist" => Some(LabelTest::Absent),
            "Gt" => bound().map(LabelTest::Greater),
            "Lt" => bound().map(LabelTest::Less),
            _ => None,
        };
        Self {
            key: key.to_owned(),
            test: test.unwrap_or_else(|| LabelTest::In(Vec::new())),
        }
    }

    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            LabelTest::Exists => value.is_some(),
            LabelTest::Absent => value.is_none(),
            LabelTest::Equal(wanted) => value == Some(wanted.as_str()),
            LabelTest::NotEqual(unwanted) => value != Some(unwanted.as_str()),
            LabelTest::In(values) => {
                value.is_some_and(|value| values.iter().any(|one| one == value))
            }
            LabelTest::NotIn(values) => {
                value.is_none_or(|value| values.iter().all(|one| one != value))
            }
            LabelTest::Greater(than) => number().is_some_and(|value| value > *than),
            LabelTest::Less(than) => number().is_some_and(|value| value < *than),
        }
    }

    /// The invalid key or value, if any, with the violated rule.
    fn check(&self) -> Option<(&str, String)> {
        let values = match &self.test {
            LabelTest::In(values) | LabelTest::NotIn(values) => &values[..],
            LabelTest::Equal(value) | LabelTest::NotEqual(value) => std::slice::from_ref(value),
            LabelTest::Exists | LabelTest::Absent | LabelTest::Greater(_) | LabelTest::Less(_) => {
                &[]
            }
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
                LabelTest::Exists => write!(f, "{comma}{key}")?,
                LabelTest::Absent => write!(f, "{comma}!{key}")?,
                LabelTest::Equal(value) => write!(f, "{comma}{key}={value}")?,
                LabelTest::NotEqual(value) => write!(f, "{comma}{key}!={value}")?,
                LabelTest::In(values) => write!(f, "{comma}{key} in ({})", values.join(","))?,
                LabelTest::NotIn(values) => write!(f, "{comma}{key} notin ({})", values.join(","))?,
                LabelTest::Greater(than) => write!(f, "{comma}{key}>{than}")?,
                LabelTest::Less(than) => write!(f, "{comma}{key}<{than}")?,
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
    let absent = preceded('!', cut_err(spaced(word))).map(|key| (key, LabelTest::Absent));
    let present = (word, opt(test)).map(|(key, test)| (key, test.unwrap_or(LabelTest::Exists)));
    let (key, test) = spaced(alt((absent, present))).parse_next(input)?;
    Ok(Requirement {
        key: key.to_owned(),
        test,
    })
}

fn test(input: &mut &str) -> ModalResult<LabelTest> {
    let one = || cut_err(spaced(value)).map(str::to_owned);
    let operator = alt((
        preceded(spaced("=="), one()).map(LabelTest::Equal),
        preceded(spaced("="), one()).map(LabelTest::Equal),
        preceded(spaced("!="), one()).map(LabelTest::NotEqual),
        preceded(spaced(">"), cut_err(integer)).map(LabelTest::Greater),
        preceded(spaced("<"), cut_err(integer)).map(LabelTest::Less),
    ));
    let set = alt((
        preceded((multispace1, "notin"), cut_err(values)).map(LabelTest::NotIn),
        preceded((multispace1, "in"), cut_err(values)).map(LabelTest::In),
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

/// A value, which may be empty: `a=` selects the empty value.
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
    fn matches_labels_by_each_operator() {
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
    fn object_selectors_equal_text_selectors() {
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
    fn refuses_invalid_syntax_with_its_position() {
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
    fn formatting_and_parsing_round_trip() {
        for text in ["a", "!a", "a in (b,c)", "a notin (b)", "a>1", "a<1,b"] {
            assert_eq!(text.parse::<LabelSelector>().unwrap().to_string(), text);
        }
    }
}
