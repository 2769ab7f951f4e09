//! `top`: what a server does at present, on one screen.

use crate::columns::{self, Column, Columns, shortened};
use crate::connect::Server;
use crate::screen::Screen;
use crate::stat::figures::span;
use crate::stat::told::Told;
use crate::stat::watch::LOG_FAILED;
use anyhow::Result;
use clap::Args;
use oneread::Client;
use oneread::stats::{ServerTimes, TimeCounts};
use oneread_kit::show;
use oneread_kit::units::{Period, some_time};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use unicode_width::UnicodeWidthStr;

/// Show what the server does: rates, memory, slow puts, what splits and ends
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread top                    until q, or Ctrl-C
  oneread top --every 5s
  oneread top --once             one table, with the rates of a second

Rates are of the time since the last look. GETs are those of clients on the
server's host, which tell it every 64, and over TCP. The times of puts are
those in the server, without the way there and back, of a server with
--put-times or --metrics. `oneread stat` has more figures.")]
pub struct Top {
    /// Look again every so often, as in 500ms, 1s, 5m
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = some_time)]
    every: Period,
    /// Look twice, and print one table; so it is also where the output is no terminal, or a dumb one
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    server: Server,
}

impl Top {
    pub fn run(self) -> Result<ExitCode> {
        let mut client = self.server.connect()?;
        let (address, Period(every), begun) = (client.address().to_string(), self.every, Instant::now());
        let first = Look::of(&mut client)?;
        let screen = if self.once { None } else { Screen::open()? };
        let Some(screen) = screen else {
            std::thread::sleep(every);
            let now = Look::of(&mut client)?;
            let seen = Seen { now: &now, last: Some(&first), watched: begun.elapsed() };
            let lines = seen.lines(&address, columns::width());
            show::lay_out(lines.join("\n"))?;
            return Ok(ExitCode::SUCCESS);
        };
        let (mut last, mut now) = (None, first);
        loop {
            let due = now.at + every;
            let seen = Seen { now: &now, last: last.as_ref(), watched: begun.elapsed() };
            if !screen.show_until(due, |(width, height)| seen.frame(&address, width, height))? {
                return Ok(ExitCode::SUCCESS);
            }
            last = Some(std::mem::replace(&mut now, Look::of(&mut client)?));
        }
    }
}

/// What a server says of itself at an instant.
#[derive(Clone)]
struct Look {
    at: Instant,
    told: Told,
    /// `None`: the server is of a version that does not tell.
    times: Option<ServerTimes>,
}

impl Look {
    fn of(client: &mut Client) -> Result<Look> {
        Ok(Look { told: Told::of(client)?, times: client.server_times()?, at: Instant::now() })
    }

    fn times(&self) -> ServerTimes {
        self.times.unwrap_or_default()
    }
}

/// What is seen now, beside what was.
struct Seen<'a> {
    now: &'a Look,
    last: Option<&'a Look>,
    watched: Duration,
}

/// A figure of a server.
type Figure = fn(&Look) -> u64;

