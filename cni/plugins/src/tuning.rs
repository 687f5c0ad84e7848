//! The plugin `tuning`: kernel settings of the container's network, and attributes of its
//! interface.
//!
//! The contract is the reference plugin of that name. The interface's former attributes are kept in
//! a file, in the reference's format, until DEL restores them. Kernel settings are not restored, as
//! they go with the namespace. The plugin is chained behind one that makes the interface, and
//! returns that plugin's result with the configured hardware address.

mod backup;
mod config;
mod sysctls;

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
};

use podplane_cni::{
    skel::{Call, Plugin, previous_result, text},
    types::{CniError, CniResult},
};
use podplane_netlink::{Link, Netlink, Request, netns, sysctl};

use self::{
    backup::{Backup, BackupFile},
    config::{TuningConfig, parse_mac, refuse_duplicates},
};
use crate::attach::container::{inside, open};

/// The plugin `tuning`.
#[derive(Debug, Clone, Copy)]
pub struct Tuning;

impl Plugin for Tuning {
    fn name(&self) -> &'static str {
        "tuning"
    }

    fn add(&self, call: &Call) -> Result<CniResult, CniError> {
        refuse_duplicates(call)?;
        let config = TuningConfig::parse(call)?;
        if !config.sysctls.is_empty() {
            sysctls::refuse_unlisted(config.sysctls.keys())?;
        }
        let mut result = required_result(call)?;
        let mac = config.mac.as_deref().map(parse_mac).transpose();
        let mac = mac.map_err(CniError::internal)?;
        let netns = container(call)?;
        write_sysctls(&netns, &config, &call.ifname)?;
        if !config.changes_link() {
            return Ok(result);
        }
        let mut inside = open(&netns)?;
        let link = find(&mut inside, &call.ifname)?;
        let link = link.ok_or_else(|| {
            CniError::internal(format!("failed to get {:?}: Link not found", call.ifname))
        })?;
        let (backup, file) = (
            Backup::of(&link, &config),
            BackupFile::of(call, &config.data_dir),
        );
        file.write(&backup)?;
        let changed = inside.execute(changes(&link, &config, mac.as_deref()));
        changed.map_err(|error| {
            let faults = backup.restore(&mut inside, link.index);
            faults.iter().for_each(|fault| warn(fault));
            if let Err(error) = file.remove() {
                warn(&error.msg);
            }
            CniError::internal(text(&error))
        })?;
        if let Some(mac) = &config.mac {
            let of_container = |name: &str| name == call.ifname;
            let interfaces = result.interfaces.iter_mut();
            interfaces
                .filter(|interface| of_container(&interface.name))
                .for_each(|interface| interface.mac.clone_from(mac));
        }
        Ok(result)
    }

    /// Restores the interface. Failures are only printed: the interface is about to go.
    fn del(&self, call: &Call) -> Result<(), CniError> {
        let config = TuningConfig::parse(call)?;
        let file = BackupFile::of(call, &config.data_dir);
        match restore(call, &file) {
            Ok(faults) if faults.is_empty() => {
                if let Err(error) = file.remove() {
                    warn(&error.msg);
                }
            }
            Ok(faults) => faults.iter().for_each(|fault| warn(fault)),
            Err(error) => warn(&error.msg),
        }
        Ok(())
    }

    fn check(&self, call: &Call) -> Result<(), CniError> {
        refuse_duplicates(call)?;
        let config = TuningConfig::parse(call)?;
        required_result(call)?;
        let netns = container(call)?;
        let fault = find_sysctl_fault(&netns, &config, &call.ifname)?;
        if let Some(fault) = fault {
            return Err(CniError::internal(fault));
        }
        let Some(link) = find(&mut open(&netns)?, &call.ifname)? else {
            return Err(CniError::internal(format!(
                "Cannot find container link {}",
                call.ifname
            )));
        };
        find_link_fault(&link, &config).map_or(Ok(()), |fault| Err(CniError::internal(fault)))
    }

    /// Does nothing: a backup file does not name its network, so none can be recognised as garbage.
    fn gc(&self, _: &Call) -> Result<(), CniError> {
        Ok(())
    }

    fn status(&self, _: &Call) -> Result<(), CniError> {
        Ok(())
    }
}

fn warn(text: &str) {
    _ = writeln!(io::stderr(), "{text}");
}

fn required_result(call: &Call) -> Result<CniResult, CniError> {
    let previous = previous_result(call)?;
    previous.ok_or_else(|| CniError::internal("Required prevResult missing"))
}

fn container(call: &Call) -> Result<File, CniError> {
    netns::open(Path::new(&call.netns)).map_err(|error| CniError::internal(text(&error)))
}

