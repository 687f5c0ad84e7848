//! Judgement of every answer, whatever the call (CNI 1.1.0 §2 and §5).

use std::net::IpAddr;

use ipnet::IpNet;
use podplane_cni::types::Version;
use serde_json::Value;

use super::{
    Severity,
    exchange::{Exchange, PluginEnd},
};

/// A fault of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AnswerFault {
    pub(super) check: &'static str,
    pub(super) severity: Severity,
    pub(super) seen: String,
    pub(super) expected: &'static str,
}

fn violation(check: &'static str, seen: impl Into<String>, expected: &'static str) -> AnswerFault {
    AnswerFault {
        check,
        severity: Severity::Violation,
        seen: seen.into(),
        expected,
    }
}

fn weakness(check: &'static str, seen: impl Into<String>, expected: &'static str) -> AnswerFault {
    AnswerFault {
        severity: Severity::Weakness,
        ..violation(check, seen, expected)
    }
}

fn note(check: &'static str, seen: impl Into<String>, expected: &'static str) -> AnswerFault {
    AnswerFault {
        severity: Severity::Note,
        ..violation(check, seen, expected)
    }
}

/// Judges an answer by its format alone.
pub(super) fn faults(exchange: &Exchange) -> Vec<AnswerFault> {
    let command = exchange.call.command();
    match exchange.end {
        PluginEnd::Interrupted => Vec::new(),
        PluginEnd::Hung => vec![violation(
            "no-hang",
            format!("{command} did not end within {:.0?}", exchange.took),
            "every call ends",
        )],
        PluginEnd::Signal(signal) => vec![violation(
            "no-crash",
            format!("{command} died of signal {signal}"),
            "an error object on standard output and a non-zero exit code",
        )],
        PluginEnd::Exit(0) => success(exchange, command),
        PluginEnd::Exit(code) => failure(exchange, command, code),
    }
}

fn success(exchange: &Exchange, command: &str) -> Vec<AnswerFault> {
    let stdout = exchange.stdout.trim_ascii();
    match command {
        "ADD" => match documents(stdout).as_deref() {
            Some([_]) if exchange.call.is_junk => Vec::new(),
            Some([result]) => result_faults(result, asked_version(exchange)),
            Some([_, ..]) => vec![violation(
                "stdout-clean",
                "ADD printed several JSON documents",
                "one result object, and nothing else, on standard output",
            )],
            _ => vec![violation(
                "stdout-clean",
                format!("ADD succeeded, and printed {}", shown(stdout)),
                "one result object on standard output; logs go to standard error",
            )],
        },
        "DEL" | "CHECK" | "GC" | "STATUS" if !stdout.is_empty() => vec![weakness(
            "silent-success",
            format!("{command} succeeded, and printed {}", shown(stdout)),
            "nothing on standard output",
        )],
        _ => Vec::new(),
    }
}

fn failure(exchange: &Exchange, command: &str, code: i32) -> Vec<AnswerFault> {
    let stdout = exchange.stdout.trim_ascii();
    let stderr = String::from_utf8_lossy(&exchange.stderr);
    if stdout.is_empty() {
        let panicked = ["panic", "goroutine ", "Traceback", "Segmentation"];
        let panicked = panicked.iter().any(|word| stderr.contains(word));
        let check = if panicked { "no-crash" } else { "error-shape" };
        let first = stderr.lines().next().unwrap_or_default();
        return vec![violation(
            check,
            format!(
                "{command} ended with code {code}, nothing on standard output, and \"{first}\" on standard error"
            ),
            "an error object on standard output",
        )];
    }
    match documents(stdout).as_deref() {
        Some([error]) => error_faults(error, command),
        Some([_, ..]) => vec![violation(
            "stdout-clean",
            format!("{command} failed, and printed several JSON documents"),
            "one error object, and nothing else, on standard output",
        )],
        _ => vec![violation(
            "error-shape",
            format!("{command} failed, and printed {}", shown(stdout)),
            "an error object on standard output",
        )],
    }
}

/// The JSON documents that the text consists of.
fn documents(text: &[u8]) -> Option<Vec<Value>> {
    let stream = serde_json::Deserializer::from_slice(text).into_iter();
    stream.collect::<Result<Vec<Value>, _>>().ok()
}

/// The start of a text, for messages.
fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let start: String = text.chars().take(100).collect();
    format!("{start:?}")
}

