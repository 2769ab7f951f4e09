//! `stat --watch`: a server's figures again and again, with what changed in a second.

use super::figures::span;
use super::told::Told;
use crate::columns::{Column, Columns, shortened};
use crate::screen::Screen;
use anyhow::Result;
use oneread_kit::show;
use serde_json::json;
use std::time::{Duration, Instant};

/// Asks again after each interval. On a terminal the figures stay in place, until the user presses `q`; else each answer
/// is a line.
pub fn watch(
    every: Duration,
    address: &str,
    mut ask: impl FnMut() -> Result<(Told, serde_json::Value)>,
    as_json: bool,
) -> Result<()> {
    let begun = Instant::now();
    let screen = if as_json { None } else { Screen::open()? };
    let mut first = None;
    let mut last: Option<(Told, Instant)> = None;
    loop {
        let due = Instant::now() + every;
        let (told, mut json) = ask()?;
        let now = Instant::now();
        let watched = Watched {
            told: &told,
            first: first.get_or_insert_with(|| told.clone()),
            last: last.as_ref().map(|(last, at)| (last, (now - *at).as_secs_f64())),
            seconds: (now - begun).as_secs(),
        };
        match &screen {
            Some(screen) => {
                if !screen.show_until(due, |size| watched.frame(address, size))? {
                    return Ok(());
                }
            }
            None => {
                if as_json {
                    json["watch"] = watched.json();
                    show::say(json)?;
                } else {
                    show::say(watched.line())?;
                }
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        }
        last = Some((told, now));
    }
}

/// What is known at an instant, beside what was.
struct Watched<'a> {
    told: &'a Told,
    first: &'a Told,
    /// The answer before, and the seconds since.
    last: Option<(&'a Told, f64)>,
    /// Since the first answer.
    seconds: u64,
}

/// A figure of a server.
type Figure = fn(&Told) -> u64;

const CHANGES: Figure = |told| told.stats.inserts + told.stats.updates + told.stats.removes;
const GETS: Figure = |told| told.gets.map_or(0, |gets| gets.gets);
const MISSES: Figure = |told| told.gets.map_or(0, |gets| gets.misses());
/// The row of a log whose disk has failed, in this table and in that of `top`.
pub const LOG_FAILED: &str = "syncs: log has FAILED";

const SYNCS: Figure = |told| told.log.map_or(0, |log| log.syncs);
const KEYS: Figure = |told| told.stats.keys;
const MEMORY: Figure = |told| told.growth.bytes_backed;
const HEAP: Figure = |told| told.heap.live_bytes;

impl Watched<'_> {
    /// By how much a figure has changed. Another server of the same address has counters of its own.
    fn change(&self, since: &Told, figure: Figure) -> Option<f64> {
        (since.stats.launch == self.told.stats.launch)
            .then(|| figure(self.told) as f64 - figure(since) as f64)
    }

    fn per_second(&self, figure: Figure) -> Option<f64> {
        let (last, seconds) = self.last?;
        Some(self.change(last, figure)? / seconds)
    }

    /// The rate of a counter, which never falls.
    fn rate(&self, figure: Figure) -> String {
        self.per_second(figure).map_or("-".into(), show::rate)
    }

    fn signed(&self, change: Option<f64>, told: impl Fn(f64) -> String) -> String {
        change.map_or("-".into(), |n| match n {
            n if n < 0.0 => format!("-{}", told(-n)),
            n if n > 0.0 => format!("+{}", told(n)),
            _ => told(0.0),
        })
    }

    fn table(&self) -> Columns<5> {
        let mut table = Columns::new([
            Column::text(""),
            Column::number("now"),
            Column::number("at most").rank(1),
            Column::number("a second"),
            Column::number("since watching").rank(2),
        ]);
        let Told { stats, growth, heap, .. } = self.told;
        let count = |n: f64| show::count(n.round() as u64);
        let bytes = |n: f64| show::bytes(n.round() as u64);
        let blank = String::new;
        let counter = |name: &str, figure: Figure| {
            let since = self.signed(self.change(self.first, figure), count);
            [name.into(), show::count(figure(self.told)), blank(), self.rate(figure), since]
        };
        let bytes_rate = |n: f64| format!("{}/s", bytes(n));
        type Tell<'a> = &'a dyn Fn(f64) -> String;
        let level = |name: &str, most: String, (told, rate): (Tell<'_>, Tell<'_>), figure: Figure| {
            let now = self.signed(self.per_second(figure), rate);
            let since = self.signed(self.change(self.first, figure), told);
            [name.into(), told(figure(self.told) as f64), most, now, since]
        };
        table.row(level("keys", blank(), (&count, &show::rate), KEYS));
        table.row(["load".into(), format!("{:.1} %", 100.0 * self.told.load()), blank(), blank(), blank()]);
        if self.told.gets.is_some() {
            table.row(counter("GETs", GETS));
            table.row(counter("  misses", MISSES));
        }
        table.row(counter("changes", CHANGES));
        table.row(counter("  inserts", |told| told.stats.inserts));
        table.row(counter("  updates", |told| told.stats.updates));
        table.row(counter("  removes", |told| told.stats.removes));
        if let Some(log) = self.told.log {
            table.row(counter(if log.has_failed { LOG_FAILED } else { "syncs of the log" }, SYNCS));
        }
        if growth.segments > 0 {
            table.row(level("memory", show::bytes(growth.bytes_max), (&bytes, &bytes_rate), MEMORY));
        }
        if heap.heap_bytes > 0 {
            table.row(level("heap", show::bytes(heap.heap_bytes), (&bytes, &bytes_rate), HEAP));
        }
        table.row(["connections".into(), show::count(stats.clients), blank(), blank(), blank()]);
        if growth.segments > 0 {
            table.row(level("segments", show::count(growth.segments_max), (&count, &show::rate), |told| {
                told.growth.segments
            }));
            table.row(counter("  splits", |told| told.growth.splits));
            table.row(counter("  merges", |told| told.growth.merges));
        }
        table.row(counter("keys moved", |told| told.stats.moves));
        table.row(counter("puts that waited", |told| told.stats.waits));
        table
    }

    /// The lines of a screen.
    fn frame(&self, address: &str, (width, height): (usize, usize)) -> Vec<String> {
        const BELOW: [&str; 1] = ["q ends this."];
        let about = format!(
            "process {}, server {} of this table; watched for {}",
            self.told.stats.pid,
            self.told.stats.incarnation,
            span(self.seconds)
        );
        let mut lines = vec![shortened(address, width), shortened(&about, width), String::new()];
        lines.extend(self.table().lines(Some(width)));
        // The last rows matter least.
        lines.truncate(height.saturating_sub(BELOW.len() + 1).max(1));
        lines.push(String::new());
        lines.extend(BELOW.map(|line| shortened(line, width)));
        lines.truncate(height);
        lines
    }

    /// One line.
    fn line(&self) -> String {
        let Told { stats, growth, .. } = self.told;
        let mut line = format!(
            "{}: {}, {}; changes {} (inserts {}, updates {}, removes {}); {}",
            span(self.seconds),
            show::counted(stats.keys, "key"),
            self.signed(self.per_second(KEYS), show::rate),
            self.rate(CHANGES),
            self.rate(|told| told.stats.inserts),
            self.rate(|told| told.stats.updates),
            self.rate(|told| told.stats.removes),
            show::counted(stats.clients, "connection"),
        );
        if growth.segments > 0 {
            line += &format!("; memory {}", show::bytes(growth.bytes_backed));
        }
        line
    }

    /// Null stands for what is not known yet.
    fn json(&self) -> serde_json::Value {
        json!({
            "seconds": self.seconds,
            "per_second": {
                "keys": self.per_second(KEYS),
                "changes": self.per_second(CHANGES),
                "inserts": self.per_second(|told| told.stats.inserts),
                "updates": self.per_second(|told| told.stats.updates),
                "removes": self.per_second(|told| told.stats.removes),
                "bytes_backed": self.per_second(MEMORY),
                "heap_live_bytes": self.per_second(HEAP),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oneread::stats::GetCounts;
    use unicode_width::UnicodeWidthStr;

    fn told(inserts: u64, removes: u64, pid: u64) -> Told {
        let mut told = Told::default();
        (told.stats.keys, told.stats.slots) = (1_000_000_000 + inserts - removes, 3_000_000_000);
        (told.stats.inserts, told.stats.removes) = (inserts, removes);
        (told.stats.pid, told.stats.launch) = (pid, pid);
        (told.growth.segments, told.growth.segments_max) = (40_000, 4_000_000);
        told.gets = Some(GetCounts::default());
        (told.growth.bytes_backed, told.growth.bytes_max) = (96 << 30, 512 << 30);
        told.heap.heap_bytes = 512 << 30;
        told
    }

    /// Of two answers of one server the rates are told. Another server's counters are not compared.
    #[test]
    fn rates_are_of_one_server() {
        let (first, last, now) = (told(0, 0, 7), told(50, 20, 7), told(250, 420, 7));
        let watched = Watched { told: &now, first: &first, last: Some((&last, 2.0)), seconds: 9 };
        let json = watched.json();
        let rates = &json["per_second"];
        assert_eq!((&rates["inserts"], &rates["removes"]), (&json!(100.0), &json!(200.0)));
        assert_eq!((&rates["changes"], &rates["keys"]), (&json!(300.0), &json!(-100.0)));
        assert_eq!(json["seconds"], 9);
        let line = watched.line();
        for part in [
            "9 seconds: 999,999,830 keys".to_owned(),
            format!("-{}; changes {} (inserts {},", show::rate(100.0), show::rate(300.0), show::rate(100.0)),
            format!("memory {}", show::bytes(96 << 30)),
        ] {
            assert!(line.contains(&part), "{part}: {line}");
        }
        let other = told(60, 0, 8);
        let watched = Watched { told: &other, first: &first, last: Some((&last, 2.0)), seconds: 9 };
        assert!(watched.json()["per_second"]["inserts"].is_null());
        let watched = Watched { told: &now, first: &first, last: None, seconds: 0 };
        assert!(watched.json()["per_second"]["inserts"].is_null());
        assert!(watched.line().contains("changes -"), "{}", watched.line());
    }

    /// A screen has no more lines and columns than the terminal, and what matters most stays.
    #[test]
    fn screens_fit() {
        let (first, now) = (told(0, 0, 7), told(123_456_789, 3_456_789, 7));
        let watched = Watched { told: &now, first: &first, last: Some((&first, 1.0)), seconds: 4_000 };
        let address = format!("shm:/{}", "long/".repeat(30));
        for (width, height) in [(80, 24), (60, 24), (60, 12), (200, 50), (44, 3), (1, 1)] {
            let lines = watched.frame(&address, (width, height));
            assert!(lines.len() <= height, "{width}, {height}: {lines:#?}");
            if width >= 44 {
                assert!(lines.iter().all(|line| line.width() <= width), "{width}: {lines:#?}");
            }
            if height >= 12 {
                let text = lines.join("\n");
                for part in ["1,120,000,000", "126,913,578", "GETs", "q ends this"] {
                    assert!(text.contains(part), "{width}, {part}: {text}");
                }
            }
        }
        let wide = watched.frame(&address, (80, 24)).join("\n");
        for part in ["since watching", "at most", "puts that waited", "+120,000,000"] {
            assert!(wide.contains(part), "{part}: {wide}");
        }
    }
}
