//! `podplane map`: of a live cluster, of a dump, on a terminal, as pictures, and of one node.

use std::{fs, io::Cursor, path::Path};

use anyhow::{Context as _, Result};
use podplane_tests::{
    Cluster, Network, builder, eventually, peers,
    programs::{ProgramOutput, bin_dir, finish, podplane},
};
use quick_xml::{Reader, events::Event};
use serde_json::{Value, json};

/// The states of addresses, as the legend of each picture names them.
const STATES: [&str; 12] = [
    "duplicate",
    "outside",
    "orphaned",
    "draining",
    "pod",
    "service",
    "node",
    "withheld",
    "reserved",
    "gateway",
    "free",
    "unassigned",
];

/// The text of an SVG that is well-formed XML.
fn text_of_svg(file: &Path) -> Result<String> {
    let svg = fs::read_to_string(file)?;
    let mut reader = Reader::from_str(&svg);
    let mut all = String::new();
    loop {
        match reader
            .read_event()
            .with_context(|| file.display().to_string())?
        {
            Event::Text(text) => {
                all.push_str(&text.decode()?);
                all.push('\n');
            }
            Event::Eof => return Ok(all),
            _ => {}
        }
    }
}

/// The number of colours of a PNG, which tells a picture from an empty page.
fn colors_of_png(file: &Path) -> Result<usize> {
    let bytes = fs::read(file)?;
    let mut reader = png::Decoder::new(Cursor::new(bytes)).read_info()?;
    let mut pixels = vec![0; reader.output_buffer_size().context("a size that fits")?];
    let frame = reader.next_frame(&mut pixels)?;
    let size = frame.color_type.samples();
    pixels.truncate(frame.buffer_size());
    let mut colors: Vec<&[u8]> = pixels.chunks(size).collect();
    colors.sort_unstable();
    colors.dedup();
    Ok(colors.len())
}

fn assert_fits(text: &str, columns: usize, rows: usize) {
    assert!(text.lines().count() <= rows, "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= columns, "{line}: {text}");
    }
}

/// Runs `podplane map` on a pseudo-terminal of 80 by 24.
fn on_terminal(cluster: &Cluster, args: &str, variable: &str) -> ProgramOutput {
    on_terminal_of(80, cluster, args, variable)
}

/// Runs `podplane map` on a pseudo-terminal, made by util-linux' `script`.
fn on_terminal_of(columns: u16, cluster: &Cluster, args: &str, variable: &str) -> ProgramOutput {
    let program = bin_dir().join("podplane");
    let line = format!(
        "stty cols {columns} rows 24; {} map --data-dir {} {args}",
        program.display(),
        cluster.data_dir().display()
    );
    let mut script = std::process::Command::new("script");
    script.args(["-q", "-e", "-c", &line, "/dev/null"]);
    script.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    if let Some((name, value)) = variable.split_once('=') {
        script.env(name, value);
    }
    finish(&mut script)
}

async fn a_pod_is_at_its_address(cluster: &Cluster) -> Result<String> {
    cluster.podplane("run web --replicas 2 --wait").ok();
    let pods = cluster.get("pods");
    let pod = &pods["items"][0];
    let ip = pod["status"]["podIP"]
        .as_str()
        .context("an address")?
        .to_owned();
    let name = pod["metadata"]["name"].as_str().context("a name")?;
    let node = pod["spec"]["nodeName"].as_str().context("a node")?;
    let detail = cluster.podplane(&format!("map {ip}")).ok();
    assert!(detail.starts_with(&format!("{ip}: pod")), "{detail}");
    assert!(
        detail.contains(&format!("pod default/{name} on {node}")),
        "{detail}"
    );
    assert!(detail.contains(&format!("of {node}, assigned")), "{detail}");
    assert!(detail.contains("in cluster CIDR 10.244.0.0/16"), "{detail}");
    let block = cluster.get(&format!("node {node}"))["spec"]["podCIDR"].clone();
    let block = block.as_str().context("a block")?;
    let map = cluster.podplane(&format!("map {block}")).ok();
    assert!(
        map.contains(&format!("{ip}: pod default/{name} on {node}")),
        "{map}"
    );
    assert_fits(&map, 80, 24);
    let around = cluster.podplane("map 10.0.0.0/8").ok();
    assert!(around.starts_with("cluster CIDR 10.244.0.0/16"), "{around}");
    assert!(around.contains("10.96.0.0/16"), "{around}");
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().context("UTF-8")?;
    let other = finish(&mut podplane(["map", "--kubeconfig", kubeconfig, &ip])).ok();
    assert_eq!(other.lines().nth(1), detail.lines().nth(1), "{other}");
    let view = cluster.run(["map", block, "-o", "json"]).ok();
    let view: Value = serde_json::from_str(&view)?;
    let addresses = view["addresses"].as_array().context("addresses")?;
    assert!(
        addresses
            .iter()
            .any(|one| one["ip"] == ip.as_str() && one["state"] == "pod")
    );
    Ok(ip)
}

