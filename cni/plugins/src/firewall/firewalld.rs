//! The firewalld backend, over D-Bus: the container's addresses become sources of a zone.
//!
//! Firewalld forgets these sources when it ends, so a source may be present or missing at any time.

use std::time::Duration;

use podplane_cni::types::CniError;
use serde::Serialize;
use zbus::{Connection, DynamicType, Error, Message, block_on, conn::Builder};

use super::{config::FirewallConfig, warn};

const NAME: &str = "org.fedoraproject.FirewallD1";
const PATH: &str = "/org/fedoraproject/FirewallD1";
const ZONE: &str = "org.fedoraproject.FirewallD1.zone";

/// The time-out of a call. Reloading its rules takes firewalld seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to the system bus, where firewalld is expected.
pub(super) struct Firewalld(Connection);

impl Firewalld {
    /// Connects to the system bus.
    ///
    /// # Errors
    /// If there is no bus.
    pub(super) fn connect() -> Result<Self, CniError> {
        let connection = block_on(Builder::system().method_timeout(TIMEOUT).build());
        connection.map(Self).map_err(|error| {
            CniError::internal(format!(
                "failed to connect to D-Bus, over which firewalld is asked: {error}"
            ))
        })
    }

    /// A connection, if firewalld owns its name on the bus.
    pub(super) fn if_running() -> Option<Self> {
        let firewalld = Self::connect().ok()?;
        firewalld.ask_owner().ok().map(|_| firewalld)
    }

    fn ask_owner(&self) -> Result<Message, Error> {
        const BUS: &str = "org.freedesktop.DBus";
        const BUS_PATH: &str = "/org/freedesktop/DBus";
        let Self(bus) = self;
        block_on(bus.call_method(Some(BUS), BUS_PATH, Some(BUS), "GetNameOwner", &(NAME,)))
    }

    fn call<B: Serialize + DynamicType>(&self, method: &str, body: &B) -> Result<Message, Error> {
        let Self(bus) = self;
        block_on(bus.call_method(Some(NAME), PATH, Some(ZONE), method, body))
    }

    /// Adds the container's addresses to the zone.
    pub(super) fn add(&self, config: &FirewallConfig) -> Result<(), CniError> {
        let zone = config.zone.as_str();
        for address in &config.addresses {
            let address = address.to_string();
            match self.call("addSource", &(zone, address.as_str())) {
                Err(error) if !says(&error).contains("ZONE_ALREADY_SET") => {
                    let why = says(&error);
                    return Err(CniError::internal(format!(
                        "failed to add the address {address} to {zone} zone: {why}"
                    )));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes the addresses from the zone. Failures are only printed, since nothing of the zone
    /// outlives firewalld.
    pub(super) fn remove(&self, config: &FirewallConfig) {
        let zone = config.zone.as_str();
        for address in &config.addresses {
            let address = address.to_string();
            match self.call("removeSource", &(zone, address.as_str())) {
                Err(error) if !says(&error).contains("UNKNOWN_SOURCE") => {
                    let why = says(&error);
                    warn(&format!(
                        "failed to remove the address {address} from {zone} zone: {why}"
                    ));
                }
                _ => {}
            }
        }
    }

    /// Checks that the addresses are in the zone.
    pub(super) fn check(&self, config: &FirewallConfig) -> Result<(), CniError> {
        let zone = config.zone.as_str();
        for address in &config.addresses {
            let address = address.to_string();
            let answer = self.call("querySource", &(zone, address.as_str()));
            let is_there = answer.and_then(|answer| answer.body().deserialize::<bool>());
            if !is_there.unwrap_or(false) {
                return Err(CniError::internal(format!(
                    "failed to find the address {address} in {zone} zone"
                )));
            }
        }
        Ok(())
    }
}

/// Checks that firewalld runs.
pub(super) fn probe() -> Result<(), CniError> {
    let owner = Firewalld::connect()?.ask_owner();
    owner
        .map(drop)
        .map_err(|error| CniError::internal(format!("firewalld does not run: {}", says(&error))))
}

/// Firewalld's text of an error, without the error's name.
fn says(error: &Error) -> String {
    match error {
        Error::MethodError(_, Some(text), _) => text.clone(),
        other => other.to_string(),
    }
}
