//! `create`, `apply`, `replace`, `edit`, `patch`, `label`, `annotate`, `delete`.

use podplane_tests::kubectl::{Kubectl, KubectlCase};

use super::words;

pub(super) const CASES: &[KubectlCase] = &[
    ("create -f", create),
    ("create -f with a generated name", generated),
    ("create --dry-run", dry_run),
    ("create namespace", create_namespace),
    ("create with unknown fields", unknown_fields),
    ("create what is invalid", invalid),
    ("apply", apply),
    ("apply removes what is no longer in the file", apply_removes),
    ("apply --server-side", server_side),
    ("apply --server-side, two managers", two_managers),
    ("apply from client side to server side", migrate),
    ("apply --prune", prune),
    ("apply -k", kustomize),
    ("apply view-last-applied", last_applied),
    ("replace", replace),
    ("replace, stale", replace_stale),
    ("replace --force", replace_force),
    ("edit", edit),
    ("edit to what is invalid", edit_invalid),
    ("patch strategic", patch_strategic),
    ("patch merge", patch_merge),
    ("patch json", patch_json),
    ("patch --subresource=status", patch_status),
    ("label", label),
    ("annotate", annotate),
    ("delete", delete),
    ("delete -f and -l and --all", delete_many),
    ("delete --grace-period --now --force", delete_now),
    ("delete --wait and finalizers", finalizers),
    ("delete namespace", delete_namespace),
    ("delete --dry-run", delete_dry),
];

/// A pod of no scheduler, so that only the test writes to it: a scheduler that finds no node for a
/// pod writes the reason, maybe between kubectl's read and its replacement.
fn pod(name: &str, label: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels:\n    app: {label}\nspec:\n  automountServiceAccountToken: false\n  schedulerName: none\n  containers:\n  - name: c\n    image: pause\n"
    )
}

fn app(kubectl: &Kubectl, name: &str) -> String {
    let path = "-o=jsonpath={.metadata.labels.app}";
    kubectl.args(["get", "pod", name, path]).ok()
}

fn create(kubectl: &Kubectl) {
    let both = format!("{}---\n{}", pod("a", "x"), pod("b", "x"));
    assert_eq!(
        kubectl.fed("create -f -", &both).ok(),
        "pod/a created\npod/b created\n"
    );
    assert_eq!(
        kubectl.fed("create -f -", &pod("a", "x")).failed(1),
        "Error from server (AlreadyExists): error when creating \"STDIN\": pods \"a\" already exists\n"
    );
    let elsewhere = kubectl
        .fed("create -n nowhere -f -", &pod("a", "x"))
        .failed(1);
    assert_eq!(
        elsewhere,
        "Error from server (NotFound): error when creating \"STDIN\": namespaces \"nowhere\" not found\n"
    );
    let saved = kubectl.fed("create --save-config -f -", &pod("c", "x"));
    assert_eq!(saved.ok(), "pod/c created\n");
    assert_eq!(
        kubectl.fed("apply -f -", &pod("c", "x")).ok(),
        "pod/c unchanged\n"
    );
}

fn generated(kubectl: &Kubectl) {
    let manifest = pod("a", "x").replace("name: a", "generateName: web-");
    let text = kubectl.fed("create -f -", &manifest).ok();
    let name = text
        .strip_prefix("pod/web-")
        .and_then(|rest| rest.strip_suffix(" created\n"));
    assert_eq!(name.map(str::len), Some(5), "{text}");
}

fn dry_run(kubectl: &Kubectl) {
    let asked = |how: &str| kubectl.fed(&format!("create -f - --dry-run={how}"), &pod("a", "x"));
    assert_eq!(asked("client").ok(), "pod/a created (dry run)\n");
    assert_eq!(asked("server").ok(), "pod/a created (server dry run)\n");
    let shown = asked("server -o yaml").ok();
    assert!(
        shown.contains("restartPolicy: Always"),
        "defaulted: {shown}"
    );
    assert!(shown.contains("uid: "), "{shown}");
    kubectl.run("get pod a").failed(1);
    kubectl.apply(&pod("a", "x"));
    let changed = kubectl
        .fed("apply -f - --dry-run=server", &pod("a", "w"))
        .ok();
    assert_eq!(changed, "pod/a configured (server dry run)\n");
    assert_eq!(app(kubectl, "a"), "x");
}

