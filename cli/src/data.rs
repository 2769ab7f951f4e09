//! `get`, `put`, `del`, `load`, `dump`: read and write keys and values.

use super::records::{self, Format, Pair, Records};
use super::{Server, show, stat, status};
use anyhow::{Context, Result, ensure};
use clap::Args;
use oneread::{Client, PutError, PutOutcome as Outcome};
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Decodes a key or value from the command line: text, or hex.
fn decode(text: &str, hex: bool) -> Result<Vec<u8>> {
    if hex { records::from_hex(text).map_err(anyhow::Error::msg) } else { Ok(text.as_bytes().to_vec()) }
}

/// Print the values of keys; the client finds them in the server's memory by itself
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread get greeting                  prints the value and a newline
  oneread get -n logo > logo.png        the bytes of the value and nothing else
  oneread get --json a b c              one JSON object for each key
  oneread get --hex 00ff                key and value in hex

Exit status 1 if a key is absent.")]
pub struct Get {
    /// The keys to look up
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
    /// Keys and values are in hex
    #[arg(long)]
    hex: bool,
    /// Print no newline after a value
    #[arg(short = 'n', long)]
    no_newline: bool,
    /// Print one JSON object for each key: key, found, value (or value_hex)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    pair: Pair,
    found: bool,
}

impl Get {
    pub fn run(self) -> Result<ExitCode> {
        let keys = self.keys.iter().map(|key| decode(key, self.hex)).collect::<Result<Vec<_>>>()?;
        let mut client = self.server.connect()?;
        let values = client.get_many(&keys)?;
        let mut out = show::out();
        for ((key, given), value) in keys.iter().zip(&self.keys).zip(&values) {
            if self.json {
                let found = Found { pair: Pair::new(key, value.as_deref()), found: value.is_some() };
                writeln!(out, "{}", serde_json::to_string(&found)?)?;
                continue;
            }
            match value {
                Some(value) if self.hex => write!(out, "{}", records::to_hex(value))?,
                Some(value) => out.write_all(value)?,
                None => {
                    // Values and messages appear in the order of the keys, also on a terminal.
                    out.flush()?;
                    show::complain(format_args!("oneread: no key {given:?} at {}", client.address()));
                    continue;
                }
            }
            if !self.no_newline {
                writeln!(out)?;
            }
        }
        out.flush()?;
        Ok(status(values.iter().all(Option::is_some)))
    }
}

/// Insert a key or update its value
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread put greeting hello
  oneread put logo - < logo.png         the value from stdin
  oneread put --insert lock me          only if it is absent
  oneread put --update greeting hi      only if it is present
  oneread put -- -dash- -value-         keys and values that begin with a dash

