//! Fuzzes host-local on a directory with any content, which others change between its calls.
//!
//! The input is steps, each ended by the byte 0x1e, of fields separated by 0x1f; the first field is
//! the kind of step: `c` the configuration's number; `f` a file (name, content), `d` a directory,
//! `l` a link (name, target), `p` a pipe, `r` the removal of a name; `A` ADD (id, interface,
//! arguments), `D` DEL, `C` CHECK, `S` STATUS, `G` GC (the valid attachments, id and interface by
//! turns).

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use podplane_cni::{
    CniResult, Version,
    skel::{Call, Plugin as _},
    trace::StepPrinter,
};
use podplane_host_local::HostLocal;
use serde_json::{Value, json};

/// The most steps of an input: enough to fill the small ranges; more only takes longer.
const MOST_STEPS: usize = 64;

pub(crate) fn run(data: &[u8]) {
    let mut fixture = DataDirFixture::new();
    for step in data.split(|byte| *byte == 0x1e).take(MOST_STEPS) {
        let mut fields = step
            .split(|byte| *byte == 0x1f)
            .map(|field| String::from_utf8_lossy(field).into_owned());
        let kind = fields.next().unwrap_or_default();
        let rest: Vec<_> = fields.collect();
        fixture.step(&kind, &rest, step);
    }
}

struct DataDirFixture {
    /// Removed on drop, with everything in it.
    _dir: tempfile::TempDir,
    network: PathBuf,
    ipam: Value,
}

/// The leases: regular files with an address as name, except temporary files of killed writers.
type Leases = BTreeMap<IpAddr, String>;

