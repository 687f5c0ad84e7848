//! The dashboard for Grafana.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// The document, as Grafana imports it.
#[derive(Debug)]
pub(crate) struct Dashboard(Value);

impl Dashboard {
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let text = fs::read_to_string(dir.join("dashboard.json"))?;
        Ok(Self(serde_json::from_str(&text).context("dashboard.json")?))
    }

    /// The paths of the members and elements that another document has not, or with another value.
    pub(crate) fn without(&self, other: &Value) -> Vec<String> {
        let mut lost = Vec::new();
        collect_lost(&self.0, Some(other), "", &mut lost);
        lost
    }

    fn panels(&self) -> &[Value] {
        self.0["panels"].as_array().expect("panels")
    }

    /// The queries of all panels, with the time over which rates are taken.
    pub(crate) fn queries(&self, rate_interval: &str) -> Vec<String> {
        let targets = self.panels().iter().filter_map(|p| p["targets"].as_array());
        let queries = targets.flatten().map(|target| {
            let query = target["expr"].as_str().expect("a query");
            let query = query.replace("$__rate_interval", rate_interval);
            assert!(!query.contains('$'), "a variable in {query}");
            query
        });
        queries.collect()
    }

    /// Checks that panels have different ids and no common place, and say what they show, from the
    /// Prometheus that the reader chooses.
    pub(crate) fn check_layout(&self) {
        let chosen = json!({"type": "prometheus", "uid": "${datasource}"});
        let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
        for panel in self.panels() {
            let title = panel["title"].as_str().expect("a title");
            assert_ne!(title, "", "{panel}");
            assert!(ids.insert(panel["id"].to_string()), "the id of {title}");
            let place = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64());
            let [Some(x), Some(y), Some(w), Some(h)] = place else {
                panic!("the place of {title}: {place:?}");
            };
            assert!(x + w <= 24, "{title} is beside the grid");
            for cell in (y..y + h).flat_map(|y| (x..x + w).map(move |x| (x, y))) {
                assert!(cells.insert(cell), "{title} is above another panel");
            }
            if panel["type"] == "row" {
                continue;
            }
            assert_ne!(panel["description"].as_str(), Some(""), "{title}");
            assert_eq!(panel["datasource"], chosen, "{title}");
            let targets = panel["targets"].as_array().expect(title);
            let refs: BTreeSet<_> = targets.iter().map(|t| t["refId"].to_string()).collect();
            assert_eq!(refs.len(), targets.len(), "the refIds of {title}");
            for target in targets {
                assert_eq!(target["datasource"], chosen, "{title}");
            }
        }
    }
}

fn collect_lost(value: &Value, other: Option<&Value>, path: &str, lost: &mut Vec<String>) {
    match (value, other) {
        (Value::Object(members), Some(Value::Object(others))) => {
            for (name, member) in members {
                collect_lost(member, others.get(name), &format!("{path}/{name}"), lost);
            }
        }
        (Value::Array(elements), Some(Value::Array(others))) => {
            for (index, element) in elements.iter().enumerate() {
                collect_lost(element, others.get(index), &format!("{path}/{index}"), lost);
            }
        }
        (value, other) if Some(value) == other => {}
        _ => lost.push(path.to_owned()),
    }
}
