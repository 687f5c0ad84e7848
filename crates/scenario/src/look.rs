//! Compares expectations with the cluster.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::{
    command,
    format::{EventType, ObjectRef},
    metrics, narration,
    plan::{Expectation, ExpectedState, Look},
    problem::Position,
    rule::{Cel, NumberRule, TextRule},
    stage::ScenarioCluster,
};

/// The number of objects that a report names.
const NAMED: usize = 8;
/// The most characters of a value in a line of a report.
const SHOWN: usize = 100;

/// A value in a line of a report: its begin, if it is long.
pub(crate) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// An expectation with what the last look has seen.
#[derive(Clone, Debug)]
pub(crate) struct CheckedExpectation {
    /// The position in the scenario.
    pub(crate) at: Position,
    /// The expectation in a line.
    pub(crate) text: String,
    pub(crate) outcome: ExpectationOutcome,
}

/// The outcome of a look at one expectation.
#[derive(Clone, Debug)]
pub(crate) enum ExpectationOutcome {
    /// It holds.
    Met { seen: String },
    /// It does not hold.
    Unmet(StateDifference),
}

/// The expected and the actual state, as texts, and the objects that tell the reason.
#[derive(Clone, Debug)]
pub(crate) struct StateDifference {
    pub(crate) expected: String,
    pub(crate) was: String,
    pub(crate) objects: Vec<SeenObject>,
}

impl From<(String, String)> for StateDifference {
    fn from((expected, was): (String, String)) -> Self {
        let objects = Vec::new();
        Self {
            expected,
            was,
            objects,
        }
    }
}

/// An object, or a value of one, that a look has seen.
#[derive(Clone, Debug)]
pub(crate) struct SeenObject {
    /// Its part in the difference, such as `counted: web-1`.
    pub(crate) about: String,
    pub(crate) value: Value,
}

impl SeenObject {
    /// The parts of an object that tell its state.
    fn state_of(about: String, object: &Value) -> Self {
        let value = json!({
            "metadata": {
                "deletionTimestamp": object["metadata"]["deletionTimestamp"],
                "finalizers": object["metadata"]["finalizers"],
            },
            "spec": object["spec"],
            "status": object["status"],
        });
        let value = without_nulls(value);
        Self { about, value }
    }
}

/// Removes fields without a value, and objects without a field.
fn without_nulls(value: Value) -> Value {
    let Value::Object(fields) = value else {
        return value;
    };
    let fields = fields.into_iter();
    let fields = fields.map(|(name, value)| (name, without_nulls(value)));
    let is_empty = |value: &Value| {
        let no_field = value.as_object().is_some_and(serde_json::Map::is_empty);
        value.is_null() || no_field
    };
    fields.filter(|(_, value)| !is_empty(value)).collect()
}

impl CheckedExpectation {
    /// The actual state, if the expectation does not hold.
    pub(crate) fn unmet(&self) -> Option<&str> {
        match &self.outcome {
            ExpectationOutcome::Met { .. } => None,
            ExpectationOutcome::Unmet(StateDifference { was, .. }) => Some(was),
        }
    }
}

/// Compares all expectations with the present state.
pub(crate) async fn check(
    stage: &ScenarioCluster,
    expect: &[Expectation],
) -> Vec<CheckedExpectation> {
    let mut checked = Vec::new();
    stage.take_said();
    for expectation in expect {
        let outcome = match look(stage, &expectation.rule).await {
            Ok(Ok(seen)) => ExpectationOutcome::Met { seen },
            Ok(Err(difference)) => ExpectationOutcome::Unmet(difference),
            Err(error) => {
                let was = format!("{error:#}");
                ExpectationOutcome::Unmet(("an answer".to_owned(), was).into())
            }
        };
        checked.push(CheckedExpectation {
            at: expectation.at,
            text: expectation.text.clone(),
            outcome,
        });
    }
    checked
}

/// The state that an expectation has seen.
type LookResult = Result<String, StateDifference>;

