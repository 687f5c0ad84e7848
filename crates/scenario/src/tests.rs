//! Problems in scenarios, and their positions: text in, `line:column: message` out.

use std::path::Path;

use podplane_api::schema::Type;

use crate::{
    format::IpPolicy,
    load::{Catalog, Values, parse},
    plan::{Action, PlannedCase, PlannedWait},
};

pub(crate) fn catalog() -> Catalog {
    let flags = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let services = [
        (
            "scheduler",
            flags(&[
                "pod-initial-backoff-seconds",
                "pod-max-backoff-seconds",
                "ip-policy",
            ]),
        ),
        ("kubelet", flags(&["max-pods"])),
        ("ipam-controller", flags(&["cluster-cidr", "release-delay"])),
    ];
    let ty = |group, kind| Type::of_kind(group, "v1", kind);
    let (pod, node) = (ty("", "Pod"), ty("", "Node"));
    let deployment = ty("apps", "Deployment");
    let kinds = [
        ("pod", pod),
        ("pods", pod),
        ("po", pod),
        ("node", node),
        ("nodes", node),
        ("deployment", deployment),
        ("deployments", deployment),
    ];
    Catalog {
        kinds: kinds.map(|(word, ty)| (word.to_owned(), ty)).into(),
        flags: services
            .map(|(name, flags)| (name.to_owned(), flags))
            .into(),
        value: |service, flag, value| match value {
            "many" => Err(format!("{service}: invalid value for --{flag}")),
            _ => Ok(()),
        },
        up: |flags| match flags.iter().find(|flag| flag.value == "cri.sock") {
            Some(_) => Err("--cri-endpoint: want unix:PATH".into()),
            None => Ok(()),
        },
    }
}

fn read(text: &str) -> Result<Vec<PlannedCase>, Vec<String>> {
    read_with(text, &[])
}

fn read_with(text: &str, set: &[(&str, &str)]) -> Result<Vec<PlannedCase>, Vec<String>> {
    let set = set.iter();
    let set = set.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    parse(Path::new("x.yaml"), text, &set.collect(), &catalog()).map_err(|problems| {
        let strip = |problem: &crate::Problem| {
            let text = problem.to_string();
            text.strip_prefix("x.yaml:").unwrap_or(&text).to_owned()
        };
        problems.iter().map(strip).collect()
    })
}

