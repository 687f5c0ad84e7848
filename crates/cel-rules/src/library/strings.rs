//! Functions of texts: those of the standard library, and of the extension for strings.

use super::{LIST_STRING, arguments};
use crate::{
    error::Failure,
    functions::{
        Declared::{Bool, Int, String},
        Overload, global, member,
    },
    list::List,
    meter::Meter,
    value::Value,
};

pub(super) static FUNCTIONS: &[Overload] = &[
    member("contains", &[String, String], Bool, contains).counts_cost(),
    member("startsWith", &[String, String], Bool, starts_with).counts_cost(),
    member("endsWith", &[String, String], Bool, ends_with).counts_cost(),
    member("charAt", &[String, Int], String, char_at).counts_cost(),
    member("indexOf", &[String, String], Int, index_of).counts_cost(),
    member("indexOf", &[String, String, Int], Int, index_of).counts_cost(),
    member("lastIndexOf", &[String, String], Int, last_index_of).counts_cost(),
    member("lastIndexOf", &[String, String, Int], Int, last_index_of).counts_cost(),
    member("lowerAscii", &[String], String, lower).counts_cost(),
    member("upperAscii", &[String], String, upper).counts_cost(),
    member("trim", &[String], String, trim).counts_cost(),
    member("substring", &[String, Int], String, substring).counts_cost(),
    member("substring", &[String, Int, Int], String, substring).counts_cost(),
    member("replace", &[String, String, String], String, replace).counts_cost(),
    member("replace", &[String, String, String, Int], String, replace).counts_cost(),
    member("split", &[String, String], LIST_STRING, split).counts_cost(),
    member("split", &[String, String, Int], LIST_STRING, split).counts_cost(),
    member("join", &[LIST_STRING], String, join).counts_cost(),
    member("join", &[LIST_STRING, String], String, join).counts_cost(),
    member("reverse", &[String], String, reverse).counts_cost(),
    global("strings.quote", &[String], String, quote).counts_cost(),
];

type Outcome<'a> = Result<Value<'a>, Failure>;

fn contains<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text), Value::String(part));
    let cost = crate::meter::traversal(text.len(), 1) * crate::meter::traversal(part.len(), 1);
    meter.charge(cost)?;
    Ok(Value::Bool(text.contains(&**part)))
}

fn starts_with<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text), Value::String(part));
    meter.traverse(part.len(), 1)?;
    Ok(Value::Bool(text.starts_with(&**part)))
}

fn ends_with<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text), Value::String(part));
    meter.traverse(part.len(), 1)?;
    Ok(Value::Bool(text.ends_with(&**part)))
}

fn out_of_range<'a>(at: i64) -> Outcome<'a> {
    Failure::other(format!("index out of range: {at}"))
}

/// The byte at which the character with that index begins; the end of the text for its length.
fn byte_of(text: &str, index: i64) -> Option<usize> {
    let index = usize::try_from(index).ok()?;
    let starts = text.char_indices().map(|(at, _)| at);
    starts.chain([text.len()]).nth(index)
}

fn chars_before(text: &str, byte: usize) -> i64 {
    let before = text.get(..byte).unwrap_or(text);
    i64::try_from(before.chars().count()).unwrap_or(i64::MAX)
}

fn char_at<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text), Value::Int(at));
    meter.charge(1 + crate::meter::traversal(text.len() / 10, 1))?;
    match byte_of(text, *at).and_then(|byte| text.get(byte..)) {
        Some(rest) => Ok(Value::string(
            rest.chars().take(1).collect::<std::string::String>(),
        )),
        None => out_of_range(*at),
    }
}

fn index_of<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, part, from) = match args {
        [Value::String(text), Value::String(part)] => (text, part, 0),
        [Value::String(text), Value::String(part), Value::Int(from)] => (text, part, *from),
        _ => return Err(Failure::NoSuchOverload),
    };
    meter.traverse(text.len(), 1)?;
    // The reference finds an empty text at once, wherever the search begins.
    if part.is_empty() {
        return Ok(Value::Int(from));
    }
    let Some(start) = byte_of(text, from) else {
        return out_of_range(from);
    };
    let found = text.get(start..).and_then(|rest| rest.find(&**part));
    Ok(Value::Int(
        found.map_or(-1, |at| chars_before(text, start + at)),
    ))
}

