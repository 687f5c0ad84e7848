//! The kernel's table of connections.

use netlink_packet_core::{DefaultNla, Emitable as _, NLM_F_ACK, NLM_F_REQUEST};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    conntrack::{ConntrackAttribute, ConntrackMessage, ProtoTuple, Protocol, Tuple},
};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{
    NetlinkError,
    socket::{Connection, Outgoing},
};

/// Forgets the UDP flows of a family that were sent to one of these ports, so that their next packets find
/// the rules of now. Returns how many there were.
///
/// # Errors
/// [`NetlinkError`].
pub fn forget_udp(is_v4: bool, ports: &[u16]) -> Result<usize, NetlinkError> {
    if ports.is_empty() {
        return Ok(0); // Not even a socket: most pods map TCP.
    }
    let family = if is_v4 {
        NetfilterProtoFamily::IPv4
    } else {
        NetfilterProtoFamily::IPv6
    };
    let message =
        |inner: ConntrackMessage| NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), inner);
    let mut socket = Connection::<NetfilterMessage>::open(NETLINK_NETFILTER)?;
    let mut forgotten = 0;
    for port in ports {
        let towards = message(ConntrackMessage::Get(filter(*port)));
        for found in socket.dump("list connections", &towards)? {
            let Some(tuple) = udp_towards(found, *port) else {
                continue;
            };
            let delete = ConntrackMessage::Delete(vec![ConntrackAttribute::CtaTupleOrig(tuple)]);
            let delete = Outgoing {
                attempt: "forget a UDP flow".to_owned(),
                message: message(delete),
                flags: NLM_F_REQUEST | NLM_F_ACK,
            };
            match socket.transact(vec![delete]) {
                Err(error) if error.is_not_found() => {} // It has ended by itself.
                other => {
                    other?;
                    forgotten += 1;
                }
            }
        }
    }
    Ok(forgotten)
}

/// Lets the kernel (5.8) leave out other flows, of which there may be hundreds of thousands; an older one
/// passes over this.
fn filter(port: u16) -> Vec<ConntrackAttribute> {
    const CTA_FILTER: u16 = 25;
    const NESTED: u16 = 1 << 15;
    const ORIG_FLAGS: u16 = 1;
    const PROTOCOL_AND_DESTINATION_PORT: u32 = 1 << 3 | 1 << 5;
    let flags = DefaultNla::new(
        ORIG_FLAGS,
        PROTOCOL_AND_DESTINATION_PORT.to_ne_bytes().to_vec(),
    );
    let mut nested = vec![0; flags.buffer_len()];
    flags.emit(&mut nested);
    let protocol = vec![
        ProtoTuple::Protocol(Protocol::Udp),
        ProtoTuple::DestinationPort(port),
    ];
    vec![
        ConntrackAttribute::CtaTupleOrig(vec![Tuple::Proto(protocol)]),
        ConntrackAttribute::Other(DefaultNla::new(CTA_FILTER | NESTED, nested)),
    ]
}

/// The flow's first direction, if it is UDP and goes to the port.
fn udp_towards(message: NetfilterMessage, port: u16) -> Option<Vec<Tuple>> {
    let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) = message.inner else {
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
    let wanted = [
        ProtoTuple::Protocol(Protocol::Udp),
        ProtoTuple::DestinationPort(port),
    ];
    wanted
        .iter()
        .all(|part| protocol.contains(part))
        .then_some(tuple)
}
