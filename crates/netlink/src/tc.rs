//! Traffic control: token buckets on links, and redirection of incoming packets.

use std::fmt;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_CREATE, NLM_F_EXCL, NetlinkDeserializable,
    NetlinkHeader, NetlinkSerializable, NlasIterator,
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    tc::{
        TcAction, TcActionAttribute, TcActionMirror, TcActionMirrorOption, TcActionOption,
        TcActionType, TcAttribute, TcFilterU32, TcFilterU32Option, TcHandle, TcHeader, TcMessage,
        TcMirror, TcMirrorActionType, TcOption, TcU32Key, TcU32Selector, TcU32SelectorFlags,
    },
};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::{NetlinkError, Request, socket::Connection};

/// The kernel's name of the token bucket discipline.
const TOKEN_BUCKET: &str = "tbf";

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;

/// The handle of a token bucket at the root.
const FIRST: TcHandle = TcHandle { major: 1, minor: 0 };

/// The handle of the discipline with the filters of incoming packets.
const INGRESS: TcHandle = TcHandle {
    major: 0xffff,
    minor: 0,
};

/// The parameters of a token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// The rate in bytes per second.
    pub rate: u64,
    /// The number of bytes that may wait to be sent.
    pub limit: u32,
    /// The burst, as the time that it takes at the rate, in the kernel's ticks.
    pub buffer: u32,
}

impl TokenBucket {
    /// The length of `struct tc_tbf_qopt` of `linux/pkt_sched.h`: two rates of twelve bytes, of
    /// which the second one is not used, then three numbers.
    const LENGTH: usize = 36;
    const RATE: usize = 8;
    const LIMIT: usize = 24;
    const BUFFER: usize = 28;

    fn options(self) -> Vec<TcOption> {
        let mut bytes = [0; Self::LENGTH];
        let low = self.rate & u64::from(u32::MAX);
        let low = u32::try_from(low).unwrap_or_default();
        for (at, number) in [
            (Self::RATE, low.to_ne_bytes()),
            (Self::LIMIT, self.limit.to_ne_bytes()),
            (Self::BUFFER, self.buffer.to_ne_bytes()),
        ] {
            bytes[at..at + 4].copy_from_slice(&number);
        }
        let mut options = vec![TcOption::Other(DefaultNla::new(
            TCA_TBF_PARMS,
            bytes.to_vec(),
        ))];
        if u32::try_from(self.rate).is_err() {
            let rate = self.rate.to_ne_bytes().to_vec();
            options.push(TcOption::Other(DefaultNla::new(TCA_TBF_RATE64, rate)));
        }
        options
    }

    fn decode(options: &[u8]) -> Option<Self> {
        let mut bucket = None;
        let mut wide = None;
        for (kind, value) in attributes(options).ok()? {
            match kind {
                TCA_TBF_PARMS => {
                    let number = |at: usize| {
                        let bytes = value.get(at..at + 4)?;
                        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
                    };
                    bucket = Some(Self {
                        rate: number(Self::RATE)?.into(),
                        limit: number(Self::LIMIT)?,
                        buffer: number(Self::BUFFER)?,
                    });
                }
                TCA_TBF_RATE64 => {
                    wide = Some(u64::from_ne_bytes(value.get(..8)?.try_into().ok()?));
                }
                _ => {}
            }
        }
        let bucket = bucket?;
        Some(Self {
            rate: wide.unwrap_or(bucket.rate),
            ..bucket
        })
    }
}

/// The queueing discipline at the root of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootQdisc {
    /// `tbf`, `fq_codel`, …
    pub kind: String,
    /// The parameters of a token bucket; `None` for other kinds.
    pub bucket: Option<TokenBucket>,
}

