//! Places in an object, as the paths of errors.

use podplane_api::validation::FieldPath;

/// A place in an object; the object itself at first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place(String);

impl Place {
    pub(crate) fn of(path: &FieldPath) -> Self {
        Self(path.as_str().to_owned())
    }

    pub(crate) fn child(&self, name: &str) -> Self {
        if self.0.is_empty() {
            return Self(name.to_owned());
        }
        Self(format!("{}.{name}", self.0))
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    pub(crate) fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// The path of an error. The object itself has the name that the reference gives it.
    pub(crate) fn path(&self) -> FieldPath {
        FieldPath::new(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}
