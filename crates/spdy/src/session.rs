//! Sessions and streams.

use std::{collections::HashMap, io, sync::Arc};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};

use crate::{
    Headers,
    frame::{self, CANCEL, Control, FrameHead, HEAD, MAX_DATA, REFUSED_STREAM},
    headers::{HeaderReader, HeaderWriter},
};

/// The largest number of streams at once; others are refused. A forwarded connection has two.
const MAX_STREAMS: usize = 512;
/// Data of a stream that was not read yet, in pieces. When there is more, the session waits.
const BACKLOG: usize = 16;
const PIECE: usize = 16 << 10;
/// Frames that were not sent yet. When there are more, writers wait.
const OUTGOING: usize = 16;

/// The reason why a session ended early.
#[derive(Debug, thiserror::Error)]
pub enum SpdyError {
    /// The connection failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The client has another version of SPDY.
    #[error("version {0} of SPDY is not supported: only 3")]
    Version(u16),
    /// A control frame is too long.
    #[error("a control frame has {0} bytes, which is too long")]
    TooLong(u32),
    /// A control frame is too short.
    #[error("a control frame of type {0} is too short")]
    TooShort(u16),
    /// A block of headers cannot be read.
    #[error("a block of headers is damaged, or too long")]
    Headers,
    /// A stream has the number of an earlier one, or one of the server's.
    #[error("stream {0} cannot be opened: numbers are odd, and increase")]
    Number(u32),
}

/// The session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session has ended")]
pub struct SessionClosed;

/// Serves a session on a connection. The future moves the frames, and has to be polled; it ends
/// when the client closes the connection. The session ends when the [`Session`] and all its streams
/// are dropped: the client is told so then.
///
/// # Errors
///
/// Of the future: [`SpdyError`]. Streams and session end then as if the client had closed the
/// connection.
pub fn serve<T: AsyncRead + AsyncWrite>(
    connection: T,
) -> (impl Future<Output = Result<(), SpdyError>>, Session) {
    let (accepted, incoming) = mpsc::channel(MAX_STREAMS);
    let (outgoing, frames) = mpsc::channel(OUTGOING);
    let reader = SessionReader {
        headers: HeaderReader::new(),
        streams: HashMap::new(),
        last: 0,
        free: Arc::new(Semaphore::new(MAX_STREAMS)),
        accepted,
        outgoing: outgoing.downgrade(),
    };
    let driver = async move {
        let (read, write) = tokio::io::split(connection);
        let write = async {
            let written = write_frames(write, frames).await;
            written.map_err(SpdyError::Io)
        };
        let (read, written) = tokio::join!(reader.run(read), write);
        read.and(written)
    };
    (driver, Session { incoming, outgoing })
}

/// A session: the client's new streams.
#[derive(Debug)]
pub struct Session {
    incoming: mpsc::Receiver<Stream>,
    /// Keeps the session open.
    #[expect(dead_code, reason = "held for its drop")]
    outgoing: mpsc::Sender<Outgoing>,
}

impl Session {
    /// The next stream; `None` once the client has closed the connection.
    ///
    /// # Cancel safety
    ///
    /// No stream is lost.
    pub async fn accept(&mut self) -> Option<Stream> {
        self.incoming.recv().await
    }
}

/// A stream that the client has opened.
#[derive(Debug)]
pub struct Stream {
    /// The headers that it was opened with.
    pub headers: Headers,
    /// Data from the client.
    pub reader: StreamReader,
    /// Data to the client.
    pub writer: StreamWriter,
}

/// The receiving half of a stream. When it is dropped, what the client still sends is thrown away.
#[derive(Debug)]
pub struct StreamReader(mpsc::Receiver<Bytes>);

impl StreamReader {
    /// The next data; `None` once the client has finished or reset the stream, or is gone.
    ///
    /// # Cancel safety
    ///
    /// No data is lost.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.0.recv().await
    }
}

/// The sending half of a stream.
#[derive(Debug)]
pub struct StreamWriter {
    id: u32,
    outgoing: mpsc::Sender<Outgoing>,
    _slot: OwnedSemaphorePermit,
}

impl StreamWriter {
    /// Sends data.
    ///
    /// # Errors
    ///
    /// [`SessionClosed`].
    pub async fn send(&self, data: Bytes) -> Result<(), SessionClosed> {
        self.put(Outgoing::Data {
            stream: self.id,
            data,
            is_last: false,
        })
        .await
    }

    /// Tells the client that no more data comes.
    ///
    /// # Errors
    ///
    /// [`SessionClosed`].
    pub async fn finish(self) -> Result<(), SessionClosed> {
        self.put(Outgoing::Data {
            stream: self.id,
            data: Bytes::new(),
            is_last: true,
        })
        .await
    }

    /// Ends the stream in both directions.
    ///
    /// # Errors
    ///
    /// [`SessionClosed`].
    pub async fn reset(self) -> Result<(), SessionClosed> {
        self.put(Outgoing::Reset {
            stream: self.id,
            status: CANCEL,
        })
        .await
    }

    async fn put(&self, frame: Outgoing) -> Result<(), SessionClosed> {
        let sent = self.outgoing.send(frame).await;
        sent.map_err(|_| SessionClosed)
    }
}

