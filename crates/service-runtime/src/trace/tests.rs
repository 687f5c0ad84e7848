use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue as ProtoValue, any_value},
    resource::v1::Resource as ProtoResource,
    trace::v1::{ResourceSpans, ScopeSpans, Span as ProtoSpan, Status as ProtoStatus},
};

use podplane_api::trace::{DroppedAttempts, DroppedSteps};

use super::*;

const UID: &str = "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed";

#[test]
fn creation_and_deletion_have_distinct_traces() {
    let creation = Journey::creation(UID).unwrap();
    let deletion = Journey::deletion(UID).unwrap();
    assert_eq!(
        format!("{:032x}", creation.trace()),
        "1b9d6bcdbbfd4b2d9b5dab8dfbbd4bed"
    );
    assert_eq!(
        format!("{:032x}", deletion.trace()),
        "1b9d6bcdbbfd8b2d9b5dab8dfbbd4bed"
    );
    for uid in ["", "web", "00000000-0000-0000-0000-000000000000"] {
        assert_eq!(Journey::creation(uid), None, "{uid}");
    }
}

#[test]
fn span_is_a_child_of_the_callers_only_within_the_same_journey() {
    let journey = Journey::creation(UID).unwrap();
    let other = Journey::creation("1b9d6bcd-bbfd-4b2d-9b5d-000000000001").unwrap();
    let data = |span: &Span| match &span.0 {
        SpanState::Recording(step) => step.data.clone(),
        other => panic!("{other:?}"),
    };
    let outer = Span::of(Some(journey), "outer");
    assert_eq!(data(&outer).parent_span_id, journey.root);
    assert_eq!(Journey::under_way(UID), None);

    let _entered = outer.context().attach();
    assert_eq!(Journey::under_way(UID), Some(journey));
    let inner = data(&Span::of(Some(journey), "inner"));
    assert_eq!(inner.parent_span_id, data(&outer).span_context.span_id());
    assert_eq!(inner.links.links.len(), 0);

    let foreign = data(&Span::of(Some(other), "foreign"));
    assert_eq!(foreign.parent_span_id, other.root);
    let [link] = &foreign.links.links[..] else {
        panic!("{:?}", foreign.links);
    };
    assert_eq!(link.span_context.trace_id(), journey.trace);

    // A pod whose UID is not a UUID is not traced, and spans of calls for it stay in the caller's
    // trace.
    let inert = Span::of(Journey::creation("web"), "nothing");
    assert_eq!(inert.ids(), None);
    assert_eq!(
        inert.context().span().span_context(),
        outer.context().span().span_context()
    );
}

/// The context that a call of another process brings.
fn called_with(journey: Journey, flags: TraceFlags) -> Context {
    let caller = SpanContext::new(
        journey.trace,
        SpanId::from(7),
        flags,
        true,
        TraceState::NONE,
    );
    Context::new().with_remote_span_context(caller)
}

#[test]
fn a_callers_decision_is_heeded_within_its_journey() {
    // This process samples everything; the caller does not.
    let journey = Journey::creation(UID);
    let entered = called_with(journey.unwrap(), TraceFlags::NOT_SAMPLED).attach();
    assert!(!Journey::is_sampled(UID));
    let mut span = Span::of(journey, "step")
        .server()
        .named(|| unreachable!("a name of a span that is not sampled"));
    span.set(attribute::NODE, || -> String {
        unreachable!("a value of a span that is not sampled")
    });
    span.fail(|| -> String { unreachable!("a reason of a span that is not sampled") });
    for span in [&span, &span.child("part"), &Span::root(journey, "root")] {
        assert!(!span.ids().unwrap().is_sampled, "{span:?}");
        let context = span.context();
        let context = context.span().span_context().clone();
        assert!(context.is_valid() && !context.is_sampled(), "{context:?}");
        assert_eq!(context.trace_id(), journey.unwrap().trace);
    }
    // It is the decision about that trace and no other.
    let other = Journey::creation("1b9d6bcd-bbfd-4b2d-9b5d-000000000001");
    assert!(Span::of(other, "step").ids().unwrap().is_sampled);
    drop(entered);

    assert!(Span::of(journey, "step").ids().unwrap().is_sampled);
    let _entered = called_with(journey.unwrap(), TraceFlags::SAMPLED).attach();
    assert!(Span::of(journey, "step").ids().unwrap().is_sampled);
}

#[test]
fn parses_or_ignores_a_traceparent_of_the_environment() {
    let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let context = from_environment(text);
    assert_eq!(
        context.span().span_context().trace_id().to_string(),
        "0af7651916cd43dd8448eb211c80319c"
    );
    for text in [
        "",
        "00-1",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ] {
        assert!(
            !from_environment(text).span().span_context().is_valid(),
            "{text}"
        );
    }
}