fn create_namespace(kubectl: &Kubectl) {
    let name = kubectl.own("made");
    let text = kubectl.run(&format!("create namespace {name}")).ok();
    assert_eq!(text, format!("namespace/{name} created\n"));
    let phase = kubectl.run(&format!("get ns {name} -o jsonpath={{.status.phase}}"));
    assert_eq!(phase.ok(), "Active");
    assert_eq!(
        kubectl.run(&format!("create ns {name}")).failed(1),
        format!("Error from server (AlreadyExists): namespaces \"{name}\" already exists\n")
    );
    let invalid = kubectl.run("create ns Big_Name").failed(1);
    assert!(
        invalid.starts_with("The Namespace \"Big_Name\" is invalid: metadata.name: Invalid value: \"Big_Name\": a lowercase RFC 1123 label must consist of"),
        "{invalid}"
    );
    let text = kubectl.run(&format!("delete ns {name}")).ok();
    assert!(
        text.starts_with(&format!("namespace \"{name}\" deleted")),
        "{text}"
    );
}

fn unknown_fields(kubectl: &Kubectl) {
    let wrong = pod("a", "x").replace("image: pause", "image: pause\n    imagePullPollicy: Never");
    let strict = kubectl.fed("create -f -", &wrong).failed(1);
    assert_eq!(
        strict,
        "Error from server (BadRequest): error when creating \"STDIN\": Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.containers[0].imagePullPollicy\"\n"
    );
    let warned = kubectl.fed("create --validate=warn -f -", &wrong);
    assert_eq!(
        warned.stderr,
        "Warning: unknown field \"spec.containers[0].imagePullPollicy\"\n"
    );
    assert_eq!(warned.ok(), "pod/a created\n");
    let ignored = kubectl.fed(
        "apply --validate=false -f -",
        &wrong.replace("name: a", "name: b"),
    );
    assert_eq!(ignored.stderr, "");
    ignored.ok();
    let applied = kubectl
        .fed("apply -f -", &wrong.replace("name: a", "name: d"))
        .failed(1);
    assert!(
        applied.contains(
            "strict decoding error: unknown field \"spec.containers[0].imagePullPollicy\""
        ),
        "{applied}"
    );
}

fn invalid(kubectl: &Kubectl) {
    let refused = |manifest: &str| kubectl.fed("create -f -", manifest).failed(1);
    let name = refused(&pod("Web_1", "x"));
    assert!(
        name.starts_with("The Pod \"Web_1\" is invalid: metadata.name: Invalid value: \"Web_1\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"),
        "{name}"
    );
    let none = refused("apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec: {}\n");
    assert!(none.contains("spec.containers: Required value"), "{none}");
    let two = refused(&pod("a", "x").replace(
        "image: pause",
        "image: pause\n  - name: c\n    image: pause",
    ));
    assert_eq!(
        two,
        "The Pod \"a\" is invalid: spec.containers[1].name: Duplicate value: \"c\"\n"
    );
    let kind = refused("apiVersion: v1\nkind: Sheep\nmetadata:\n  name: a\n");
    assert!(
        kind.contains("no matches for kind \"Sheep\" in version \"v1\""),
        "{kind}"
    );
}

fn apply(kubectl: &Kubectl) {
    let say = |manifest: &str| kubectl.fed("apply -f -", manifest).ok();
    assert_eq!(say(&pod("a", "x")), "pod/a created\n");
    assert_eq!(say(&pod("a", "x")), "pod/a unchanged\n");
    assert_eq!(say(&pod("a", "w")), "pod/a configured\n");
    assert_eq!(app(kubectl, "a"), "w");
    let forbidden = kubectl.fed("apply -f -", &pod("a", "w").replace("name: c", "name: d"));
    let refused = forbidden.failed(1);
    assert!(
        refused.starts_with("The Pod \"a\" is invalid: spec"),
        "{refused}"
    );
}

