//! How deep documents nest, measured without recursion.
//!
//! Code that goes through documents is recursive: printing, comparing and dropping a [`Value`] are. A thread has room for a few thousand levels.
//! JSON is read to a depth of 127 levels, and what is stored is shallower, so that it can be read again inside a list.

use serde_json::Value;

/// The deepest document that may be stored.
pub const MAX_DEPTH: usize = 100;

/// The levels of lists and objects: 0 for a text, 1 for an empty list.
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

/// The same of a document's text, which must be JSON.
pub fn text_depth(json: &[u8]) -> usize {
    let (mut level, mut deepest) = (0_usize, 0);
    let mut bytes = json.iter();
    let mut in_text = false;
    while let Some(byte) = bytes.next() {
        match byte {
            // Whatever is escaped, it ends no text.
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
    fn depths_of_values_and_their_texts_are_equal() {
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