Prints the outcome: inserted, updated, exists or missing. Exit status 1 for the last two.")]
pub struct Put {
    /// The key
    key: String,
    /// The value; `-` reads it from stdin
    value: String,
    /// Put only if the key is absent
    #[arg(long, conflicts_with = "update")]
    insert: bool,
    /// Put only if the key is present
    #[arg(long)]
    update: bool,
    /// Key and value are in hex (a value from stdin is taken as it is)
    #[arg(long)]
    hex: bool,
    /// Print one JSON object, as in {"outcome": "inserted"}
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl Put {
    pub fn run(self) -> Result<ExitCode> {
        let key = decode(&self.key, self.hex)?;
        let value = if self.value == "-" {
            let mut value = Vec::new();
            // A value longer than any table takes is refused later. There is no need to read more.
            std::io::stdin().lock().take(1 << 16).read_to_end(&mut value).context("reading stdin")?;
            value
        } else {
            decode(&self.value, self.hex)?
        };
        let mut client = self.server.connect()?;
        let outcome = match (self.insert, self.update) {
            (true, _) => client.insert(&key, &value),
            (_, true) => client.update(&key, &value),
            _ => client.put(&key, &value),
        }?;
        let (name, done) = match outcome {
            Outcome::Inserted => ("inserted", true),
            Outcome::Updated => ("updated", true),
            Outcome::Exists => ("exists", false),
            Outcome::Missing => ("missing", false),
        };
        if self.json {
            show::say(serde_json::json!({ "outcome": name }))?;
        } else {
            show::say(name)?;
        }
        Ok(status(done))
    }
}

/// Remove keys
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread del greeting
  oneread del a b c

Exit status 1 if a key was absent.")]
pub struct Del {
    /// The keys to remove
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
    /// Keys are in hex
    #[arg(long)]
    hex: bool,
    /// Print one JSON object, as in {"removed": 2, "absent": 1}
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl Del {
    pub fn run(self) -> Result<ExitCode> {
        let keys = self.keys.iter().map(|key| decode(key, self.hex)).collect::<Result<Vec<_>>>()?;
        let mut client = self.server.connect()?;
        let mut removed = 0;
        for (key, given) in keys.iter().zip(&self.keys) {
            if client.remove(key)? {
                removed += 1;
            } else if !self.json {
                show::complain(format_args!("oneread: no key {given:?} at {}", client.address()));
            }
        }
        let absent = keys.len() - removed;
        if self.json {
            show::say(serde_json::json!({ "removed": removed, "absent": absent }))?;
        } else {
            show::say(format_args!("removed {removed}"))?;
        }
        Ok(status(absent == 0))
    }
}

/// Put keys and values from a file
#[derive(Debug, Args)]
#[command(after_help = r#"FORMATS, by the file's extension or --format
  tsv     key TAB value; \t \n \r \\ and \xHH stand for special bytes; the default
  csv     key,value with the usual quoting
  jsonl   {"key": "...", "value": "..."}; key_hex and value_hex for what is not text
If there are more than two columns, the first two are used. Empty lines are skipped.

EXAMPLES
  oneread load words.tsv
  oneread load --header prices.csv
  oneread dump --at shm:/tmp/old.sock | oneread load - --at shm:/tmp/new.sock
  cut -f1,3 big.tsv | oneread load -

A bad line is reported on stderr with its number. The others are loaded, and the exit status is 1."#)]
pub struct Load {
    /// The file to read; `-` is stdin
    file: PathBuf,
    /// The file's format [default: by the extension of its name, else tsv]
    #[arg(long)]
    format: Option<Format>,
    /// Skip the first line, which names the columns
    #[arg(long)]
    header: bool,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Default, Serialize)]
struct Summary {
    lines: u64,
    inserted: u64,
    updated: u64,
    failed: u64,
    seconds: f64,
    per_second: f64,
}

/// Lines put in one batch.
const BATCH: usize = 1024;
/// Lines put in one batch once the table is full. Each put then looks for room for longer, and the
/// whole batch has one deadline.
const BATCH_WHEN_FULL: usize = 32;
/// Bad lines reported one by one. The rest are counted.
const COMPLAINTS_MAX: u64 = 20;

impl Load {
    pub fn run(self) -> Result<ExitCode> {
        let stdin = self.file.as_os_str() == "-";
        let format = self.format.unwrap_or_else(|| Format::of(&self.file));
        let (input, bar): (Box<dyn Read>, _) = if stdin {
            (Box::new(std::io::stdin()), show::spinner("loading", "lines"))
        } else {
            let name = self.file.display();
            let file = File::open(&self.file).with_context(|| format!("opening {name}"))?;
            let about = file.metadata().with_context(|| format!("looking at {name}"))?;
            ensure!(!about.is_dir(), "{name} is a folder; name a file");
            (Box::new(file), show::byte_bar(about.len(), "loading"))
        };
        let mut client = self.server.connect()?;
        let mut records = Records::new(input, format);
        if self.header {
            records.next()?;
        }
        let mut loading = Loading { bar: &bar, summary: Summary::default(), full: false };
        let begun = Instant::now();
        let mut batch = Vec::new();
        let mut numbers = Vec::new();
        while let Some((number, record)) = records.next()? {
            loading.summary.lines += 1;
            match record {
                Ok(pair) => {
                    batch.push(pair);
                    numbers.push(number);
                }
                Err(reason) => loading.complain(number, &reason),
            }
            if batch.len() >= if loading.full { BATCH_WHEN_FULL } else { BATCH } {
                loading.put(&mut client, &mut batch, &mut numbers)?;
                bar.set_position(if stdin { loading.summary.lines } else { records.bytes() });
                let per_second = loading.summary.lines as f64 / begun.elapsed().as_secs_f64();
                bar.set_message(format!(
                    "{} lines, {}",
                    show::count(loading.summary.lines),
                    show::rate(per_second)
                ));
            }
        }
        loading.put(&mut client, &mut batch, &mut numbers)?;
        bar.finish_and_clear();
        let mut summary = loading.summary;
        summary.seconds = begun.elapsed().as_secs_f64();
        summary.per_second = summary.lines as f64 / summary.seconds;
        report(&summary, self.json)?;
        Ok(status(summary.failed == 0))
    }
}

fn report(summary: &Summary, json: bool) -> Result<()> {
    let Summary { lines, inserted, updated, failed, seconds, per_second } = *summary;
    if failed > COMPLAINTS_MAX {
        show::complain(format_args!("oneread: and {} more bad lines", show::count(failed - COMPLAINTS_MAX)));
    }
    if json {
        return Ok(show::say(serde_json::to_string(summary)?)?);
    }
    Ok(show::say(format_args!(
        "{} lines in {seconds:.2} s ({}): {} inserted, {} updated, {} failed",
        show::count(lines),
        show::rate(per_second),
        show::count(inserted),
        show::count(updated),
        show::count(failed),
    ))?)
}

struct Loading<'a> {
    bar: &'a indicatif::ProgressBar,
    summary: Summary,
    full: bool,
}

