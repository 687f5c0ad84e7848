//! Parameters of a token bucket, computed from a limit exactly as the reference does: its CHECK
//! compares them to the last bit.

use std::fs;

use podplane_netlink::TokenBucket;

use super::config::RateLimit;

const MICROSECONDS: f64 = 1e6;

/// The longest time that a packet may wait.
const LATENCY_MICROSECONDS: f64 = 25_000.0;

/// The bucket for a limit.
pub(super) fn token_bucket(limit: RateLimit) -> TokenBucket {
    token_bucket_by(limit, ticks_in_microsecond())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the reference computes in floating point"
)]
fn token_bucket_by(limit: RateLimit, ticks: f64) -> TokenBucket {
    let rate = limit.rate / 8;
    let burst = u32::try_from(limit.burst / 8).unwrap_or(u32::MAX);
    let time = low_bits(f64::from(burst) * MICROSECONDS / rate as f64);
    let waiting = low_bits(rate as f64 * LATENCY_MICROSECONDS / MICROSECONDS);
    TokenBucket {
        rate,
        limit: waiting.wrapping_add(burst),
        buffer: low_bits(f64::from(time) * ticks),
    }
}

/// The lowest 32 bits of the whole part, as Go converts on x86-64.
#[expect(
    clippy::cast_possible_truncation,
    reason = "what does not fit has been sorted out"
)]
fn low_bits(number: f64) -> u32 {
    const END: f64 = 9_223_372_036_854_775_808.0; // 2^63
    if !(-END..END).contains(&number) {
        return 0;
    }
    let [a, b, c, d, ..] = (number as i64).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The kernel's clock ticks in a microsecond, from `/proc/net/psched`, as all traffic control
/// programs read it.
fn ticks_in_microsecond() -> f64 {
    /// The value of every kernel since 2.6.31.
    const USUAL: f64 = 15.625;
    let text = fs::read_to_string("/proc/net/psched").unwrap_or_default();
    parse_ticks(&text).unwrap_or(USUAL)
}

fn parse_ticks(text: &str) -> Option<f64> {
    let numbers = text.split_whitespace();
    let numbers = numbers.map(|number| u32::from_str_radix(number, 16).ok());
    let numbers: Vec<_> = numbers.collect::<Option<_>>()?;
    let [mut ticks, per, resolution, _] = *numbers.as_slice() else {
        return None;
    };
    if resolution == 1_000_000_000 {
        ticks = per; // Old kernels.
    }
    if per == 0 {
        return None;
    }
    let factor = f64::from(resolution) / MICROSECONDS;
    Some(f64::from(ticks) / f64::from(per) * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_the_kernel() {
        let usual = "000003e8 00000040 000f4240 3b9aca00\n";
        assert_eq!(parse_ticks(usual), Some(15.625));
        assert_eq!(parse_ticks("000003e8 00000040 000f4240"), None);
        assert_eq!(parse_ticks("000003e8 00000000 000f4240 3b9aca00"), None);
        assert_eq!(parse_ticks(""), None);
    }

    /// The values were observed from Debian's plugin.
    #[test]
    fn buckets_equal_those_of_the_reference() {
        let bucket = |rate, burst| {
            let bucket = token_bucket_by(RateLimit { rate, burst }, 15.625);
            (bucket.rate, bucket.limit, bucket.buffer)
        };
        assert_eq!(bucket(8_000_000, 80_000), (1_000_000, 35_000, 156_250));
        assert_eq!(bucket(8, 8), (1, 1, 15_625_000));
        // Less than a byte per second, which the kernel refuses.
        assert_eq!(bucket(7, 80_000), (0, 10_000, 0));
    }

    #[test]
    fn truncates_to_the_lowest_32_bits() {
        assert_eq!(low_bits(4_294_967_297.9), 1);
        assert_eq!(low_bits(1e300), 0);
        assert_eq!(low_bits(f64::INFINITY), 0);
        assert_eq!(low_bits(f64::NAN), 0);
    }
}
