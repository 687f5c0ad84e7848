//! The sockets of a listener: its port on both loopback addresses.
//!
//! Browsers resolve names under `.localhost` to `::1` and to 127.0.0.1 (RFC 6761, section 6.3),
//! some the former first. With one of them alone, another user could listen on the other, and be
//! sent the token and the cookie.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::Context as _;
use tokio::net::TcpListener;

/// The most attempts to find a port that is free on both addresses.
const ATTEMPTS: usize = 16;

/// Listens on a port of 127.0.0.1 and, if this machine has IPv6, of `::1`; on any free one if none
/// is given.
///
/// # Errors
///
/// The port is in use, or cannot be used.
pub(super) async fn bind(port: Option<u16>) -> anyhow::Result<(u16, Vec<TcpListener>)> {
    let mut left = match port {
        Some(_) => 1,
        None => ATTEMPTS,
    };
    loop {
        left -= 1;
        let v4 = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap_or(0)))).await?;
        let found = v4.local_addr()?.port();
        match listen(SocketAddr::from((Ipv6Addr::LOCALHOST, found))).await {
            Ok(v6) => return Ok((found, vec![v4, v6])),
            Err(error) if has_no_ipv6(&error) => return Ok((found, vec![v4])),
            Err(error) if left == 0 => return Err(error),
            Err(_in_use) => {}
        }
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listening = TcpListener::bind(address).await;
    listening.with_context(|| format!("failed to listen on {address}"))
}

/// Returns true if the machine, or its loopback interface, has no IPv6.
fn has_no_ipv6(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| {
        error.kind() == io::ErrorKind::AddrNotAvailable
            || rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::AFNOSUPPORT)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_is_ours_on_both_loopback_addresses() {
        let (port, listeners) = bind(None).await.unwrap();
        for listener in &listeners {
            let address = listener.local_addr().unwrap();
            assert!(
                address.ip().is_loopback() && address.port() == port,
                "{address}"
            );
            assert!(listen(address).await.is_err());
        }
        assert_eq!(
            listeners.len(),
            2,
            "this test needs IPv6 on the loopback interface"
        );
    }

    #[tokio::test]
    async fn a_port_that_another_has_on_one_address_is_refused() {
        let address = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
        let other = listen(address).await;
        let other = other.expect("this test needs IPv6 on the loopback interface");
        let port = other.local_addr().unwrap().port();
        let error = bind(Some(port)).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("failed to listen on [::1]:{port}")
        );
    }
}
