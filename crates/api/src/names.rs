//! The rules of names, label keys and label values, with Kubernetes' messages.
//!
//! Each function returns the messages of the violated rules, none if the text is valid (source:
//! `apimachinery/pkg/util/validation`).

/// The most characters of a DNS-1123 label.
pub const DNS1123_LABEL_MAX: usize = 63;
/// The most characters of a DNS-1123 subdomain.
pub const DNS1123_SUBDOMAIN_MAX: usize = 253;
const PART_MAX: usize = 63;
/// The characters of generated names: no vowels, so that they form no words, and no characters that
/// are easily confused.
const SAFE: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an \
     alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end \
     with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and \
     end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character \
     (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and \
     end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
     '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// A name for `generateName`: the prefix, truncated so that the result is a DNS label, and
/// characters chosen by `random`.
pub fn generated(prefix: &str, random: [u8; SUFFIX_LENGTH]) -> String {
    let prefix = prefix.chars().take(DNS1123_LABEL_MAX - SUFFIX_LENGTH);
    prefix.collect::<String>() + &safe(&random)
}

/// Encodes bytes as characters that are safe in a name, one for each (source:
/// `apimachinery/pkg/util/rand`).
pub fn safe(bytes: &[u8]) -> String {
    let safe = |byte: &u8| char::from(SAFE[usize::from(*byte) % SAFE.len()]);
    bytes.iter().map(safe).collect()
}

/// Checks a namespace, container or port name: lower case, digits and `-`, at most 63 characters.
pub fn dns1123_label(text: &str) -> Vec<String> {
    let mut broken = too_long(text, DNS1123_LABEL_MAX);
    if !is_label(text) {
        broken.push(LABEL.to_owned());
    }
    broken
}

/// Checks the name of a service: as [`dns1123_label`], and it begins with a letter.
pub fn dns1035_label(text: &str) -> Vec<String> {
    let mut broken = too_long(text, DNS1123_LABEL_MAX);
    if !is_label(text) || text.starts_with(|first: char| first.is_ascii_digit()) {
        broken.push(DNS1035.to_owned());
    }
    broken
}

/// Checks the name of most objects: labels joined by dots, at most 253 characters.
pub fn dns1123_subdomain(text: &str) -> Vec<String> {
    let mut broken = too_long(text, DNS1123_SUBDOMAIN_MAX);
    if !text.split('.').all(is_label) {
        broken.push(SUBDOMAIN.to_owned());
    }
    broken
}

/// Checks a name that is only a part of a path, such as that of a role: `system:node`.
pub fn path_segment(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    let forbidden = ["/", "%"].into_iter().filter(|part| text.contains(part));
    forbidden
        .map(|part| format!("may not contain '{part}'"))
        .collect()
}

/// Checks a label or annotation key, a finalizer or a resource: a name of at most 63 characters,
/// with an optional subdomain and `/` before it.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    let name = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        ["", name] => {
            broken.push("prefix part must be non-empty".to_owned());
            name
        }
        [prefix, name] => {
            broken.extend(
                dns1123_subdomain(prefix)
                    .iter()
                    .map(|rule| format!("prefix part {rule}")),
            );
            name
        }
        _ => {
            return vec![format!(
                "a qualified name {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        broken.push("name part must be non-empty".to_owned());
    }
    broken.extend(
        too_long(name, PART_MAX)
            .iter()
            .map(|rule| format!("name part {rule}")),
    );
    if !is_word(name) {
        broken.push(format!("name part {QUALIFIED}"));
    }
    broken
}

/// Checks a label value: empty, or up to 63 alphanumeric characters, `-`, `_` and `.`.
pub fn label_value(text: &str) -> Vec<String> {
    let mut broken = too_long(text, PART_MAX);
    if !text.is_empty() && !is_word(text) {
        broken.push(LABEL_VALUE.to_owned());
    }
    broken
}

/// Checks a port's name: a label of up to 15 characters with at least one letter and no two hyphens
/// together (`IANA_SVC_NAME`).
pub fn port_name(text: &str) -> Vec<String> {
    let mut broken = too_long(text, 15);
    if !text
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    {
        broken.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        broken.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        broken.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        broken.push("must not begin or end with a hyphen".to_owned());
    }
    broken
}

fn too_long(text: &str, max: usize) -> Vec<String> {
    let too_long = (text.len() > max).then(|| format!("must be no more than {max} characters"));
    too_long.into_iter().collect()
}

fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    framed(text, inner, |b| inner(b) || b == b'-')
}