async fn look(stage: &ScenarioCluster, rule: &ExpectedState) -> Result<LookResult> {
    match rule {
        ExpectedState::Object {
            object,
            namespace,
            look,
        } => {
            let found = stage.objects.get(namespace, object).await?;
            Ok(of_object(object, look, found.as_ref()))
        }
        ExpectedState::Count {
            kind,
            namespace,
            selector,
            filter,
            numbers,
        } => {
            let objects = stage
                .objects
                .list(kind, namespace.as_deref(), selector.as_deref())
                .await?;
            of_count(kind, filter.as_ref(), *numbers, &objects)
        }
        ExpectedState::Event {
            reason,
            on,
            namespace,
            message,
            event_type,
            since,
            numbers,
        } => {
            let wanted = WantedEvents {
                reason,
                on: match on {
                    Some(on) => Some((stage.objects.kind(&on.kind).await?, on.name.as_str())),
                    None => None,
                },
                message: message.as_ref(),
                event_type: *event_type,
                before: since.as_ref().and_then(|since| stage.marks.get(since)),
            };
            let events = stage
                .objects
                .list("events", namespace.as_deref(), None)
                .await?;
            Ok(of_events(&wanted, *numbers, &events).map(
                |SeenEvents { count, first }| match first {
                    Some(first) => {
                        stage.say(format!("  {first}"));
                        format!("{count}: {first}")
                    }
                    None => count.to_string(),
                },
            ))
        }
        ExpectedState::Metric {
            name,
            service,
            labels,
            numbers,
        } => {
            let service = stage.http(service).await?;
            let series = metrics::series(&service, name, labels).await?;
            let sum: f64 = series.iter().map(|(_, value)| value).sum();
            let each: Vec<_> = series
                .iter()
                .take(NAMED)
                .map(|(labels, value)| format!("\n  {labels} {value}"))
                .collect();
            let rest = match series.len() - each.len() {
                0 => String::new(),
                more => format!("\n  and {more} more series"),
            };
            let was = if series.is_empty() {
                "no series has these labels, which counts as 0".into()
            } else {
                format!("{sum}{}{rest}", each.concat())
            };
            Ok(match numbers.allows(sum) {
                true => Ok(was),
                false => Err((numbers.describe(), was).into()),
            })
        }
        ExpectedState::Ping {
            ping,
            answered_by,
            answers,
        } => {
            of_ping(
                stage,
                &ping.from,
                &ping.to,
                answered_by.as_deref(),
                *answers,
            )
            .await
        }
        ExpectedState::Command(run) => {
            let ended = command::execute(stage, run).await?;
            if let Some(finished) = &ended.finished {
                stage.say(format!("$ {}", narration::lines(run).join("\n$ ")));
                stage.say(narration::output(finished));
            }
            let seen = ended.finished.as_ref().map(narration::ended);
            Ok(command::judge(run, &ended)
                .map(|()| seen.unwrap_or_default())
                .map_err(Into::into))
        }
        ExpectedState::Call {
            method,
            of,
            numbers,
        } => {
            let made = stage.cluster.calls(of, method).await?;
            let seen = format!("{made} call{}", if made == 1 { "" } else { "s" });
            let is_met = numbers.allows(u32::try_from(made).unwrap_or(u32::MAX).into());
            Ok(match is_met {
                true => Ok(seen),
                false => Err((numbers.describe(), seen).into()),
            })
        }
    }
}

fn of_object(object: &ObjectRef, look: &Look, found: Option<&Value>) -> LookResult {
    let gone = || format!("there is no {object}");
    match (look, found) {
        (Look::Exists(true), Some(_)) => Ok(format!("{object} exists")),
        (Look::Exists(false), None) => Ok(gone()),
        (Look::Exists(true), None) => Err((format!("{object} to exist"), gone()).into()),
        (Look::Exists(false), Some(found)) => Err(StateDifference {
            expected: format!("no {object}"),
            was: with_lines("there is one".into(), &state(found)),
            objects: vec![SeenObject::state_of(object.to_string(), found)],
        }),
        (Look::Cel(_), None) => Err(("true".to_owned(), gone()).into()),
        (Look::Cel(cel), Some(found)) => match cel.holds(found) {
            Ok(()) => Ok("true".into()),
            Err(was) => Err(StateDifference {
                expected: "true".into(),
                was: with_lines(was, &differences(cel, found)),
                objects: vec![SeenObject::state_of(object.to_string(), found)],
            }),
        },
        (Look::Path { text, path, rule }, found) => {
            let value = found.and_then(|found| path.of(found));
            let was = match (&value, found) {
                (Some(value), _) => value.to_string(),
                (None, Some(_)) => format!("nothing at {text}"),
                (None, None) => gone(),
            };
            if rule.allows(value.as_ref()) {
                return Ok(was);
            }
            Err(match value {
                Some(value) if was.chars().count() > SHOWN => StateDifference {
                    expected: rule.describe(),
                    was: shown(&value),
                    objects: vec![SeenObject {
                        about: text.to_string(),
                        value,
                    }],
                },
                _ => (rule.describe(), was).into(),
            })
        }
    }
}

