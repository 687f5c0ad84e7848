//! A server and its client on a simulated host.

use std::{
    future::poll_fn,
    time::{Duration, SystemTime},
};

use podplane_host::{clock, net, random, simulation::begin, task};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinSet,
};
use uuid::Uuid;

/// Returns what a client hears an hour after a server's start, and the hour's wall clock.
async fn an_hour(seed: u64) -> (String, SystemTime) {
    let _simulation = begin(seed, "2030-01-01T00:00:00Z".parse().expect("a time"));
    let listener = net::listen_tcp(([10, 0, 0, 1], 80).into()).await;
    let listener = listener.expect("the address is free");
    let mut tasks = JoinSet::new();
    task::spawn(&mut tasks, async move {
        let accepted = poll_fn(|context| listener.poll_accept(context)).await;
        let (mut stream, _) = accepted.expect("a client");
        clock::sleep(Duration::from_secs(3600)).await;
        let text = random::uuid().to_string();
        let told = stream.write_all(text.as_bytes()).await;
        told.expect("the client listens");
    });
    let client = net::connect_tcp("10.0.0.1:80").await;
    let mut client = client.expect("the server listens");
    let mut heard = String::new();
    let read = client.read_to_string(&mut heard).await;
    read.expect("the server ends");
    (heard, clock::system_time())
}

#[tokio::test(start_paused = true)]
async fn clocks_randomness_and_connections_are_simulated() {
    let (heard, at) = an_hour(7).await;
    heard.parse::<Uuid>().expect("the server sends one");
    let hour = "2030-01-01T01:00:00Z".parse::<jiff::Timestamp>();
    assert_eq!(at, SystemTime::from(hour.expect("a time")));
    assert_eq!(an_hour(7).await, (heard.clone(), at));
    assert_ne!(an_hour(8).await.0, heard);
}

#[tokio::test(start_paused = true)]
async fn an_address_has_one_listener() {
    let _simulation = begin(1, jiff::Timestamp::UNIX_EPOCH);
    let first = net::listen_unix("/run/x").expect("the address is free");
    let taken = net::listen_unix("/run/x").expect_err("it is not free");
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    drop(first);
    let refused = net::connect_unix("/run/x")
        .await
        .expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    net::listen_unix("/run/x").expect("the address is free again");
}