impl Request {
    /// Makes an intermediate functional block and sets it up: a link through which the incoming
    /// packets of another link can be sent. It has no queue of its own.
    #[must_use]
    pub fn create_ifb(name: &str, mtu: u32) -> Self {
        let mut message = LinkMessage::default();
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::TxQueueLen(0),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Ifb)]),
        ];
        Self::new(
            format_args!("create ifb {name}"),
            RouteNetlinkMessage::NewLink(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Sets the alias of the link of that name: a text for people, of less than 256 bytes.
    #[must_use]
    pub fn alias(name: &str, alias: &str) -> Self {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::IfAlias(alias.to_owned()),
        ];
        Self::new(
            format_args!("set alias {alias} on link {name}"),
            RouteNetlinkMessage::SetLink(message),
            0,
        )
    }

    /// Limits the traffic that a link sends.
    #[must_use]
    pub fn create_token_bucket(index: u32, bucket: TokenBucket) -> Self {
        let attributes = vec![
            TcAttribute::Kind(TOKEN_BUCKET.to_owned()),
            TcAttribute::Options(bucket.options()),
        ];
        let TokenBucket { rate, limit, .. } = bucket;
        let attempt =
            format_args!("limit link {index} to {rate} bytes/s with a queue of {limit} bytes");
        create_qdisc(attempt, header(index, TcHandle::ROOT, FIRST), attributes)
    }

    /// Removes the limit made by [`create_token_bucket`](Self::create_token_bucket).
    #[must_use]
    pub fn delete_token_bucket(index: u32) -> Self {
        let attempt = format_args!("delete the limit of link {index}");
        delete_qdisc(attempt, header(index, TcHandle::ROOT, FIRST))
    }

    /// Adds the discipline that filters a link's incoming packets.
    #[must_use]
    pub fn create_ingress(index: u32) -> Self {
        let kind = TcAttribute::Kind("ingress".to_owned());
        let attempt = format_args!("create ingress qdisc of link {index}");
        let header = header(index, TcHandle::INGRESS, INGRESS);
        create_qdisc(attempt, header, vec![kind])
    }

    /// Removes the filters of incoming packets.
    #[must_use]
    pub fn delete_ingress(index: u32) -> Self {
        let attempt = format_args!("delete ingress qdisc of link {index}");
        delete_qdisc(attempt, header(index, TcHandle::INGRESS, INGRESS))
    }

    /// Redirects all incoming packets of a link to another link, which sends them back after its
    /// queue.
    #[must_use]
    pub fn redirect_ingress(index: u32, to: u32) -> Self {
        const PRIORITY: u16 = 1;
        /// `ETH_P_ALL`.
        const EVERY_PROTOCOL: u16 = 3;
        let mut selector = TcU32Selector::default();
        selector.flags = TcU32SelectorFlags::Terminal;
        selector.nkeys = 1;
        selector.keys = vec![TcU32Key::default()]; // Matches everything.
        let mut redirect = TcMirror::default();
        redirect.generic.action = TcActionType::Stolen;
        redirect.eaction = TcMirrorActionType::EgressRedir;
        redirect.ifindex = to;
        let mut action = TcAction::default();
        action.attributes = vec![
            TcActionAttribute::Kind(TcActionMirror::KIND.to_owned()),
            TcActionAttribute::Options(vec![TcActionOption::Mirror(TcActionMirrorOption::Parms(
                redirect,
            ))]),
        ];
        let mut message = TcMessage::default();
        message.header = header(index, INGRESS, TcHandle::UNSPEC);
        message.header.info = u32::from(TcHandle {
            major: PRIORITY,
            minor: EVERY_PROTOCOL.to_be(),
        });
        message.attributes = vec![
            TcAttribute::Kind(TcFilterU32::KIND.to_owned()),
            TcAttribute::Options(vec![
                TcOption::U32(TcFilterU32Option::Selector(selector)),
                TcOption::U32(TcFilterU32Option::ClassId(TcHandle { major: 1, minor: 1 })),
                TcOption::U32(TcFilterU32Option::Action(vec![action])),
            ]),
        ];
        Self::new(
            format_args!("redirect what comes in by link {index} to link {to}"),
            RouteNetlinkMessage::NewTrafficFilter(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }
}

fn header(index: u32, parent: TcHandle, handle: TcHandle) -> TcHeader {
    TcHeader {
        // The kernel numbers links by positive 32-bit integers.
        index: i32::try_from(index).unwrap_or_default(),
        handle,
        parent,
        ..TcHeader::default()
    }
}

fn create_qdisc(
    attempt: impl fmt::Display,
    header: TcHeader,
    attributes: Vec<TcAttribute>,
) -> Request {
    let message = TcMessage::from_parts(header, attributes);
    Request::new(
        attempt,
        RouteNetlinkMessage::NewQueueDiscipline(message),
        NLM_F_CREATE | NLM_F_EXCL,
    )
}

fn delete_qdisc(attempt: impl fmt::Display, header: TcHeader) -> Request {
    let message = TcMessage::from_parts(header, Vec::new());
    Request::new(attempt, RouteNetlinkMessage::DelQueueDiscipline(message), 0)
}

/// The discipline at the root of a link of the calling thread's namespace. `None` if the kernel
/// does not list one, as for a link without a queue.
///
/// # Errors
/// [`NetlinkError`].
pub fn root_qdisc(index: u32) -> Result<Option<RootQdisc>, NetlinkError> {
    let mut socket = Connection::<Qdisc>::open(NETLINK_ROUTE)?;
    // The kernel lists the disciplines of all links, whatever the query.
    let query = Qdisc::default();
    let found = socket.dump("list queueing disciplines", &query)?;
    let mut found = found.into_iter();
    let of_link = found.find(|qdisc| {
        let TcHeader {
            index: at, parent, ..
        } = qdisc.header;
        u32::try_from(at) == Ok(index) && parent == TcHandle::ROOT
    });
    Ok(of_link.map(|qdisc| {
        let Qdisc { kind, options, .. } = qdisc;
        let is_bucket = kind == TOKEN_BUCKET;
        RootQdisc {
            bucket: TokenBucket::decode(&options).filter(|_| is_bucket),
            kind,
        }
    }))
}

/// The relevant part of a discipline. The kernel also lists those of other links, of kinds that the
/// library of messages may not understand.
#[derive(Debug, Clone, Default)]
struct Qdisc {
    header: TcHeader,
    kind: String,
    options: Vec<u8>,
}

impl NetlinkSerializable for Qdisc {
    fn message_type(&self) -> u16 {
        const RTM_GETQDISC: u16 = 38;
        RTM_GETQDISC
    }

    fn buffer_len(&self) -> usize {
        self.header.buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        self.header.emit(buffer);
    }
}

impl NetlinkDeserializable for Qdisc {
    type Error = DecodeError;

    fn deserialize(_: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let header = TcHeader::parse(payload)?;
        let rest = payload.get(header.buffer_len()..).unwrap_or_default();
        let mut qdisc = Self {
            header,
            ..Self::default()
        };
        for (kind, value) in attributes(rest)? {
            match kind {
                TCA_KIND => {
                    let text = String::from_utf8_lossy(&value);
                    text.trim_end_matches('\0').clone_into(&mut qdisc.kind);
                }
                TCA_OPTIONS => qdisc.options = value,
                _ => {}
            }
        }
        Ok(qdisc)
    }
}

fn attributes(bytes: &[u8]) -> Result<Vec<(u16, Vec<u8>)>, DecodeError> {
    let found = NlasIterator::new(bytes).map(|attribute| {
        let attribute = attribute?;
        Ok((attribute.kind(), attribute.value().to_vec()))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_buckets_round_trip() {
        for rate in [1, u64::from(u32::MAX), 1 << 32, u64::MAX] {
            let bucket = TokenBucket {
                rate,
                limit: 7,
                buffer: 9,
            };
            let options = bucket.options();
            let mut bytes = vec![0; options.as_slice().buffer_len()];
            options.as_slice().emit(&mut bytes);
            assert_eq!(TokenBucket::decode(&bytes), Some(bucket));
        }
        assert_eq!(TokenBucket::decode(&[8, 0, 1, 0, 1, 2, 3, 4]), None);
    }
}