fn of_count(
    kind: &str,
    filter: Option<&Cel>,
    numbers: NumberRule,
    objects: &[Value],
) -> Result<LookResult> {
    let (mut counted, mut others) = (Vec::new(), Vec::new());
    for object in objects {
        match filter.map_or(Ok(true), |filter| filter.picks(object)) {
            Ok(true) => counted.push(object),
            Ok(false) => others.push(object),
            Err(why) => bail!("`where` of {}: {why}", name(object)),
        }
    }
    let mut names: Vec<_> = counted
        .iter()
        .take(NAMED)
        .map(|object| name(object))
        .collect();
    let unnamed = counted.len() - names.len();
    if unnamed > 0 {
        names.push(format!("and {unnamed} more"));
    }
    let mut was = counted.len().to_string();
    if !names.is_empty() {
        was = format!("{was}: {}", names.join(", "));
    }
    if filter.is_some() {
        was = format!("{was} (of {} {kind})", objects.len());
    }
    if numbers.allows(whole(counted.len())) {
        return Ok(Ok(was));
    }
    let mut objects = Vec::new();
    let mut hint = |about: String, object: &Value, lines: &[String]| {
        if !lines.is_empty() {
            was = with_lines(format!("{was}\n  {about}:"), &indented(lines));
        }
        objects.push(SeenObject::state_of(about, object));
    };
    let most = numbers.equals.or(numbers.at_most);
    let one = counted.first();
    if let Some(one) = one.filter(|_| most.is_some_and(|most| whole(counted.len()) > most)) {
        hint(format!("counted: {}", name(one)), one, &state(one));
    }
    // An object that was not counted is a hint at the reason, as one of too many is.
    let other = others.first().filter(|_| numbers.at_most.is_none());
    if let Some(other) = other {
        let lines = filter.map_or_else(|| state(other), |filter| differences(filter, other));
        hint(format!("not counted: {}", name(other)), other, &lines);
    }
    Ok(Err(StateDifference {
        expected: numbers.describe(),
        was,
        objects,
    }))
}

/// The fields that the expression compares, or those of any object if it compares none.
fn differences(cel: &Cel, object: &Value) -> Vec<String> {
    match cel.differences(object) {
        none if none.is_empty() => state(object),
        lines => lines,
    }
}

/// The fields that tell the state of any object, a line each.
fn state(object: &Value) -> Vec<String> {
    let fields = [
        "/metadata/deletionTimestamp",
        "/metadata/finalizers",
        "/spec/nodeName",
        "/status/phase",
        "/status/reason",
    ];
    let line = |pointer: &str| {
        let path = pointer.trim_start_matches('/').replace('/', ".");
        Some(format!("{path}: was {}", shown(object.pointer(pointer)?)))
    };
    fields.into_iter().filter_map(line).collect()
}

/// The text with lines below it.
fn with_lines(text: String, lines: &[String]) -> String {
    lines
        .iter()
        .fold(text, |text, line| format!("{text}\n  {line}"))
}

fn indented(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| format!("  {line}")).collect()
}

/// The events that an expectation is about.
struct WantedEvents<'a> {
    reason: &'a str,
    /// The kind and name of the object.
    on: Option<(String, &'a str)>,
    message: Option<&'a TextRule>,
    event_type: Option<EventType>,
    /// The counts at an earlier moment. Only what has happened since is of interest.
    before: Option<&'a EventCounts>,
}

/// The count of each event at some moment, by the event's UID.
pub(crate) type EventCounts = BTreeMap<String, usize>;

/// Returns the counts of all events so far.
pub(crate) async fn mark(stage: &ScenarioCluster) -> Result<EventCounts> {
    let events = stage.objects.list("events", None, None).await?;
    Ok(events
        .iter()
        .map(|event| (uid(event), times(event)))
        .collect())
}

fn uid(event: &Value) -> String {
    let uid = event["metadata"]["uid"].as_str();
    uid.unwrap_or_default().to_owned()
}

/// The number of times that an event has happened.
fn times(event: &Value) -> usize {
    let count = event["count"]
        .as_u64()
        .or(event["series"]["count"].as_u64());
    usize::try_from(count.unwrap_or(1).max(1)).unwrap_or(usize::MAX)
}

