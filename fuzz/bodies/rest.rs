//! Fuzzes requests of the REST API, with bodies in JSON, YAML, Kubernetes' protobuf and of patches.
//!
//! The input is parts separated by the byte 0x1e, by turns a line and a body. A line is the method,
//! the path with its query, the media type of the body, and the one that is asked for, separated by
//! spaces; `-` for none. Writes are dry runs; an object that a dry run created is then created,
//! read in all forms, and deleted.

use bytes::Bytes;
use http::{Method, Uri};
use serde_json::Value;

#[path = "server.rs"]
mod server;

use server::{Answer, JSON, TestServer};

/// The most requests of an input.
const MOST_REQUESTS: usize = 4;

/// The forms in which objects are read.
const FORMS: [&str; 5] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
];

pub(crate) fn run(data: &[u8]) {
    let parts: Vec<_> = data.split(|byte| *byte == 0x1e).collect();
    let requests: Vec<_> = parts
        .chunks(2)
        .take(MOST_REQUESTS)
        .filter_map(|pair| RestRequest::parse(pair[0], pair.get(1).copied().unwrap_or_default()))
        .collect();
    if !requests.is_empty() {
        let are_reads = requests.iter().all(|request| request.method.is_safe());
        server::with(are_reads, |server| {
            requests.iter().for_each(|request| request.send_to(server));
        });
    }
}

struct RestRequest<'a> {
    method: Method,
    path: String,
    content_type: &'a str,
    accept: &'a str,
    body: &'a [u8],
}

impl<'a> RestRequest<'a> {
    /// `None` for what no HTTP client could send.
    fn parse(line: &'a [u8], body: &'a [u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(line).ok()?.split(' ');
        let method: Method = words.next()?.parse().ok()?;
        let path = words.next()?;
        let uri: Uri = path.parse().ok()?;
        // The server has its own limit, which no path of an object reaches.
        let is_path = uri.host().is_none() && path.starts_with('/') && method != Method::CONNECT;
        let mut header = || {
            words
                .next()
                .filter(|value| http::HeaderValue::from_str(value).is_ok())
        };
        let (content_type, accept) = (header().unwrap_or("-"), header().unwrap_or("-"));
        let is_write = !method.is_safe();
        // A dry run of everything that is written; the option is the server's, whatever the body.
        let mark = if uri.query().is_some() { '&' } else { '?' };
        let dry = if is_write {
            format!("{mark}dryRun=All")
        } else {
            String::new()
        };
        is_path.then(|| Self {
            method,
            path: format!("{path}{dry}"),
            content_type,
            accept,
            body,
        })
    }

    fn send_to(&self, server: &TestServer) {
        let headers = [("content-type", self.content_type), ("accept", self.accept)];
        let headers: Vec<_> = headers
            .into_iter()
            .filter(|(_, value)| *value != "-")
            .collect();
        let body = Bytes::copy_from_slice(self.body);
        let answer = server.rest(self.method.clone(), &self.path, &headers, body.clone());
        self.check(&answer);
        let path = self.path.strip_suffix("dryRun=All");
        let path = path.map(|path| path.trim_end_matches(['?', '&']));
        if let (&Method::POST, 201, Some(path)) = (&self.method, answer.status.as_u16(), path) {
            server.undone(|| {
                let created = server.rest(Method::POST, path, &headers, body);
                self.check(&created);
                self.read_and_delete(server, path)
            });
        }
    }

    /// Every refusal is a `Status`, and nothing is the server's fault.
    fn check(&self, answer: &Answer) {
        let text = || String::from_utf8_lossy(&answer.body).into_owned();
        let (method, path) = (&self.method, &self.path);
        assert!(answer.status.as_u16() != 500, "{method} {path}: {}", text());
        let media = answer.headers.get("content-type");
        if media.is_some_and(|media| media == "application/json") && method != Method::HEAD {
            let is_json = serde_json::from_slice::<Value>(&answer.body).is_ok();
            let is_stream = path.contains("watch") || path.contains("follow");
            assert!(is_json || is_stream, "{method} {path}: {}", text());
        }
    }

    /// Reads the created object in all forms, and deletes it. Returns true if no trace of it is
    /// left: not of a node, whose block stays held, nor of a namespace, which is emptied first.
    fn read_and_delete(&self, server: &TestServer, path: &str) -> bool {
        let collection = path.split('?').next().unwrap_or_default();
        let Some(name) = self.name_in(server, collection) else {
            return false;
        };
        let place = format!("{collection}/{name}");
        for form in FORMS {
            for path in [&*place, collection] {
                let answer = server.rest(Method::GET, path, &[("accept", form)], Bytes::new());
                self.check(&answer);
            }
        }
        let patch = ("content-type", "application/merge-patch+json");
        let patch_body = Bytes::from_static(br#"{"metadata":{"finalizers":null}}"#);
        self.check(&server.rest(Method::PATCH, &place, &[patch], patch_body));
        let options = Bytes::from_static(br#"{"gracePeriodSeconds":0}"#);
        self.check(&server.rest(Method::DELETE, &place, &[JSON], options));
        let gone = server.rest(Method::GET, &place, &[], Bytes::new());
        let has_more = collection.ends_with("/nodes") || collection.ends_with("/namespaces");
        gone.status.as_u16() == 404 && !has_more
    }

    /// The name of the newest object of a kind, if the path is that of a kind.
    fn name_in(&self, server: &TestServer, collection: &str) -> Option<String> {
        let answer = server.rest(Method::GET, collection, &[], Bytes::new());
        self.check(&answer);
        let list: Value = serde_json::from_slice(&answer.body).ok()?;
        let revision = |object: &&Value| {
            let revision = object["metadata"]["resourceVersion"].as_str();
            revision.and_then(|revision| revision.parse::<u64>().ok())
        };
        let newest = list["items"].as_array()?.iter().max_by_key(revision)?;
        Some(newest["metadata"]["name"].as_str()?.to_owned())
    }
}
