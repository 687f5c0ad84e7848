//! The trace that an operation is part of: what plugins find in their environment, and what ours
//! hand back, through plugins of others too.

#![expect(clippy::disallowed_methods, reason = "a test")]

use std::{collections::BTreeMap, fs, path::Path};

use podplane_cni::{
    Attachment, NetworkConfigList,
    trace::{ASK, Trace, TraceStep, Traceparent},
};
use podplane_test_network::{
    DEBIAN, NetnsFixture, attachment,
    bench::{Bench, RESULT, network, pod},
    list, our_plugins, require,
};
use serde_json::json;

const PARENT: Traceparent = Traceparent {
    trace: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
    step: 0xb7ad_6b71_6920_3331,
    is_sampled: true,
};

fn traced(attachment: Attachment) -> (Attachment, Trace) {
    let trace = Trace::new(PARENT);
    let traced = Attachment {
        trace: Some(trace.clone()),
        ..attachment
    };
    (traced, trace)
}

/// The steps as `name of plugin`, each with the same of its enclosing step. Checks that each was
/// within that one's time.
fn tree(steps: &[TraceStep]) -> Vec<(String, String)> {
    let of = |step: &TraceStep| format!("{} of {}", step.name, step.plugin);
    let by_id: BTreeMap<_, _> = steps.iter().map(|step| (step.id, step)).collect();
    assert_eq!(by_id.len(), steps.len(), "{steps:#?}");
    let parent = |step: &TraceStep| match by_id.get(&step.parent) {
        None => {
            assert_eq!(step.parent, PARENT.step, "{step:?}");
            "-".to_owned()
        }
        Some(parent) => {
            assert!(parent.start <= step.start && step.end <= parent.end);
            of(parent)
        }
    };
    let mut tree: Vec<_> = steps.iter().map(|step| (parent(step), of(step))).collect();
    tree.sort();
    tree
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    let pairs = expected.iter();
    pairs
        .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
        .collect()
}

#[test]
fn a_foreign_plugin_gets_the_context_of_its_own_execution() {
    let bench = Bench::new();
    bench.plugin("first", RESULT);
    bench.plugin(
        "second",
        "if [ $CNI_COMMAND = ADD ]; then echo broken >&2; exit 3; fi",
    );
    let (pod, trace) = traced(pod());
    let network = network("1.0.0", &["first", "second"]);
    bench.runtime.add(&network, &pod).unwrap_err();
    let steps = trace.take();
    let named: Vec<_> = steps.iter().map(|step| step.name.as_str()).collect();
    // The failed ADD is undone, in the same trace.
    assert_eq!(
        named,
        ["ADD first", "ADD second", "DEL second", "DEL first"]
    );
    for (name, step) in [("first", &steps[3]), ("second", &steps[2])] {
        let env = fs::read_to_string(bench.dir.path().join(format!("{name}.env"))).unwrap();
        let context = Traceparent {
            step: step.id,
            ..PARENT
        };
        let line = format!("TRACEPARENT={context}");
        assert!(env.lines().any(|found| found == line), "{line} in {env}");
    }
    assert_eq!(steps[0].error, None);
    let error = steps[1].error.as_deref().unwrap();
    assert!(error.contains("broken"), "{error}");
}

#[test]
fn sets_no_trace_variables_without_a_trace() {
    let bench = Bench::new();
    bench.plugin("only", RESULT);
    bench
        .runtime
        .add(&network("1.0.0", &["only"]), &pod())
        .unwrap();
    let env = fs::read_to_string(bench.dir.path().join("only.env")).unwrap();
    let of_ours = |line: &&str| line.starts_with("TRACEPARENT=") || line.starts_with(ASK);
    assert_eq!(env.lines().find(of_ours), None);
}