impl DataDirFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let network = dir.path().join("net");
        fs::create_dir(&network).expect("the network's directory");
        let mut fixture = Self {
            network,
            ipam: Value::Null,
            _dir: dir,
        };
        fixture.configure("0");
        fixture
    }

    fn configure(&mut self, number: &str) {
        let number: usize = number.parse().unwrap_or_default();
        let mut all = [
            json!({"subnet": "10.1.2.0/29"}),
            json!({"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.3", "rangeEnd": "10.1.2.5", "gateway": "10.1.2.4"}),
            json!({"ranges": [[{"subnet": "10.1.2.0/30"}, {"subnet": "10.1.2.4/30", "gateway": "10.1.2.6"}]]}),
            json!({"ranges": [[{"subnet": "10.1.2.0/29"}], [{"subnet": "fd00::/125"}]]}),
            json!({"subnet": "fd00::/64", "rangeStart": "fd00::", "rangeEnd": "fd00::3"}),
            json!({"subnet": "10.1.0.0/16"}),
            json!({"subnet": "fd00::/48"}),
            json!({"ranges": [[{"subnet": "10.1.2.0/30"}], [{"subnet": "10.1.3.0/30"}], [{"subnet": "fd00::/126"}]]}),
        ];
        let last = all.len() - 1;
        self.ipam = all[number.min(last)].take();
        self.ipam["type"] = "host-local".into();
        self.ipam["dataDir"] = self
            .network
            .parent()
            .and_then(Path::to_str)
            .expect("a path")
            .into();
    }

    fn step(&mut self, kind: &str, fields: &[String], raw: &[u8]) {
        let field = |n: usize| fields.get(n).map(String::as_str).unwrap_or_default();
        match kind {
            "c" => self.configure(field(0)),
            "f" | "d" | "l" | "p" | "r" => self.disturb(kind, field(0), raw, field(1)),
            "A" => self.add(field(0), field(1), field(2)),
            "D" => self.del(field(0), field(1)),
            "C" => {
                let _ = HostLocal.check(&self.call(field(0), field(1), "", &[]));
                // The result depends on the directory; this test checks that nothing was changed.
            }
            "S" => {
                let _ = HostLocal.status(&self.call("", "", "", &[]));
            }
            "G" => self.gc(fields),
            _ => {}
        }
    }

    /// Changes the directory as another process would. Does nothing if the name exists.
    fn disturb(&self, kind: &str, name: &str, raw: &[u8], second: &str) {
        let Some(path) = self.inside(name) else {
            return;
        };
        let _ = match kind {
            // A new file under the name: the plugin may not notice writes into an existing one at
            // once (docs/adr/0006-index-of-leases.md).
            "f" => {
                let content = raw.splitn(3, |byte| *byte == 0x1f).nth(2);
                let _ = fs::remove_file(&path);
                fs::write(&path, content.unwrap_or_default())
            }
            "d" => fs::create_dir(&path),
            // A cursor or a lock that is a link to a lease destroys it, as in the reference.
            "l" if name.parse::<IpAddr>().is_ok() => match self.inside(second) {
                Some(_) => std::os::unix::fs::symlink(second, &path),
                None => Ok(()),
            },
            // A lock or a cursor that is a pipe blocks, as in the reference; no other process
            // creates names of temporary files.
            "p" if name.parse::<IpAddr>().is_ok() => {
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
                    .map_err(Into::into)
            }
            "r" => fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)),
            _ => Ok(()),
        };
    }

    /// The path of a name in the directory itself. Pipes and links are not written through.
    fn inside(&self, name: &str) -> Option<PathBuf> {
        let fits = !name.is_empty()
            && name.len() <= 255
            && name != "."
            && name != ".."
            && !name.contains(['/', '\0']);
        let path = fits.then(|| self.network.join(name))?;
        let is_special =
            fs::symlink_metadata(&path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir());
        (!is_special).then_some(path)
    }

    fn call(&self, id: &str, ifname: &str, args: &str, valid: &[(String, String)]) -> Call {
        let valid: Vec<_> = valid
            .iter()
            .map(|(id, ifname)| json!({"containerID": id, "ifname": ifname}))
            .collect();
        let config = json!({
            "cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": self.ipam,
            "cni.dev/valid-attachments": valid,
        });
        Call {
            container_id: identifier(id, 64),
            netns: "/does/not/exist".to_owned(),
            ifname: identifier(ifname, 15),
            args: args.to_owned(),
            path: Vec::new(),
            stdin: config.to_string().into_bytes(),
            version: Version::V1_1_0,
            tell: StepPrinter::default(),
        }
    }

    fn add(&self, id: &str, ifname: &str, args: &str) {
        let call = self.call(id, ifname, args, &[]);
        let (names, before) = (self.names(), self.leases());
        let answer = HostLocal.add(&call);
        let after = self.leases();
        let own = content(&call);
        let given: Vec<IpAddr> = match &answer {
            Ok(CniResult { ips, .. }) => ips.iter().map(|ip| ip.address.addr()).collect(),
            Err(_) => Vec::new(),
        };
        for ip in &given {
            assert!(
                !before.contains_key(ip),
                "{ip} was leased to {:?}, and assigned again",
                before.get(ip)
            );
            assert!(
                !names.contains_key(&ip.to_string()),
                "the name {ip} was taken by a {:?}",
                names.get(&ip.to_string())
            );
            assert_eq!(
                after.get(ip),
                Some(&own),
                "{ip} was assigned without a lease"
            );
        }
        let mut expected = before;
        expected.extend(given.iter().map(|ip| (*ip, own.clone())));
        assert_eq!(
            after, expected,
            "ADD changed more than its own leases: {answer:?}"
        );
    }

    fn del(&self, id: &str, ifname: &str) {
        let call = self.call(id, ifname, "", &[]);
        let before = self.leases();
        let answer = HostLocal.del(&call);
        let after = self.leases();
        let exact = content(&call);
        // DEL releases by exact content once for each set; a repeated one also finds leases that
        // name only the container, if nothing else is left.
        let sets = self.ipam["ranges"].as_array().map_or(1, Vec::len);
        let has_legacy = sets > 1 || !before.values().any(|content| *content == exact);
        let is_own =
            |content: &str| content == exact || (has_legacy && content == call.container_id);
        for (ip, content) in &before {
            if !is_own(content) {
                assert_eq!(after.get(ip), Some(content), "DEL of {exact:?} took {ip}");
            } else if answer.is_ok() {
                assert_eq!(after.get(ip), None, "DEL of {exact:?} left {ip}");
            }
        }
        assert!(
            after.keys().all(|ip| before.contains_key(ip)),
            "DEL made a lease"
        );
    }

    fn gc(&self, fields: &[String]) {
        let valid: Vec<_> = fields
            .chunks_exact(2)
            .map(|pair| (identifier(&pair[0], 64), identifier(&pair[1], 15)))
            .collect();
        let before = self.leases();
        let answer = HostLocal.gc(&self.call("", "", "", &valid));
        let after = self.leases();
        let is_valid = |content: &str| {
            valid
                .iter()
                .any(|(id, ifname)| content == format!("{id}\r\n{ifname}") || content == id)
        };
        for (ip, content) in &before {
            if is_valid(content) {
                assert_eq!(after.get(ip), Some(content), "GC took a valid lease, {ip}");
            } else if answer.is_ok() {
                assert_eq!(after.get(ip), None, "GC left {ip} of {content:?}");
            }
        }
        assert!(
            after.keys().all(|ip| before.contains_key(ip)),
            "GC made a lease"
        );
    }

    fn leases(&self) -> Leases {
        let mut leases = Leases::new();
        for (name, kind) in self.names() {
            let Ok(ip) = name.parse::<IpAddr>() else {
                continue;
            };
            // Only the canonical name reserves an address.
            if kind != EntryKind::Lease || ip.to_string() != name {
                continue;
            }
            let bytes = fs::read(self.network.join(&name)).expect("a lease");
            leases.insert(ip, String::from_utf8_lossy(&bytes).trim().to_owned());
        }
        leases
    }

    /// The entries that may hold an address, by name.
    fn names(&self) -> BTreeMap<String, EntryKind> {
        let mut names = BTreeMap::new();
        for entry in fs::read_dir(&self.network).expect("the network's directory") {
            let entry = entry.expect("an entry");
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let kind = if entry.file_type().expect("a kind").is_file() {
                let bytes = fs::read(entry.path()).unwrap_or_default();
                let is_rest = |c: char| c == '\0' || c.is_whitespace();
                if String::from_utf8_lossy(&bytes)
                    .trim_matches(is_rest)
                    .is_empty()
                {
                    continue;
                }
                EntryKind::Lease
            } else if entry.file_type().expect("a kind").is_dir() {
                EntryKind::Directory
            } else {
                continue; // What a link or a pipe says may be nothing, and then it is no lease.
            };
            names.insert(name, kind);
        }
        names
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    Lease,
    Directory,
}

fn content(call: &Call) -> String {
    format!("{}\r\n{}", call.container_id, call.ifname)
}

/// The part of a text that is valid as an id, at most `most` characters.
fn identifier(text: &str, most: usize) -> String {
    let fits = |c: &char| c.is_ascii_alphanumeric() || "_.-".contains(*c);
    let text: String = text
        .chars()
        .filter(fits)
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(most)
        .collect();
    if text.is_empty() {
        "x".to_owned()
    } else {
        text
    }
}