fn error_faults(error: &Value, command: &str) -> Vec<AnswerFault> {
    const EXPECTED: &str =
        "an object with a positive \"code\", a \"msg\", and possibly \"details\"";
    let fault = |seen: String| violation("error-shape", format!("{command}: {seen}"), EXPECTED);
    let mut faults = Vec::new();
    match error["code"].as_u64() {
        None | Some(0) => faults.push(fault(format!("the error's code is {}", error["code"]))),
        // 8 is libcni's code for a netns that is the plugin's own.
        Some(1..=8 | 11 | 50 | 51 | 100..) => {}
        Some(code) => faults.push(weakness(
            "error-shape",
            format!("{command}: the error's code is {code}, which is reserved"),
            "a code that the specification defines, or one from 100 on",
        )),
    }
    if error["msg"].as_str().is_none_or(str::is_empty) {
        faults.push(fault(format!("the error's msg is {}", error["msg"])));
    }
    for key in ["details", "cniVersion"] {
        if !error[key].is_null() && !error[key].is_string() {
            faults.push(fault(format!("the error's {key} is {}", error[key])));
        }
    }
    if error["cniVersion"].is_null() {
        faults.push(note(
            "error-shape",
            "errors have no cniVersion",
            "the protocol version in use as \"cniVersion\" of the error object",
        ));
    }
    faults
}

/// The version of the configuration, if it has one that we know.
fn asked_version(exchange: &Exchange) -> Option<Version> {
    let config: Value = serde_json::from_slice(&exchange.call.stdin).ok()?;
    config["cniVersion"].as_str()?.parse().ok()
}

/// Judges the result of an IPAM plugin's ADD.
fn result_faults(result: &Value, asked: Option<Version>) -> Vec<AnswerFault> {
    const EXPECTED: &str =
        "a result object of the configuration's version, abbreviated as an IPAM plugin's is";
    let Some(asked) = asked else {
        return Vec::new(); // The expected format is not known.
    };
    let mut form = ResultForm {
        faults: Vec::new(),
        asked,
    };
    if result["cniVersion"] != asked.as_str() {
        let seen = &result["cniVersion"];
        form.wrong(format!("cniVersion is {seen} where {asked} was asked for"));
    }
    if !result["interfaces"].is_null() {
        form.wrong("it has interfaces, which an IPAM plugin does not know".to_owned());
    }
    if asked < Version::V0_3_0 {
        form.old_addresses(result);
    } else {
        form.addresses(result);
        form.routes(&result["routes"], "routes");
    }
    form.dns(&result["dns"]);
    let seen = form.faults.into_iter();
    seen.map(|seen| violation("result-form", seen, EXPECTED))
        .collect()
}

struct ResultForm {
    faults: Vec<String>,
    asked: Version,
}

impl ResultForm {
    fn wrong(&mut self, what: String) {
        let asked = self.asked;
        self.faults.push(format!("result of {asked}: {what}"));
    }

    fn old_addresses(&mut self, result: &Value) {
        if !result["ips"].is_null() {
            self.wrong("it has ips, which came with 0.3.0".to_owned());
        }
        let families = [("ip4", true), ("ip6", false)];
        if families.iter().all(|(key, _)| result[key].is_null()) {
            self.wrong("it has neither ip4 nor ip6".to_owned());
        }
        for (key, is_v4) in families {
            if result[key].is_null() {
                continue;
            }
            let address = self.cidr(&result[key]["ip"], key);
            if address.is_some_and(|net| net.addr().is_ipv4() != is_v4) {
                self.wrong(format!("{key} is {}", result[key]["ip"]));
            }
            self.gateway(&result[key]["gateway"], address);
            self.routes(&result[key]["routes"], key);
        }
    }

    fn addresses(&mut self, result: &Value) {
        if !result["ip4"].is_null() || !result["ip6"].is_null() {
            self.wrong("it has ip4 or ip6, which went with 0.3.0".to_owned());
        }
        let ips = result["ips"].as_array().cloned().unwrap_or_default();
        if ips.is_empty() {
            self.wrong(format!("ips is {}", result["ips"]));
        }
        for ip in &ips {
            let address = self.cidr(&ip["address"], "ips");
            self.gateway(&ip["gateway"], address);
            if !ip["interface"].is_null() {
                self.wrong("ips has an interface, which an IPAM plugin does not know".to_owned());
            }
            let family = address.map(|net| if net.addr().is_ipv4() { "4" } else { "6" });
            if self.asked < Version::V1_0_0 && ip["version"].as_str() != family {
                self.wrong(format!(
                    "the address {} has version {}",
                    ip["address"], ip["version"]
                ));
            }
            if self.asked >= Version::V1_0_0 && !ip["version"].is_null() {
                self.wrong("ips has a version, which went with 1.0.0".to_owned());
            }
        }
    }