/// Each text with the beginning of the first problem.
const WRONG: &[(&str, &str)] = &[
    // Not YAML.
    ("steps: [", "1:8: unclosed bracket"),
    ("steps:\n- expect: []\n  expect: []\n", "3:3: "),
    (
        "",
        "1:1: invalid type: null, expected a mapping with `steps`",
    ),
    // Parameters.
    (
        "parameters: {a: [1]}\nsteps: [{delete: pod/a}]\n",
        "1:17: want a text, a number or a boolean, not [1]",
    ),
    (
        "parameters: {a: 1}\nmatrix: {a: [1]}\nsteps: [{delete: pod/a}]\n",
        "2:9: a is a parameter, too: give one of them another name",
    ),
    (
        "parameters: {mask: 1}\nsteps: [{delete: 'pod/${maks}'}]\n",
        "2:18: unknown value ${maks}: neither a parameter nor of the matrix; did you mean \"mask\"?",
    ),
    (
        "parameters: {mask: 1}\nsteps: [{delete: pod/a, when: {maks: 1}}]\n",
        "2:32: unknown value \"maks\": neither a parameter nor of the matrix; did you mean \"mask\"?",
    ),
    (
        "cluster: {parameters: {a: 1}}\nsteps: [{delete: pod/a}]\n",
        "1:11: unknown field \"parameters\"",
    ),
    // Not of the format.
    ("name: x\n", "1:1: missing field `steps`"),
    ("steps: []\n", "1:8: a scenario needs at least one step"),
    (
        "steps:\n- expect:\n",
        "2:3: expect has no value: give it one, or leave it out",
    ),
    (
        "cluster: {nodes: 4000000000}\nsteps: [{heal: {}}]\n",
        "1:18: want 100000 nodes at most",
    ),
    (
        "steps:\n- addNodes: {names: 'n-{0..4000000000}'}\n",
        "2:21: want 100000 nodes at most",
    ),
    (
        "steps:\n- expect: [{event: NodeReady, type: Warnign}]\n",
        "2:37: unknown variant",
    ),
    (
        "stepz: []\n",
        "1:1: unknown field \"stepz\"; did you mean \"steps\"?",
    ),
    (
        "steps:\n- wait:\n    within: 20s\n    expext: []\n",
        "4:5: unknown field \"expext\"; did you mean \"expect\"?",
    ),
    (
        "steps:\n- kil: {process: scheduler}\n",
        "2:3: unknown field \"kil\"; did you mean \"kill\"?",
    ),
    (
        "steps:\n- wait: {within: 20, expect: []}\n",
        "2:18: invalid type: integer `20`, expected a string",
    ),
    (
        "steps:\n- wait: {within: 20 sheep, expect: []}\n",
        "2:18: invalid duration \"20 sheep\": want one such as 200ms, 20s or 1m 30s",
    ),
    (
        "steps:\n- delete: web-0\n",
        "2:11: invalid object \"web-0\": want KIND/NAME, such as pod/web-0",
    ),
    (
        "steps:\n- delete: [pod/a, web-0]\n",
        "2:19: invalid object \"web-0\"",
    ),
    (
        "steps:\n- kill: {process: scheduler, signal: NINE}\n",
        "2:38: unknown variant \"NINE\"; known are KILL, TERM",
    ),
    (
        "cluster:\n  network: lodger\nsteps: []\n",
        "2:12: unknown variant \"lodger\"; did you mean \"ledger\"?",
    ),
    (
        "cluster:\n  nodes:\n  - {name: a, lables: {}}\nsteps: []\n",
        "3:15: unknown field \"lables\"; did you mean \"labels\"?",
    ),
    (
        "cluster: {nodes: many}\nsteps: []\n",
        "1:18: invalid type: string \"many\", expected a number of nodes",
    ),
    (
        "steps:\n- violations: [podcidr-overlap]\n",
        "2:16: unknown variant \"podcidr-overlap\"; known are duplicate-pod-ip",
    ),
    // Steps.
    (
        "steps:\n- name: both\n  apply: {kind: Pod}\n  delete: pod/a\n",
        "4:3: a step has one action, and this one has apply before delete: make delete a step of its own",
    ),
    (
        "steps:\n- name: none\n",
        "2:3: a step needs an action: one of apply, ",
    ),
    ("steps:\n- apply: none.yaml\n", "2:10: there is no file "),
    ("steps:\n- apply: [none.yaml]\n", "2:11: there is no file "),
    (
        "steps:\n- kill: {process: shceduler}\n",
        "2:19: there is no process \"shceduler\" at this step; there are apiserver, ipam-controller, controller-manager, scheduler, and kubelet-NODE and cri-NODE of each node; did you mean \"scheduler\"?",
    ),
    (
        "steps:\n- rebootNode: {node: node-3}\n",
        "2:22: there is no node \"node-3\" at this step; there are node-0, node-1 and node-2; did you mean \"node-",
    ),
    (
        "steps:\n- removeNode: {node: node-1}\n- rebootNode: {node: node-1}\n",
        "3:22: there is no node \"node-1\" at this step",
    ),
    (
        "steps:\n- addNodes: {names: node-1}\n",
        "2:21: there is a node \"node-1\" already",
    ),
    (
        "steps:\n- partition: {node: node-0, process: scheduler, from: apiserver}\n",
        "2:29: set node or process, not both",
    ),
    (
        "steps:\n- partition: {node: node-0, from: network}\n",
        "2:35: from: network requires kernel mode",
    ),
    (
        "cluster: {nodes: [{name: a, nodeNetworkBackend: vxlan}]}\nsteps: []\n",
        "1:49: nodeNetworkBackend requires kernel mode",
    ),
    (
        "steps:\n- addNodes: {names: b, nodeNetworkBackend: vxlan}\n",
        "2:44: nodeNetworkBackend requires kernel mode",
    ),
    (
        "steps:\n- calls: {of: scheduler}\n",
        "2:10: calls needs either an effect (fail, delay or jitter) or clear: true",
    ),
    (
        "steps:\n- restart: {service: scheduler, flags: {pod-initial-backof-seconds: 1}}\n",
        "2:41: scheduler has no flag \"pod-initial-backof-seconds\"; did you mean \"pod-initial-backoff-seconds\"?",
    ),
    (
        "cluster:\n  extraConfig:\n    kubelet: {maximum: 1}\nsteps: []\n",
        "3:15: kubelet has no flag \"maximum\": see podplane kubelet --help",
    ),
    (
        "cluster: {ipPolicy: resorce}\nsteps: []\n",
        "1:21: unknown variant \"resorce\"; did you mean \"resource\"?",
    ),
    (
        "cluster: {compat: upstream-1.33}\nsteps: []\n",
        "1:19: unknown variant \"upstream-1.33\"; did you mean \"upstream-1.3",
    ),
    (
        "cluster: {cidrAllocatorType: MultiCidrRangeAllocator}\nsteps: []\n",
        "1:30: unknown variant \"MultiCidrRangeAllocator\"; did you mean \"MultiCIDRRangeAllocator\"?",
    ),
    (
        "cluster: {cniTemplate: flannel}\nsteps: []\n",
        "1:24: unknown variant \"flannel\"; known are containerd, kubenet",
    ),
    (
        "cluster: {clusterCIDR: '10.244.0.0/16,10.300.0.0/16'}\nsteps: []\n",
        "1:24: invalid block \"10.300.0.0/16\": want one such as 10.244.3.0/24",
    ),
    (
        "cluster: {releaseDelay: 5}\nsteps: []\n",
        "1:25: invalid type: integer `5`, expected a string",
    ),
    (
        "cluster:\n  criEndpoint: cri.sock\nsteps: [{violations: [lost-write]}]\n",
        "2:16: --cri-endpoint: want unix:PATH",
    ),
    (
        "cluster:\n  nodes: [{name: a, podCIDR: 10.0.0.0}]\nsteps: []\n",
        "2:30: invalid block \"10.0.0.0\"",
    ),
    (
        "cluster:\n  extraConfig:\n    kubelet: {max-pods: many}\nsteps: []\n",
        "3:25: kubelet: invalid value for --max-pods",
    ),
    (
        "steps:\n- restart: {service: scheduler, flags: {pod-max-backoff-seconds: many}}\n",
        "2:66: scheduler: invalid value for --pod-max-backoff-seconds",
    ),
    (
        "steps:\n- restart: {service: ipam-controller, flags: {cluster-cidr: 10.244.0/12}}\n",
        "2:61: invalid block \"10.244.0/12\"",
    ),
    (
        "steps:\n- restart: {service: kubelet-node-0, flags: {max-pods: 3}}\n",
        "2:38: every kubelet has the same flags: restart kubelet with them, or kubelet-node-0 without",
    ),
    (
        "steps:\n- restart: {service: kubelet-node-7}\n",
        "2:22: there is no process \"kubelet-node-7\" at this step",
    ),
    (
        "steps:\n- restart: {service: 'kubelet-*'}\n",
        "2:22: invalid pattern: must be the full name of one process",
    ),
    (
        "steps:\n- fillDisk: {process: scheduler}\n",
        "2:23: scheduler has no disk of its own: apiserver has, and each node",
    ),
    (
        "steps:\n- fillDisk: {}\n",
        "2:13: missing disk: set node, or process: apiserver",
    ),
    (
        "steps:\n- calls: {of: kubelet-node-0, method: RunPodSandboxes, fail: UNAVAILABLE}\n",
        "2:39: no service has a method RunPodSandboxes; did you mean RunPodSandbox?",
    ),
    (
        "steps:\n- calls: {of: cri-node-0, fail: UNAVAILABLE}\n",
        "2:15: \"cri-node-0\" makes no calls: name its caller, kubelet-node-0",
    ),
    (
        "steps:\n- calls: {of: '*', fail: UNAVAILABLE}\n",
        "2:15: \"*\" makes no calls: name its caller, kubelet-NODE",
    ),
    (
        "steps:\n- partition: {process: cri-node-0, from: apiserver}\n",
        "2:24: \"cri-node-0\" makes no calls: name its caller, kubelet-node-0",
    ),
    (
        "steps:\n- partition: {process: apiserver, from: apiserver}\n",
        "2:24: \"apiserver\" makes no calls: name its caller, such as scheduler",
    ),
    (
        "steps:\n- partition: {process: scheduler, from: cri}\n",
        "2:24: only the kubelet of one node can be cut off from its runtime: set node",
    ),
    // Expectations.
    (
        "steps:\n- expect:\n  - {call: BindPods, of: scheduler, equals: 1}\n",
        "3:12: no service has a method BindPods; did you mean BindPod?",
    ),
    (
        "steps:\n- expect:\n  - {call: BindPod, of: 'kubelet-*', equals: 1}\n",
        "3:25: invalid pattern: must be the full name of one process",
    ),
    (
        "steps:\n- expect:\n  - {metric: up, service: 'kubelet-*', equals: 1}\n",
        "3:27: invalid pattern: must be the full name of one process",
    ),
    (
        "steps:\n- expect:\n  - {object: pod/a, jsonpath: '{.status.phase', equals: Running}\n",
        "3:32: invalid JSONPath \"{.status.phase\": want $.status.phase or {.status.phase}",
    ),
    (
        "steps:\n- expect:\n  - object: pod/a\n    cel: object.status.phase == Running\n",
        "4:33: unknown name \"Running\" in CEL: only `object` is defined",
    ),
    (
        "steps:\n- expect:\n  - {object: pod/a, cel: 'object.status.phase =='}\n",
        "3:49: not CEL: ",
    ),
    (
        "steps:\n- expect:\n  - {count: pods, where: 'sizeof(object) == 1', equals: 1}\n",
        "3:27: CEL has no function \"sizeof\"",
    ),
    (
        "steps:\n- expect:\n  - {count: pods, where: 'true'}\n",
        "3:5: missing number: set equals, atLeast or atMost",
    ),
    (
        "steps:\n- expect:\n  - {count: pods, equals: three}\n",
        "3:27: equals must be a number, not \"three\"",
    ),
    (
        "steps:\n- expect:\n  - {count: pods, jsonpath: .a, equals: 1}\n",
        "3:19: jsonpath cannot be used with count; allowed are namespace, selector, where, equals, atLeast and atMost",
    ),
    (
        "steps:\n- expect:\n  - {object: pod/a, count: pods}\n",
        "3:21: an expectation has one subject, and this one has object before count",
    ),
    (
        "steps:\n- expect:\n  - {equals: 1}\n",
        "3:5: missing subject: set one of object, count, event, metric, ping, command, call",
    ),
    (
        "steps:\n- expect: []\n",
        "2:11: missing expectations: want at least one",
    ),
    (
        "steps:\n- expect:\n  - {object: pod/a, jsonpath: .a, matches: '('}\n",
        "3:45: not a regular expression: unclosed group",
    ),
    (
        "steps:\n- expect:\n  - {metric: up, service: scheduler-x, equals: 1}\n",
        "3:27: there is no process \"scheduler-x\"",
    ),
    (
        "steps:\n- expect:\n  - {ping: {from: a, to: b}}\n",
        "3:6: ping requires kernel mode: set cluster.network to kernel",
    ),
    (
        "steps:\n- expect:\n  - {object: pdo/a}\n",
        "3:14: unknown kind \"pdo\"; did you mean \"po",
    ),
    (
        "steps:\n- delete: [pod/a, {object: nods/b}]\n",
        "2:28: unknown kind \"nods\"; did you mean \"node",
    ),
    (
        "steps:\n- name: first\n  expect:\n  - {event: A, since: frist}\n",
        "4:23: neither this step nor one before it has the name \"frist\"; did you mean \"first\"?",
    ),
    (
        "steps:\n- expect:\n  - {event: A, since: later}\n- name: later\n  delete: pod/a\n",
        "3:23: neither this step nor one before it has the name \"later\"",
    ),
    (
        "steps:\n- expect:\n  - {count: pods, where: 'object.status.phse == \"Failed\"', equals: 0}\n",
        "3:41: PodStatus has no field \"phse\"; did you mean \"phase\"?",
    ),
    (
        "steps:\n- expect:\n  - object: node/a\n    cel: object.status.conditions.exists(c, c.typ == 'Ready')\n",
        "4:47: NodeCondition has no field \"typ\"; did you mean \"type\"?",
    ),
    (
        "steps:\n- expect:\n  - object: pod/a\n    cel: object.spec.containers[0].imag == 'a'\n",
        "4:36: Container has no field \"imag\"; did you mean \"image\"?",
    ),
    // The matrix.
    (
        "matrix: {mask: [30, 29]}\ncluster:\n  nodeCIDRMaskSize: ${musk}\nsteps: []\n",
        "3:21: unknown value ${musk}: neither a parameter nor of the matrix; did you mean \"mask\"?",
    ),
    (
        "matrix: {mask: 30}\nsteps: []\n",
        "1:16: invalid type: integer `30`, expected a sequence",
    ),
    (
        "matrix: [{a: 1}, {b: 1}]\nsteps: []\n",
        "1:18: all combinations must have the same names; the first has a",
    ),
    (
        "matrix: {mask: []}\nsteps: []\n",
        "1:9: the matrix is empty",
    ),
    (
        "matrix: {mask: [30, many]}\ncluster: {nodeCIDRMaskSize: '${mask}'}\nsteps: [{violations: [lost-write]}]\n",
        "2:29: invalid type: string \"many\", expected u8",
    ),
];

