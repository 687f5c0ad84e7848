//! The table of services.

use jiff::Timestamp;

use crate::{
    Object as _,
    core::{Service, ServiceSpec},
    table::{Column, NONE, TableRow, always, created, wide},
};

impl TableRow for Service {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("TYPE"),
        always("CLUSTER-IP"),
        always("EXTERNAL-IP"),
        always("PORT(S)"),
        always("AGE"),
        wide("SELECTOR"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = self.spec.clone().unwrap_or_default();
        let first = spec.cluster_ips.iter().flatten().next();
        vec![
            self.name().into(),
            spec.type_.clone().unwrap_or_default(),
            first
                .or(spec.cluster_ip.as_ref())
                .filter(|ip| !ip.is_empty())
                .map_or(NONE, |ip| ip)
                .into(),
            external_ips(self, &spec),
            ports(&spec),
            created(self, now),
            selector(&spec),
        ]
    }
}

fn external_ips(service: &Service, spec: &ServiceSpec) -> String {
    let given = || spec.external_ips.iter().flatten().cloned();
    let joined = |ips: Vec<String>| (!ips.is_empty()).then(|| ips.join(","));
    match spec.type_.as_deref() {
        Some("ExternalName") => spec.external_name.clone().unwrap_or_default(),
        Some("LoadBalancer") => {
            let status = service
                .status
                .as_ref()
                .and_then(|status| status.load_balancer.as_ref());
            let ingress = status
                .iter()
                .flat_map(|status| status.ingress.iter().flatten());
            let mut ips: Vec<_> = ingress
                .filter_map(|ingress| {
                    let mut named = [&ingress.ip, &ingress.hostname].into_iter().flatten();
                    named.find(|text| !text.is_empty()).cloned()
                })
                .collect();
            ips.extend(given());
            joined(ips).unwrap_or_else(|| "<pending>".into())
        }
        _ => joined(given().collect()).unwrap_or_else(|| NONE.into()),
    }
}

/// Formats ports, such as `80/TCP,443:30443/TCP`.
fn ports(spec: &ServiceSpec) -> String {
    let ports = spec.ports.iter().flatten().map(|port| {
        let protocol = port.protocol.as_deref().unwrap_or_default();
        match port.node_port {
            Some(node_port) if node_port > 0 => format!("{}:{node_port}/{protocol}", port.port),
            _ => format!("{}/{protocol}", port.port),
        }
    });
    let ports: Vec<_> = ports.collect();
    if ports.is_empty() {
        NONE.into()
    } else {
        ports.join(",")
    }
}

fn selector(spec: &ServiceSpec) -> String {
    let labels = spec.selector.iter().flatten();
    let labels: Vec<_> = labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if labels.is_empty() {
        NONE.into()
    } else {
        labels.join(",")
    }
}