/// The beginning of a sequence that sets a colour of 256.
const COLOR: &str = "\u{1b}[0;48;5;";

fn colours_are_for_terminals(cluster: &Cluster) {
    let plain = cluster.podplane("map").ok();
    assert_fits(&plain, 80, 24);
    assert!(!plain.contains('\u{1b}'), "{plain}");
    for state in STATES {
        assert!(plain.contains(state), "{state}: {plain}");
    }
    for part in ["service range", "10.96.0.0/16"] {
        assert!(plain.contains(part), "{part}: {plain}");
    }
    let colored = cluster.podplane("map --color always").ok();
    assert!(colored.contains(COLOR), "{colored}");
    if !peers::program("script") {
        return;
    }
    let shown = on_terminal(cluster, "", "").ok();
    assert!(
        shown.contains("\u{1b}[0;48;5;25;38;5;231m"),
        "a pod: {shown}"
    );
    assert!(
        shown.lines().count() <= 23,
        "a row is the prompt's: {shown}"
    );
    for (args, variable) in [("", "NO_COLOR=1"), ("--color never", "")] {
        // The line of the progress is erased by sequences that are no colours.
        let shown = on_terminal(cluster, args, variable).ok();
        assert!(!shown.contains(COLOR), "{args} {variable}: {shown}");
        assert!(shown.contains("duplicate"), "{shown}");
    }
    let empty = on_terminal(cluster, "", "NO_COLOR=").ok();
    assert!(empty.contains(COLOR), "an empty NO_COLOR is none");
    let narrow = on_terminal_of(60, cluster, "", "");
    assert!(
        narrow.stdout.contains("the map needs 80 columns, and this"),
        "{narrow:?}"
    );
    let refused = on_terminal(cluster, "-o png", "");
    assert!(refused.stdout.contains("-o png=FILE"), "{refused:?}");
}

fn pictures_name_states(cluster: &Cluster, ip: &str) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let write = |part: &str, format: &str| {
        let file = dir.path().join(format!("map.{format}"));
        let output = format!("{format}={}", file.display());
        let args = ["map", part, "-o", &output];
        let done = cluster.run(args.into_iter().filter(|arg| !arg.is_empty()));
        assert_eq!(done.ok(), "");
        file
    };
    let text = text_of_svg(&write("", "svg"))?;
    for state in STATES {
        assert!(text.contains(&format!("{state} ")), "{state}: {text}");
    }
    assert!(text_of_svg(&write(ip, "svg"))?.contains(&format!("pod {ip}: pod default/web-")));
    assert!(colors_of_png(&write("", "png"))? > 12, "states and text");
    Ok(())
}

fn bad_parts_are_clear_errors(cluster: &Cluster) {
    for (part, want) in [
        ("10.244.1.7/24", "did you mean 10.244.1.0/24?"),
        ("10.244.1.0/33", "not a prefix"),
        (
            "192.0.2.0/24",
            "it is in no network of the cluster, which has cluster CIDR 10.244.0.0/16",
        ),
        ("10.244.1", "not an address, a prefix such as"),
        ("-o gif", "want text, json, svg or png"),
        ("--at 3", "--recording"),
    ] {
        let failed = cluster.podplane(&format!("map {part}")).failed(2);
        assert!(failed.contains(want), "{part}: {failed}");
    }
    let failed = cluster.podplane("map --node node-0").failed(1);
    assert!(
        failed.contains("ledger mode") && failed.contains("`podplane up --network kernel`"),
        "{failed}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn shows_a_live_cluster() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(2)).await? else {
        return Ok(());
    };
    let ip = a_pod_is_at_its_address(&cluster).await?;
    colours_are_for_terminals(&cluster);
    pictures_name_states(&cluster, &ip)?;
    bad_parts_are_clear_errors(&cluster);
    cluster.finish().await
}

