//! The same mistake has the same words and the same exit code in every command
//! (docs/exit-codes.md).

use std::fs;

use anyhow::Result;
use podplane_tests::{
    Cluster, Network, builder,
    programs::{ProgramOutput, Scratch},
};

/// A pod for the commands that read one.
const POD: &str =
    "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}";
const DUMP: &str = r#"{"kind": "List", "items": [
    {"kind": "Node", "metadata": {"name": "a"}, "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}},
    {"kind": "Pod", "metadata": {"namespace": "default", "name": "web"}, "spec": {"nodeName": "a"}, "status": {"podIP": "10.0.0.2"}}
]}"#;
/// The commands that read any cluster.
const ANY_CLUSTER: [&str; 9] = [
    "map",
    "audit",
    "audit --history",
    "plan",
    "top",
    "trace pod a",
    "explain pod a",
    "capacity -f FILES/pod.yaml",
    "ui --no-open",
];

/// A directory for files, and one for a cluster that does not run.
struct Place {
    scratch: Scratch,
    files: tempfile::TempDir,
}

impl Place {
    fn new() -> Result<Self> {
        let files = tempfile::tempdir()?;
        fs::write(files.path().join("pod.yaml"), POD)?;
        fs::write(files.path().join("dump.json"), DUMP)?;
        fs::write(files.path().join("broken"), "{")?;
        let kubeconfig = |server: &str| {
            format!(
                "{{apiVersion: v1, kind: Config, current-context: one, contexts: [{{name: one, context: {{cluster: one, user: one}}}}], clusters: [{{name: one, cluster: {{server: '{server}'}}}}], users: [{{name: one, user: {{}}}}]}}"
            )
        };
        // Nobody listens at port 1.
        fs::write(
            files.path().join("silent"),
            kubeconfig("http://127.0.0.1:1"),
        )?;
        Ok(Self {
            scratch: Scratch::new(),
            files,
        })
    }

    /// Runs a command; `FILES` is the directory of files.
    fn run(&self, line: &str) -> ProgramOutput {
        self.scratch.podplane(&self.replaced(line))
    }

    fn replaced(&self, text: &str) -> String {
        text.replace("FILES", &self.files.path().display().to_string())
    }

    /// Checks that all commands exit with `code`, and begin with the same words on standard error.
    #[track_caller]
    fn refuses(&self, code: i32, words: &str, lines: impl IntoIterator<Item = String>) {
        let words = self.replaced(words);
        for line in lines {
            let done = self.run(&line);
            assert_eq!(done.stdout, "", "{line}");
            assert!(
                done.stderr.starts_with(&words),
                "{line}: {words:?} is not in: {}",
                done.stderr
            );
            assert_eq!(done.code, Some(code), "{line}: {}", done.stderr);
        }
    }
}

fn each(lines: &[&str], flags: &str) -> Vec<String> {
    let lines = lines.iter();
    lines.map(|line| format!("{line} {flags}")).collect()
}

#[test]
fn a_kubeconfig_that_cannot_be_used_is_named_once() -> Result<()> {
    let place = Place::new()?;
    for (flags, words) in [
        (
            "--kubeconfig FILES/nowhere",
            "error: failed to use the kubeconfig FILES/nowhere\n  caused by: No such file or directory (os error 2)\n",
        ),
        (
            "--kubeconfig FILES/broken",
            "error: failed to use the kubeconfig FILES/broken\n  caused by: failed to parse kubeconfig YAML: ",
        ),
        (
            "--kubeconfig FILES/silent --context other",
            "error: invalid --context `other`: the kubeconfig FILES/silent has only `one`\n",
        ),
        (
            "--in-cluster",
            "error: --in-cluster: failed to use the ServiceAccount of this pod\n",
        ),
    ] {
        place.refuses(2, words, each(&ANY_CLUSTER, flags));
    }
    let flags = "--kubeconfig FILES/silent";
    let words = "error: the server at http://127.0.0.1:1 does not answer\n  caused by: client error (Connect): tcp connect error: Connection refused (os error 111)\n";
    // `top` shows it.
    let readers = ANY_CLUSTER.iter().filter(|line| **line != "top");
    place.refuses(2, words, readers.map(|line| format!("{line} {flags}")));
    let words = "error: standard input is not a terminal";
    let full_screen = ["top".to_owned(), "map --interactive".to_owned()];
    let full_screen = full_screen.map(|line| format!("{line} {flags}"));
    place.refuses(2, words, full_screen);
    Ok(())
}

