//! Checks of expectations.

use std::collections::BTreeMap;

use regex::Regex;

use super::{Checker, title};
use crate::{
    document::Path,
    format::{self, Expect, Network, Subject},
    plan::{Expectation, ExpectedState, Look},
    problem::listed,
    rule::{self, NumberRule, ValueRule},
};

impl Checker<'_> {
    pub(super) fn expectations(&mut self, path: &Path, each: Vec<Expect>) -> Vec<Expectation> {
        if each.is_empty() {
            self.wrong(path, "missing expectations: want at least one");
        }
        let numbered = each.into_iter().enumerate();
        numbered
            .filter_map(|(index, expect)| self.expectation(&path.index(index), expect))
            .collect()
    }

    fn expectation(&mut self, path: &Path, expect: Expect) -> Option<Expectation> {
        let keys = self.document.keys(path);
        let subject_of = |key: &str| {
            Subject::ALL
                .into_iter()
                .find(|subject| subject.key() == key)
        };
        let subjects: Vec<_> = keys.iter().filter_map(|key| subject_of(key)).collect();
        let subject = match subjects.as_slice() {
            [subject] => *subject,
            [] => {
                let known = Subject::ALL.map(Subject::key);
                self.wrong(
                    path,
                    format!("missing subject: set one of {}", known.join(", ")),
                );
                return None;
            }
            [first, second, ..] => {
                let message = format!(
                    "an expectation has one subject, and this one has {} before {}",
                    first.key(),
                    second.key()
                );
                self.wrong_key(&path.key(second.key()), message);
                return None;
            }
        };
        let is_stray = |key: &&&str| **key != subject.key() && !subject.companions().contains(*key);
        let strays: Vec<_> = keys.iter().filter(is_stray).collect();
        for stray in &strays {
            let message = format!(
                "{stray} cannot be used with {}; allowed are {}",
                subject.key(),
                listed(subject.companions())
            );
            self.wrong_key(&path.key(stray), message);
        }
        let rule = match subject {
            Subject::Object => self.object(path, expect),
            Subject::Count => self.count(path, expect),
            Subject::Event => self.event(path, expect),
            Subject::Metric => self.metric(path, expect),
            Subject::Ping => self.ping(path, expect),
            Subject::Command => self.command(path, expect),
            Subject::Call => self.call(path, expect),
        };
        Some(Expectation {
            at: self.document.at(path),
            text: title::expectation(&self.document.value_at(path)),
            rule: rule.filter(|_| strays.is_empty())?,
        })
    }

    fn object(&mut self, path: &Path, expect: Expect) -> Option<ExpectedState> {
        let object = expect.object?;
        self.kind(&path.key("object"), &object.kind);
        let numbers = NumberRule {
            equals: None,
            at_least: expect.at_least,
            at_most: expect.at_most,
        };
        let has_rule = expect.equals.is_some()
            || expect.not_equals.is_some()
            || expect.matches.is_some()
            || !numbers.is_empty();
        let matches = self.pattern(&path.key("matches"), expect.matches.as_deref());
        let jsonpath = expect.jsonpath.map(|text| {
            let parsed = rule::Path::parse(&text);
            (self.rule(&path.key("jsonpath"), &text, parsed), text)
        });
        let cel = expect
            .cel
            .map(|text| self.cel(&path.key("cel"), &text, &object.kind));
        let look = match (jsonpath, cel) {
            (Some(_), Some(_)) => {
                self.wrong_key(
                    &path.key("cel"),
                    "jsonpath and cel cannot be combined: make them two expectations",
                );
                return None;
            }
            (Some((parsed, text)), None) => Look::Path {
                text,
                path: parsed?,
                rule: ValueRule {
                    exists: expect.exists,
                    equals: expect.equals,
                    not_equals: expect.not_equals,
                    matches: matches?,
                    numbers,
                },
            },
            (None, Some(cel)) => {
                if has_rule || expect.exists.is_some() {
                    self.wrong(
                        &path.key("cel"),
                        "cel cannot be combined with other rules: put the comparison into the expression",
                    );
                    return None;
                }
                Look::Cel(cel?)
            }
            (None, None) if has_rule => {
                self.wrong(path, "missing jsonpath: it selects the value to compare");
                return None;
            }
            (None, None) => Look::Exists(expect.exists.unwrap_or(true)),
        };
        Some(ExpectedState::Object {
            object,
            namespace: expect.namespace.unwrap_or_else(|| "default".into()),
            look,
        })
    }

    /// Returns the numbers of an expectation whose `equals` has to be a number, too.
    fn numbers(&mut self, path: &Path, expect: &Expect) -> Option<NumberRule> {
        let equals = match &expect.equals {
            None => None,
            Some(value) => match value.as_f64() {
                Some(number) => Some(number),
                None => {
                    self.wrong(
                        &path.key("equals"),
                        format!("equals must be a number, not {value}"),
                    );
                    return None;
                }
            },
        };
        Some(NumberRule {
            equals,
            at_least: expect.at_least,
            at_most: expect.at_most,
        })
    }

    fn needed(&mut self, path: &Path, expect: &Expect) -> Option<NumberRule> {
        let numbers = self.numbers(path, expect)?;
        if numbers.is_empty() {
            self.wrong(path, "missing number: set equals, atLeast or atMost");
            return None;
        }
        Some(numbers)
    }

    fn count(&mut self, path: &Path, expect: Expect) -> Option<ExpectedState> {
        let numbers = self.needed(path, &expect);
        let kind = expect.count?;
        self.kind(&path.key("count"), &kind);
        let filter = expect
            .filter
            .map(|text| self.cel(&path.key("where"), &text, &kind));
        Some(ExpectedState::Count {
            kind,
            namespace: expect.namespace,
            selector: expect.selector,
            filter: match filter {
                None => None,
                Some(filter) => Some(filter?),
            },
            numbers: numbers?,
        })
    }

    fn event(&mut self, path: &Path, expect: Expect) -> Option<ExpectedState> {
        let numbers = self.numbers(path, &expect);
        let message = expect
            .message
            .as_ref()
            .map(|text| self.text(&path.key("message"), text));
        if let Some(on) = &expect.on {
            self.kind(&path.key("on"), &on.kind);
        }
        if let Some(since) = &expect.since {
            self.mark(&path.key("since"), since);
        }
        let mut numbers = numbers?;
        if numbers.is_empty() {
            numbers.at_least = Some(1.0);
        }
        Some(ExpectedState::Event {
            reason: expect.event?,
            on: expect.on,
            namespace: expect.namespace,
            message: match message {
                None => None,
                Some(message) => Some(message?),
            },
            event_type: expect.event_type,
            since: expect.since,
            numbers,
        })
    }

    fn metric(&mut self, path: &Path, expect: Expect) -> Option<ExpectedState> {
        let numbers = self.needed(path, &expect);
        let Some(service) = expect.service else {
            self.wrong(
                path,
                "missing service of the metric: set service: scheduler, kubelet-node-0, …",
            );
            return None;
        };
        self.one_process(&path.key("service"), &service);
        Some(ExpectedState::Metric {
            name: expect.metric?,
            service,
            labels: expect.labels,
            numbers: numbers?,
        })
    }

    fn ping(&mut self, path: &Path, expect: Expect) -> Option<ExpectedState> {
        if self.network == Network::Ledger {
            self.wrong_key(
                &path.key("ping"),
                "ping requires kernel mode: set cluster.network to kernel",
            );
            return None;
        }
        let answers = expect.answers.unwrap_or(true);
        if !answers && expect.answered_by.is_some() {
            self.wrong_key(
                &path.key("answeredBy"),
                "answeredBy contradicts answers: false: remove one",
            );
            return None;
        }
        Some(ExpectedState::Ping {
            ping: expect.ping?,
            answered_by: expect.answered_by,
            answers,
        })
    }

    fn command(&mut self, path: &Path, expect: Expect) -> Option<ExpectedState> {
        let run = format::Run {
            command: expect.command?,
            exit_code: expect.exit_code.unwrap_or_default(),
            stdout: expect.stdout,
            stderr: expect.stderr,
            stdin: None,
            env: BTreeMap::new(),
            within: None,
        };
        Some(ExpectedState::Command(Box::new(self.run(path, run)?)))
    }

    fn call(&mut self, path: &Path, expect: Expect) -> Option<ExpectedState> {
        let numbers = self.needed(path, &expect);
        self.method(&path.key("call"), expect.call.as_deref());
        let Some(of) = expect.of else {
            self.wrong(path, "missing caller: set of: scheduler, kubelet-node-0, …");
            return None;
        };
        if of.contains('*') {
            self.wrong(
                &path.key("of"),
                "invalid pattern: must be the full name of one process",
            );
        } else {
            self.caller(&path.key("of"), &of);
        }
        Some(ExpectedState::Call {
            method: expect.call?,
            of,
            numbers: numbers?,
        })
    }

    #[expect(clippy::option_option, reason = "a wrong pattern, or none")]
    fn pattern(&mut self, path: &Path, text: Option<&str>) -> Option<Option<Regex>> {
        match text {
            None => Some(None),
            Some(text) => self.rule(path, text, rule::pattern(text)).map(Some),
        }
    }
}