#[test]
fn a_plugin_learns_that_the_trace_is_not_sampled() {
    let bench = Bench::new();
    bench.plugin("only", RESULT);
    let parent = Traceparent {
        is_sampled: false,
        ..PARENT
    };
    let trace = Trace::new(parent);
    let pod = Attachment {
        trace: Some(trace.clone()),
        ..pod()
    };
    let network = network("1.0.0", &["only"]);
    bench.runtime.add(&network, &pod).unwrap();
    assert_eq!(trace.take(), []);
    let env = fs::read_to_string(bench.dir.path().join("only.env")).unwrap();
    let of_ours = |line: &&str| line.starts_with("TRACEPARENT=") || line.starts_with(ASK);
    let found: Vec<_> = env.lines().filter(of_ours).collect();
    assert_eq!(found, [format!("TRACEPARENT={parent}")]);
}

fn bridged(world: &NetnsFixture, range: &str) -> NetworkConfigList {
    let ipam = json!({"type": "host-local", "dataDir": world.path("networks"),
        "ranges": [[{"subnet": range}]]});
    list(&json!({"cniVersion": "1.0.0", "name": "net",
        "plugins": [{"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": ipam}]}))
}

#[test]
fn our_plugins_report_their_steps() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let (pod, trace) = traced(attachment("pod", &world.netns("pod")));
    let network = bridged(&world, "10.9.0.0/30");
    runtime.add(&network, &pod).unwrap();
    let steps = trace.take();
    let expected = pairs(&[
        ("-", "ADD bridge of bridge"),
        ("ADD bridge of bridge", "ADD host-local of bridge"),
        ("ADD bridge of bridge", "configure of bridge"),
        ("ADD bridge of bridge", "make pair of bridge"),
        ("ADD host-local of bridge", "allocate of host-local"),
        ("ADD host-local of bridge", "lock of host-local"),
    ]);
    assert_eq!(tree(&steps), expected);
    let allocated = steps.iter().find(|step| step.name == "allocate").unwrap();
    assert_eq!(allocated.ips, ["10.9.0.2"]);

    // With a full range, every step on the way has the error.
    let (other, refused) = traced(attachment("other", &world.netns("other")));
    let error = runtime.add(&network, &other).unwrap_err().message();
    assert!(!error.contains("podplane-step"), "{error}");
    let steps = refused.take();
    for name in ["ADD bridge", "ADD host-local", "allocate"] {
        let step = steps.iter().find(|step| step.name == name).unwrap();
        let why = step.error.as_deref().unwrap_or_default();
        assert!(why.contains("no IP addresses available"), "{step:?}");
    }

    runtime.del(&network, &pod).unwrap();
    let expected = pairs(&[
        ("-", "DEL bridge of bridge"),
        ("DEL bridge of bridge", "DEL host-local of bridge"),
        ("DEL host-local of bridge", "lock of host-local"),
        ("DEL host-local of bridge", "release of host-local"),
    ]);
    assert_eq!(tree(&trace.take()), expected);
}

#[test]
fn steps_of_our_ipam_plugin_pass_through_a_foreign_main_plugin() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let world = NetnsFixture::new();
    let bin = world.path("bin");
    fs::create_dir(&bin).unwrap();
    let link = |name: &str, dir: &Path| std::os::unix::fs::symlink(dir.join(name), bin.join(name));
    link("bridge", Path::new(DEBIAN)).unwrap();
    link("host-local", &our_plugins()).unwrap();
    let runtime = world.runtime(&[&bin]);
    let (pod, trace) = traced(attachment("pod", &world.netns("pod")));
    runtime.add(&bridged(&world, "10.9.0.0/24"), &pod).unwrap();
    let expected = pairs(&[
        ("-", "ADD bridge of bridge"),
        ("ADD bridge of bridge", "allocate of host-local"),
        ("ADD bridge of bridge", "lock of host-local"),
    ]);
    assert_eq!(tree(&trace.take()), expected);
    runtime.del(&bridged(&world, "10.9.0.0/24"), &pod).unwrap();
}