#[test]
fn shows_the_duplicates_of_a_dump() -> Result<()> {
    let node = |name: &str, block: &str| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "spec": {"podCIDR": block, "podCIDRs": [block]}})
    };
    let pod = |name: &str, node: &str, ip: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": node}, "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}})
    };
    let dump = json!({"apiVersion": "v1", "kind": "List", "items": [
        node("a", "10.4.1.0/24"), node("b", "10.4.1.0/24"), node("c", "fd00:4::/64"),
        pod("one", "a", "10.4.1.9"), pod("two", "b", "10.4.1.9"), pod("three", "c", "fd00:4::9")]});
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("dump.json");
    fs::write(&file, dump.to_string())?;
    let file = file.to_str().context("UTF-8")?;
    let map = |args: &[&str]| finish(podplane(["map", "--from", file]).args(args));
    let all = map(&["--cluster-cidr", "10.4.0.0/16"]).ok();
    assert!(all.starts_with("cluster CIDR 10.4.0.0/16"), "{all}");
    assert!(all.contains("D  duplicate  1"), "{all}");
    assert!(
        all.contains("duplicate 10.4.1.9: pod default/one on a, pod default/two on b"),
        "{all}"
    );
    assert!(all.contains("overlaps"), "{all}");
    let inferred = map(&[]).ok();
    assert!(
        inferred.starts_with("cluster CIDR 10.4.1.0/24 (inferred"),
        "{inferred}"
    );
    let v6 = map(&["fd00:4::/64"]).ok();
    assert!(v6.contains("fd00:4::9: pod default/three on c"), "{v6}");
    let detail: Value = serde_json::from_str(&map(&["10.4.1.9", "-o", "json"]).ok())?;
    assert_eq!(detail["state"], "duplicate");
    assert_eq!(detail["holders"][1]["name"], "default/two");
    // Without pods nothing is known about addresses; an empty list of pods is another thing.
    let nodes = dir.path().join("nodes.json");
    let pods = dir.path().join("pods.json");
    fs::write(
        &nodes,
        json!({"kind": "NodeList", "items": [node("a", "10.4.1.0/24")]}).to_string(),
    )?;
    fs::write(&pods, json!({"kind": "List", "items": []}).to_string())?;
    let (nodes, pods) = (
        nodes.to_str().context("UTF-8")?,
        pods.to_str().context("UTF-8")?,
    );
    let lonely = finish(&mut podplane(["map", "--from", nodes]));
    assert!(
        lonely
            .stderr
            .contains("note: there are no pods in the input"),
        "{lonely:?}"
    );
    let both = finish(&mut podplane(["map", "--from", nodes, "--from", pods]));
    assert!(!both.stderr.contains("no pods"), "{both:?}");
    assert_eq!(lonely.ok(), both.ok());
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"clusterIP": "10.96.3.7", "clusterIPs": ["10.96.3.7"]}});
    let services = dir.path().join("services.json");
    fs::write(
        &services,
        json!({"kind": "List", "items": [service]}).to_string(),
    )?;
    let services = services.to_str().context("UTF-8")?;
    let stated = [
        "--from",
        services,
        "--service-cidr",
        "10.96.0.0/16",
        "services",
    ];
    let range = map(&stated).ok();
    assert!(range.contains("s  service    1"), "{range}");
    let detail = map(&["--from", services, "10.96.3.7"]).ok();
    assert!(detail.starts_with("10.96.3.7: service"), "{detail}");
    assert!(detail.contains("service default/shop"), "{detail}");
    let missing = finish(&mut podplane(["map", "--from", "no-such-file"])).failed(2);
    assert!(missing.contains("failed to read no-such-file"), "{missing}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn shows_the_network_of_a_node() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Kernel).nodes(1)).await? else {
        return Ok(());
    };
    cluster.podplane("run web --replicas 1 --wait").ok();
    let pods = cluster.get("pods");
    let pod = &pods["items"][0];
    let name = pod["metadata"]["name"].as_str().context("a name")?;
    let ip = pod["status"]["podIP"].as_str().context("an address")?;
    let node: Value = serde_json::from_str(&cluster.podplane("map --node node-0 -o json").ok())?;
    let path = node["namespace"].as_str().context("a path")?;
    assert!(Path::new(path).exists(), "outside of the cluster: {path}");
    let links = node["links"].as_array().context("links")?;
    let port = links
        .iter()
        .find(|link| link["peer"] == format!("default/{name}"));
    let port = port.with_context(|| format!("a veth of {name}: {node:#}"))?;
    assert_eq!(port["kind"], "veth");
    let is_bridge = |link: &&Value| link["name"] == port["master"];
    let bridge = links.iter().find(is_bridge).context("a bridge")?;
    assert_eq!(bridge["kind"], "bridge");
    let address = node["pods"][0]["interfaces"][0]["addresses"][0].as_str();
    assert!(
        address
            .context("an address")?
            .starts_with(&format!("{ip}/"))
    );
    let routes = node["routes"].as_array().context("routes")?;
    assert!(
        routes.iter().any(|route| route["dev"] == bridge["name"]),
        "{node:#}"
    );
    let text = cluster.podplane("map --node node-0").ok();
    assert!(
        text.contains(&format!("-- pod default/{name}, eth0 {ip}/")),
        "{text}"
    );
    let dir = tempfile::tempdir()?;
    let svg = dir.path().join("node.svg");
    cluster
        .run([
            "map",
            "--node",
            "node-0",
            "-o",
            &format!("svg={}", svg.display()),
        ])
        .ok();
    assert!(text_of_svg(&svg)?.contains(&format!("pod default/{name}")));
    let png = dir.path().join("node.png");
    cluster
        .run([
            "map",
            "--node",
            "node-0",
            "-o",
            &format!("png={}", png.display()),
        ])
        .ok();
    assert!(colors_of_png(&png)? > 3);
    let failed = cluster.podplane("map --node elsewhere").failed(1);
    assert!(failed.contains("node `elsewhere` not found: "), "{failed}");
    cluster.finish().await
}