impl Loading<'_> {
    fn put(
        &mut self,
        client: &mut Client,
        batch: &mut Vec<records::Record>,
        numbers: &mut Vec<u64>,
    ) -> Result<()> {
        let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { return Ok(()) };
        let answers = client
            .put_many(batch)
            .with_context(|| format!("loading lines {first} to {last}; those before are loaded"))?;
        for (answer, &number) in answers.iter().zip(&*numbers) {
            match answer {
                Ok(Outcome::Inserted) => self.summary.inserted += 1,
                Ok(_) => self.summary.updated += 1,
                Err(error) => {
                    self.full |= matches!(error, PutError::Full { .. });
                    self.complain(number, &error.to_string());
                }
            }
        }
        batch.clear();
        numbers.clear();
        Ok(())
    }

    fn complain(&mut self, number: u64, reason: &str) {
        self.summary.failed += 1;
        if self.summary.failed <= COMPLAINTS_MAX {
            self.bar.suspend(|| show::complain(format_args!("oneread: line {number}: {reason}")));
        }
    }
}

/// Print all keys and values
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread dump > all.tsv                `oneread load all.tsv` puts them back
  oneread dump --format jsonl | jq .key
  oneread dump --region /dev/shm/t.region     from a file, without a server

Reads the region slot by slot and asks the server nothing. It is no snapshot: a key that is put, removed
or moved meanwhile may be printed or not, or twice; keys at rest are printed once.")]
pub struct Dump {
    /// The output format
    #[arg(long, default_value = "tsv")]
    format: Format,
    #[command(flatten)]
    source: stat::Source,
}

impl Dump {
    pub fn run(self) -> Result<ExitCode> {
        let opened = self.source.open()?;
        let inspector = opened.inspector();
        let mut out = show::out();
        let mut torn = 0u64;
        for report in inspector.slots() {
            if report.verdict.is_err() {
                torn += 1;
            } else if !report.key.is_empty() {
                records::write(&mut out, self.format, &report.key, &report.value)?;
            }
        }
        out.flush()?;
        if torn > 0 {
            show::complain(format_args!(
                "oneread: {torn} slots were being written or are damaged; their keys are not in the dump"
            ));
        }
        Ok(status(torn == 0))
    }
}