fn apply_removes(kubectl: &Kubectl) {
    let with = pod("a", "x").replace("    app: x\n", "    app: x\n    tier: front\n");
    let with = with.replace(
        "  schedulerName",
        "  tolerations:\n  - key: a\n    operator: Exists\n  schedulerName",
    );
    kubectl.apply(&with);
    kubectl.run("label pod a by-hand=yes").ok();
    let fewer = with.replace("    tier: front\n", "");
    assert_eq!(kubectl.apply(&fewer), "pod/a configured\n");
    let pod = kubectl.json("pod a");
    let want = serde_json::json!({"app": "x", "by-hand": "yes"});
    assert_eq!(pod["metadata"]["labels"], want, "others' fields stay");
}

fn server_side(kubectl: &Kubectl) {
    let say = |manifest: &str| kubectl.fed("apply --server-side -f -", manifest).ok();
    assert_eq!(say(&pod("a", "x")), "pod/a serverside-applied\n");
    assert_eq!(say(&pod("a", "w")), "pod/a serverside-applied\n");
    assert_eq!(app(kubectl, "a"), "w");
    let without = pod("a", "w").replace("  labels:\n    app: w\n", "");
    assert_eq!(say(&without), "pod/a serverside-applied\n");
    assert_eq!(app(kubectl, "a"), "", "what is no longer applied goes");
    let shown = kubectl.run("get pod a -o yaml --show-managed-fields").ok();
    assert!(
        shown.contains("manager: kubectl\n    operation: Apply\n"),
        "{shown}"
    );
    let unknown = pod("b", "x").replace("image: pause", "imago: pause");
    let refused = kubectl.fed("apply --server-side -f -", &unknown).failed(1);
    assert!(refused.contains("imago"), "{refused}");
}

fn two_managers(kubectl: &Kubectl) {
    let by = |manager: &str, label: &str, more: &str| {
        let args = format!("apply --server-side --field-manager={manager} {more} -f -");
        kubectl.fed(&args, &pod("a", label))
    };
    by("one", "x", "").ok();
    assert_eq!(by("two", "x", "").ok(), "pod/a serverside-applied\n");
    let text = by("two", "w", "").failed(1);
    assert!(
        text.starts_with(
            "error: Apply failed with 1 conflict: conflict with \"one\": .metadata.labels.app\n"
        ),
        "{text}"
    );
    assert_eq!(app(kubectl, "a"), "x");
    by("two", "w", "--force-conflicts").ok();
    assert_eq!(app(kubectl, "a"), "w");
}

fn migrate(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    kubectl.fed("apply --server-side -f -", &pod("a", "x")).ok();
    let without = pod("a", "x").replace("  labels:\n    app: x\n", "");
    kubectl.fed("apply --server-side -f -", &without).ok();
    assert_eq!(
        app(kubectl, "a"),
        "",
        "the client-side manager's fields are taken over"
    );
}

fn prune(kubectl: &Kubectl) {
    let both = format!("{}---\n{}", pod("a", "x"), pod("b", "x"));
    kubectl.apply(&both);
    let text = kubectl
        .fed(
            "apply --prune -l app=x --prune-allowlist=core/v1/Pod -f -",
            &pod("a", "x"),
        )
        .ok();
    assert_eq!(text, "pod/a unchanged\npod/b pruned\n");
    kubectl.until("get pods -o name", |seen| seen.stdout == "pod/a\n");
    // Without a list, kubectl looks at many kinds, some of which are not stored.
    kubectl.apply(&both);
    let namespace = &kubectl.namespace;
    let args = format!("apply --prune -n {namespace} -l app=x -f -");
    let text = kubectl.fed(&args, &pod("a", "x")).ok();
    assert_eq!(text, "pod/a unchanged\npod/b pruned\n");
    kubectl.until("get pods -o name", |seen| seen.stdout == "pod/a\n");
}

fn kustomize(kubectl: &Kubectl) {
    kubectl.file("pod.yaml", &pod("a", "x"));
    kubectl.file(
        "kustomization.yaml",
        "resources:\n- pod.yaml\nnamePrefix: k-\n",
    );
    let dir = kubectl.path("");
    let text = kubectl.run(&format!("apply -k {}", dir.display())).ok();
    assert_eq!(text, "pod/k-a created\n");
    let text = kubectl.run(&format!("delete -k {}", dir.display())).ok();
    assert!(text.starts_with("pod \"k-a\" deleted"), "{text}");
}

