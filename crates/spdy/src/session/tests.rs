//! Sessions over a pipe in memory, with a client of bytes.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;

/// A stream without headers: the block of an empty list, not compressed (a stored block).
const NO_HEADERS: [u8; 15] = [
    0x78, 0x01, 0x00, 0x04, 0x00, 0xfb, 0xff, 0, 0, 0, 0, 0x00, 0x00, 0x00, 0xff,
];

fn open(stream: u32) -> Vec<u8> {
    let mut block = NO_HEADERS.to_vec();
    block.push(0xff);
    // Only the first block of a session has the two bytes of zlib.
    if stream != 1 {
        block.drain(..2);
    }
    let length = u8::try_from(10 + block.len()).unwrap();
    let [a, b, c, d] = stream.to_be_bytes();
    let mut frame = vec![0x80, 3, 0, 1, 0, 0, 0, length, a, b, c, d, 0, 0, 0, 0, 0, 0];
    frame.extend_from_slice(&block);
    frame
}

fn data(stream: u32, text: &[u8], is_last: bool) -> Vec<u8> {
    let mut frame = frame::data_head(stream, text.len(), is_last).to_vec();
    frame.extend_from_slice(text);
    frame
}

/// Reads a frame: its first four bytes, its flags, and its payload.
async fn read(client: &mut DuplexStream) -> (u32, u8, Vec<u8>) {
    let [a, b, c, d, flags, e, f, g] = {
        let mut head = [0; HEAD];
        client.read_exact(&mut head).await.unwrap();
        head
    };
    let length = u32::from_be_bytes([0, e, f, g]);
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    client.read_exact(&mut payload).await.unwrap();
    (u32::from_be_bytes([a, b, c, d]), flags, payload)
}

#[tokio::test]
async fn streams_carry_data_both_ways_and_end_separately() {
    let (mut client, server) = duplex(1 << 20);
    let (driver, mut session) = serve(server);
    let test = async move {
        client.write_all(&open(1)).await.unwrap();
        client.write_all(&open(3)).await.unwrap();
        let mut first = session.accept().await.unwrap();
        let mut second = session.accept().await.unwrap();
        for id in [1_u32, 3] {
            let (kind, _, payload) = read(&mut client).await;
            assert_eq!((kind, &payload[..4]), (0x8003_0002, &id.to_be_bytes()[..]));
        }
        client.write_all(&data(3, b"second", true)).await.unwrap();
        client.write_all(&data(1, b"first", false)).await.unwrap();
        assert_eq!(second.reader.next().await.unwrap(), "second");
        assert_eq!(second.reader.next().await, None);
        assert_eq!(first.reader.next().await.unwrap(), "first");
        second.writer.send("still".into()).await.unwrap();
        second.writer.finish().await.unwrap();
        assert_eq!(read(&mut client).await, (3, 0, b"still".to_vec()));
        assert_eq!(read(&mut client).await, (3, 1, Vec::new()));
        first.writer.reset().await.unwrap();
        let (kind, _, payload) = read(&mut client).await;
        assert_eq!((kind, payload[3], payload[7]), (0x8003_0003, 1, 5));
        drop(session);
        // The other half of the first stream does not keep the session open.
        let (kind, _, payload) = read(&mut client).await;
        assert_eq!((kind, payload[3]), (0x8003_0007, 3), "GOAWAY");
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        drop(client);
        assert_eq!(first.reader.next().await, None);
    };
    let (driven, ()) = tokio::join!(driver, test);
    driven.unwrap();
}

#[tokio::test]
async fn pings_are_answered_and_unknown_frames_ignored() {
    let (mut client, server) = duplex(1 << 20);
    let (driver, session) = serve(server);
    let test = async move {
        // SETTINGS, WINDOW_UPDATE, data of no stream.
        client
            .write_all(&[0x80, 3, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0])
            .await
            .unwrap();
        let window = [0x80, 3, 0, 9, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 1];
        client.write_all(&window).await.unwrap();
        client.write_all(&data(99, b"nobody", false)).await.unwrap();
        client.write_all(&frame::ping(41)).await.unwrap();
        assert_eq!(read(&mut client).await, (0x8003_0006, 0, vec![0, 0, 0, 41]));
        drop((client, session));
    };
    let (driven, ()) = tokio::join!(driver, test);
    // The client is gone before it was told of the end.
    assert!(matches!(driven, Err(SpdyError::Io(_))), "{driven:?}");
}

#[tokio::test]
async fn the_end_of_the_connection_ends_streams() {
    let (mut client, server) = duplex(1 << 20);
    let (driver, mut session) = serve(server);
    let test = async move {
        client.write_all(&open(1)).await.unwrap();
        let mut stream = session.accept().await.unwrap();
        drop(client);
        assert_eq!(stream.reader.next().await, None);
        assert!(session.accept().await.is_none());
        // The first finds out; later ones know.
        _ = stream.writer.send("x".into()).await;
        while stream.writer.send("x".into()).await.is_ok() {}
    };
    let (driven, ()) = tokio::join!(driver, test);
    assert!(driven.is_err());
}

#[tokio::test]
async fn numbers_that_do_not_increase_end_the_session() {
    for (first, second) in [(1, 1), (3, 1), (1, 2)] {
        let (mut client, server) = duplex(1 << 20);
        let (driver, mut session) = serve(server);
        let test = async move {
            // The first block of the session is whole, whatever the number.
            let mut opened = open(1);
            opened[11] = first;
            client.write_all(&opened).await.unwrap();
            client.write_all(&open(second)).await.unwrap_or_default();
            while session.accept().await.is_some() {}
            drop(session);
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
        };
        let (driven, ()) = tokio::join!(driver, test);
        let error = driven.unwrap_err();
        assert!(
            matches!(error, SpdyError::Number(_) | SpdyError::Headers),
            "{error}"
        );
    }
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused() {
    let (mut client, server) = duplex(1 << 20);
    let (driver, mut session) = serve(server);
    let test = async move {
        let last = u32::try_from(MAX_STREAMS).unwrap() * 2 + 1;
        let mut streams = Vec::new();
        for id in (1..=last).step_by(2) {
            client.write_all(&open(id)).await.unwrap();
            let (kind, _, payload) = read(&mut client).await;
            if id == last {
                assert_eq!((kind, payload[7]), (0x8003_0003, 3), "refused");
            } else {
                assert_eq!(kind, 0x8003_0002);
                streams.push(session.accept().await.unwrap());
            }
        }
        streams.pop();
        client.write_all(&open(last + 2)).await.unwrap();
        assert_eq!(
            read(&mut client).await.0,
            0x8003_0002,
            "there is room again"
        );
        drop((streams, session));
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
    };
    let (driven, ()) = tokio::join!(driver, test);
    driven.unwrap();
}