fn find(inside: &mut Netlink, ifname: &str) -> Result<Option<Link>, CniError> {
    let found = inside.link(ifname);
    found.map_err(|error| CniError::internal(text(&error)))
}

fn write_sysctls(netns: &File, config: &TuningConfig, ifname: &str) -> Result<(), CniError> {
    if config.sysctls.is_empty() {
        return Ok(());
    }
    let settings = config.sysctls.iter().map(|(key, value)| {
        let path = sysctls::path(key, ifname);
        path.map(|path| (path, value))
    });
    let settings: Vec<_> = settings.collect::<Result<_, _>>()?;
    inside(netns, || {
        for (path, value) in settings {
            sysctl::write(&path, value)
                .map_err(|error| CniError::internal(format!("{} to {value:?}", text(&error))))?;
        }
        Ok(())
    })
}

/// The requests that change the interface. Numbers that are too wide are cut as in the reference.
fn changes(link: &Link, config: &TuningConfig, mac: Option<&[u8]>) -> Vec<Request> {
    let index = link.index;
    let mut requests = Vec::new();
    requests.extend(mac.map(|mac| Request::mac(index, mac)));
    if config.promiscuous {
        requests.push(Request::promiscuous(index));
    }
    requests.extend(config.mtu.map(|mtu| Request::mtu(index, low_bits(mtu))));
    requests.extend(config.all_multicast.map(|is_on| {
        if is_on {
            Request::all_multicast(index)
        } else {
            Request::not_all_multicast(index)
        }
    }));
    let length = config.tx_queue_length.map(low_bits);
    requests.extend(length.map(|length| Request::tx_queue_length(index, length)));
    requests
}

fn low_bits(number: i64) -> u32 {
    let [a, b, c, d, ..] = number.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Restores the interface and returns the failures. If nothing is left to restore, there are none.
fn restore(call: &Call, file: &BackupFile) -> Result<Vec<String>, CniError> {
    let Some(backup) = file.read()? else {
        return Ok(Vec::new());
    };
    // After a reboot, a plain file is left of a namespace.
    if call.netns.is_empty() || !netns::is_netns(Path::new(&call.netns)) {
        return Ok(Vec::new());
    }
    let mut inside = open(&container(call)?)?;
    let Some(link) = find(&mut inside, &call.ifname)? else {
        return Ok(Vec::new());
    };
    Ok(backup.restore(&mut inside, link.index))
}

/// Compares the kernel settings with the configuration. Returns the first fault, with the
/// reference's text.
fn find_sysctl_fault(
    netns: &File,
    config: &TuningConfig,
    ifname: &str,
) -> Result<Option<String>, CniError> {
    inside(netns, || {
        for (key, value) in &config.sysctls {
            let path = sysctls::path(key, ifname)?;
            let current = sysctl::read(&path);
            let current = current.map_err(|error| CniError::internal(text(&error)))?;
            // The kernel prints tabs between several numbers, whatever separated them when written.
            if !current.split_whitespace().eq(value.split_whitespace()) {
                return Ok(Some(format!(
                    "Error: Tuning configured value of /proc/sys/{path} is {value}, current value is {current}"
                )));
            }
        }
        Ok(None)
    })
}

/// Compares the interface with the configuration. Returns the first fault, with the reference's
/// text.
fn find_link_fault(link: &Link, config: &TuningConfig) -> Option<String> {
    let TuningConfig {
        data_dir: _,
        sysctls: _,
        mac,
        promiscuous,
        mtu,
        all_multicast,
        tx_queue_length,
    } = config;
    let name = &link.name;
    if let Some(mac) = mac
        && parse_mac(mac).as_deref() != Ok(&link.mac)
    {
        return Some(format!(
            "Error: Tuning configured Ethernet of {name} is {mac}, current value is {}",
            link.mac_text()
        ));
    }
    if *promiscuous != link.is_promiscuous {
        return Some(format!(
            "Error: Tuning link {name} configured promisc is {promiscuous}, current value is {}",
            u8::from(link.is_promiscuous)
        ));
    }
    if let Some(mtu) = mtu
        && *mtu != i64::from(link.mtu)
    {
        return Some(format!(
            "Error: Tuning configured MTU of {name} is {mtu}, current value is {}",
            link.mtu
        ));
    }
    if let Some(all_multicast) = all_multicast
        && *all_multicast != link.is_all_multicast
    {
        return Some(format!(
            "Error: Tuning configured all-multicast mode of {name} is {all_multicast}, current value is {}",
            link.is_all_multicast
        ));
    }
    if let Some(length) = tx_queue_length
        && *length != i64::from(link.tx_queue_length)
    {
        return Some(format!(
            "Error: Tuning configured Transmit Queue Length of {name} is {length}, current value is {}",
            link.tx_queue_length
        ));
    }
    None
}