fn last_index_of<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, part, from) = match args {
        [Value::String(text), Value::String(part)] => (text, part, None),
        [Value::String(text), Value::String(part), Value::Int(from)] => (text, part, Some(*from)),
        _ => return Err(Failure::NoSuchOverload),
    };
    meter.traverse(text.len(), 1)?;
    if part.is_empty() {
        return Ok(Value::Int(
            from.unwrap_or_else(|| chars_before(text, text.len())),
        ));
    }
    let end = match from {
        None => text.len(),
        Some(from) => match byte_of(text, from) {
            Some(start) => start.saturating_add(part.len()).min(text.len()),
            None => return out_of_range(from),
        },
    };
    let end = (end..=text.len())
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(text.len());
    let found = text.get(..end).and_then(|before| before.rfind(&**part));
    Ok(Value::Int(found.map_or(-1, |at| chars_before(text, at))))
}

fn lower<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    Ok(Value::string(text.to_ascii_lowercase()))
}

fn upper<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    Ok(Value::string(text.to_ascii_uppercase()))
}

fn trim<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    Ok(Value::string(text.trim()))
}

fn substring<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, start, end) = match args {
        [Value::String(text), Value::Int(start)] => (text, *start, None),
        [Value::String(text), Value::Int(start), Value::Int(end)] => (text, *start, Some(*end)),
        _ => return Err(Failure::NoSuchOverload),
    };
    meter.traverse(text.len(), 1)?;
    if let Some(end) = end.filter(|end| start > *end) {
        return Failure::other(format!(
            "invalid substring range. start: {start}, end: {end}"
        ));
    }
    let Some(from) = byte_of(text, start) else {
        return out_of_range(start);
    };
    let to = match end {
        None => text.len(),
        Some(end) => match byte_of(text, end) {
            Some(to) => to,
            None => return out_of_range(end),
        },
    };
    Ok(Value::string(text.get(from..to).unwrap_or_default()))
}

fn replace<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, old, new, most) = match args {
        [Value::String(text), Value::String(old), Value::String(new)] => (text, old, new, -1),
        [
            Value::String(text),
            Value::String(old),
            Value::String(new),
            Value::Int(most),
        ] => (text, old, new, *most),
        _ => return Err(Failure::NoSuchOverload),
    };
    meter.traverse(text.len(), 2)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    // The result may be far longer than the text, which the reference does not count.
    let count = text.matches(&**old).count().min(most);
    let longer = count.saturating_mul(new.len().saturating_sub(old.len()));
    meter.traverse(longer, 1)?;
    Ok(Value::string(text.replacen(&**old, new, most)))
}

fn split<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, separator, most) = match args {
        [Value::String(text), Value::String(separator)] => (text, separator, -1),
        [
            Value::String(text),
            Value::String(separator),
            Value::Int(most),
        ] => (text, separator, *most),
        _ => return Err(Failure::NoSuchOverload),
    };
    meter.traverse(text.len(), 2)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let parts: Vec<Value<'a>> = if separator.is_empty() {
        // Each character, and what is left over as one.
        let whole = most.saturating_sub(1);
        let end = text
            .char_indices()
            .nth(whole)
            .map_or(text.len(), |(at, _)| at);
        let (first, rest) = text.split_at(end);
        let chars = first.chars().map(|c| Value::string(c.to_string()));
        let rest = (!rest.is_empty() && most > 0).then(|| Value::string(rest));
        chars.chain(rest).collect()
    } else if most == 0 {
        Vec::new()
    } else {
        text.splitn(most, &**separator).map(Value::string).collect()
    };
    Ok(Value::List(List::new(parts)))
}

fn join<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (list, separator) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(separator)] => (list, &**separator),
        _ => return Err(Failure::NoSuchOverload),
    };
    let mut out = std::string::String::new();
    for (index, item) in list.iter().enumerate() {
        let Value::String(text) = &item else {
            return Failure::other(format!(
                "join: invalid input: {}",
                super::conversions::display(&item)
            ));
        };
        meter.traverse(text.len() + separator.len(), 2)?;
        if index > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
    }
    Ok(Value::string(out))
}

fn reverse<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    Ok(Value::string(
        text.chars().rev().collect::<std::string::String>(),
    ))
}

fn quote<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    let mut out = std::string::String::from("\"");
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            other => out.push(other),
        }
    }
    out.push('"');
    Ok(Value::string(out))
}
