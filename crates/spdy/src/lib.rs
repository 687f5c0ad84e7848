//! The server's side of a SPDY/3.1 session, on a connection that HTTP/1.1 has upgraded: what
//! Kubernetes has for exec, attach and port-forward between its API server, kubelets and runtimes.
//!
//! The client opens streams and the server accepts them. As between all of Kubernetes' programs
//! there is no flow control by frames: a client that sends more than is read is stopped by its
//! connection, with all of its streams. Streams of the server, priorities and settings do not
//! occur, and are not here.
//!
//! This crate never opens a connection, and knows nothing of Kubernetes. Start reading at
//! [`serve`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod dictionary;
mod frame;
mod headers;
mod session;

pub use headers::Headers;
pub use session::{Session, SessionClosed, SpdyError, Stream, StreamReader, StreamWriter, serve};
