//! How bytes and times are printed: by the library's errors, and by the command.
//!
//! Three digits suffice. Below 100, a number without decimals is exact: `1 GiB` is 2^30 bytes, `1.00 GiB` about
//! that.

use std::time::Duration;

/// Bytes, in units of 1024: `512 B`, `1 GiB`, `11.8 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    // What would be rounded to 1024 is one of the next unit.
    while value >= if unit == 0 { 1024.0 } else { 1023.5 } && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    with_unit(value, UNITS[unit])
}

/// A time: `120 ns`, `1.50 µs`, `2 ms`, `90 s`, `5 min`, `3 h`.
pub fn time(time: Duration) -> String {
    nanos(time.as_nanos() as f64)
}

/// Like `time`, of nanoseconds.
pub fn nanos(ns: f64) -> String {
    const SECOND: f64 = 1e9;
    const MINUTE: f64 = 60.0 * SECOND;
    match ns {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => with_unit(n / 1e3, "µs"),
        n if n < SECOND => with_unit(n / 1e6, "ms"),
        n if n < 2.0 * MINUTE => with_unit(n / SECOND, "s"),
        n if n < 120.0 * MINUTE => with_unit(n / MINUTE, "min"),
        n => with_unit(n / (60.0 * MINUTE), "h"),
    }
}

fn with_unit(value: f64, unit: &str) -> String {
    let decimals = match value {
        whole if whole.fract() == 0.0 => 0,
        v if v < 10.0 => 2,
        v if v < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each has three digits or so, and its unit; whole ones have no decimals.
    #[test]
    fn three_digits_and_a_unit() {
        let of = |n: u64| bytes(n);
        let sizes =
            [0, 1023, 1024, 1025, 10 << 10, 150_000, (1 << 20) - 1, 5 << 20, 3 << 30, 2 << 40, 5 << 50]
                .map(of);
        let expected = [
            "0 B", "1023 B", "1 KiB", "1.00 KiB", "10 KiB", "146 KiB", "1.00 MiB", "5 MiB", "3 GiB", "2 TiB",
            "5120 TiB",
        ];
        assert_eq!(sizes, expected);
        let times = [0.0, 999.4, 1e3, 1_234.0, 2e6, 2_345_000.0, 5e9, 9e10, 3e11, 1.08e13].map(nanos);
        let expected =
            ["0 ns", "999 ns", "1 µs", "1.23 µs", "2 ms", "2.35 ms", "5 s", "90 s", "5 min", "3 h"];
        assert_eq!(times, expected);
        assert_eq!(time(Duration::from_millis(1_500)), "1.50 s");
    }
}
