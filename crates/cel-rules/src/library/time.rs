//! Durations and points in time.

use std::sync::LazyLock;

use jiff::{SignedDuration, Zoned, tz::TimeZone};
use regex::Regex;

use super::arguments;
use crate::{
    error::Failure,
    functions::{
        Declared::{self, Int, String, Timestamp},
        Overload, member,
    },
    meter::Meter,
    value::Value,
};

macro_rules! getters {
    ($($name:literal $run:ident,)*) => {
        pub(super) static FUNCTIONS: &[Overload] = &[
            $(
                member($name, &[Timestamp], Int, $run),
                member($name, &[Timestamp, String], Int, $run),
            )*
            member("getHours", &[Declared::Duration], Int, whole_hours),
            member("getMinutes", &[Declared::Duration], Int, whole_minutes),
            member("getSeconds", &[Declared::Duration], Int, whole_seconds),
            member("getMilliseconds", &[Declared::Duration], Int, whole_millis),
        ];
    };
}

getters! {
    "getFullYear" year,
    "getMonth" month,
    "getDayOfYear" day_of_year,
    "getDayOfMonth" day_of_month,
    "getDate" date,
    "getDayOfWeek" day_of_week,
    "getHours" hours,
    "getMinutes" minutes,
    "getSeconds" seconds_of_minute,
    "getMilliseconds" millis,
}

type Outcome<'a> = Result<Value<'a>, Failure>;

/// The time in the zone of the second argument, or in UTC.
fn zoned(args: &[Value<'_>]) -> Result<Zoned, Failure> {
    let (time, zone) = match args {
        [Value::Timestamp(time)] => (time, TimeZone::UTC),
        [Value::Timestamp(time), Value::String(zone)] => (time, self::zone(zone)?),
        _ => return Err(Failure::NoSuchOverload),
    };
    Ok(time.to_zoned(zone))
}

/// A zone by its offset, `-08:00`, or `UTC`. Zones of the IANA database need files of the machine.
fn zone(text: &str) -> Result<TimeZone, Failure> {
    static OFFSET: LazyLock<Regex> = LazyLock::new(|| expression(r"^([+-]?)(\d{1,2}):(\d{2})$"));
    if text.is_empty() || text == "UTC" {
        return Ok(TimeZone::UTC);
    }
    let unknown = || Failure::Other(format!("unknown time zone {text}"));
    let parts = OFFSET.captures(text).ok_or_else(unknown)?;
    let number = |index: usize| {
        parts
            .get(index)
            .and_then(|part| part.as_str().parse::<i32>().ok())
    };
    let (Some(hours), Some(minutes)) = (number(2), number(3)) else {
        return Err(unknown());
    };
    let seconds = (hours * 60 + minutes) * 60;
    let is_west = parts.get(1).is_some_and(|sign| sign.as_str() == "-");
    let offset = jiff::tz::Offset::from_seconds(if is_west { -seconds } else { seconds });
    offset.map(TimeZone::fixed).map_err(|_| unknown())
}

fn expression(text: &str) -> Regex {
    Regex::new(text).expect("a constant of this file")
}

macro_rules! parts {
    ($($name:ident($zoned:ident) $part:expr;)*) => {
        $(
            fn $name<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
                let $zoned = zoned(args)?;
                Ok(Value::Int(i64::from($part)))
            }
        )*
    };
}

parts! {
    year(zoned) zoned.year();
    month(zoned) zoned.month() - 1;
    day_of_year(zoned) zoned.day_of_year() - 1;
    day_of_month(zoned) zoned.day() - 1;
    date(zoned) zoned.day();
    day_of_week(zoned) zoned.weekday().to_sunday_zero_offset();
    hours(zoned) zoned.hour();
    minutes(zoned) zoned.minute();
    seconds_of_minute(zoned) zoned.second();
    millis(zoned) zoned.millisecond();
}

fn whole<'a>(args: &[Value<'a>], number: fn(&SignedDuration) -> i64) -> Outcome<'a> {
    arguments!(args, Value::Duration(duration));
    Ok(Value::Int(number(duration)))
}