/// Events as wanted.
#[derive(Debug)]
struct SeenEvents {
    count: usize,
    /// The first of them, as a line.
    first: Option<String>,
}

/// Compares the number of events with the wanted one.
fn of_events(
    wanted: &WantedEvents<'_>,
    numbers: NumberRule,
    events: &[Value],
) -> Result<SeenEvents, StateDifference> {
    let is_on = |event: &&Value| {
        wanted.on.as_ref().is_none_or(|(kind, name)| {
            event["involvedObject"]["kind"] == **kind && event["involvedObject"]["name"] == *name
        })
    };
    let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
    let is_meant = |event: &&Value| {
        text(event, "reason") == wanted.reason
            && is_on(event)
            && wanted
                .message
                .is_none_or(|rule| rule.allows(&text(event, "message")))
            && wanted
                .event_type
                .is_none_or(|of| text(event, "type") == of.as_str())
    };
    let since = |event: &Value| {
        let before = wanted.before.and_then(|before| before.get(&uid(event)));
        times(event).saturating_sub(before.copied().unwrap_or_default())
    };
    let found: usize = events.iter().filter(is_meant).map(since).sum();
    if numbers.allows(whole(found)) {
        return Ok(SeenEvents {
            count: found,
            first: events.iter().find(is_meant).map(event_line),
        });
    }
    let near: Vec<_> = events.iter().filter(is_on).collect();
    let last: Vec<_> = near
        .iter()
        .rev()
        .take(NAMED)
        .map(|event| format!("\n  {}", event_line(event)))
        .collect();
    let which = match near.len().checked_sub(last.len()) {
        None | Some(0) => "all events there".to_owned(),
        Some(_) => format!("the last {} of {} events there", last.len(), near.len()),
    };
    let message = wanted
        .message
        .map(|rule| format!(" with {}", rule.describe()))
        .unwrap_or_default();
    let expected = format!("{} {} events{message}", numbers.describe(), wanted.reason);
    let was = match last.is_empty() {
        true => format!("{found}, and no others"),
        false => format!("{found}; {which}:{}", last.concat()),
    };
    Err((expected, was).into())
}

/// Formats an event: `Warning FailedScheduling pod/web-1: 0/2 nodes are available`.
pub(crate) fn event_line(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let about = &event["involvedObject"];
    let times = match event["count"].as_u64() {
        Some(count @ 2..) => format!(" (x{count})"),
        _ => String::new(),
    };
    format!(
        "{:7} {} {}/{}: {}{times}",
        text(&event["type"]),
        text(&event["reason"]),
        text(&about["kind"]).to_lowercase(),
        text(&about["name"]),
        text(&event["message"])
    )
}

async fn of_ping(
    stage: &ScenarioCluster,
    from: &str,
    to: &str,
    answered_by: Option<&str>,
    answers: bool,
) -> Result<LookResult> {
    let mut args = vec!["ping", from, answered_by.unwrap_or(to), "--count", "1"];
    if let Some(pod) = answered_by {
        if pod != to
            && let Err(difference) = same_address(stage, to, pod).await?
        {
            return Ok(Err(difference));
        }
        args.push("--verify");
    }
    let line = format!("$ podplane {}", args.join(" "));
    let finished = podplane_test_cluster::run(stage.cluster.command("podplane", args)).await?;
    stage.say(line);
    stage.say(narration::output(&finished));
    let output = format!("{}{}", finished.stdout, finished.stderr);
    let output = output.trim_end().to_owned();
    // 0 is an answer, 1 is none or one of another pod; with any other code nothing was asked.
    if finished.code == Some(i32::from(!answers)) {
        return Ok(Ok(output));
    }
    let expected = match (answers, answered_by) {
        (false, _) => "no answer".into(),
        (true, None) => "an answer".into(),
        (true, Some(pod)) => format!("an answer of {pod}"),
    };
    Ok(Err((expected, output).into()))
}

/// Checks that `to`, an address or a pod, has an address in common with the pod.
async fn same_address(
    stage: &ScenarioCluster,
    to: &str,
    pod: &str,
) -> Result<Result<(), StateDifference>> {
    let own = addresses(stage, pod).await?;
    let asked = match to.parse::<std::net::IpAddr>() {
        Ok(address) => vec![address.to_string()],
        Err(_) => addresses(stage, to).await?,
    };
    if asked.iter().any(|address| own.contains(address)) {
        return Ok(Ok(()));
    }
    let expected = format!("{pod} to have the address of {to}, {}", asked.join(" and "));
    Ok(Err(
        (expected, format!("it has {}", own.join(" and "))).into()
    ))
}

