//! The ports and sockets of a cluster, as another user finds them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result};
use podplane_tests::{programs::finish, stranger::run};
use serde_json::Value;

use super::{
    STRANGER,
    cluster::{OwnedCluster, Processes},
    walk,
};

/// What everyone may get of each process, and below it single checks.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/healthz"];
const HEALTH: &str = "/grpc.health.v1.Health/";

/// A call of gRPC, where other requests have their method.
const GRPC: &str = "GRPC";

/// Paths of processes that publish no OpenAPI document.
const OTHER_PATHS: [&str; 10] = [
    "/",
    "/metrics",
    "/metrics/slis",
    "/debug/log-level",
    "/debug/pprof/",
    "/configz",
    "/statusz",
    "/version",
    "/flagz",
    "/.well-known/openid-configuration",
];

/// The inodes of sockets that processes have open.
fn open_sockets(processes: &Processes) -> Result<BTreeSet<String>> {
    let mut inodes = BTreeSet::new();
    for pid in processes.keys() {
        for file in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let open = fs::read_link(file?.path()).unwrap_or_default();
            let open = open.to_string_lossy();
            let inode = open.strip_prefix("socket:[");
            inodes.extend(inode.map(|inode| inode.trim_end_matches(']').to_owned()));
        }
    }
    Ok(inodes)
}

/// The rows of a table in /proc/net of this process or one of the cluster, whose network may be
/// another, that are about these inodes.
fn rows(table: &str, inodes: &BTreeSet<String>, column: usize) -> Result<Vec<Vec<String>>> {
    let text = fs::read_to_string(format!("/proc/net/{table}"))?;
    let rows = text.lines().skip(1);
    let rows = rows.map(|row| row.split_whitespace().map(str::to_owned).collect());
    let is_open = |row: &Vec<String>| row.get(column).is_some_and(|inode| inodes.contains(inode));
    Ok(rows.filter(is_open).collect())
}

/// The ports at which processes listen, all on the loopback interface.
fn ports(processes: &Processes) -> Result<BTreeSet<u16>> {
    const LISTENS: &str = "0A";
    let inodes = open_sockets(processes)?;
    let mut ports = BTreeSet::new();
    for row in rows("tcp", &inodes, 9)? {
        if row[3] == LISTENS {
            let (address, port) = row[1].split_once(':').context("an address")?;
            assert_eq!(address, "0100007F", "{row:?}");
            ports.insert(u16::from_str_radix(port, 16)?);
        }
    }
    let others = rows("tcp6", &inodes, 9)?;
    assert!(others.iter().all(|row| row[3] != LISTENS), "{others:?}");
    for table in ["udp", "udp6", "raw", "raw6", "udplite", "udplite6"] {
        let rows = rows(table, &inodes, 9)?;
        assert!(rows.is_empty(), "{table}: {rows:?}");
    }
    Ok(ports)
}

