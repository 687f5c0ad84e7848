//! Ages as kubectl formats them.

use jiff::Timestamp;

use crate::meta::Time;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// The time from `time` until `now`: `5s`, `2m10s`, `3h`, `5d`; `<unknown>` for `None`.
pub fn since(time: Option<&Time>, now: Timestamp) -> String {
    time.map_or_else(|| "<unknown>".into(), |Time(time)| between(*time, now))
}

/// The time from `start` to `end`, in two units where the larger one alone would be too coarse.
pub fn between(start: Timestamp, end: Timestamp) -> String {
    let seconds = end.duration_since(start).as_secs();
    match seconds {
        ..-1 => "<invalid>".into(), // A clock is ahead by more than a rounding error.
        -1..0 => "0s".into(),
        0..120 => format!("{seconds}s"),
        _ if seconds < 10 * MINUTE => two(seconds, (MINUTE, "m"), (1, "s")),
        _ if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        _ if seconds < 8 * HOUR => two(seconds, (HOUR, "h"), (MINUTE, "m")),
        _ if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => two(seconds, (DAY, "d"), (HOUR, "h")),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(seconds, (YEAR, "y"), (DAY, "d")),
        _ => format!("{}y", seconds / YEAR),
    }
}

fn two(seconds: i64, (large, large_unit): (i64, &str), (small, small_unit): (i64, &str)) -> String {
    let rest = seconds % large / small;
    let large = seconds / large;
    if rest == 0 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit}{rest}{small_unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_the_format_of_kubectl() {
        for (seconds, want) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (2 * MINUTE, "2m"),
            (130, "2m10s"),
            (10 * MINUTE + 5, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 5 * MINUTE, "3h5m"),
            (8 * HOUR + 5 * MINUTE, "8h"),
            (2 * DAY, "2d"),
            (2 * DAY + 3 * HOUR, "2d3h"),
            (8 * DAY + HOUR, "8d"),
            (2 * YEAR, "2y"),
            (2 * YEAR + 3 * DAY, "2y3d"),
            (9 * YEAR + DAY, "9y"),
        ] {
            let end = Timestamp::from_second(seconds).unwrap();
            assert_eq!(between(Timestamp::UNIX_EPOCH, end), want);
        }
        assert_eq!(since(None, Timestamp::UNIX_EPOCH), "<unknown>");
    }
}