fn whole_hours<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    whole(args, SignedDuration::as_hours)
}

fn whole_minutes<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    whole(args, |duration| duration.as_secs() / 60)
}

fn whole_seconds<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    whole(args, SignedDuration::as_secs)
}

fn whole_millis<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    whole(args, |duration| {
        i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
    })
}

/// Parses a duration as Go does: `1h30m`, `-1.5s`, `0`.
pub(crate) fn duration(text: &str) -> Option<SignedDuration> {
    static WHOLE: LazyLock<Regex> =
        LazyLock::new(|| expression(r"^[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+$"));
    static PART: LazyLock<Regex> =
        LazyLock::new(|| expression(r"(\d*)(?:\.(\d*))?(ns|us|µs|μs|ms|s|m|h)"));
    if matches!(text, "0" | "+0" | "-0") {
        return Some(SignedDuration::ZERO);
    }
    if !WHOLE.is_match(text) {
        return None;
    }
    let mut total = 0_i128;
    for part in PART.captures_iter(text) {
        let unit: i128 = match part.get(3)?.as_str() {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            _ => 3_600_000_000_000,
        };
        let digits = |text: &str| match text {
            "" => Some(0_i128),
            text => text.parse().ok(),
        };
        total = total.checked_add(digits(part.get(1)?.as_str())?.checked_mul(unit)?)?;
        // Digits beyond a nanosecond are dropped.
        let fraction = part.get(2).map_or("", |fraction| fraction.as_str());
        let fraction = fraction.get(..fraction.len().min(15)).unwrap_or_default();
        let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        total = total.checked_add(digits(fraction)?.checked_mul(unit)? / scale)?;
    }
    let total = i64::try_from(if text.starts_with('-') { -total } else { total }).ok()?;
    Some(SignedDuration::from_nanos(total))
}

/// Parses an RFC 3339 time.
pub(crate) fn timestamp(text: &str) -> Option<jiff::Timestamp> {
    static RFC3339: LazyLock<Regex> = LazyLock::new(|| {
        expression(r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:[0-5]\d(?:\.\d+)?(?:Z|[+-]\d{2}:\d{2})$")
    });
    if !RFC3339.is_match(text) {
        return None;
    }
    text.parse().ok()
}

/// A duration in seconds: `90s`, `0.5s`.
pub(super) fn seconds(duration: SignedDuration) -> std::string::String {
    let sign = if duration.is_negative() { "-" } else { "" };
    let nanos = duration.subsec_nanos().unsigned_abs();
    let fraction = format!("{nanos:09}");
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!(
        "{sign}{}{point}{fraction}s",
        duration.as_secs().unsigned_abs()
    )
}

#[cfg(test)]
mod tests {
    use super::{duration, seconds, timestamp};

    #[test]
    fn durations_are_read_as_in_go() {
        for (text, nanos) in [
            ("0", 0),
            ("1h30m", 5_400_000_000_000),
            ("-1.5s", -1_500_000_000),
            ("1m1h", 3_660_000_000_000),
            (".5ms", 500_000),
            ("1.µs", 1_000),
            ("300ns", 300),
        ] {
            let want = Some(jiff::SignedDuration::from_nanos(nanos));
            assert_eq!(duration(text), want, "{text}");
        }
        for text in [
            "",
            "1",
            "1d",
            "h",
            "1 h",
            "1h ",
            "--1s",
            "10000000h",
            "PT1H",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
        assert_eq!(seconds(jiff::SignedDuration::from_millis(-1_500)), "-1.5s");
        assert_eq!(seconds(jiff::SignedDuration::from_secs(90)), "90s");
    }

    #[test]
    fn times_are_of_rfc_3339() {
        assert!(timestamp("2024-02-29T01:02:03.5+01:00").is_some());
        for text in [
            "2024-02-30T01:02:03Z",
            "2024-01-01",
            "2024-01-01 00:00:00Z",
            "2024-01-01T00:00:60Z",
        ] {
            assert_eq!(timestamp(text), None, "{text}");
        }
    }
}
