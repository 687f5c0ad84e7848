//! The configuration of `bandwidth`.

use podplane_cni::{
    skel::{Call, previous_result},
    types::{
        CniError, CniResult,
        go_json::{self, GoType},
    },
};
use serde::Deserialize;

// Keys are folded before decoding, so the names here are lower case.

#[derive(Default, Deserialize)]
#[serde(default)]
struct BandwidthConf {
    #[serde(flatten)]
    fixed: ConfiguredLimits,
    runtimeconfig: RuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    bandwidth: Option<ConfiguredLimits>,
}

/// Limits as configured: rates in bits per second, bursts in bits.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ConfiguredLimits {
    ingressrate: Option<u64>,
    ingressburst: Option<u64>,
    egressrate: Option<u64>,
    egressburst: Option<u64>,
}

/// The limit of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RateLimit {
    /// Bits per second; never 0.
    pub(super) rate: u64,
    /// Bits that may be sent at once; never 0.
    pub(super) burst: u64,
}

/// The parsed configuration.
#[derive(Debug, Clone)]
pub(super) struct BandwidthConfig {
    /// The limit of traffic to the container.
    pub(super) ingress: Option<RateLimit>,
    /// The limit of traffic from the container.
    pub(super) egress: Option<RateLimit>,
    /// The result of the plugins earlier in the chain.
    pub(super) previous: Option<CniResult>,
}

impl BandwidthConfig {
    /// Parses the configuration, with the reference's error texts in the reference's order.
    pub(super) fn parse(call: &Call) -> Result<Self, CniError> {
        let (ingress, egress) = limits(&call.stdin).map_err(CniError::internal)?;
        let previous = previous_result(call).map_err(|error| CniError {
            msg: format!("could not parse prevResult: {}", error.msg),
            ..error
        })?;
        Ok(Self {
            ingress,
            egress,
            previous,
        })
    }

    /// Returns true if neither direction is limited.
    pub(super) fn is_unlimited(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }
}

/// The limits of both directions: ingress, egress. If the network sets any value, the container's
/// values are ignored.
fn limits(text: &[u8]) -> Result<(Option<RateLimit>, Option<RateLimit>), String> {
    let failed = |error: String| format!("failed to parse network configuration: {error}");
    let document = go_json::decode(text, &DOCUMENT).map_err(failed)?;
    let document: BandwidthConf =
        serde_json::from_value(document).map_err(|error| failed(error.to_string()))?;
    let BandwidthConf {
        fixed,
        runtimeconfig,
    } = document;
    let is_fixed = [
        fixed.ingressrate,
        fixed.ingressburst,
        fixed.egressrate,
        fixed.egressburst,
    ]
    .iter()
    .any(Option::is_some);
    let entry = if is_fixed {
        fixed
    } else {
        runtimeconfig.bandwidth.unwrap_or_default()
    };
    let ingress = limit(entry.ingressrate, entry.ingressburst)?;
    let egress = limit(entry.egressrate, entry.egressburst)?;
    Ok((ingress, egress))
}

fn limit(rate: Option<u64>, burst: Option<u64>) -> Result<Option<RateLimit>, String> {
    match (rate.unwrap_or(0), burst.unwrap_or(0)) {
        (0, 0) => Ok(None),
        (_, 0) => Err("if rate is set, burst must also be set".to_owned()),
        (0, _) => Err("if burst is set, rate must also be set".to_owned()),
        (_, burst) if burst / 8 >= u64::from(u32::MAX) => {
            Err("burst cannot be more than 4GB".to_owned())
        }
        (rate, burst) => Ok(Some(RateLimit { rate, burst })),
    }
}

// The fields that the reference decodes: what is of another type is refused, used or not.

static DOCUMENT: GoType = GoType::Struct(&[
    ("cniVersion", GoType::String),
    ("name", GoType::String),
    ("type", GoType::String),
    ("capabilities", GoType::Map(&GoType::Bool)),
    ("prevResult", GoType::AnyMap),
    (
        "runtimeConfig",
        GoType::Struct(&[("bandwidth", GoType::Pointer(&ENTRY))]),
    ),
    ("ingressRate", GoType::Uint),
    ("ingressBurst", GoType::Uint),
    ("egressRate", GoType::Uint),
    ("egressBurst", GoType::Uint),
]);

static ENTRY: GoType = GoType::Struct(&[
    ("ingressRate", GoType::Uint),
    ("ingressBurst", GoType::Uint),
    ("egressRate", GoType::Uint),
    ("egressBurst", GoType::Uint),
]);

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(config: &Value) -> Result<(Option<RateLimit>, Option<RateLimit>), String> {
        limits(config.to_string().as_bytes())
    }

    #[test]
    fn limits_of_the_network_override_those_of_the_container() {
        let limit = |rate, burst| Some(RateLimit { rate, burst });
        let of_container = json!({"bandwidth": {"ingressRate": 1, "ingressBurst": 2, "egressRate": 3, "egressBurst": 4}});
        let config = json!({"runtimeConfig": of_container});
        assert_eq!(parse(&config), Ok((limit(1, 2), limit(3, 4))));
        let config = json!({"runtimeConfig": of_container, "egressRate": 5, "egressBurst": 6});
        assert_eq!(parse(&config), Ok((None, limit(5, 6))));
        let config = json!({"runtimeConfig": of_container, "egressRate": 0});
        assert_eq!(parse(&config), Ok((None, None)));
        assert_eq!(parse(&json!({})), Ok((None, None)));
    }

    #[test]
    fn half_a_limit_is_refused() {
        for (config, error) in [
            (
                json!({"ingressRate": 8}),
                "if rate is set, burst must also be set",
            ),
            (
                json!({"egressBurst": 8}),
                "if burst is set, rate must also be set",
            ),
            (
                json!({"egressRate": 8, "egressBurst": u64::from(u32::MAX) * 8}),
                "burst cannot be more than 4GB",
            ),
            (
                json!({"egressRate": -1}),
                "failed to parse network configuration: egressRate: invalid value: integer `-1`, expected an integer of at least 0 at line 1 column 16",
            ),
        ] {
            assert_eq!(parse(&config), Err(error.to_owned()));
        }
    }
}