#[test]
fn a_server_that_does_not_answer_is_named() -> Result<()> {
    let place = Place::new()?;
    let lines = [
        "get pods",
        "describe node a",
        "logs a",
        "delete pod a",
        "run a",
        "apply -f FILES/pod.yaml",
        "trace pod a",
        "map",
        "audit",
        "audit --history",
        "capacity -f FILES/pod.yaml",
        "ui --no-open",
    ];
    let words = "error: the server at http://127.0.0.1:1 does not answer\n  caused by: ";
    place.refuses(2, words, each(&lines, "--server http://127.0.0.1:1"));
    let words = "error: no cluster runs in ";
    place.refuses(2, words, each(&lines, ""));
    let of_this_machine = [
        "top",
        "restart --cluster-cidr 10.0.0.0/8",
        "node add a",
        "exec a -- true",
        "ping a b",
        "explain pod a",
        "kubeconfig",
        "kubeconfig --export",
        "map --node a",
    ];
    place.refuses(2, words, each(&of_this_machine, ""));
    Ok(())
}

#[test]
fn files_that_cannot_be_read_or_written_are_named() -> Result<()> {
    let place = Place::new()?;
    let words = "error: failed to read FILES/nowhere\n  caused by: No such file or directory (os error 2)\n";
    let readers = [
        "map --from FILES/nowhere",
        "map --recording FILES/nowhere",
        "audit FILES/nowhere",
        "plan --from FILES/nowhere",
        "capacity -f FILES/nowhere",
        "capacity -f FILES/pod.yaml --from FILES/nowhere",
        "explain pod -f FILES/nowhere",
        "replay FILES/nowhere",
        "apply -f FILES/nowhere",
        "create -f FILES/nowhere",
        "delete -f FILES/nowhere",
        "store restore FILES/nowhere",
        "cni verify FILES/nowhere",
    ];
    place.refuses(2, words, each(&readers, ""));
    let words = "error: failed to read FILES\n  caused by: Is a directory (os error 21)\n";
    let dumps = ["map --from FILES", "audit FILES", "plan --from FILES"];
    place.refuses(2, words, each(&dumps, ""));
    let words = "error: failed to read FILES/broken: invalid YAML: unclosed bracket";
    let manifests = [
        "apply -f FILES/broken",
        "create -f FILES/broken",
        "delete -f FILES/broken",
        "explain pod -f FILES/broken",
        "capacity -f FILES/broken",
    ];
    place.refuses(2, words, each(&manifests, ""));
    let words = "error: failed to read the recording FILES/dump.json\n  caused by: not a recording of `podplane test`: ";
    let recordings = ["map --recording FILES/dump.json", "replay FILES/dump.json"];
    place.refuses(2, words, each(&recordings, ""));
    let words = "error: failed to read FILES/dump.json\n  caused by: it is not a backup of a podplane store; name another file\n";
    place.refuses(2, words, ["store restore FILES/dump.json".to_owned()]);
    // In the form of compilers.
    let scenario = "FILES/nowhere: failed to read: No such file or directory (os error 2)";
    place.refuses(2, scenario, ["test FILES/nowhere".to_owned()]);

    fs::write(
        place.files.path().join("empty.yaml"),
        "{cluster: {nodes: 1}, steps: [{expect: [{count: pods, equals: 0}]}]}",
    )?;
    let words = "error: failed to write FILES/no/where: No such file or directory (os error 2)\n";
    let writers = [
        "map --from FILES/dump.json -o svg=FILES/no/where",
        "audit FILES/dump.json --html FILES/no/where",
        "audit FILES/dump.json --metrics-file FILES/no/where",
        "plan --html FILES/no/where",
        "plan --svg FILES/no/where",
        "trace pod a --html FILES/no/where",
        "store backup FILES/no/where",
        "test FILES/empty.yaml --html FILES/no/where",
        "test FILES/empty.yaml --junit FILES/no/where",
    ];
    place.refuses(2, words, each(&writers, ""));
    // Before the work.
    let words = "error: failed to write FILES/dump.json/in: Not a directory (os error 20)\n";
    let directories = [
        "plugins install FILES/dump.json/in",
        "test FILES/empty.yaml --output FILES/dump.json/in",
    ];
    place.refuses(2, words, each(&directories, ""));
    let words = "error: failed to make FILES/dump.json/in\n";
    let certs = "certs init --dir FILES/dump.json/in".to_owned();
    place.refuses(2, words, [certs]);
    // As for each directory that is not one for the data of a cluster.
    let words = "error: failed to prepare the data directory /proc/no/where\n";
    place.refuses(1, words, ["up --data-dir /proc/no/where".to_owned()]);
    Ok(())
}

