//! Frames (SPDY/3.1 §2.2): eight bytes, and then a payload.

use crate::SpdyError;

/// The length of the part before the payload.
pub(crate) const HEAD: usize = 8;
/// The longest payload of a control frame.
const MAX_CONTROL: u32 = 64 << 10;
/// The first bit of a control frame, and the version.
const CONTROL: u16 = 0x8003;
/// A flag of frames: the sender has no more for the stream.
const FIN: u8 = 1;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;

/// The status of RST_STREAM for a stream that is not accepted.
pub(crate) const REFUSED_STREAM: u32 = 3;
/// The status of RST_STREAM for a stream that nobody needs any more.
pub(crate) const CANCEL: u32 = 5;

/// The first eight bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameHead {
    /// Data of a stream.
    Data {
        stream: u32,
        length: u32,
        is_last: bool,
    },
    /// A control frame.
    Control {
        kind: u16,
        is_last: bool,
        length: u32,
    },
}

impl FrameHead {
    pub(crate) fn parse(head: [u8; HEAD]) -> Result<Self, SpdyError> {
        let [a, b, c, d, flags, e, f, g] = head;
        let length = u32::from_be_bytes([0, e, f, g]);
        let is_last = flags & FIN != 0;
        if a & 0x80 == 0 {
            let stream = u32::from_be_bytes([a, b, c, d]);
            return Ok(Self::Data {
                stream,
                length,
                is_last,
            });
        }
        if u16::from_be_bytes([a, b]) != CONTROL {
            return Err(SpdyError::Version(u16::from_be_bytes([a & 0x7f, b])));
        }
        if length > MAX_CONTROL {
            return Err(SpdyError::TooLong(length));
        }
        let kind = u16::from_be_bytes([c, d]);
        Ok(Self::Control {
            kind,
            is_last,
            length,
        })
    }
}

/// A control frame of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control<'a> {
    /// Opens a stream, with compressed headers.
    Open { stream: u32, headers: &'a [u8] },
    /// More headers, whose compression has to be followed.
    Headers(&'a [u8]),
    /// Ends a stream.
    Reset { stream: u32 },
    /// Asks for the same frame.
    Ping(u32),
    /// Opens no more streams.
    GoAway,
    /// Settings, windows, and what a later version may have.
    Other,
}

impl<'a> Control<'a> {
    pub(crate) fn parse(kind: u16, payload: &'a [u8]) -> Result<Self, SpdyError> {
        let number = |at: usize| -> Result<u32, SpdyError> {
            let bytes = payload.get(at..at + 4).and_then(|part| part.first_chunk());
            let bytes = bytes.ok_or(SpdyError::TooShort(kind))?;
            Ok(u32::from_be_bytes(*bytes) & 0x7fff_ffff)
        };
        let after = |at: usize| payload.get(at..).ok_or(SpdyError::TooShort(kind));
        Ok(match kind {
            // Behind the stream: an associated stream, the priority, and a slot.
            SYN_STREAM => Self::Open {
                stream: number(0)?,
                headers: after(10)?,
            },
            SYN_REPLY | HEADERS => Self::Headers(after(4)?),
            RST_STREAM => Self::Reset { stream: number(0)? },
            PING => {
                let bytes = payload.first_chunk().ok_or(SpdyError::TooShort(kind))?;
                Self::Ping(u32::from_be_bytes(*bytes))
            }
            GOAWAY => Self::GoAway,
            _ => Self::Other,
        })
    }
}

fn control(kind: u16, payload: &[&[u8]]) -> Vec<u8> {
    let length: usize = payload.iter().map(|part| part.len()).sum();
    let length = u32::try_from(length).expect("our control frames are short");
    let mut frame = Vec::with_capacity(HEAD + 32);
    frame.extend_from_slice(&CONTROL.to_be_bytes());
    frame.extend_from_slice(&kind.to_be_bytes());
    frame.extend_from_slice(&length.to_be_bytes());
    for part in payload {
        frame.extend_from_slice(part);
    }
    frame
}

/// Accepts a stream.
pub(crate) fn reply(stream: u32, headers: &[u8]) -> Vec<u8> {
    control(SYN_REPLY, &[&stream.to_be_bytes(), headers])
}

/// Ends a stream.
pub(crate) fn reset(stream: u32, status: u32) -> Vec<u8> {
    control(RST_STREAM, &[&stream.to_be_bytes(), &status.to_be_bytes()])
}

/// Answers a ping.
pub(crate) fn ping(id: u32) -> Vec<u8> {
    control(PING, &[&id.to_be_bytes()])
}

/// Ends the session, without an error; `last` is the last stream that was accepted.
pub(crate) fn go_away(last: u32) -> Vec<u8> {
    control(GOAWAY, &[&last.to_be_bytes(), &0_u32.to_be_bytes()])
}

/// The longest payload of a data frame.
pub(crate) const MAX_DATA: usize = (1 << 24) - 1;

/// The first eight bytes of a data frame. `length` is at most [`MAX_DATA`].
pub(crate) fn data_head(stream: u32, length: usize, is_last: bool) -> [u8; HEAD] {
    let length = u32::try_from(length).expect("the caller splits data");
    let [a, b, c, d] = stream.to_be_bytes();
    let [_, e, f, g] = length.to_be_bytes();
    [a, b, c, d, u8::from(is_last), e, f, g]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_bytes_of_the_specification() {
        assert_eq!(ping(7), [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 7]);
        assert_eq!(
            reset(1, REFUSED_STREAM),
            [0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 3]
        );
        assert_eq!(data_head(5, 0x01_02_03, true), [0, 0, 0, 5, 1, 1, 2, 3]);
        let head = FrameHead::parse([0, 0, 0, 5, 1, 1, 2, 3]).unwrap();
        let want = FrameHead::Data {
            stream: 5,
            length: 0x01_02_03,
            is_last: true,
        };
        assert_eq!(head, want);
    }

    #[test]
    fn refuses_other_versions_and_frames_that_are_too_long_or_short() {
        let version = FrameHead::parse([0x80, 2, 0, 1, 0, 0, 0, 0]).unwrap_err();
        assert!(matches!(version, SpdyError::Version(2)), "{version}");
        let long = FrameHead::parse([0x80, 3, 0, 1, 0, 2, 0, 0]).unwrap_err();
        assert!(matches!(long, SpdyError::TooLong(_)), "{long}");
        for kind in [SYN_STREAM, SYN_REPLY, RST_STREAM, PING, HEADERS] {
            assert!(Control::parse(kind, &[0, 0, 0]).is_err(), "{kind}");
        }
        assert_eq!(Control::parse(4, &[]).unwrap(), Control::Other, "SETTINGS");
    }
}