    fn cidr(&mut self, value: &Value, place: &str) -> Option<IpNet> {
        let parsed = value.as_str().and_then(|text| text.parse().ok());
        if parsed.is_none() {
            self.wrong(format!(
                "{place} has {value}, which is no address with a prefix length"
            ));
        }
        parsed
    }

    fn gateway(&mut self, value: &Value, address: Option<IpNet>) {
        let parsed: Option<IpAddr> = value.as_str().and_then(|text| text.parse().ok());
        let fits = |ip: IpAddr| address.is_none_or(|net| net.addr().is_ipv4() == ip.is_ipv4());
        if !value.is_null() && !parsed.is_some_and(fits) {
            self.wrong(format!("the gateway is {value}"));
        }
    }

    fn routes(&mut self, value: &Value, place: &str) {
        if !value.is_null() && !value.is_array() {
            self.wrong(format!("{place} has routes {value}"));
        }
        for route in value.as_array().into_iter().flatten() {
            self.cidr(&route["dst"], "routes");
            self.gateway(&route["gw"], None);
        }
    }

    fn dns(&mut self, dns: &Value) {
        let is_list = |value: &Value| {
            let all_text = |items: &Vec<Value>| items.iter().all(Value::is_string);
            value.is_null() || value.as_array().is_some_and(all_text)
        };
        let lists = ["nameservers", "search", "options"];
        let good = dns.is_null()
            || dns.is_object()
                && lists.iter().all(|key| is_list(&dns[key]))
                && (dns["domain"].is_null() || dns["domain"].is_string());
        if !good {
            self.wrong(format!("dns is {dns}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(result: &Value, version: Version) -> Vec<String> {
        let faults = result_faults(result, Some(version)).into_iter();
        faults.map(|fault| fault.seen).collect()
    }

    #[test]
    fn accepts_valid_results_of_each_version() {
        let new = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}], "dns": {}});
        assert_eq!(seen(&new, Version::V1_0_0), [""; 0]);
        let old = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/24", "routes": [{"dst": "0.0.0.0/0"}]}});
        assert_eq!(seen(&old, Version::V0_2_0), [""; 0]);
        let middle =
            json!({"cniVersion": "0.4.0", "ips": [{"version": "6", "address": "fd00::2/64"}]});
        assert_eq!(seen(&middle, Version::V0_4_0), [""; 0]);
    }

    #[test]
    fn names_each_fault_of_a_result() {
        let bad = json!({"cniVersion": "1.0.0", "interfaces": [], "ips": [{"address": "10.0.0.2", "gateway": "fd00::1", "interface": 0, "version": "4"}], "dns": [], "routes": [{"dst": "<nil>"}]});
        assert_eq!(seen(&bad, Version::V1_1_0).len(), 7);
        assert_eq!(
            seen(
                &json!({"cniVersion": "0.3.1", "ips": [{"address": "fd00::2/64", "version": "4"}]}),
                Version::V0_3_1
            ),
            ["result of 0.3.1: the address \"fd00::2/64\" has version \"4\""]
        );
        assert_eq!(
            seen(&json!({"cniVersion": "0.2.0"}), Version::V0_2_0).len(),
            1
        );
    }

    #[test]
    fn grades_faults_of_errors() {
        let of = |error: Value| -> Vec<_> {
            let faults = error_faults(&error, "ADD").into_iter();
            faults.map(|fault| fault.severity).collect()
        };
        assert_eq!(
            of(json!({"cniVersion": "1.0.0", "code": 999, "msg": "x"})),
            []
        );
        assert_eq!(of(json!({"code": 7, "msg": "x"})), [Severity::Note]);
        assert_eq!(
            of(json!({"cniVersion": "", "code": 40, "msg": "x"})),
            [Severity::Weakness]
        );
        assert_eq!(
            of(json!({"cniVersion": "", "code": "7", "msg": ""})),
            [Severity::Violation; 2]
        );
        assert_eq!(of(json!({"cniVersion": ""})), [Severity::Violation; 2]);
    }
}
