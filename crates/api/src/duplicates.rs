//! Detection of fields that a document has more than once.
//!
//! Decoding silently keeps the last of them, as Go's does. Kubernetes' strict decoder names them.

use std::{collections::BTreeSet, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, MapAccess, SeqAccess, Visitor},
};

/// The number that the reference names at most.
const MAX_FOUND: usize = 100;
/// The most bytes of all paths together: a document of megabytes can have keys of megabytes.
const MAX_BYTES: usize = 16 << 10;

/// The paths of repeated fields, in the order of the document: `spec.containers[0].image`. For a
/// document that cannot be parsed, those before the error.
pub fn duplicates<'de, D: Deserializer<'de>>(document: D) -> Vec<String> {
    let mut found = DuplicatePaths::default();
    let root = DuplicateScan {
        path: &ValuePath::Root,
        found: &mut found,
    };
    // Errors of the document are reported by its decoder.
    _ = root.deserialize(document);
    found.paths
}

#[derive(Default)]
struct DuplicatePaths {
    paths: Vec<String>,
    bytes: usize,
}

impl DuplicatePaths {
    fn add(&mut self, path: &ValuePath<'_>) {
        if self.paths.len() >= MAX_FOUND || self.bytes + path.len() > MAX_BYTES {
            return;
        }
        let path = path.to_string();
        if self.paths.last() != Some(&path) {
            self.bytes += path.len();
            self.paths.push(path);
        }
    }
}

/// The path of a value. It is formatted only where a duplicate is found.
enum ValuePath<'a> {
    Root,
    Field(&'a ValuePath<'a>, &'a str),
    Index(&'a ValuePath<'a>, usize),
}

impl ValuePath<'_> {
    /// The length when formatted, or a few bytes more.
    fn len(&self) -> usize {
        match self {
            Self::Root => 0,
            Self::Field(parent, name) => parent.len() + 1 + name.len(),
            Self::Index(parent, _) => parent.len() + 8,
        }
    }
}

impl fmt::Display for ValuePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Visits a value without storing it.
struct DuplicateScan<'a> {
    path: &'a ValuePath<'a>,
    found: &'a mut DuplicatePaths,
}

impl<'de> DeserializeSeed<'de> for DuplicateScan<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DuplicateScan<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { path, found } = self;
        let mut seen = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let path = ValuePath::Field(path, &name);
            if seen.contains(&name) {
                found.add(&path);
            }
            let path = &path;
            map.next_value_seed(DuplicateScan { path, found })?;
            seen.insert(name);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self { path, found } = self;
        let mut index = 0;
        loop {
            let path = &ValuePath::Index(path, index);
            if items
                .next_element_seed(DuplicateScan { path, found })?
                .is_none()
            {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i128<E>(self, _: i128) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u128<E>(self, _: u128) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Vec<String> {
        duplicates(&mut serde_json::Deserializer::from_str(json))
    }

    #[test]
    fn names_each_repeated_field_once_by_path() {
        let json = r#"{"a": 1, "b": {"c": [{"d": 1}, {"d": "x", "d": null, "d": 2.5}]}, "a": true, "b": {"c": 1}}"#;
        assert_eq!(of(json), ["b.c[1].d", "a", "b"]);
        assert_eq!(of(r#"[{"x": {}, "x": []}]"#), ["[0].x"]);
        assert_eq!(of(r#"{"a": {"b": 1}, "c": {"b": 1}}"#), [""; 0]);
        assert_eq!(of(r#"{"a": 1, "a": 2, "a"#), ["a"]);
    }

    #[test]
    fn paths_are_bounded_in_number_and_length() {
        let many: Vec<_> = (0..1000).map(|n| format!(r#""k{n}":1,"k{n}":2"#)).collect();
        assert_eq!(of(&format!("{{{}}}", many.join(","))).len(), MAX_FOUND);
        let long = "k".repeat(MAX_BYTES);
        assert_eq!(of(&format!(r#"{{"{long}":1,"{long}":2}}"#)), [""; 0]);
    }
}
