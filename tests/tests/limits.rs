//! The limits of clients, as curl sees them.

use std::{
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use anyhow::Result;
use podplane_tests::{apiserver::Apiserver, eventually, peers, programs::finish};

const WATCH: &str = "/api/v1/pods?watch=1";

/// A request of curl that is ended with this value.
struct Curl(Child);

impl Drop for Curl {
    fn drop(&mut self) {
        // It may have ended already.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn open_watch(server: &Apiserver) -> Result<Curl> {
    let mut curl = Command::new("curl");
    curl.args(["-sN", &format!("http://{}{WATCH}", server.address())]);
    Ok(Curl(curl.stdout(Stdio::null()).spawn()?))
}

/// The head of an answer.
fn head(server: &Apiserver, path: &str) -> String {
    let mut curl = Command::new("curl");
    let url = format!("http://{}{path}", server.address());
    finish(curl.args([
        "-sS",
        "-o",
        "/dev/null",
        "-D",
        "-",
        "--max-time",
        "10",
        &url,
    ]))
    .ok()
}

async fn metric(server: &Apiserver, line: &str) -> Result<bool> {
    let metrics = server.rest().get("/metrics").await?.body;
    let text = metrics.as_str().unwrap_or_default();
    Ok(text.lines().any(|one| one == line))
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_beyond_a_limit_are_told_so() -> Result<()> {
    if !peers::program("curl") {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let flags = [
        "--max-watches-per-user=2",
        "--max-connections-per-client=20",
    ];
    let server = Apiserver::start_with(dir.path(), &flags).await?;
    let watches = [open_watch(&server)?, open_watch(&server)?];
    let connections = async |count: u8| {
        let line = format!("podplane_connections {count}");
        let seen = || metric(&server, &line);
        _ = eventually(&line, seen, |seen| matches!(seen, Ok(true))).await;
    };
    // With the one that asks.
    connections(3).await;
    let refused = head(&server, WATCH);
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    assert!(refused.contains("retry-after: 1"), "{refused}");
    assert!(head(&server, "/api/v1/pods").starts_with("HTTP/1.1 200 "));

    let connect = || TcpStream::connect(server.address());
    let mut silent: Vec<_> = std::iter::repeat_with(connect).take(17).collect();
    // The connection of the request before may be counted a moment longer, and one of these be
    // refused in its place.
    let next = || {
        silent.push(connect());
        std::future::ready(head(&server, "/livez"))
    };
    let is_refused = |answer: &String| answer.starts_with("HTTP/1.0 429 ");
    let refused = eventually("one more is refused", next, is_refused).await;
    assert!(refused.contains("Retry-After: 1"), "{refused}");
    drop((silent, watches));
    connections(1).await;
    assert!(head(&server, "/livez").starts_with("HTTP/1.1 200 "));
    let none = "podplane_connections_refused_total{reason=\"client\"} 0";
    assert!(!metric(&server, none).await?);
    let refused = "podplane_watches_refused_total{reason=\"user\"} 1";
    assert!(metric(&server, refused).await?);
    server.kill()
}
