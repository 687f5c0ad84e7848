//! The kernel's table of connections.

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable,
    NetlinkHeader, NetlinkSerializable, Nla,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    conntrack::{ConntrackAttribute, ConntrackMessage, ProtoTuple, Protocol, Tuple},
};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{
    NetlinkError,
    socket::{Connection, OutgoingMessage},
};
use crate::limit::KernelLimit;

/// Deletes the UDP flows of a family that were sent to one of these ports, so that their next
/// packets meet the present rules. Returns the number of deleted flows.
///
/// # Errors
/// [`NetlinkError`].
pub fn forget_udp(is_v4: bool, ports: &[u16]) -> Result<usize, NetlinkError> {
    if ports.is_empty() {
        return Ok(0); // Not even a socket: most callers have none.
    }
    let family = if is_v4 {
        NetfilterProtoFamily::IPv4
    } else {
        NetfilterProtoFamily::IPv6
    };
    let message =
        |inner: ConntrackMessage| NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), inner);
    let mut socket = Connection::<FilteredDump>::open(NETLINK_NETFILTER)?;
    let mut forgotten = 0;
    for port in ports {
        let tuple = ConntrackAttribute::CtaTupleOrig(vec![Tuple::Proto(udp_to(*port))]);
        let towards = FilteredDump {
            message: message(ConntrackMessage::Get(vec![tuple])),
            filter: Some(FlowFilter),
        };
        for found in socket.dump("list connections", &towards)? {
            let Some(tuple) = udp_towards(found, *port) else {
                continue;
            };
            let delete = ConntrackMessage::Delete(vec![ConntrackAttribute::CtaTupleOrig(tuple)]);
            let delete = OutgoingMessage {
                attempt: "forget a UDP flow".to_owned(),
                limited: KernelLimit::Links,
                message: message(delete).into(),
                flags: NLM_F_REQUEST | NLM_F_ACK,
            };
            match socket.transact(vec![delete]) {
                Err(error) if error.is_not_found() => {} // The flow has ended by itself.
                other => {
                    other?;
                    forgotten += 1;
                }
            }
        }
    }
    Ok(forgotten)
}

/// A message with an optional filter.
#[derive(Debug, Clone)]
struct FilteredDump {
    message: NetfilterMessage,
    filter: Option<FlowFilter>,
}

impl From<NetfilterMessage> for FilteredDump {
    fn from(message: NetfilterMessage) -> Self {
        Self {
            message,
            filter: None,
        }
    }
}

impl NetlinkSerializable for FilteredDump {
    fn message_type(&self) -> u16 {
        self.message.message_type()
    }

    fn buffer_len(&self) -> usize {
        Emitable::buffer_len(&self.message) + self.filter.map_or(0, |filter| filter.buffer_len())
    }

    fn serialize(&self, buffer: &mut [u8]) {
        let (message, filter) = buffer.split_at_mut(Emitable::buffer_len(&self.message));
        self.message.serialize(message);
        if let Some(attribute) = self.filter {
            attribute.emit(filter);
        }
    }
}

impl NetlinkDeserializable for FilteredDump {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        NetfilterMessage::deserialize(header, payload).map(Self::from)
    }
}

/// `CTA_FILTER` for protocol and destination port of the first direction. Since 5.8 it makes the
/// kernel leave out other flows, of which there may be hundreds of thousands; an older kernel
/// ignores it.
#[derive(Debug, Clone, Copy)]
struct FlowFilter;

impl FlowFilter {
    fn flags() -> DefaultNla {
        const ORIG_FLAGS: u16 = 1;
        const PROTOCOL_AND_DESTINATION_PORT: u32 = 1 << 3 | 1 << 5;
        let flags = PROTOCOL_AND_DESTINATION_PORT.to_ne_bytes();
        DefaultNla::new(ORIG_FLAGS, flags.to_vec())
    }
}

impl Nla for FlowFilter {
    fn value_len(&self) -> usize {
        Self::flags().buffer_len()
    }

    fn kind(&self) -> u16 {
        25
    }

    fn is_nested(&self) -> bool {
        true
    }

    fn emit_value(&self, buffer: &mut [u8]) {
        Self::flags().emit(buffer);
    }
}

fn udp_to(port: u16) -> Vec<ProtoTuple> {
    vec![
        ProtoTuple::Protocol(Protocol::Udp),
        ProtoTuple::DestinationPort(port),
    ]
}

/// The flow's first direction, if it is UDP and goes to the port.
fn udp_towards(message: FilteredDump, port: u16) -> Option<Vec<Tuple>> {
    let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) = message.message.inner
    else {
        return None;
    };
    let tuple = attributes
        .into_iter()
        .find_map(|attribute| match attribute {
            ConntrackAttribute::CtaTupleOrig(tuple) => Some(tuple),
            _ => None,
        })?;
    let protocol = tuple.iter().find_map(|part| match part {
        Tuple::Proto(protocol) => Some(protocol),
        _ => None,
    })?;
    let wanted = udp_to(port);
    wanted
        .iter()
        .all(|part| protocol.contains(part))
        .then_some(tuple)
}