fn is_word(text: &str) -> bool {
    framed(
        text,
        |b| b.is_ascii_alphanumeric(),
        |b| b.is_ascii_alphanumeric() || b"-_.".contains(&b),
    )
}

/// True if the first and last bytes satisfy `ends` and all bytes satisfy `all`.
fn framed(text: &str, ends: impl Fn(u8) -> bool, all: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let (first, last) = (bytes.first().copied(), bytes.last().copied());
    first.is_some_and(&ends) && last.is_some_and(&ends) && bytes.iter().all(|b| all(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_formed_names_break_no_rule() {
        for name in ["a", "a-b", "0", "123-abc", &"a".repeat(63)] {
            assert_eq!(dns1123_label(name), Vec::<String>::new(), "{name}");
            assert_eq!(dns1123_subdomain(name), Vec::<String>::new(), "{name}");
        }
        assert!(dns1123_subdomain("a.b-c.0").is_empty());
        for key in ["a", "A_b.c", "example.com/Name", "podplane.io/pod-ips"] {
            assert_eq!(qualified_name(key), Vec::<String>::new(), "{key}");
        }
        for value in ["", "a", "A_b.c-1"] {
            assert_eq!(label_value(value), Vec::<String>::new(), "{value}");
        }
        for port in ["http", "a1", "a-b"] {
            assert_eq!(port_name(port), Vec::<String>::new(), "{port}");
        }
    }

    #[test]
    fn path_segments_have_no_separators() {
        for name in ["a", "system:node", "A b", "...", "a.b"] {
            assert_eq!(path_segment(name), Vec::<String>::new(), "{name}");
        }
        assert_eq!(path_segment("."), ["may not be '.'"]);
        assert_eq!(path_segment(".."), ["may not be '..'"]);
        assert_eq!(
            path_segment("a/%"),
            ["may not contain '/'", "may not contain '%'"]
        );
    }

    #[test]
    fn generated_names_are_labels() {
        assert_eq!(generated("web-", [0, 26, 27, 1, 255]), "web-b9bcq");
        let long = generated(&"a".repeat(100), [1; 5]);
        assert_eq!(dns1123_label(&long), Vec::<String>::new());
        assert_eq!(long.len(), DNS1123_LABEL_MAX);
        // For example, Kubernetes' hash of a pod template in the name of its ReplicaSet.
        assert_eq!(safe(b"3421587906"), "78659dcf4b");
    }

    #[test]
    fn refuses_invalid_names_with_kubernetes_messages() {
        for name in ["", "A", "-a", "a-", "a_b", "a.b", "ä"] {
            assert_eq!(dns1123_label(name), [LABEL], "{name}");
        }
        for name in ["", "A", "a..b", ".a", "a.", "a.-b"] {
            assert_eq!(dns1123_subdomain(name), [SUBDOMAIN], "{name}");
        }
        assert_eq!(
            dns1123_label(&"a".repeat(64)),
            ["must be no more than 63 characters"]
        );
        assert_eq!(
            dns1123_label("Nginx"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric \
              character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert_eq!(qualified_name("/a"), ["prefix part must be non-empty"]);
        assert_eq!(
            qualified_name("a/"),
            [
                "name part must be non-empty".to_owned(),
                format!("name part {QUALIFIED}")
            ]
        );
        assert_eq!(qualified_name("A/b"), [format!("prefix part {SUBDOMAIN}")]);
        assert!(qualified_name("a/b/c")[0].ends_with(
            "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ));
        assert_eq!(label_value("a b"), [LABEL_VALUE]);
        assert_eq!(port_name("80"), ["must contain at least one letter (a-z)"]);
    }
}