async fn addresses(stage: &ScenarioCluster, pod: &str) -> Result<Vec<String>> {
    let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
    let object = ObjectRef {
        kind: "pods".into(),
        name: name.into(),
    };
    let found = stage
        .objects
        .get(namespace, &object)
        .await?
        .unwrap_or_default();
    let ips = found["status"]["podIPs"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    Ok(ips
        .iter()
        .filter_map(|ip| ip["ip"].as_str().map(Into::into))
        .collect())
}

fn name(object: &Value) -> String {
    object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Converts a number of things for a comparison with the numbers of a scenario.
fn whole(number: usize) -> f64 {
    u32::try_from(number).unwrap_or(u32::MAX).into()
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn counts_events_after_the_mark() {
        let event = |uid: &str, count: u64| {
            json!({"metadata": {"uid": uid}, "reason": "NodeNotReady", "count": count,
                "involvedObject": {"kind": "Node", "name": "a"}})
        };
        let before = EventCounts::from([("1".into(), 2), ("2".into(), 1)]);
        let wanted = |before| WantedEvents {
            reason: "NodeNotReady",
            on: None,
            message: None,
            event_type: None,
            before,
        };
        let are = |number, before, events: &[Value]| {
            let numbers = NumberRule {
                equals: Some(number),
                ..NumberRule::default()
            };
            of_events(&wanted(before), numbers, events).is_ok()
        };
        let events = [event("1", 2), event("2", 1)];
        assert!(are(3.0, None, &events));
        assert!(are(0.0, Some(&before), &events));
        // One has happened again, and one is new.
        let events = [event("1", 4), event("2", 1), event("3", 1)];
        assert!(are(3.0, Some(&before), &events));
    }

    #[test]
    fn lists_say_that_they_are_a_part() {
        let events: Vec<Value> = (0..11)
            .map(|number| {
                json!({"reason": "Pulled", "message": format!("image {number}"),
                    "involvedObject": {"kind": "Pod", "name": "web"}})
            })
            .collect();
        let wanted = WantedEvents {
            reason: "Killing",
            on: None,
            message: None,
            event_type: None,
            before: None,
        };
        let one = NumberRule {
            equals: Some(1.0),
            ..NumberRule::default()
        };
        let was = |events: &[Value]| of_events(&wanted, one, events).unwrap_err().was;
        assert!(was(&events).starts_with("0; the last 8 of 11 events there:\n"));
        assert!(was(&events[..2]).starts_with("0; all events there:\n"));

        let pods: Vec<Value> = (0..11)
            .map(|number| json!({"metadata": {"name": format!("web-{number}")}}))
            .collect();
        let unmet = of_count("pods", None, one, &pods).unwrap().unwrap_err();
        assert!(unmet.was.ends_with("web-7, and 3 more"), "{}", unmet.was);
    }

    #[test]
    fn a_filter_that_is_not_boolean_fails_the_count() {
        let none = NumberRule {
            equals: Some(0.0),
            ..NumberRule::default()
        };
        let pods = [json!({"metadata": {"name": "a"}, "spec": {"priority": 3}})];
        let count = |text| of_count("pods", Some(&Cel::parse(text).unwrap()), none, &pods);
        count("object.spec.priority > 3").unwrap().unwrap();
        let unmet = count("object.spec.priority == 3").unwrap().unwrap_err();
        assert_eq!(unmet.was, "1: a (of 1 pods)");
        let missing = of_count(
            "pods",
            Some(&Cel::parse("object.spec.priority == 4").unwrap()),
            NumberRule {
                equals: Some(1.0),
                ..NumberRule::default()
            },
            &pods,
        );
        assert_eq!(
            missing.unwrap().unwrap_err().was,
            "0 (of 1 pods)\n  not counted: a:\n    spec.priority: expected 4, was 3"
        );
        let [one] = unmet.objects.as_slice() else {
            panic!("{unmet:?}")
        };
        assert_eq!(one.about, "counted: a");
        assert_eq!(one.value, json!({"spec": {"priority": 3}}), "and no nulls");
        let error = count("object.spec.priority").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`where` of a: it is 3, not true or false"
        );
    }
}