#[test]
fn invalid_values_are_named_with_their_flag() -> Result<()> {
    let place = Place::new()?;
    let ranges = [
        "up",
        "restart",
        "plan",
        "audit",
        "map",
        "plan --from FILES/dump.json",
    ];
    let words = "error: invalid value 'nonsense' for '--cluster-cidr <CIDR[,CIDR]>': not a CIDR such as 10.244.0.0/16\n";
    place.refuses(2, words, each(&ranges, "--cluster-cidr nonsense"));
    let words = "error: invalid --cluster-cidr `10.0.0.0/16,10.1.0.0/16`: len of ClusterCIDRs==2 and they are not configured as dual stack";
    let flags = "--cluster-cidr 10.0.0.0/16,10.1.0.0/16";
    let controllers = ["up", "plan", "audit FILES/dump.json"];
    place.refuses(2, words, each(&controllers, flags));
    let timed = [
        "up",
        "run a --wait",
        "health",
        "node add a --wait",
        "ping a b",
        "delete pod a",
        "demo exhaustion",
        "demo cidr-change",
    ];
    let words = "error: invalid value '3' for '--timeout <DURATION>': `3` has no unit: write 3s for seconds\n";
    place.refuses(2, words, each(&timed, "--timeout 3"));
    let masks = ["up", "restart", "plan", "audit", "ipam-controller"];
    for invalid in ["x", "129"] {
        let words = format!(
            "error: invalid value '{invalid}' for '--node-cidr-mask-size <BITS>': want a prefix length: 0 to 32 for IPv4, 0 to 128 for IPv6\n"
        );
        let flag = format!("--node-cidr-mask-size {invalid}");
        place.refuses(2, &words, each(&masks, &flag));
    }
    let words = "error: invalid value 'nodez' for '<KIND[/NAME]>': unsupported kind `nodez`; did you mean \"nodes\"?\n";
    let kinds = ["get", "describe"];
    place.refuses(2, words, each(&kinds, "nodez"));
    let words = "error: invalid value '0' for '--replicas <N>': 0 is not in 1..";
    place.refuses(2, words, ["run a --replicas 0".to_owned()]);
    let none = place.run("no-such-command");
    assert!(!none.stderr.contains("--data-dir"), "{}", none.stderr);
    let missing = place.run("describe");
    assert_eq!(missing.code, Some(2));
    assert!(
        !missing.stderr.contains("--data-dir"),
        "from the environment: {}",
        missing.stderr
    );
    Ok(())
}