#[test]
fn bounds_received_spans_and_removes_control_characters() {
    let value = |text: &str| AnyValue {
        value: Some(any_value::Value::StringValue(text.into())),
    };
    let pair = |key: String, text: &str| ProtoValue {
        key,
        value: Some(value(text)),
        ..ProtoValue::default()
    };
    let span = ProtoSpan {
        trace_id: vec![1; 16],
        span_id: vec![2; 8],
        name: "evil\x1b[2J".into(),
        start_time_unix_nano: 5,
        end_time_unix_nano: 3,
        attributes: (0..100)
            .map(|n| pair(n.to_string(), &"ä".repeat(1000)))
            .collect(),
        status: Some(ProtoStatus {
            code: 2,
            message: "no\nway".into(),
        }),
        ..ProtoSpan::default()
    };
    let without_id = ProtoSpan {
        trace_id: vec![1; 3],
        ..span.clone()
    };
    let exported = ResourceSpans {
        resource: Some(ProtoResource {
            attributes: vec![pair("service.name".into(), "kubelet")],
            ..ProtoResource::default()
        }),
        scope_spans: vec![ScopeSpans {
            spans: vec![without_id, span],
            ..ScopeSpans::default()
        }],
        ..ResourceSpans::default()
    };
    let kept: Vec<_> = received_spans(vec![exported]).collect();
    let [(trace, seen)] = &kept[..] else {
        panic!("{kept:?}");
    };
    assert_eq!(*trace, u128::from_be_bytes([1; 16]));
    assert_eq!(
        (seen.service.as_str(), seen.name.as_str()),
        ("kubelet", "evil [2J")
    );
    assert_eq!(seen.error.as_deref(), Some("no way"));
    assert_eq!((seen.start_unix_nano, seen.end_unix_nano), (5, 5));
    assert_eq!(seen.attributes.len(), 32);
    assert!(seen.bytes() < 40_000, "{}", seen.bytes());
}

/// A span from `start` to `end` in milliseconds.
fn step(id: u64, parent: u64, name: &str, service: &str, start: u64, end: u64) -> ReceivedSpan {
    ReceivedSpan {
        id,
        parent,
        name: name.into(),
        service: service.into(),
        start_unix_nano: start * 1_000_000,
        end_unix_nano: end * 1_000_000,
        ..ReceivedSpan::default()
    }
}

fn with(mut seen: ReceivedSpan, key: &str, value: &str) -> ReceivedSpan {
    seen.attributes.push((key.into(), value.into()));
    seen
}

fn failed(mut seen: ReceivedSpan, why: &str) -> ReceivedSpan {
    seen.error = Some(why.into());
    seen
}

fn shown(spans: &[ReceivedSpan]) -> String {
    waterfall::lines(spans, &DroppedSteps::default(), 101).join("\n")
}

#[test]
fn wraps_a_note_below_its_line() {
    let name = "a-step-with-a-long-name-of-its-own";
    let node = "node-with-a-long-name";
    let note = "containerd-net";
    let spans = [with(
        with(step(1, 0, name, "kubelet", 0, 10), attribute::NODE, node),
        attribute::NETWORK,
        note,
    )];
    let lines = waterfall::lines(&spans, &DroppedSteps::default(), 80);
    assert!(lines[1].starts_with(name), "{lines:?}");
    assert_eq!(lines[2], format!("{:34}  {note}", ""));
    assert_eq!(
        waterfall::lines(&spans, &DroppedSteps::default(), 120).len(),
        2
    );
}

#[test]
fn shows_spans_in_order() {
    let on_node = |seen| with(seen, attribute::NODE, "node-0");
    let spans = [
        on_node(with(
            step(7, 6, "allocate", "cri", 60, 70),
            attribute::IPS,
            "10.244.0.2",
        )),
        on_node(step(5, 4, "RunPodSandbox", "cri", 40, 90)),
        on_node(step(6, 5, "ADD host-local", "cri", 50, 80)),
        step(1, 0, "create", "apiserver", 0, 10),
        step(2, 1, "queue", "scheduler", 10, 20),
        with(
            step(3, 1, "schedule", "scheduler", 20, 20),
            attribute::CHOSEN,
            "node-0",
        ),
        on_node(step(4, 1, "sync", "kubelet", 30, 100)),
    ];
    assert_eq!(
        shown(&spans),
        "\
STEP                     PROCESS         0                               100 ms       TOOK
create                   apiserver       ▕████                                ▏   10.0 ms
├─ queue                 scheduler       ▕    ███                             ▏   10.0 ms
├─ schedule              scheduler       ▕       ▏                            ▏      0 µs  node-0
└─ sync                  kubelet node-0  ▕           █████████████████████████▏   70.0 ms
   └─ RunPodSandbox      cri node-0      ▕              ██████████████████    ▏   50.0 ms
      └─ ADD host-local  cri node-0      ▕                  ███████████       ▏   30.0 ms
         └─ allocate     cri node-0      ▕                      ███           ▏   10.0 ms  10.244.0.2"
    );
}