/// The requests to try: HTTP methods and paths.
type Requests = BTreeSet<(&'static str, String)>;

/// The operations of the API server's OpenAPI documents, each about an object that may exist.
fn operations(cluster: &OwnedCluster) -> Result<Requests> {
    let socket = cluster.data_dir().join("apiserver.sock");
    let document = |path: &str| -> Result<Value> {
        let mut curl = cluster.command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--unix-socket"]);
        curl.arg(&socket).arg(format!("http://localhost{path}"));
        Ok(serde_json::from_str(&finish(&mut curl).ok())?)
    };
    let mut requests = Requests::from([("GET", "/openapi/v2".to_owned())]);
    let index = document("/openapi/v3")?;
    for part in index["paths"].as_object().context("an index")?.values() {
        let url = part["serverRelativeURL"].as_str().context("a URL")?;
        requests.insert(("GET", url.to_owned()));
        let described = document(url)?;
        let paths = described["paths"].as_object().context("paths")?;
        for (path, operations) in paths {
            let path = path.replace("{namespace}", "default");
            let path = path.replace("{name}", "web-0");
            for method in ["GET", "PUT", "POST", "PATCH", "DELETE"] {
                if operations.get(method.to_lowercase()).is_some() {
                    requests.insert((method, path.clone()));
                }
            }
        }
    }
    Ok(requests)
}

/// The methods of all gRPC services at a port, by reflection as the administrator; none if the port
/// has no gRPC.
fn methods(cluster: &OwnedCluster, grpcurl: &Path, port: u16) -> Vec<String> {
    let pki = cluster.data_dir().join("pki");
    let mut command = Command::new(grpcurl.join("grpcurl"));
    command.arg("-cacert").arg(pki.join("ca.crt"));
    command.arg("-cert").arg(pki.join("admin.pem"));
    command.arg("-key").arg(pki.join("admin.pem"));
    command.args([&format!("127.0.0.1:{port}"), "describe"]);
    let mut methods = Vec::new();
    let mut service = String::new();
    for line in finish(&mut command).stdout.lines() {
        if let Some(name) = line.strip_suffix(" is a service:") {
            name.clone_into(&mut service);
        }
        if let Some(rest) = line.trim().strip_prefix("rpc ") {
            let name = rest.split([' ', '(']).next().unwrap_or_default();
            methods.push(format!("/{service}/{name}"));
        }
    }
    methods
}

/// The codes of HTTP and gRPC with which requests of the stranger are answered. One process of curl
/// sends them all.
fn answers(
    cluster: &OwnedCluster,
    port: u16,
    requests: &Requests,
) -> Result<BTreeMap<(String, String), (String, String)>> {
    // The shortest message of gRPC, which has the default in each field.
    let message = cluster.bin_dir().join("message");
    fs::write(&message, [0; 5])?;
    let call = format!(
        "header = \"content-type: application/grpc\"\nheader = \"te: trailers\"\ndata-binary = \"@{}\"\n",
        message.display()
    );
    let mut config = String::new();
    for (method, path) in requests {
        let body = match *method {
            "GET" => "request = GET\n",
            GRPC => &call,
            method => &format!(
                "request = {method}\nheader = \"content-type: application/json\"\ndata = \"{{}}\"\n"
            ),
        };
        write!(
            config,
            "url = \"https://127.0.0.1:{port}{path}\"\n{body}\
             insecure\nhttp2\nsilent\noutput = /dev/null\nmax-time = 20\n\
             write-out = \"{method} {path} %{{http_code}} -%header{{grpc-status}}\\n\"\nnext\n"
        )?;
    }
    let mut curl = STRANGER.command("curl");
    let said = run(curl.args(["--config", "-"]), config)?;
    let mut answers = BTreeMap::new();
    for line in said.stdout.lines() {
        let parts: Vec<_> = line.split(' ').map(str::to_owned).collect();
        if let [method, path, http, grpc] = &parts[..] {
            let grpc = grpc.trim_start_matches('-').to_owned();
            answers.insert((method.clone(), path.clone()), (http.clone(), grpc));
        }
    }
    assert_eq!(answers.len(), requests.len(), "{said:?}");
    Ok(answers)
}

/// Every path and method of any process is tried at every port.
pub(crate) fn only_probes_are_answered(
    cluster: &OwnedCluster,
    processes: &Processes,
    grpcurl: &Path,
) -> Result<()> {
    let ports = ports(processes)?;
    let mut requests = operations(cluster)?;
    let operations = requests.len();
    for path in walk(cluster.data_dir())? {
        if path.extension().is_some_and(|kind| kind == "address") {
            let address = fs::read_to_string(&path)?;
            let port = address.trim().rsplit(':').next().unwrap_or_default();
            assert!(ports.contains(&port.parse()?), "{address}: {ports:?}");
        }
    }
    assert!(ports.len() >= 8, "of each process: {ports:?}");
    let mut with_grpc = 0;
    for port in &ports {
        let methods = methods(cluster, grpcurl, *port);
        with_grpc += usize::from(!methods.is_empty());
        let is_health = |method: &String| method.starts_with(HEALTH);
        assert!(methods.is_empty() || methods.iter().any(is_health));
        let methods = methods.into_iter().filter(|method| !is_health(method));
        requests.extend(methods.map(|method| (GRPC, method)));
    }
    assert!(with_grpc >= 6, "{with_grpc}");
    assert!(operations > 100 && requests.len() > operations + 100);
    for path in OTHER_PATHS {
        for method in ["GET", "PUT", "POST", "DELETE"] {
            requests.insert((method, path.to_owned()));
        }
    }
    let mut public: Requests = PROBES.map(|path| ("GET", path.to_owned())).into();
    public.insert((GRPC, format!("{HEALTH}Check")));
    let mut versions = 0;
    for port in ports {
        for (request, (http, grpc)) in answers(cluster, port, &public)? {
            // A process without gRPC has no such path.
            let is_answered = match request.0 == GRPC {
                true => ["", "0", "12"].contains(&&*grpc),
                false => http == "200",
            };
            assert!(is_answered, "{port}: {request:?}: {http} {grpc}");
        }
        for ((method, path), (http, grpc)) in answers(cluster, port, &requests)? {
            if method == "GET" && path.trim_end_matches('/') == "/version" {
                versions += usize::from(http == "200" && path == "/version");
                continue;
            }
            let is_refused = match method == GRPC {
                true => ["7", "16"].contains(&&*grpc) || ["401", "403"].contains(&&*http),
                false => ["401", "403"].contains(&&*http),
            };
            assert!(is_refused, "{port}: {method} {path}: {http} {grpc}");
        }
    }
    assert_eq!(versions, 1, "the API server has one, for everyone");
    Ok(())
}

/// Sockets in the file system, and those of processes, wherever they are.
pub(crate) fn sockets_are_closed(cluster: &OwnedCluster, processes: &Processes) -> Result<()> {
    let inodes = open_sockets(processes)?;
    let mut sockets = BTreeSet::new();
    for row in rows("unix", &inodes, 6)? {
        if let Some(path) = row.get(7) {
            // One that begins so has no file, and no mode.
            assert!(!path.starts_with('@'), "{row:?}");
            sockets.insert(path.clone());
        }
    }
    let dir = cluster.data_dir();
    let listening = sockets
        .iter()
        .filter(|path| Path::new(path).starts_with(dir));
    assert!(listening.count() >= 8, "of each process: {sockets:?}");
    for socket in sockets {
        let mut curl = STRANGER.command("curl");
        curl.args(["--verbose", "--max-time", "10", "--unix-socket", &socket]);
        let said = finish(curl.arg("http://localhost/livez"));
        let is_closed = said.code == Some(7) && said.stderr.contains("Permission denied");
        assert!(is_closed, "{socket}: {said:?}");
    }
    Ok(())
}