#[test]
fn problems_have_their_place() {
    let mut failed = Vec::new();
    for (text, want) in WRONG {
        match read(text) {
            Ok(_) => failed.push(format!("no problem in:\n{text}")),
            Err(problems) if problems[0].starts_with(want) => {}
            Err(problems) => failed.push(format!(
                "{text}\n want {want}\n  got {}",
                problems.join("\n      ")
            )),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// Each text with the positions of all its problems.
const ALL_WRONG: &[(&str, &[&str])] = &[
    (
        "cluster: {extraConfig: {kubelet: {maximum: 1}, kubelt: {}}}\nsteps:\n- kill: {process: x}\n- expect: [{object: pod/a, cel: b}]\n",
        &["1:35", "1:48", "3:19", "4:33"],
    ),
    // Mistakes in form hide neither each other nor other mistakes.
    (
        "name: 3\ncluster: {ipPolicy: resorce, nodes: many}\nsteps:\n- wait: {within: 20, expcet: []}\n- kil: {process: scheduler}\n- kill: {process: shceduler}\n\
         - expect:\n  - {count: pods, eqals: 1}\n  - {object: pod/a, cel: b}\n",
        &[
            "1:7", "2:21", "2:37", "4:18", "4:22", "5:3", "6:19", "8:19", "9:26",
        ],
    ),
    // An item of a list keeps its index although items before it were taken out.
    (
        "steps:\n- delete: [web-0, pod/a, web-1]\n- apply\n- scale: {object: pdo/a}\n- delete: [web-2, pdo/b]\n",
        &["2:12", "2:26", "3:3", "4:10", "5:12", "5:19"],
    ),
    (
        "steps:\n- wait: {within:, timing:, expect: [{object: pod/a, jsonpath: .x, equals: null, exists:}]}\n",
        &["2:10", "2:19", "2:81"],
    ),
    (
        "matrix: {mask: [30, [29]]}\ncluster: {nodeCIDRMaskSize: '${mask}', nodes: '${n}'}\nsteps:\n- kill: {process: x}\n",
        &["1:21", "4:19"],
    ),
    (
        "matrix: {mask: [30]}\ncluster: {nodeCIDRMaskSize: '${musk}'}\nsteps: [{delete: '${who}'}]\n",
        &["2:29", "3:18"],
    ),
    (
        "steps:\n- expect:\n  - {count: pdos, where: 'b', jsonpath: .a, cel: a}\n  - {metric: up}\n  - {object: pdo/a, jsonpath: '{', matches: '('}\n",
        &[
            "3:5", "3:13", "3:27", "3:31", "3:45", "4:5", "4:5", "5:14", "5:32", "5:46",
        ],
    ),
    ("stepz: [{wait: 3}]\n", &["1:1"]),
];

#[test]
fn reports_all_problems_at_once() {
    for (text, want) in ALL_WRONG {
        let problems = read(text).unwrap_err();
        let place = |problem: &String| problem.split(": ").next().unwrap().to_owned();
        let places: Vec<_> = problems.iter().map(place).collect();
        assert_eq!(places, *want, "{text}{problems:#?}");
    }
}

/// After a command the nodes are unknown; the services are still known.
#[test]
fn knows_the_services_after_a_command() {
    let steps =
        |process: &str| format!("steps:\n- run: {{command: x}}\n- kill: {{process: {process}}}\n");
    assert!(read(&steps("kubelet-any")).is_ok());
    assert!(read(&steps("'*'")).is_ok());
    let problems = read(&steps("shceduler")).unwrap_err();
    assert!(
        problems[0].starts_with("3:19: there is no process"),
        "{problems:?}"
    );
}

#[test]
fn accepts_cel_with_known_fields() {
    for cel in [
        "has(object.status.podIP) && object.metadata.labels.any == object.metadata.annotations['podplane.io/pod-ips']",
        "object.spec.containers.all(c, c.resources.requests['podplane.io/pod-ips'] == '1' && size(c.args) > 0)",
        "object.status.conditions.filter(c, c.type == 'Ready').map(c, c.status)[0] == 'True'",
        "object['status']['podIPs'].exists(ip, [ip.ip].exists(object, object.startsWith('10.')))",
    ] {
        let text = format!(
            "steps:\n- expect: [{{object: pod/a, cel: {}}}]\n",
            serde_json::json!(cel)
        );
        read(&text).unwrap_or_else(|problems| panic!("{cel}: {problems:?}"));
    }
}

#[test]
fn a_matrix_gives_a_run_for_each_combination() {
    let text = "name: full\nmatrix: {mask: [30, 29], policy: ['off', resource]}\ncluster:\n  nodeCIDRMaskSize: ${mask}\n  ipPolicy: ${policy}\nsteps:\n\
        - name: with ${policy} of ${mask}\n  run: {command: 'echo $${policy} $HOME ${mask}'}\n";
    let cases = read(text).unwrap();
    let titles: Vec<_> = cases.iter().map(PlannedCase::title).collect();
    assert_eq!(
        titles,
        [
            "full[mask=30,policy=off]",
            "full[mask=30,policy=resource]",
            "full[mask=29,policy=off]",
            "full[mask=29,policy=resource]"
        ]
    );
    assert_eq!(cases[2].cluster.node_cidr_mask_size, Some(29));
    assert_eq!(cases[2].cluster.ip_policy, Some(IpPolicy::Off));
    assert_eq!(cases[1].steps[0].title, "with resource of 30");
    let Action::Run(run) = &cases[1].steps[0].action else {
        panic!("no run");
    };
    assert_eq!(run.words, ["sh", "-c", "echo ${policy} $HOME 30"]);
}

#[test]
fn parameters_have_defaults_and_are_set_to_values_of_the_same_type() {
    let text = "parameters: {mask: 30, word: a, kept: true}\nmatrix: [{range: '10.${mask}'}]\n\
        cluster: {nodeCIDRMaskSize: '${mask}'}\nsteps:\n- {name: '${word} ${range} ${kept}', delete: pod/a}\n\
        - {when: {word: a}, delete: pod/b}\n- {when: {mask: 29, range: '10.29'}, delete: pod/c}\n";
    let [case] = &read(text).unwrap()[..] else {
        panic!("several runs");
    };
    assert_eq!(case.cluster.node_cidr_mask_size, Some(30));
    let titles = |case: &PlannedCase| -> Vec<String> {
        case.steps.iter().map(|step| step.title.clone()).collect()
    };
    assert_eq!(titles(case), ["a 10.30 true", "delete pod/b"]);
    assert!(case.parameters.values().all(|parameter| !parameter.is_set));
    let case = &read_with(text, &[("mask", "29"), ("word", "7")]).unwrap()[0];
    assert_eq!(case.cluster.node_cidr_mask_size, Some(29));
    assert_eq!(titles(case), ["7 10.29 true", "delete pod/c"]);
    assert!(case.parameters["mask"].is_set && !case.parameters["kept"].is_set);
    let wrong = read_with(text, &[("mask", "many"), ("kept", "1")]).unwrap_err();
    assert_eq!(
        wrong,
        [
            "1:20: invalid value \"many\" to set for mask: want a number, as its default 30",
            "1:39: invalid value \"1\" to set for kept: want true or false, as its default true"
        ]
    );
}

#[test]
fn a_value_for_a_parameter_that_no_scenario_has_is_a_problem() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let set = Values::from([("maks".into(), "30".into())]);
    let problems = crate::load(&[examples], &set, &catalog()).unwrap_err();
    let [problem] = &problems[..] else {
        panic!("{problems:?}");
    };
    assert!(
        problem
            .message
            .starts_with("unknown parameter \"maks\" to set; known: "),
        "{problem}"
    );
}

#[test]
fn titles_abbreviate_long_matrix_values() {
    let long = "0123456789".repeat(30);
    let text = format!(
        "name: full\nmatrix: {{mask: [30], text: ['{long}a', '{long}b', \"x\\ny\"]}}\nsteps: [{{delete: pod/a}}]\n"
    );
    let cases = read(&text).unwrap();
    let titles: Vec<_> = cases.iter().map(PlannedCase::title).collect();
    // They are the same in every version.
    let expected = [
        "full[mask=30,text=01234567890123456789012345678901…7d4b0e6e]",
        "full[mask=30,text=01234567890123456789012345678901…cde3eded]",
        "full[mask=30,text=x…9ab9de25]",
    ];
    assert_eq!(titles, expected);
}

#[test]
fn patience_multiplies_every_deadline() {
    let text = "steps:\n- wait: {within: 20s, expect: [{object: pod/a}]}\n- run: {command: x}\n- delete: pod/a\n  settle: 1s\n";
    let case = read(text).unwrap().remove(0).patient(2.5);
    let seconds = std::time::Duration::from_secs_f64;
    let [wait, run, delete] = &case.steps[..] else {
        panic!("{:?}", case.steps);
    };
    let Action::Wait(PlannedWait { within, .. }) = &wait.action else {
        panic!("{wait:?}");
    };
    assert_eq!((*within, wait.settle), (seconds(50.0), seconds(50.0)));
    let Action::Run(command) = &run.action else {
        panic!("{run:?}");
    };
    assert_eq!(command.within, seconds(150.0));
    assert_eq!((case.within, delete.settle), (seconds(150.0), seconds(2.5)));
}

#[test]
fn a_step_without_a_name_is_named_after_its_action() {
    let text = "steps:\n- run: {command: [podplane, run, web, --replicas, 4]}\n- kill: {process: scheduler}\n";
    let case = read(text).unwrap().remove(0);
    let titles: Vec<_> = case.steps.iter().map(|step| &*step.title).collect();
    assert_eq!(
        titles,
        [
            "run podplane run web --replicas 4",
            "kill process scheduler"
        ]
    );
}

#[test]
fn a_scenario_without_a_name_is_named_after_its_file() {
    let cases = read("steps: [{violations: [lost-write]}]").unwrap();
    assert_eq!(cases[0].title(), "x");
}

/// Editors read the file; `podplane test --schema` prints the same.
#[test]
fn the_documented_schema_matches_the_types() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenario.schema.json");
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap_or_default();
    assert!(
        kept == crate::format::schema(),
        "docs/scenario.schema.json is old: podplane test --schema > docs/scenario.schema.json"
    );
}

/// A copy of an example may stand outside the repository.
#[test]
fn examples_name_the_schema_by_its_url() {
    let schema = crate::format::schema();
    let line = format!(
        "# yaml-language-server: $schema={}",
        schema["$id"].as_str().unwrap()
    );
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let cases = crate::load(&[examples], &Values::new(), &catalog()).unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let text = std::fs::read_to_string(&case.file).unwrap();
        assert_eq!(text.lines().next(), Some(&*line), "{}", case.file.display());
    }
}

/// Every example of the reference is a scenario, or the steps of one.
#[test]
fn parses_the_examples_in_the_docs() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenarios.md");
    let text = std::fs::read_to_string(file).unwrap();
    let examples: Vec<_> = text
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(examples.len() >= 4, "{}", examples.len());
    for example in examples {
        let whole = match example {
            steps if steps.starts_with("- ") => {
                format!("cluster: {{network: auto}}\nsteps:\n{steps}")
            }
            whole => whole.to_owned(),
        };
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/x.yaml");
        if let Err(problems) = parse(&here, &whole, &Values::new(), &catalog()) {
            panic!("{problems:#?}\nin:\n{whole}");
        }
    }
}
