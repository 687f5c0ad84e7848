//! Fuzzes selectors by labels and by fields, as texts and as parts of objects.
//!
//! The input is the text of a selector, or an object's selector as JSON.

use std::collections::BTreeMap;

use podplane_api::{
    core,
    kinds::{self, KindVisitor},
    meta,
    selector::{FieldSelector, FieldSet, LabelSelector, NodeSelector},
    strategy::Strategy,
};

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(selector) = text.parse::<LabelSelector>() {
        labels(&selector);
    }
    kinds::visit(&mut FieldsOfKinds(text));
    if let Ok(selector) = serde_json::from_str::<meta::LabelSelector>(text) {
        let selector = LabelSelector::from(&selector);
        matches_as_printed(&selector);
    }
    if let Ok(selector) = serde_json::from_str::<core::NodeSelector>(text) {
        let selector = NodeSelector::from(&selector);
        let _ = selector.to_string();
        let node = core::Node::default();
        assert_eq!(
            selector.matches(&node),
            selector.requirements_met("", &BTreeMap::new()).is_some()
        );
    }
}

/// An accepted selector is printed as a text that is parsed as the same selector.
fn labels(selector: &LabelSelector) {
    let printed = selector.to_string();
    let again = printed.parse::<LabelSelector>();
    assert_eq!(again.as_ref(), Ok(selector), "{printed:?}");
    assert_eq!(again.map(|again| again.to_string()), Ok(printed));
    matches_as_printed(selector);
}

/// A selector that can be printed and parsed matches what the parsed one matches.
fn matches_as_printed(selector: &LabelSelector) {
    let everything = selector.matches(&BTreeMap::new());
    assert!(everything || !selector.is_empty());
    for (key, value) in [("a", "b"), ("app", ""), ("n", "5"), ("a", "x")] {
        let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let label = |wanted: &str| (wanted == key).then_some(value);
        assert_eq!(selector.matches(&labels), selector.matches_by(label));
    }
}

struct FieldsOfKinds<'a>(&'a str);

impl KindVisitor for FieldsOfKinds<'_> {
    fn visit<K: Strategy>(&mut self) {
        let text = self.0;
        let Ok(selector) = FieldSelector::parse::<K>(text) else {
            return;
        };
        let object = FieldSet::of(&K::default());
        let holds = selector.matches(&object);
        assert!(holds || !selector.is_empty());
        // All terms must hold, however often each is stated.
        let twice = FieldSelector::parse::<K>(&format!("{text},{text}"));
        assert_eq!(twice.map(|twice| twice.matches(&object)), Ok(holds));
    }
}
