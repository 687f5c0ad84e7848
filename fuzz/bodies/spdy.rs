//! Fuzzes SPDY sessions: whatever a client sends, the session ends with its connection, and what is
//! sent back are frames.
//!
//! The input is the bytes of a client.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex, split};

pub(crate) fn run(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let answer = runtime.expect("a runtime").block_on(answer(data));
    let mut rest = answer.as_slice();
    while let Some((head, after)) = rest.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([0, head[5], head[6], head[7]]);
        let length = usize::try_from(length).expect("24 bits");
        rest = after.get(length..).expect("a whole frame");
    }
    assert!(rest.is_empty(), "a frame is cut off");
}

/// The bytes that the client gets. Each stream is told its type, and finished.
async fn answer(data: &[u8]) -> Vec<u8> {
    let (client, server) = duplex(64 << 10);
    let (driver, mut session) = podplane_spdy::serve(server);
    let serve = async move {
        while let Some(stream) = session.accept().await {
            let kind = stream.headers.get("streamtype").unwrap_or("none");
            let kind = kind.as_bytes().to_vec();
            let _ = stream.writer.send(kind.into()).await;
            let _ = stream.writer.finish().await;
        }
    };
    let (mut read, mut write) = split(client);
    let send = async move {
        // A session that has ended does not read the rest.
        let _ = write.write_all(data).await;
        let _ = write.shutdown().await;
    };
    let mut received = Vec::new();
    let receive = async {
        let _ = read.read_to_end(&mut received).await;
    };
    let (_ended, (), (), ()) = tokio::join!(driver, serve, send, receive);
    received
}