#[test]
fn host_bits_of_a_range_are_noted_and_dropped() -> Result<()> {
    let place = Place::new()?;
    let lines = ["audit FILES/dump.json", "map --from FILES/dump.json"];
    let lines = lines.into_iter().chain(["plan --from FILES/dump.json"]);
    for line in lines {
        for flag in ["--cluster-cidr", "--service-cidr"] {
            let (given, other) = match flag {
                "--cluster-cidr" => ("10.0.0.1/16", "10.0.0.0/16"),
                _ => ("10.96.0.1/12", "10.96.0.0/12"),
            };
            let done = place.run(&format!("{line} {flag} {given}"));
            let note = format!("note: {given} has host bits set; the range is {other}\n");
            assert!(done.stderr.starts_with(&note), "{line} {flag}: {done:?}");
            assert_eq!(done.code, Some(0), "{line} {flag}: {done:?}");
            assert!(!done.stdout.contains(given), "{line} {flag}: {done:?}");
        }
    }
    let done = place.run("plan --cluster-cidr 10.0.0.1/16");
    let warning = "10.0.0.1/16 has host bits set; the range is 10.0.0.0/16\n";
    assert!(done.stdout.contains(warning), "{done:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_not_there_is_a_failure() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(1)).await? else {
        return Ok(());
    };
    let kubeconfig = cluster.kubeconfig().display().to_string();
    let words = r#"Error from server (NotFound): pods "nothing" not found"#;
    for line in [
        "get pod nothing",
        "describe pod nothing",
        "delete pod nothing",
        "explain pod nothing",
        &format!("explain pod nothing --kubeconfig {kubeconfig}"),
    ] {
        for namespace in ["default", "nowhere"] {
            let done = cluster.podplane(&format!("{line} -n {namespace}"));
            assert!(done.stderr.starts_with(words), "{line}: {}", done.stderr);
            assert_eq!(done.code, Some(1), "{line}: {}", done.stderr);
        }
    }
    for flags in [String::new(), format!("--kubeconfig {kubeconfig}")] {
        let done = cluster.podplane(&format!("trace pod nothing {flags}"));
        let words = "Error from server (NotFound): no trace of pod default/nothing is remembered: there was no such pod";
        assert!(done.stderr.starts_with(words), "{flags}: {}", done.stderr);
        assert_eq!(done.code, Some(1), "{flags}");
    }
    for line in ["get node nothing", "describe node nothing"] {
        let done = cluster.podplane(line);
        let words = r#"Error from server (NotFound): nodes "nothing" not found"#;
        assert!(done.stderr.starts_with(words), "{line}: {}", done.stderr);
        assert_eq!(done.code, Some(1), "{line}");
    }
    for (line, words) in [
        (
            "node remove nothing",
            "node `nothing` not found: `podplane status` shows the nodes of the cluster",
        ),
        (
            "node reboot nothing",
            "node `nothing` not found: `podplane status` shows the nodes of the cluster",
        ),
        (
            "node disconnect nothing",
            "node `nothing` not found: `podplane status` shows the nodes of the cluster",
        ),
        (
            "node forget nothing",
            "held block of node `nothing` not found: `podplane get blocks` shows the blocks that are held",
        ),
        (
            "get blocks nothing",
            "block `nothing` not found: `podplane get blocks` shows all, with their nodes",
        ),
        (
            "restart nothing",
            "service `nothing` not found: `podplane status` shows the services of the cluster",
        ),
        (
            "status nothing",
            "service `nothing` not found: `podplane status` shows the services of the cluster",
        ),
        ("node add node-0", "node `node-0` already exists"),
    ] {
        let done = cluster.podplane(line);
        assert_eq!(done.stderr, format!("error: {words}\n"), "{line}");
        assert_eq!(done.code, Some(1), "{line}");
    }
    let done = cluster.podplane("run web -n nowhere --wait");
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(!done.stderr.contains("pods run"), "{done:?}");
    cluster.finish().await
}
