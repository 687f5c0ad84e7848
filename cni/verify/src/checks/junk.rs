//! Checks with input that no runtime would send.

use rand::{RngExt as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::{Value, json};

use super::{CheckVerdict, lease::nothing_leaked};
use crate::{Halt, Severity, network::AttachmentKey, session::Session};

pub(super) fn bad_json(session: &Session) -> Result<CheckVerdict, Halt> {
    let network = session.network();
    let whole = network.config.to_string();
    let half = &whole[..whole.floor_char_boundary(whole.len() / 2)];
    let twice = format!("{whole}{whole}");
    let inputs = ["", "{", half, "[]", "\"text\"", "5", "not json", &twice];
    for command in ["ADD", "DEL"] {
        for input in inputs {
            let call = network.call(command, &AttachmentKey::new("one"));
            let exchange = session.call(&call.with_stdin(input))?;
            if exchange.succeeded() || exchange.error().0 != 6 {
                let severity = match exchange.succeeded() {
                    true => Severity::Violation,
                    false => Severity::Weakness,
                };
                session.find(
                    "bad-json",
                    severity,
                    format!(
                        "{command} with {:?} as input: {}",
                        &input[..input.len().min(40)],
                        exchange.summary()
                    ),
                    "an error with code 6",
                    vec![session.step(&exchange)],
                );
            }
        }
    }
    network.del(&AttachmentKey::new("one"))?;
    Ok(CheckVerdict::Done)
}

pub(super) fn bad_config(session: &Session) -> Result<CheckVerdict, Halt> {
    let network = session.network();
    let long = "n/".repeat(10);
    for name in [
        Value::Null,
        json!(""),
        json!("../x"),
        json!("a b"),
        json!(long),
    ] {
        let mut config = network.config.clone();
        config["name"] = name.clone();
        let call = network.call("ADD", &AttachmentKey::new("one"));
        let call = call.with_stdin(config.to_string());
        let exchange = session.call(&call)?;
        if exchange.succeeded() || exchange.error().0 != 7 {
            session.find(
                "bad-config",
                Severity::Weakness,
                format!("ADD with the network name {name}: {}", exchange.summary()),
                "an error with code 7, so that the name can be part of a path",
                vec![session.step(&exchange)],
            );
            session.call(&call.with_env("CNI_COMMAND", Some("DEL")))?;
        }
    }
    Ok(CheckVerdict::Done)
}

/// Junk in the configuration: the plugin must answer, and the format of its answers is judged as
/// always. A successful ADD must be undone by the DEL with the same configuration, or else with the
/// right one.
pub(super) fn junk_input(session: &Session) -> Result<CheckVerdict, Halt> {
    let network = session.network();
    let before = network.capacity()?;
    let mut random = session.random("junk-input", 0);
    let mut inputs = known_junk(&network.config);
    let fixed = inputs.len();
    for _ in session.rounds(1) {
        let input = mutated(&network.config, &mut random);
        inputs.push((input.to_string().into_bytes(), ""));
        if inputs.len() > fixed + 100_000 {
            break;
        }
        // Run at once, so that a limit in time is kept.
        run(session, &network, &inputs.pop().unwrap_or_default())?;
    }
    for input in &inputs {
        run(session, &network, input)?;
    }
    nothing_leaked(&network, ("junk-input", Severity::Violation), before, &[])?;
    Ok(CheckVerdict::Done)
}

fn run(
    session: &Session,
    network: &crate::network::Network<'_>,
    (stdin, args): &(Vec<u8>, &'static str),
) -> Result<(), Halt> {
    let key = AttachmentKey::new("junk");
    for command in ["ADD", "CHECK", "DEL"] {
        let call = network.call(command, &key).with_junk(stdin.clone());
        let args = (!args.is_empty()).then_some(*args);
        session.call(&call.with_env("CNI_ARGS", args))?;
    }
    network.del(&key)?;
    Ok(())
}

/// Inputs that have broken a plugin before, or might.
fn known_junk(config: &Value) -> Vec<(Vec<u8>, &'static str)> {
    let text = config.to_string();
    let with = |key: &str, value: Value| {
        let mut config = config.clone();
        config[key] = value;
        (config.to_string().into_bytes(), "")
    };
    let in_ipam = |key: &str, value: Value| {
        let mut config = config.clone();
        config["ipam"][key] = value;
        (config.to_string().into_bytes(), "")
    };
    let mut inputs = vec![
        with("args", json!({"cni": {"ips": [null]}})),
        with(
            "args",
            json!({"cni": {"ips": ["", "10.89.0.5/", "::ffff:10.89.0.5"]}}),
        ),
        with("args", json!({"cni": null})),
        with("args", json!([])),
        with("runtimeConfig", json!({"ips": [null]})),
        with("runtimeConfig", json!({"ipRanges": [[null]]})),
        with("runtimeConfig", json!({"ipRanges": [null, []]})),
        with("runtimeConfig", json!("ips")),
        with("prevResult", json!({"cniVersion": "1.0.0", "ips": null})),
        with("prevResult", json!(5)),
        with("dns", json!({"nameservers": "10.0.0.1"})),
        with("ipam", Value::Null),
        with("ipam", json!([])),
        with("ipam", json!("ipam")),
        in_ipam("ranges", json!([[null]])),
        in_ipam("ranges", json!([[]])),
        in_ipam("ranges", json!([null])),
        in_ipam("ranges", json!([[{"subnet": "10.89.0.0/31"}]])),
        in_ipam("ranges", json!([[{"subnet": "10.89.0.1/28"}]])),
        in_ipam("ranges", json!([[{"subnet": "300.0.0.0/8"}]])),
        in_ipam(
            "ranges",
            json!([[{"subnet": "255.255.255.248/29", "rangeStart": "255.255.255.255"}]]),
        ),
        in_ipam(
            "ranges",
            json!([[{"subnet": "10.89.0.0/28"}, {"subnet": "10.89.0.0/28"}]]),
        ),
        in_ipam("routes", json!([null])),
        in_ipam("routes", json!([{"dst": "0.0.0.0/0", "gw": "nowhere"}])),
        in_ipam("resolvConf", json!("/dev/zero/none")),
        in_ipam("type", json!(null)),
        (text.replace(':', ": \u{feff}").into_bytes(), ""),
        (format!("\u{feff}{text}").into_bytes(), ""),
        (format!("{text} trailing").into_bytes(), ""),
        (
            format!("{}{}", "[".repeat(20_000), "]".repeat(20_000)).into_bytes(),
            "",
        ),
        (text.replace("\"ipam\"", "\"\u{1}ipam\"").into_bytes(), ""),
        ([text.as_bytes(), &[0xff, 0xfe]].concat(), ""),
        (vec![0; 1000], ""),
    ];
    for args in [
        "=",
        ";",
        "IP",
        "IP=",
        "IP=10.89.0.5=6",
        "IP=nowhere",
        "IP=10.89.0.1",
        "IP=::",
        "K8S_POD_NAME=x",
        "IgnoreUnknown=perhaps;A=b",
        "IgnoreUnknown=1;;",
    ] {
        inputs.push((text.clone().into_bytes(), args));
    }
    inputs
}

/// The configuration with some values replaced. The directory stays, so that the plugin works in
/// it.
fn mutated(config: &Value, random: &mut StdRng) -> Value {
    let mut config = config.clone();
    for _ in 0..random.random_range(1..=3) {
        let mut places = Vec::new();
        collect_places(&config, &mut String::new(), &mut places);
        let Some(place) = places.choose(random) else {
            break;
        };
        if let Some(value) = config.pointer_mut(place) {
            *value = nonsense(value, random);
        }
    }
    config
}

fn collect_places(value: &Value, place: &mut String, places: &mut Vec<String>) {
    let length = place.len();
    let mut each = |key: &str, item: &Value| {
        if matches!(key, "dataDir" | "name") {
            return;
        }
        place.push('/');
        place.push_str(&key.replace('~', "~0").replace('/', "~1"));
        // The object with the directory is not replaced.
        if item.get("dataDir").is_none() {
            places.push(place.clone());
        }
        collect_places(item, place, places);
        place.truncate(length);
    };
    match value {
        Value::Object(entries) => entries.iter().for_each(|(key, item)| each(key, item)),
        Value::Array(items) => (0..)
            .zip(items)
            .for_each(|(index, item): (u32, _)| each(&index.to_string(), item)),
        _ => {}
    }
}

fn nonsense(value: &Value, random: &mut StdRng) -> Value {
    let text = value.as_str().unwrap_or("10.89.0.5");
    let cut = text.floor_char_boundary(random.random_range(0..=text.len()));
    let choices = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(u64::MAX),
        json!(1.5e300),
        json!(""),
        json!("x".repeat(5000)),
        json!("\u{0}\u{1f}\"\\\u{2028}é"),
        json!([]),
        json!([null]),
        json!({}),
        json!({"": {"": []}}),
        json!(&text[..cut]),
        json!(format!("{text}/33")),
        json!(format!("0{text}")),
        json!([value]),
        json!("::/0"),
        json!("255.255.255.255"),
    ];
    choices.choose(random).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn a_mutation_stays_in_its_directory_and_is_reproducible() {
        let config = json!({"name": "n", "cniVersion": "1.0.0", "ipam": {"dataDir": "/d", "ranges": [[{"subnet": "10.89.0.0/28"}]]}});
        let all = |seed| {
            let mut random = StdRng::seed_from_u64(seed);
            (0..500)
                .map(|_| mutated(&config, &mut random))
                .collect::<Vec<_>>()
        };
        for mutated in all(1) {
            assert_eq!(
                (&mutated["ipam"]["dataDir"], &mutated["name"]),
                (&json!("/d"), &json!("n"))
            );
        }
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
    }
}
