//! `CNI_ARGS`: `K=V;K=V`.

use super::json::go_quote;

/// Reads the value of the only key that a plugin knows, as [`cni_args`] does.
///
/// # Errors
/// The reference's texts.
pub fn cni_arg<T>(
    args: &str,
    known: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    cni_args(args, [known], parse).map(|[value]| value)
}

/// Reads the values of the keys that a plugin knows. Of several values for one key the last one
/// counts. Keys are case-sensitive, and other keys are an error unless `IgnoreUnknown` is set.
///
/// # Errors
/// The reference's texts.
pub fn cni_args<T, const N: usize>(
    args: &str,
    known: [&str; N],
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<[Option<T>; N], String> {
    let mut found = [const { None }; N];
    if args.is_empty() {
        return Ok(found);
    }
    let (mut ignore_unknown, mut unknown) = (false, Vec::new());
    for pair in args.split(';') {
        let (key, value) = match pair.split_once('=') {
            Some((key, value)) if !value.contains('=') => (key, value),
            _ => return Err(format!("ARGS: invalid pair {}", go_quote(pair))),
        };
        let bad = |why: String| {
            format!(
                "ARGS: error parsing value of pair {}: {why}",
                go_quote(pair)
            )
        };
        match key {
            // The reference stores the values in a structure, and takes the name of an embedded
            // part for a key.
            "CommonArgs" => {
                return Err("ARGS: cannot unmarshal into field 'CommonArgs' - type '*types.CommonArgs' does not implement encoding.TextUnmarshaler".to_owned());
            }
            "IgnoreUnknown" => {
                ignore_unknown = match value.to_lowercase().as_str() {
                    "1" | "true" => true,
                    "0" | "false" => false,
                    _ => {
                        return Err(bad(format!(
                            "boolean unmarshal error: invalid input {value}"
                        )));
                    }
                }
            }
            _ => match known.iter().position(|known| *known == key) {
                Some(at) if value.is_empty() => found[at] = None,
                Some(at) => found[at] = Some(parse(value).map_err(bad)?),
                None => unknown.push(pair),
            },
        }
    }
    if !unknown.is_empty() && !ignore_unknown {
        return Err(format!(
            "ARGS: unknown args {}",
            super::json::go_quote_list(&unknown)
        ));
    }
    Ok(found)
}
