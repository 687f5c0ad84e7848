//! Named formats of texts: `format.dns1123Label().validate(text)`.

use std::sync::LazyLock;

use base64::Engine as _;
use podplane_api::names;
use regex::Regex;

use super::{LIST_STRING, arguments, time, url::Url};
use crate::{
    error::Failure,
    functions::{
        Declared::{Format, Optional, String},
        Overload, global, member,
    },
    list::List,
    meter::{Meter, traversal},
    value::Value,
};

/// A format of texts.
#[derive(Debug)]
pub struct NamedFormat {
    /// Its name in expressions.
    pub name: &'static str,
    /// The messages of the violated rules.
    violations: fn(&str) -> Vec<std::string::String>,
    /// The length of the format's expression, for its cost.
    length: u64,
}

fn prefix(text: &str, rules: fn(&str) -> Vec<std::string::String>) -> Vec<std::string::String> {
    // A name follows: a `-` at the end is not the last character.
    match text.strip_suffix('-') {
        Some(stem) if !stem.is_empty() => rules(&format!("{stem}a")),
        _ => rules(text),
    }
}

fn broken(is_valid: bool, message: &str) -> Vec<std::string::String> {
    if is_valid {
        Vec::new()
    } else {
        vec![message.to_owned()]
    }
}

fn is_uuid(text: &str) -> bool {
    static UUID: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$")
            .expect("a constant of this file")
    });
    UUID.is_match(text)
}

/// True for bytes in base64.
pub fn is_base64(text: &str) -> bool {
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .is_ok()
}

macro_rules! formats {
    ($($name:ident $run:ident $length:literal $rules:expr;)*) => {
        static FORMATS: &[NamedFormat] = &[
            $(NamedFormat { name: stringify!($name), violations: $rules, length: $length },)*
        ];
        pub(super) static FUNCTIONS: &[Overload] = &[
            $(global(concat!("format.", stringify!($name)), &[], Format, $run),)*
            global("format.named", &[String], Optional(&Format), named),
            member("validate", &[Format, String], Optional(&LIST_STRING), validate).counts_cost(),
        ];
        $(
            fn $run<'a>(_: &mut Meter, _: &[Value<'a>]) -> Outcome<'a> {
                find(stringify!($name)).map(Value::Format).ok_or(Failure::NoSuchOverload)
            }
        )*
    };
}

formats! {
    dns1123Label dns1123_label 30 names::dns1123_label;
    dns1123Subdomain dns1123_subdomain 60 names::dns1123_subdomain;
    dns1035Label dns1035_label 30 names::dns1035_label;
    qualifiedName qualified_name 60 names::qualified_name;
    dns1123LabelPrefix dns1123_label_prefix 30 |text| prefix(text, names::dns1123_label);
    dns1123SubdomainPrefix dns1123_subdomain_prefix 60 |text| prefix(text, names::dns1123_subdomain);
    dns1035LabelPrefix dns1035_label_prefix 30 |text| prefix(text, names::dns1035_label);
    labelValue label_value 40 names::label_value;
    uri uri 1103 |text| Url::parse(text).err().into_iter().collect();
    uuid uuid 80 |text| broken(is_uuid(text), "does not match the UUID format");
    byte byte 84 |text| broken(is_base64(text), "invalid base64");
    date date 120 |text| broken(text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(), "invalid date");
    datetime datetime 120 |text| broken(time::timestamp(text).is_some(), "invalid datetime");
}

type Outcome<'a> = Result<Value<'a>, Failure>;

fn find(name: &str) -> Option<&'static NamedFormat> {
    FORMATS.iter().find(|format| format.name == name)
}

fn named<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(name));
    Ok(Value::optional(find(name).map(Value::Format)))
}

fn validate<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Format(format), Value::String(text));
    meter.charge(traversal(text.len() + 1, 1).saturating_mul(format.length.div_ceil(4)))?;
    let broken = (format.violations)(text);
    let list = (!broken.is_empty())
        .then(|| Value::List(List::new(broken.into_iter().map(Value::string).collect())));
    Ok(Value::optional(list))
}
