//! Several short strings in one allocation.

/// A list of strings that does not change: each as its length and its bytes, one after the other.
/// A cache holds a dozen of them for each object, and an allocation for each string would take more
/// memory than the strings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedStrs(Box<[u8]>);

impl PackedStrs {
    /// The strings, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (length, after) = rest.split_first_chunk()?;
            let length = usize::try_from(u32::from_ne_bytes(*length)).ok()?;
            let (text, after) = after.split_at_checked(length)?;
            rest = after;
            std::str::from_utf8(text).ok()
        })
    }

    /// The string at an index.
    pub fn get(&self, index: usize) -> Option<&str> {
        self.iter().nth(index)
    }
}

impl<T: AsRef<str>> FromIterator<T> for PackedStrs {
    fn from_iter<I: IntoIterator<Item = T>>(strings: I) -> Self {
        let mut packed = Vec::new();
        for text in strings {
            // An object has fewer bytes than that by far.
            let text = text.as_ref();
            let length = u32::try_from(text.len()).unwrap_or_default();
            packed.extend_from_slice(&length.to_ne_bytes());
            packed.extend(text.bytes().take(length as usize));
        }
        Self(packed.into_boxed_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_as_they_were_packed() {
        for strings in [&[][..], &[""], &["a", "", "\0ü", "b"]] {
            let packed: PackedStrs = strings.iter().collect();
            assert_eq!(packed.iter().collect::<Vec<_>>(), strings);
            assert_eq!(packed.get(1), strings.get(1).copied());
        }
    }
}
