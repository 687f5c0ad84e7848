//! The network of a node as indented text.

use std::fmt;

use super::{NodeLink, NodeTopology, kind_and_state, list};
use crate::words;

impl fmt::Display for NodeTopology {
    /// Printable ASCII, without a line feed at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = format!("{}: network namespace {}", self.node, self.namespace);
        f.write_str(&words::ascii(&head))?;
        for link in self.links.iter().filter(|link| !self.has_master(link)) {
            self.write_link(f, "  ", link)?;
            for port in self.ports_of(&link.name) {
                self.write_link(f, "    ", port)?;
            }
        }
        let is_apart = |link: Option<&String>| {
            link.is_none_or(|name| !self.links.iter().any(|link| link.name == *name))
        };
        for pod in &self.pods {
            let interfaces = pod.interfaces.iter();
            let apart = interfaces.filter(|interface| is_apart(interface.link.as_ref()));
            for interface in apart {
                let addresses = list(&interface.addresses);
                let text = format!("  pod {}, {} {addresses}", pod.pod, interface.name);
                write!(f, "\n{}", words::ascii(text.trim_end()))?;
            }
        }
        f.write_str("\nroutes")?;
        if self.routes.is_empty() {
            f.write_str("\n  none")?;
        }
        self.routes
            .iter()
            .try_for_each(|route| write!(f, "\n  {}", words::ascii(&route.to_string())))
    }
}

impl NodeTopology {
    fn write_link(&self, f: &mut fmt::Formatter<'_>, indent: &str, link: &NodeLink) -> fmt::Result {
        let mut text = format!("{indent}{}, {}", link.name, kind_and_state(link));
        if !link.addresses.is_empty() {
            text = format!("{text}: {}", list(&link.addresses));
        }
        for (pod, interface) in self.interfaces_at(&link.name) {
            let addresses = list(&interface.addresses);
            text = format!("{text} -- pod {}, {} {addresses}", pod.pod, interface.name);
        }
        write!(f, "\n{}", words::ascii(text.trim_end()))
    }
}