#[test]
fn folds_attempts_between_the_first_and_the_last_one() {
    let mut spans = vec![step(1, 0, "create", "apiserver", 0, 1)];
    for attempt in 1..=6 {
        let (id, start) = (attempt * 10, attempt * 15);
        let call = step(id + 1, id, "RunPodSandbox", "cri", start, start + 9);
        let choice = step(id + 2, id + 1, "allocate", "host-local", start, start + 5);
        spans.push(step(id, 1, "sync", "kubelet", start, start + 10));
        spans.push(failed(call, &format!("sandbox {attempt}: no address")));
        spans.push(failed(choice, "no address"));
    }
    let dropped = DroppedSteps {
        count: 90,
        attempts: vec![DroppedAttempts {
            name: "sync".into(),
            process: "kubelet".into(),
            count: 30,
        }],
    };
    let lines = waterfall::lines(&spans, &dropped, 101).join("\n");
    assert_eq!(
        lines,
        "\
STEP                       PROCESS     0                  100 ms       TOOK
create                     apiserver   ▕▏                      ▏    1.0 ms
├─ sync                    kubelet     ▕   ███                 ▏   10.0 ms
│  └─ RunPodSandbox        cri         ▕   ███                 ▏    9.0 ms
                           failed: sandbox 1: no address
│     └─ allocate          host-local  ▕   ██                  ▏    5.0 ms  failed: no address
├─ 34 attempts in between  kubelet     ▕       ██ ███ ██ ███   ▏
                           4 kept, each failed: no address
└─ sync                    kubelet     ▕                     ██▏   10.0 ms
   └─ RunPodSandbox        cri         ▕                     ██▏    9.0 ms
                           failed: sandbox 6: no address
      └─ allocate          host-local  ▕                     █ ▏    5.0 ms  failed: no address"
    );
}

#[test]
fn a_time_without_a_step_has_a_row_with_pale_marks() {
    let spans = [
        step(1, 0, "create", "apiserver", 0, 1),
        step(2, 1, "sync", "kubelet", 10, 1000),
        failed(step(3, 2, "allocate", "host-local", 20, 900), "no address"),
        step(4, 1, "sync", "kubelet", 9000, 10_000),
        step(5, 4, "allocate", "host-local", 9100, 9900),
    ];
    assert_eq!(
        shown(&spans),
        "\
STEP            PROCESS     0                             10.0 s       TOOK
create          apiserver   ▕▏                                 ▏    1.0 ms
├─ sync         kubelet     ▕███                               ▏    990 ms
│  └─ allocate  host-local  ▕███                               ▏    880 ms  failed: no address
│                           ▕   ░░░░░░░░░░░░░░░░░░░░░░░░░░░░   ▏     8.0 s
                without a step: the back-off of kubelet after its failed sync
└─ sync         kubelet     ▕                               ███▏     1.0 s
   └─ allocate  host-local  ▕                               ███▏    800 ms"
    );
}

#[test]
fn steps_without_their_parent_are_within_the_root() {
    let spans = [
        step(1, 0, "create", "apiserver", 0, 1),
        step(9, 8, "allocate", "cri", 40, 50),
        step(3, 1, "sync", "kubelet", 60, 100),
    ];
    assert_eq!(
        shown(&spans),
        "\
STEP         PROCESS    0                                           100 ms       TOOK
create       apiserver  ▕▏                                               ▏    1.0 ms
├─ allocate  cri        ▕                   █████                        ▏   10.0 ms
└─ sync      kubelet    ▕                             ███████████████████▏   40.0 ms"
    );
}

#[test]
fn survives_missing_parents_and_cycles() {
    let spans = [
        step(2, 1, "orphan", "a", 0, 1),
        step(3, 3, "its own", "a", 0, 1),
        step(4, 5, "circle", "a", 0, 1),
        step(5, 4, "circle", "a", 0, 1),
    ];
    let text = shown(&spans);
    assert!(
        text.contains("orphan") && text.contains("its own"),
        "{text}"
    );
    assert!(waterfall::lines(&[], &DroppedSteps::default(), 80).is_empty());
}