/// They are flags of the API server and objects. The blocks of the nodes are in a part of them.
#[tokio::test(flavor = "multi_thread")]
async fn map_audit_and_recording_know_the_ranges_of_the_cluster() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let flags = "--nodes 1 --cluster-cidr 10.20.0.0/16 --service-cluster-ip-range 10.21.0.0/24";
    let up = builder(Network::Ledger).flags(flags).record(dir.path());
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let socket = cluster.data_dir().join("apiserver.sock");
    let server = format!("--server {}", socket.display());
    let has_ranges = |text: &String| text.contains("10.20.0.0/16") && text.contains("10.21.0.0/24");
    for source in ["", &server] {
        let map = cluster.podplane(&format!("map {source}")).ok();
        assert!(has_ranges(&map), "{source}: {map}");
        let audit = cluster.podplane(&format!("audit -o json {source}")).ok();
        let audit: Value = serde_json::from_str(&audit)?;
        for code in ["foreign-pod-cidr", "service-range-overlap"] {
            assert_eq!(audit["summary"]["checks"][code], "on", "{source}: {code}");
        }
    }
    // The API server's own Service has the first of the addresses that Services can have.
    let page = dir.path().join("audit.html");
    for source in [
        server,
        format!("--kubeconfig {}", cluster.kubeconfig().display()),
    ] {
        let html = page.display();
        cluster
            .podplane(&format!("audit --html {html} {source}"))
            .ok();
        let html = std::fs::read_to_string(&page)?;
        let counts = "1 service, 2 reserved, 253 free";
        assert!(html.contains(counts), "{source}: {html}");
    }
    let services = cluster.podplane("map services").ok();
    let lines: Vec<_> = services.lines().map(str::to_owned).collect();
    let count = |name: &str| {
        let found = lines.iter().find_map(|line| line.split_once(name));
        found.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u32>().ok())
    };
    assert_eq!(count(" free "), Some(253), "{services}");
    // By REST they are in the summary.
    let kubeconfig = format!("map --kubeconfig {}", cluster.kubeconfig().display());
    let map = cluster.podplane(&kubeconfig).ok();
    assert!(has_ranges(&map), "{map}");
    let recording = format!("map --recording {}", dir.path().display());
    let recorded = || async { cluster.podplane(&recording).ok() };
    eventually("the ranges are recorded", recorded, has_ranges).await;
    // The API server's own Service is there from the beginning.
    let service = cluster.get("service/kubernetes")["spec"]["clusterIP"].clone();
    let service = service.as_str().context("an address")?;
    let detail = format!("{recording} {service}");
    let recorded = || async { cluster.podplane(&detail).ok() };
    let is_named = |text: &String| text.contains("service default/kubernetes");
    eventually("the Service is recorded", recorded, is_named).await;
    cluster.finish().await
}