impl Seen<'_> {
    /// The look before, and the seconds since. Another server of the same address has counters of its own.
    fn before(&self) -> Option<(&Look, f64)> {
        let last = self.last.filter(|last| last.told.stats.launch == self.now.told.stats.launch)?;
        Some((last, (self.now.at - last.at).as_secs_f64()))
    }

    fn rate(&self, figure: Figure) -> String {
        let Some((last, seconds)) = self.before() else { return "-".into() };
        match (figure(self.now) as f64 - figure(last) as f64) / seconds {
            rate if rate < 0.0 => format!("-{}", show::rate(-rate)),
            rate => show::rate(rate),
        }
    }

    /// Whether anything leaves to make room.
    fn evicts(&self) -> bool {
        self.now.told.evicted() > 0 || self.now.told.notes.is_some_and(|notes| notes.records > 0)
    }

    fn table(&self) -> Columns<4> {
        let mut table = Columns::new([
            Column::text("").least(10),
            Column::number("now"),
            Column::number("at most").rank(1),
            Column::number("a second"),
        ]);
        let Told { stats, growth, heap, .. } = &self.now.told;
        let blank = String::new;
        let load = format!("{:.1} %", 100.0 * self.now.told.load());
        table.row(["keys".into(), show::count(stats.keys), blank(), self.rate(|look| look.told.stats.keys)]);
        table.row(["load".into(), load, blank(), blank()]);
        let mut bytes = |name: &str, now, most| {
            table.row([name.into(), show::bytes(now), show::bytes(most), blank()]);
        };
        if growth.segments > 0 {
            bytes("memory", growth.bytes_backed, growth.bytes_max);
        }
        if heap.heap_bytes > 0 {
            bytes("long values", heap.live_bytes, heap.heap_bytes);
        }
        let mut counted = |name: &str, figure: Figure| {
            table.row([name.into(), show::count(figure(self.now)), blank(), self.rate(figure)]);
        };
        if self.now.told.gets.is_some() {
            counted("GETs: hits", |look| look.told.gets.map_or(0, |gets| gets.hits));
            counted("GETs: misses", |look| look.told.gets.map_or(0, |gets| gets.misses()));
        }
        counted("puts: new keys", |look| look.told.stats.inserts);
        counted("puts: new values", |look| look.told.stats.updates);
        counted("puts that waited", |look| look.told.stats.waits);
        counted("refused", |look| look.times().refused);
        counted("removes", |look| look.told.stats.removes);
        counted("  of these, ended", |look| look.times().expired);
        if let Some(log) = self.now.told.log {
            let name = if log.has_failed { LOG_FAILED } else { "syncs of the log" };
            counted(name, |look| look.told.log.map_or(0, |log| log.syncs));
        }
        if self.evicts() {
            counted("made room", |look| look.told.evicted());
        }
        counted("keys moved", |look| look.told.stats.moves);
        if growth.segments > 0 {
            let (now, most) = (show::count(growth.segments), show::count(growth.segments_max));
            table.row(["segments".into(), now, most, self.rate(|look| look.told.growth.segments)]);
            table.row(["  splitting".into(), show::count(growth.splitting), blank(), blank()]);
            let mut counted = |name: &str, figure: Figure| {
                table.row([name.into(), show::count(figure(self.now)), blank(), self.rate(figure)]);
            };
            counted("  splits", |look| look.told.growth.splits);
            counted("  merges", |look| look.told.growth.merges);
        }
        table
    }

    /// How long puts took since the last look, or since the server began.
    fn put_times(&self) -> String {
        let Some(times) = &self.now.times else { return "put times: this server does not tell them".into() };
        if times.is_timed == 0 {
            return "put times are not taken; serve with --put-times".into();
        }
        let before = self.before().and_then(|(last, _)| last.times);
        let puts = times.puts.since(&before.unwrap_or_default().puts);
        let since = if before.is_some() { "since the last look" } else { "since the server began" };
        if puts.count() == 0 {
            return format!("put times: no put {since}");
        }
        let below = |part| {
            let end = puts.quantile(part);
            let last = TimeCounts::range_end(oneread::stats::TIME_RANGES - 2).unwrap_or_default();
            end.map_or(format!("over {}", show::time(last)), |end| format!("below {}", show::time(end)))
        };
        format!("put times {since}: half {}, 99 % {}", below(0.5), below(0.99))
    }

    /// The slowest puts, in as many lines as there may be.
    fn slowest(&self, width: usize, lines: usize) -> Vec<String> {
        const KEY_MAX: usize = 24;
        let times = self.now.times();
        let slowest = times.slowest.iter().filter(|slow| slow.took_ns > 0);
        let mut all = vec![String::new(); lines];
        let mut at = 0;
        for slow in slowest {
            let took = show::time(Duration::from_nanos(slow.took_ns));
            let one = format!("  {took} {}", show::text(slow.key(), KEY_MAX));
            let head = if at == 0 && all[0].is_empty() { "slowest of 10 s:" } else { "" };
            if all[at].width() + head.len() + one.width() > width {
                at += 1;
            }
            let Some(line) = all.get_mut(at) else { break };
            *line += &format!("{head}{one}");
        }
        all.retain(|line| !line.is_empty());
        all
    }

    fn lines(&self, address: &str, width: Option<usize>) -> Vec<String> {
        let Told { stats, .. } = &self.now.told;
        let about = format!(
            "process {}, server {} of this table; {}; watched for {}",
            stats.pid,
            stats.incarnation,
            show::counted(stats.clients, "connection"),
            span(self.watched.as_secs())
        );
        let room = width.unwrap_or(usize::MAX);
        let mut lines = vec![shortened(address, room), shortened(&about, room)];
        lines.extend(self.table().lines(width));
        lines.push(String::new());
        lines.push(shortened(&self.put_times(), room));
        lines.extend(self.slowest(width.unwrap_or(80), 2));
        lines
    }

    /// The lines of a screen. Where there is little room, the last ones of the table go first.
    fn frame(&self, address: &str, width: usize, height: usize) -> Vec<String> {
        const HEAD: usize = 2;
        let mut lines = self.lines(address, Some(width));
        let rows = self.table().lines(Some(width)).len();
        let over = lines.len().saturating_sub(height).min(rows.saturating_sub(2));
        lines.drain(HEAD + rows - over..HEAD + rows);
        lines.truncate(height);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oneread::stats::{EvictCounts, GetCounts, LogStatus, NoteCounts};

    fn look(at: Instant, n: u64) -> Look {
        let mut told = Told::default();
        (told.stats.keys, told.stats.slots, told.stats.pid) = (n, 3_000_000_000, 7);
        told.stats.launch = 7;
        (told.stats.inserts, told.stats.removes) = (2 * n, n);
        (told.growth.segments, told.growth.segments_max, told.growth.splitting) = (40_000, 4_000_000, 2);
        (told.growth.bytes_backed, told.growth.bytes_max) = (96 << 30, 512 << 30);
        told.heap.heap_bytes = 512 << 30;
        told.gets = Some(GetCounts::default());
        let mut times = ServerTimes::default();
        (times.expired, times.is_timed, times.puts.ranges[3]) = (n / 2, 1, n);
        for slow in &mut times.slowest {
            slow.took_ns = 3_456_789;
        }
        Look { at, told, times: Some(times) }
    }

    /// A screen of 80 columns and 24 lines has all of it; a smaller one what matters most.
    #[test]
    fn a_screen_has_room_for_it() {
        let begun = Instant::now();
        let (last, now) = (look(begun, 1_000), look(begun + Duration::from_secs(2), 2_000_000_000));
        let seen = Seen { now: &now, last: Some(&last), watched: Duration::from_secs(9) };
        let all = seen.lines("shm:/run/oneread.sock", Some(80));
        assert!(all.len() <= 24, "{all:#?}");
        for (width, height) in [(80, 24), (80, 12), (40, 8), (20, 3), (1, 1)] {
            let frame = seen.frame("shm:/run/oneread.sock", width, height);
            assert!(frame.len() <= height, "{frame:#?}");
            assert!(frame.iter().all(|line| line.width() <= width || width < 40), "{frame:#?}");
        }
        assert_eq!(seen.frame("shm:/run/oneread.sock", 80, 24), all);
        let small = seen.frame("shm:/run/oneread.sock", 80, 12).join("\n");
        assert!(small.contains("keys") && small.contains("slowest") && small.contains("GETs"), "{small}");
    }

    /// What makes room has a row where the server has a policy for that.
    #[test]
    fn evictions_have_a_row() {
        let at = Instant::now();
        let line = |evicted: u64, records: u64| {
            let mut now = look(at, 1_000);
            let mut counts = EvictCounts::default();
            counts.at_put = evicted;
            let mut notes = NoteCounts::default();
            notes.records = records;
            (now.told.evictions, now.told.notes) = (Some(counts), Some(notes));
            let seen = Seen { now: &now, last: None, watched: Duration::ZERO };
            seen.lines("here", None).into_iter().find(|line| line.contains("made room"))
        };
        assert_eq!(line(0, 0), None);
        assert!(line(0, 5).unwrap().contains('0') && line(1_234, 0).unwrap().contains("1,234"));
    }

    /// The log has a row where the server has one, which says that its disk has failed.
    #[test]
    fn a_log_has_a_row() {
        let at = Instant::now();
        let line = |log: Option<LogStatus>| {
            let mut now = look(at, 1_000);
            now.told.log = log;
            let seen = Seen { now: &now, last: None, watched: Duration::ZERO };
            seen.lines("here", None).into_iter().find(|line| line.contains("log"))
        };
        let mut log = LogStatus::default();
        log.syncs = 1_234;
        assert_eq!(line(None), None);
        assert!(line(Some(log)).unwrap().contains("1,234"));
        log.has_failed = true;
        assert!(line(Some(log)).unwrap().contains("FAILED"));
    }

    /// Rates are those since the last look at the same server.
    #[test]
    fn rates_are_of_one_server() {
        let begun = Instant::now();
        let (last, now) = (look(begun, 1_000), look(begun + Duration::from_secs(2), 3_000));
        let seen = Seen { now: &now, last: Some(&last), watched: Duration::ZERO };
        let text = seen.lines("here", None).join("\n");
        let row = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            line.split_whitespace().rev().take(2).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row("puts: new keys"), "k/s 2");
        assert_eq!(row("removes"), "k/s 1");
        assert_eq!(row("of these, ended"), "/s 500");
        assert!(
            text.contains("put times since the last look: half below 8.19 µs, 99 % below 8.19 µs"),
            "{text}"
        );
        let mut other = now.clone();
        (other.told.stats.pid, other.told.stats.launch) = (8, 8);
        let seen = Seen { now: &other, last: Some(&last), watched: Duration::ZERO };
        assert_eq!(seen.rate(|look| look.told.stats.inserts), "-");
        assert!(seen.put_times().contains("since the server began"), "{}", seen.put_times());
        other.times = None;
        let seen = Seen { now: &other, last: None, watched: Duration::ZERO };
        assert_eq!(seen.put_times(), "put times: this server does not tell them");
    }
}
