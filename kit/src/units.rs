//! Sizes and times on the command line. `show` prints them.

use std::str::FromStr;
use std::time::Duration;

/// A number of bytes as in 512M, 1 GiB, 11.76GiB; a number alone is bytes. A single letter is a unit of
/// 1024, as elsewhere in a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// As many as this process can count.
    pub fn get(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(given: &str) -> Result<ByteSize, String> {
        const MOST: u64 = 1 << 56;
        let bad = || format!("{given:?} is no size; give one as in 512MiB, 1.5GiB, 8G, or a number of bytes");
        let text = given.trim();
        // To the crate, a letter alone is a unit of 1000.
        let is_letter = text.ends_with(['k', 'm', 'g', 't', 'K', 'M', 'G', 'T']);
        let text = if is_letter { format!("{text}iB") } else { text.to_owned() };
        let bytes = text.parse::<bytesize::ByteSize>().map_err(|_| bad())?.as_u64();
        if bytes > MOST {
            return Err(format!("{given:?} is more than 64PiB; give a size as in 512MiB, 8GiB"));
        }
        let is_whole =
            text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end().parse::<u64>().is_ok();
        if !is_whole && text.ends_with(|c: char| c.is_ascii_digit()) {
            return Err(format!("{given:?} bytes are no whole number; a unit is missing: as in 1.5GiB"));
        }
        Ok(ByteSize(bytes))
    }
}

/// A size that is not 0.
pub fn some_bytes(given: &str) -> Result<ByteSize, String> {
    match given.parse()? {
        ByteSize(0) => Err("0 bytes are too few; give a size as in 512MiB, 1.5GiB, 8G".into()),
        size => Ok(size),
    }
}

/// A length in bytes, which may be 0.
pub fn length(given: &str) -> Result<usize, String> {
    given.parse().map(ByteSize::get)
}

/// A time as in 500ms, 60s, 1m30s, 7d; a number alone is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period(pub Duration);

impl FromStr for Period {
    type Err = String;

    fn from_str(given: &str) -> Result<Period, String> {
        // As long as an entry of a cluster may live.
        const LONGEST: Duration = Duration::from_secs(3_650 * 86_400);
        let bad = || {
            format!(
                "{given:?} is no time; give one as in 500ms, 60s, 1m30s, 2h, 7d; at most 3650d, ten years"
            )
        };
        let is_number = given.ends_with(|c: char| c.is_ascii_digit());
        let text = if is_number { format!("{given}s") } else { given.to_owned() };
        let time = humantime::parse_duration(&text).map_err(|_| bad())?;
        if time > LONGEST { Err(bad()) } else { Ok(Period(time)) }
    }
}

/// A time that is not 0.
pub fn some_time(given: &str) -> Result<Period, String> {
    match given.parse()? {
        Period(Duration::ZERO) => Err("0 is too short; give a time as in 500ms, 60s, 1m30s".into()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let parsed = |text: &str| text.parse::<ByteSize>().map(|size| size.0);
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1b", 1),
            ("512MiB", 512 << 20),
            ("512M", 512 << 20),
            ("1 GiB", 1 << 30),
            ("8g", 8 << 30),
            ("8 gib", 8 << 30),
            ("1.5GiB", 3 << 29),
            ("1.5G", 3 << 29),
            ("11.76GiB", 12_627_203_850),
            ("2TiB", 2 << 40),
            ("16k", 16 << 10),
            ("3MB", 3_000_000),
            ("1GB", 1_000_000_000),
        ] {
            assert_eq!(parsed(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GiB", "-1G", "8 giga", "8GiBs", "99999999999TiB", "1e9", "8%", "1.5", "1..5G", "k"] {
            let error = parsed(bad).unwrap_err();
            assert!(error.starts_with(&format!("{bad:?} ")), "{error}");
        }
        assert!(some_bytes("0").is_err() && some_bytes("0GiB").is_err());
        assert_eq!((some_bytes("1"), length("0")), (Ok(ByteSize(1)), Ok(0)));
    }

    #[test]
    fn times_have_units() {
        let parsed = |text: &str| text.parse::<Period>().map(|it| it.0);
        for (text, ms) in [
            ("500ms", 500),
            ("60s", 60_000),
            ("60", 60_000),
            ("1.5s", 1_500),
            ("0.5", 500),
            ("5m", 300_000),
            ("1m30s", 90_000),
            ("1 min 30 s", 90_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
            ("1 day 2h", 93_600_000),
            ("3650d", 315_360_000_000),
            ("0", 0),
        ] {
            assert_eq!(parsed(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parsed("300us"), parsed("300µs"));
        assert_eq!(parsed("300us"), Ok(Duration::from_micros(300)));
        for bad in ["", "s", "-5s", "5x", "5 parsecs", "9999999h", "1e3", "3651d"] {
            let error = parsed(bad).unwrap_err();
            assert!(error.starts_with(&format!("{bad:?} is no time; give one as in 500ms")), "{error}");
        }
        assert!(some_time("0s").is_err());
    }
}
