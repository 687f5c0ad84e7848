//! The nesting depth of documents, measured without recursion.
//!
//! Code that traverses documents is recursive: printing, comparing and dropping a [`Value`] are. A
//! thread's stack suffices for a few thousand levels. JSON is parsed to a depth of 127 levels, and
//! stored documents are shallower, so that they can be parsed again inside a list.

use serde_json::Value;

/// The deepest document that may be stored.
pub const MAX_DEPTH: usize = 100;

/// The depth of lists and objects: 0 for a string, 1 for an empty list.
pub fn depth(value: &Value) -> usize {
    let mut deepest = 0;
    let mut left = vec![(value, 1)];
    while let Some((value, level)) = left.pop() {
        match value {
            Value::Array(items) => left.extend(items.iter().map(|item| (item, level + 1))),
            Value::Object(fields) => left.extend(fields.values().map(|field| (field, level + 1))),
            _ => continue,
        }
        deepest = deepest.max(level);
    }
    deepest
}

/// The depth of a document given as JSON text, which must be valid.
pub fn text_depth(json: &[u8]) -> usize {
    let (mut level, mut deepest) = (0_usize, 0);
    let mut bytes = json.iter();
    let mut in_text = false;
    while let Some(byte) = bytes.next() {
        match byte {
            // An escaped character never ends a string.
            b'\\' if in_text => _ = bytes.next(),
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'[' | b'{' => {
                level += 1;
                deepest = deepest.max(level);
            }
            b']' | b'}' => level = level.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn depth_of_a_text_equals_that_of_its_value() {
        for (value, want) in [
            (json!("[[["), 0),
            (json!([]), 1),
            (json!({"a": {}, "b": [[1], {"c": "}"}]}), 3),
            (json!({"\"[{": "\\", "x": ["\\\""]}), 2),
        ] {
            assert_eq!(depth(&value), want, "{value}");
            assert_eq!(text_depth(value.to_string().as_bytes()), want, "{value}");
        }
    }
}