fn last_applied(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    let text = kubectl.run("apply view-last-applied pod a").ok();
    assert!(text.contains("app: x"), "{text}");
    let text = kubectl
        .fed("apply set-last-applied -f -", &pod("a", "w"))
        .ok();
    assert_eq!(text, "pod/a configured\n");
}

fn replace(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    assert_eq!(
        kubectl.fed("replace -f -", &pod("a", "w")).ok(),
        "pod/a replaced\n"
    );
    assert_eq!(app(kubectl, "a"), "w");
    assert_eq!(
        kubectl.fed("replace -f -", &pod("b", "w")).failed(1),
        "Error from server (NotFound): error when replacing \"STDIN\": pods \"b\" not found\n"
    );
    let whole = kubectl.run("get pod a -o yaml").ok();
    let text = kubectl.fed("replace -f -", &whole).ok();
    assert_eq!(text, "pod/a replaced\n");
}

fn replace_stale(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    let old = kubectl.run("get pod a -o yaml").ok();
    kubectl.run("label pod a changed=yes").ok();
    let stale = kubectl.fed("replace -f -", &old).failed(1);
    assert_eq!(
        stale,
        "Error from server (Conflict): error when replacing \"STDIN\": Operation cannot be fulfilled on pods \"a\": the object has been modified; please apply your changes to the latest version and try again\n"
    );
}

fn replace_force(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    let uid = |kubectl: &Kubectl| kubectl.run("get pod a -o jsonpath={.metadata.uid}").ok();
    let before = uid(kubectl);
    let other = pod("a", "w").replace("name: c", "name: d");
    let text = kubectl.fed("replace --force -f -", &other).ok();
    assert!(text.starts_with("pod \"a\" "), "{text}");
    assert!(text.ends_with("pod/a replaced\n"), "{text}");
    assert_ne!(uid(kubectl), before);
}

fn edit(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    let edited = kubectl.edited("edit pod a", "sed -i 's/app: x/app: w/' \"$1\"");
    assert_eq!(edited.ok(), "pod/a edited\n");
    assert_eq!(app(kubectl, "a"), "w");
    let same = kubectl.edited("edit pod a", "true");
    assert_eq!(same.stderr, "Edit cancelled, no changes made.\n");
}

fn edit_invalid(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    // When kubectl opens the editor again, with the refusal as a comment, nothing is changed, and
    // it gives up.
    let text = kubectl.edited("edit pod a", "sed -i 's/app: x/app: \"no no\"/' \"$1\"");
    assert_eq!(text.code, Some(1), "{text:?}");
    assert!(
        text.stderr.contains("pods \"a\" is invalid") || text.stderr.contains("was not valid"),
        "{text:?}"
    );
    assert_eq!(app(kubectl, "a"), "x");
}