/// A frame for the client.
#[derive(Debug)]
enum Outgoing {
    Reply(u32),
    Reset {
        stream: u32,
        status: u32,
    },
    Ping(u32),
    Data {
        stream: u32,
        data: Bytes,
        is_last: bool,
    },
}

struct SessionReader {
    headers: HeaderReader,
    /// The streams that the client has not finished.
    streams: HashMap<u32, mpsc::Sender<Bytes>>,
    /// The last stream.
    last: u32,
    free: Arc<Semaphore>,
    accepted: mpsc::Sender<Stream>,
    /// Weak: what is read must not keep the session open.
    outgoing: mpsc::WeakSender<Outgoing>,
}

impl SessionReader {
    async fn run(mut self, mut connection: impl AsyncRead + Unpin) -> Result<(), SpdyError> {
        let mut payload = Vec::new();
        loop {
            let mut head = [0; HEAD];
            match connection.read_exact(&mut head).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                read => read?,
            };
            match FrameHead::parse(head)? {
                FrameHead::Data {
                    stream,
                    length,
                    is_last,
                } => {
                    self.data(&mut connection, stream, length).await?;
                    if is_last {
                        self.streams.remove(&stream);
                    }
                }
                FrameHead::Control {
                    kind,
                    is_last,
                    length,
                } => {
                    payload.resize(usize::try_from(length).unwrap_or(0), 0);
                    connection.read_exact(&mut payload).await?;
                    let frame = Control::parse(kind, &payload)?;
                    self.control(frame, is_last).await?;
                }
            }
        }
    }

    async fn data(
        &mut self,
        connection: &mut (impl AsyncRead + Unpin),
        stream: u32,
        length: u32,
    ) -> Result<(), SpdyError> {
        let mut rest = usize::try_from(length).unwrap_or(0);
        while rest > 0 {
            let mut piece = vec![0; rest.min(PIECE)];
            connection.read_exact(&mut piece).await?;
            rest -= piece.len();
            if let Some(reader) = self.streams.get(&stream)
                && reader.send(piece.into()).await.is_err()
            {
                self.streams.remove(&stream);
            }
        }
        Ok(())
    }

    async fn control(&mut self, frame: Control<'_>, is_last: bool) -> Result<(), SpdyError> {
        match frame {
            Control::Open { stream, headers } => {
                let headers = self.headers.read(headers)?;
                if stream % 2 == 0 || stream <= self.last {
                    return Err(SpdyError::Number(stream));
                }
                self.last = stream;
                self.open(stream, headers, is_last).await;
            }
            Control::Headers(block) => drop(self.headers.read(block)?),
            Control::Reset { stream } => drop(self.streams.remove(&stream)),
            Control::Ping(id) => self.answer(Outgoing::Ping(id)).await,
            Control::GoAway | Control::Other => {}
        }
        Ok(())
    }

    /// Accepts a stream, or refuses it.
    async fn open(&mut self, id: u32, headers: Headers, is_last: bool) {
        let Some(outgoing) = self.outgoing.upgrade() else {
            return;
        };
        if self.streams.len() >= MAX_STREAMS {
            // Those that nobody reads any more.
            self.streams.retain(|_, data| !data.is_closed());
        }
        let Ok(slot) = self.free.clone().try_acquire_owned() else {
            let status = REFUSED_STREAM;
            return self.answer(Outgoing::Reset { stream: id, status }).await;
        };
        self.answer(Outgoing::Reply(id)).await;
        let (data, reader) = mpsc::channel(BACKLOG);
        if !is_last {
            self.streams.insert(id, data);
        }
        let stream = Stream {
            headers,
            reader: StreamReader(reader),
            writer: StreamWriter {
                id,
                outgoing,
                _slot: slot,
            },
        };
        // There is room for all that are free; without anybody who accepts there is none.
        if self.accepted.try_send(stream).is_err() {
            self.streams.remove(&id);
        }
    }

    /// Queues a frame, if the session is still open.
    async fn answer(&self, frame: Outgoing) {
        if let Some(outgoing) = self.outgoing.upgrade() {
            _ = outgoing.send(frame).await;
        }
    }
}

/// Writes frames until there is nobody left who could have any, and says so then.
async fn write_frames(
    mut connection: impl AsyncWrite + Unpin,
    mut frames: mpsc::Receiver<Outgoing>,
) -> io::Result<()> {
    let mut headers = HeaderWriter::new();
    let mut last = 0;
    while let Some(frame) = frames.recv().await {
        match frame {
            Outgoing::Reply(stream) => {
                last = stream;
                let block = headers.write_empty().map_err(io::Error::other)?;
                connection.write_all(&frame::reply(stream, &block)).await?;
            }
            Outgoing::Reset { stream, status } => {
                connection.write_all(&frame::reset(stream, status)).await?;
            }
            Outgoing::Ping(id) => connection.write_all(&frame::ping(id)).await?,
            Outgoing::Data {
                stream,
                mut data,
                is_last,
            } => loop {
                let piece = data.split_to(data.len().min(MAX_DATA));
                let is_last = is_last && data.is_empty();
                let head = frame::data_head(stream, piece.len(), is_last);
                connection.write_all(&head).await?;
                connection.write_all(&piece).await?;
                if data.is_empty() {
                    break;
                }
            },
        }
        if frames.is_empty() {
            connection.flush().await?;
        }
    }
    connection.write_all(&frame::go_away(last)).await?;
    connection.shutdown().await
}

#[cfg(test)]
mod tests;
