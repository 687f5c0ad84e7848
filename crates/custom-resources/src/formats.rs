//! Formats of texts and numbers. Unknown formats are no restriction, as in the reference.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::LazyLock,
};

use podplane_api::names;
use podplane_cel_rules::{is_base64, is_date, is_date_time, is_duration, is_uri};
use regex::Regex;

macro_rules! expressions {
    ($($name:ident $text:literal;)*) => {
        $(static $name: LazyLock<Regex> = LazyLock::new(|| Regex::new($text).expect("a constant of this file"));)*
    };
}

expressions! {
    UUID r"^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$";
    UUID3 r"^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$";
    UUID4 r"^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$";
    UUID5 r"^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$";
    HEX_COLOR r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$";
    SSN r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$";
    OBJECT_ID r"^[0-9a-fA-F]{24}$";
    MAC r"^(?i)([0-9a-f]{2}([:-][0-9a-f]{2}){5}|[0-9a-f]{2}([:-][0-9a-f]{2}){7}|[0-9a-f]{4}(\.[0-9a-f]{4}){2,3})$";
    EMAIL r"^[^@\s<>]+@[^@\s<>]+$";
    RGB r"^rgb\(\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*\)$";
}

/// True if a text has that format.
pub(crate) fn is_valid(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => MAC.is_match(text),
        "uuid" => UUID.is_match(text),
        "uuid3" => UUID3.is_match(text),
        "uuid4" => UUID4.is_match(text),
        "uuid5" => UUID5.is_match(text),
        "uri" => is_uri(text),
        "email" => EMAIL.is_match(text),
        "hostname" => text.len() <= 255 && text.split('.').all(is_host_label),
        "byte" => is_base64(text),
        "date" => is_date(text),
        "datetime" => is_date_time(text),
        "duration" => is_duration(text),
        "hexcolor" => HEX_COLOR.is_match(text),
        "rgbcolor" => is_rgb(text),
        "ssn" => SSN.is_match(text),
        "bsonobjectid" => OBJECT_ID.is_match(text),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "k8sshortname" => names::dns1123_label(text).is_empty(),
        "k8slongname" => names::dns1123_subdomain(text).is_empty(),
        _ => true,
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let most = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    length.bytes().all(|byte| byte.is_ascii_digit())
        && length.parse::<u8>().is_ok_and(|length| length <= most)
}

fn is_host_label(label: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    label.len() <= 63
        && is_end(label.chars().next())
        && is_end(label.chars().next_back())
        && label
            .chars()
            .all(|c| c.is_alphanumeric() || c == '-' || c == '_')
}

fn is_rgb(text: &str) -> bool {
    RGB.captures(text).is_some_and(|parts| {
        let mut numbers = parts.iter().skip(1).flatten();
        numbers.all(|number| {
            number
                .as_str()
                .parse::<u16>()
                .is_ok_and(|number| number <= 255)
        })
    })
}

fn digits(text: &str) -> Vec<u32> {
    text.chars().filter_map(|c| c.to_digit(10)).collect()
}

fn is_isbn10(text: &str) -> bool {
    let text = text.replace(['-', ' '], "");
    let (body, last) = match text.char_indices().nth(9) {
        Some((at, _)) => text.split_at(at),
        None => return false,
    };
    let check = match last {
        "X" | "x" => 10,
        last => match last.parse::<u32>() {
            Ok(digit) if digit < 10 => digit,
            _ => return false,
        },
    };
    let body = digits(body);
    let sum: u32 = body
        .iter()
        .zip(1..)
        .map(|(digit, weight)| digit * weight)
        .sum();
    body.len() == 9 && (sum + 10 * check).is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let text = text.replace(['-', ' '], "");
    let all = digits(&text);
    let sum: u32 = all
        .iter()
        .zip([1, 3].iter().cycle())
        .map(|(digit, weight)| digit * weight)
        .sum();
    text.len() == 13 && all.len() == 13 && sum.is_multiple_of(10)
}

fn is_credit_card(text: &str) -> bool {
    let all = digits(text);
    let sum: u32 = all
        .iter()
        .rev()
        .enumerate()
        .map(|(index, digit)| match (index % 2, digit * 2) {
            (0, _) => *digit,
            (_, double) if double > 9 => double - 9,
            (_, double) => double,
        })
        .sum();
    (13..=16).contains(&all.len()) && sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::is_valid;

    #[test]
    fn formats_of_the_reference() {
        for (format, valid, invalid) in [
            ("ipv4", "10.0.0.1", "10.0.0.256"),
            ("ipv6", "::1", "1.2.3.4"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("mac", "00:00:5e:00:53:01", "00:00:5e:00:53"),
            ("uuid", "123E4567-e89b-12d3-a456-426614174000", "123"),
            (
                "uuid4",
                "123e4567-e89b-42d3-a456-426614174000",
                "123e4567-e89b-12d3-a456-426614174000",
            ),
            ("uri", "https://a.b/c", "a b"),
            ("email", "a@b.c", "a"),
            ("hostname", "a.b-c", "-a"),
            ("byte", "YWJj", "YWJ"),
            ("date", "2024-02-29", "2024-02-30"),
            ("date-time", "2024-02-29T00:00:00Z", "2024-02-29"),
            ("duration", "1h30m", "1"),
            ("hexcolor", "#fff", "#ffff"),
            ("rgbcolor", "rgb(1,2,255)", "rgb(1,2,256)"),
            ("isbn", "0321751043", "0321751044"),
            ("isbn13", "978-0321751041", "978-0321751042"),
            ("creditcard", "4111-1111-1111-1111", "4111-1111-1111-1112"),
            ("ssn", "111-11-1111", "111-1-1"),
            ("k8s-short-name", "a-b", "A"),
        ] {
            assert!(is_valid(format, valid), "{format} {valid}");
            assert!(!is_valid(format, invalid), "{format} {invalid}");
        }
        assert!(is_valid("anything", "x"));
    }
}