fn patch_strategic(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    let say = |patch: &str| kubectl.args(["patch", "pod", "a", "-p", patch]);
    let labels = r#"{"metadata":{"labels":{"app":"w"}}}"#;
    assert_eq!(say(labels).ok(), "pod/a patched\n");
    assert_eq!(say(labels).ok(), "pod/a patched (no change)\n");
    let image = r#"{"spec":{"containers":[{"name":"c","image":"other"}]}}"#;
    assert_eq!(say(image).ok(), "pod/a patched\n");
    let pod = kubectl.json("pod a");
    assert_eq!(pod["spec"]["containers"].as_array().map(Vec::len), Some(1));
    assert_eq!(pod["spec"]["containers"][0]["image"], "other");
    let yaml = "metadata:\n  labels:\n    app: null\n";
    say(yaml).ok();
    assert_eq!(app(kubectl, "a"), "");
    let refused = say(r#"{"spec":{"containers":[{"name":"e","image":"f"}]}}"#).failed(1);
    assert!(
        refused.starts_with("The Pod \"a\" is invalid: spec"),
        "{refused}"
    );
    let bad = say("{").failed(1);
    assert!(bad.to_lowercase().starts_with("error"), "{bad}");
}

fn patch_merge(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    let say = |patch: &str| kubectl.args(["patch", "pod", "a", "--type=merge", "-p", patch]);
    let labels = r#"{"metadata":{"labels":{"app":null,"tier":"front"}}}"#;
    assert_eq!(say(labels).ok(), "pod/a patched\n");
    let pod = kubectl.json("pod a");
    assert_eq!(
        pod["metadata"]["labels"],
        serde_json::json!({"tier": "front"})
    );
    let stale = r#"{"metadata":{"resourceVersion":"1"}}"#;
    let refused = say(stale).failed(1);
    assert!(
        refused.starts_with(
            "Error from server (Conflict): Operation cannot be fulfilled on pods \"a\""
        ),
        "{refused}"
    );
}

fn patch_json(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    let say = |patch: &str| kubectl.args(["patch", "pod", "a", "--type=json", "-p", patch]);
    let replace = r#"[{"op":"test","path":"/metadata/labels/app","value":"x"},{"op":"replace","path":"/metadata/labels/app","value":"w"}]"#;
    assert_eq!(say(replace).ok(), "pod/a patched\n");
    assert_eq!(app(kubectl, "a"), "w");
    let failed = say(replace).failed(1);
    assert!(
        failed.contains("test") || failed.contains("invalid"),
        "{failed}"
    );
    let remove = r#"[{"op":"remove","path":"/metadata/labels/app"}]"#;
    say(remove).ok();
    assert_eq!(app(kubectl, "a"), "");
}

fn patch_status(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    let patch = r#"{"status":{"message":"seen"},"metadata":{"labels":{"app":"w"}}}"#;
    let text = kubectl
        .args(["patch", "pod", "a", "--subresource=status", "-p", patch])
        .ok();
    assert_eq!(text, "pod/a patched\n");
    let pod = kubectl.json("pod a");
    assert_eq!(pod["status"]["message"], "seen");
    let patch = r#"{"status":{"message":"other"},"metadata":{"labels":{"app":"z"}}}"#;
    kubectl.args(["patch", "pod", "a", "-p", patch]).ok();
    let pod = kubectl.json("pod a");
    assert_eq!(pod["status"]["message"], "seen");
    assert_eq!(pod["metadata"]["labels"]["app"], "z");
}

fn label(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    let say = |args: &str| kubectl.run(&format!("label {args}"));
    assert_eq!(say("pod a tier=front").ok(), "pod/a labeled\n");
    assert_eq!(say("pod a tier=front").ok(), "pod/a not labeled\n");
    assert_eq!(
        say("pod a app=w").failed(1),
        "error: 'app' already has a value (x), and --overwrite is false\n"
    );
    assert_eq!(say("pod a app=w --overwrite").ok(), "pod/a labeled\n");
    assert_eq!(app(kubectl, "a"), "w");
    let listed = say("pod a --list").ok();
    let mut listed = words(&listed);
    listed.sort_unstable();
    assert_eq!(listed, ["app=w", "tier=front"]);
    assert_eq!(say("pod a app-").ok(), "pod/a unlabeled\n");
    assert_eq!(app(kubectl, "a"), "");
    kubectl.apply(&pod("b", "x"));
    assert_eq!(
        say("pods --all all=yes").ok(),
        "pod/a labeled\npod/b labeled\n"
    );
    assert_eq!(say("pods -l tier=front of=front").ok(), "pod/a labeled\n");
    let bad = say("pod a bad=no/no").failed(1);
    assert!(
        bad.contains("a valid label must be an empty string or consist of"),
        "{bad}"
    );
}

fn annotate(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    let say = |args: &str| kubectl.run(&format!("annotate {args}"));
    assert_eq!(say("pod a note=one").ok(), "pod/a annotated\n");
    let refused = say("pod a note=two").failed(1);
    assert!(
        refused.starts_with("error: --overwrite is false but found the following declared annotation(s): 'note' already has a value (one)"),
        "{refused}"
    );
    say("pod a note=two --overwrite").ok();
    let note = || {
        kubectl
            .run("get pod a -o jsonpath={.metadata.annotations.note}")
            .ok()
    };
    assert_eq!(note(), "two");
    say("pod a note-").ok();
    assert_eq!(note(), "");
}

fn delete(kubectl: &Kubectl) {
    kubectl.pod("web");
    let text = kubectl.run("delete pod web").ok();
    assert!(text.starts_with("pod \"web\" deleted"), "{text}");
    assert_eq!(
        kubectl.run("delete pod web").failed(1),
        "Error from server (NotFound): pods \"web\" not found\n"
    );
    kubectl.run("delete pod web --ignore-not-found").ok();
    kubectl.run("get pod web").failed(1);
    let name = kubectl.fed("create -o name -f -", &pod("a", "x")).ok();
    let text = kubectl.run(&format!("delete {name} -o name")).ok();
    assert_eq!(text, "pod/a\n");
}

fn delete_many(kubectl: &Kubectl) {
    let both = format!("{}---\n{}", pod("a", "x"), pod("b", "w"));
    kubectl.apply(&both);
    let text = kubectl.fed("delete -f -", &both).ok();
    assert_eq!(text.lines().count(), 2, "{text}");
    kubectl.apply(&both);
    let text = kubectl.run("delete pods -l app=x").ok();
    assert!(text.starts_with("pod \"a\" deleted"), "{text}");
    assert_eq!(kubectl.run("get pods -o name").ok(), "pod/b\n");
    kubectl.apply(&both);
    let text = kubectl.run("delete pods --all").ok();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert_eq!(kubectl.run("get pods -o name").ok(), "");
    assert_eq!(
        kubectl.run("delete pods --all").ok(),
        "No resources found\n"
    );
    kubectl.apply(&both);
    let text = kubectl
        .run("delete pods --field-selector=metadata.name=b")
        .ok();
    assert!(text.starts_with("pod \"b\" deleted"), "{text}");
}

fn delete_now(kubectl: &Kubectl) {
    for flags in ["--grace-period=1", "--now", "--grace-period=0 --force"] {
        kubectl.pod("web");
        let answer = kubectl.run(&format!("delete pod web {flags}"));
        if flags.contains("--force") {
            assert!(
                answer.stderr.starts_with("Warning: Immediate deletion does not wait for confirmation that the running resource has been terminated."),
                "{answer:?}"
            );
            assert!(
                answer.stdout.starts_with("pod \"web\" force deleted"),
                "{answer:?}"
            );
        }
        answer.ok();
        kubectl.run("get pod web").failed(1);
    }
}

fn finalizers(kubectl: &Kubectl) {
    let kept = pod("a", "x").replace(
        "metadata:\n",
        "metadata:\n  finalizers:\n  - example.com/hold\n",
    );
    kubectl.apply(&kept);
    kubectl.run("delete pod a --wait=false").ok();
    let waiting = kubectl.run("delete pod a --timeout=1s").failed(1);
    assert!(
        waiting.contains("timed out waiting for the condition on pods/a"),
        "{waiting}"
    );
    let mut deleting = kubectl.start("delete pod a");
    kubectl
        .args([
            "patch",
            "pod",
            "a",
            "--type=merge",
            "-p",
            r#"{"metadata":{"finalizers":null}}"#,
        ])
        .ok();
    let (code, text) = deleting.end();
    assert!(
        code == Some(0) || text.contains("NotFound"),
        "{code:?}: {text}"
    );
    kubectl.run("get pod a").failed(1);
}

fn delete_namespace(kubectl: &Kubectl) {
    let name = kubectl.own("going");
    kubectl.run(&format!("create ns {name}")).ok();
    kubectl
        .fed(&format!("create -n {name} -f -"), &pod("a", "x"))
        .ok();
    kubectl.run(&format!("delete ns {name}")).ok();
    kubectl.run(&format!("get ns {name}")).failed(1);
    assert_eq!(kubectl.run(&format!("get pods -n {name} -o name")).ok(), "");
    let refused = kubectl.run("delete ns default").failed(1);
    assert_eq!(
        refused,
        "Error from server (Forbidden): namespaces \"default\" is forbidden: this namespace may not be deleted\n"
    );
}

fn delete_dry(kubectl: &Kubectl) {
    kubectl.apply(&pod("a", "x"));
    for how in ["client", "server"] {
        kubectl.run(&format!("delete pod a --dry-run={how}")).ok();
        kubectl.run("get pod a").ok();
    }
}
