use std::time::Duration;

use podplane_service_runtime::limits::ServerLimits;

use super::FlowLimits;

/// The limits of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct LimitFlags {
    /// Serve at most N requests at once, which users share by their priority levels; further ones
    /// wait up to 15 s for their turn; 0: no limit
    ///
    /// A list counts as one request for each 100 objects, up to 10. A watch counts only while it
    /// starts, and members of system:masters are not counted.
    #[arg(
        long,
        env = "PODPLANE_MAX_REQUESTS_INFLIGHT",
        value_name = "N",
        default_value_t = 600
    )]
    pub max_requests_inflight: u32,

    /// Let a user have at most N open watches, or an IP address without a user; 0: no limit
    #[arg(
        long,
        env = "PODPLANE_MAX_WATCHES_PER_USER",
        value_name = "N",
        default_value_t = 10_000
    )]
    pub max_watches_per_user: usize,

    /// Accept at most N connections; no more than three quarters of the files that the process may
    /// open
    #[arg(
        long,
        env = "PODPLANE_MAX_CONNECTIONS",
        value_name = "N",
        default_value_t = 10_000,
        value_parser = at_least_one
    )]
    pub max_connections: usize,

    /// Accept at most N connections of one IP address, of one IPv6 network of 64 bits, or of one
    /// user on a unix socket
    #[arg(
        long,
        env = "PODPLANE_MAX_CONNECTIONS_PER_CLIENT",
        value_name = "N",
        default_value_t = 5_000,
        value_parser = at_least_one
    )]
    pub max_connections_per_client: usize,

    /// Let an HTTP/2 connection have at most N open requests and watches, at least 16; seven of
    /// eight may be watches
    #[arg(
        long,
        env = "PODPLANE_HTTP2_MAX_STREAMS_PER_CONNECTION",
        value_name = "N",
        default_value_t = 2_000,
        value_parser = clap::value_parser!(u32).range(16..=100_000)
    )]
    pub http2_max_streams_per_connection: u32,

    /// Cut off a client that takes nothing of an answer for this long, such as 30s; at least 1s
    #[arg(
        long,
        env = "PODPLANE_SLOW_CLIENT_TIMEOUT",
        value_name = "DURATION",
        default_value = "30s",
        value_parser = slow_client_timeout
    )]
    pub slow_client_timeout: Duration,
}

impl Default for LimitFlags {
    fn default() -> Self {
        let ServerLimits {
            max_connections,
            max_connections_per_client,
            max_streams,
            stall,
        } = ServerLimits::default();
        Self {
            max_requests_inflight: 600,
            max_watches_per_user: 10_000,
            max_connections,
            max_connections_per_client,
            http2_max_streams_per_connection: max_streams,
            slow_client_timeout: stall,
        }
    }
}

impl LimitFlags {
    /// The limits of the socket.
    pub(crate) fn server(&self) -> ServerLimits {
        ServerLimits {
            max_connections: self.max_connections,
            max_connections_per_client: self.max_connections_per_client,
            max_streams: self.http2_max_streams_per_connection,
            stall: self.slow_client_timeout,
        }
        .within_open_files()
    }

    /// The bounds of flow control; `has_users` is true if requests tell who sends them.
    pub(crate) fn flow(&self, has_users: bool) -> FlowLimits {
        FlowLimits {
            seats: self.max_requests_inflight,
            watches_of_user: self.max_watches_per_user,
            has_users,
        }
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("must be a whole number".to_owned()),
    }
}

fn slow_client_timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text).map_err(|error| error.to_string())? {
        short if short < Duration::from_secs(1) => Err("must be at least 1s".to_owned()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct LimitsProgram {
        #[command(flatten)]
        limits: LimitFlags,
    }

    #[test]
    fn flags_and_limits_have_the_same_defaults() {
        let flags = LimitsProgram::parse_from(["line"]).limits;
        assert_eq!(flags, LimitFlags::default());
    }

    #[test]
    fn refuses_limits_that_nobody_could_keep() {
        for flag in [
            "--max-connections=0",
            "--max-connections-per-client=0",
            "--http2-max-streams-per-connection=1",
            "--slow-client-timeout=0s",
        ] {
            assert!(
                LimitsProgram::try_parse_from(["line", flag]).is_err(),
                "{flag}"
            );
        }
    }
}
