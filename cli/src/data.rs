//! `get`, `put`, `del`, `load`, `dump`: read and write keys and values.

use crate::connect::Server;
use crate::entries::{Became, Entry, EntryPuts};
use crate::owner;
use crate::records::{self, Format, Pair, Record, Records};
use crate::secret::SecretArgs;
use crate::source::Source;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use oneread::{PutMode, PutOptions, PutOutcome as Outcome, SwapOutcome, error::PutError};
use oneread_kit::escape::Form;
use oneread_kit::progress::Progress;
use oneread_kit::units::Period;
use oneread_kit::{advice, show, status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, IsTerminal, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

/// Decodes a key or value from the command line: text, or hex.
pub fn decode(text: &str, hex: bool) -> Result<Vec<u8>> {
    if hex { records::from_hex(text).map_err(anyhow::Error::msg) } else { Ok(text.as_bytes().to_vec()) }
}

/// A value from the command line; `-` is stdin.
pub fn given_value(text: &str, hex: bool) -> Result<Vec<u8>> {
    if text != "-" {
        return decode(text, hex);
    }
    let mut value = Vec::new();
    // A value longer than any table takes is refused later. There is no need to read more.
    let most = oneread::internals::layout::extent::VALUE_MAX as u64 + 1;
    std::io::stdin().lock().take(most).read_to_end(&mut value).context("reading stdin")?;
    Ok(value)
}

/// Print the values of keys; the client finds them in the server's memory by itself
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread get greeting                  prints the value and a newline
  oneread get -n logo > logo.png        the bytes of the value and nothing else
  oneread get --json a b c              one JSON object for each key
  oneread get --hex 00ff                key and value in hex
  oneread get --region FILE greeting    from this file if no server answers
  oneread get --key-file FILE greeting  a value that was put with this key file

If no server answers, its region file is read, and that is said.

Exit status 1 if a key is absent, the table cannot hold it, or its value does
not decrypt.")]
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
    /// The server's region file, to be read if no server answers (shm only) [default: the one that
    /// `serve` takes at this address]
    #[arg(long, value_name = "FILE")]
    region: Option<PathBuf>,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    server: Server,
}

impl Get {
    pub fn run(self) -> Result<ExitCode> {
        let keys = self.keys.iter().map(|key| decode(key, self.hex)).collect::<Result<Vec<_>>>()?;
        let mut client = self.server.connect_or_read(self.region, self.secret.encryption()?)?;
        let values = client.get_many(&keys)?;
        let mut out = show::out(if self.json { Form::Json } else { Form::Bytes });
        for ((key, given), value) in keys.iter().zip(&self.keys).zip(&values) {
            let value = match value {
                Ok(value) => value,
                Err(error) => {
                    out.flush()?;
                    show::complain(format_args!(
                        "oneread: key \"{}\": {}",
                        show::name(given),
                        advice::in_options(&error)
                    ));
                    continue;
                }
            };
            if self.json {
                writeln!(out, "{}", serde_json::to_string(&Pair::found(key, value.as_deref()))?)?;
                continue;
            }
            match value {
                Some(value) if self.hex => write!(out, "{}", records::to_hex(value))?,
                Some(value) => out.write_all(value)?,
                None => {
                    // Values and messages appear in the order of the keys, also on a terminal.
                    out.flush()?;
                    show::complain(format_args!(
                        "oneread: no key \"{}\" at {}",
                        show::name(given),
                        client.address()
                    ));
                    continue;
                }
            }
            if !self.no_newline {
                writeln!(out)?;
            }
        }
        out.flush()?;
        Ok(status(values.iter().all(|value| matches!(value, Ok(Some(_))))))
    }
}

/// What the commands that change a key share.
#[derive(Debug, Args)]
pub struct ChangeOptions {
    /// Keys and values are in hex (a value from stdin is taken as it is)
    #[arg(long)]
    pub hex: bool,
    /// Print the outcome as a JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: Server,
}

impl ChangeOptions {
    pub fn say_outcome(&self, name: &str) -> Result<()> {
        show::outcome(self.json, &serde_json::json!({ "outcome": name }), || show::say(name))
    }
}

/// Insert a key or update its value
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread put greeting hello
  oneread put logo - < logo.png         the value from stdin
  oneread put --insert lock me          only if it is absent
  oneread put --update greeting hi      only if it is present
  oneread put --if-value hi greeting ho only if its value is `hi`
  oneread put --ttl 10s lock me         gone after ten seconds
  oneread put -- -dash- -value-         keys and values that begin with a dash
  (umask 077; openssl rand -hex 32 > secret)
  oneread put --key-file secret a b     the server sees no value; `get` needs
                                        the same --key-file and --namespace

Prints the outcome: inserted or updated; exists, missing or differs if the key
was not put; with --json as {\"outcome\": \"inserted\"}. Exit status 1 if the key
was not put.")]
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
    /// The entry ends after this time, as in 500ms, 10s, 1h (a table made with `serve --life`)
    #[arg(long, value_name = "TIME", conflicts_with = "if_value")]
    ttl: Option<Period>,
    /// The entry is this owner's, 1 to 65534, and goes with it (a table made with `serve --owners`)
    #[arg(long, value_name = "N", conflicts_with = "if_value")]
    owner: Option<u16>,
    /// How long the owner may be without a session, as in 500ms, 10s [default: 10s]
    #[arg(long, value_name = "TIME", requires = "owner")]
    absent_for: Option<Period>,
    /// Put only if the key has this value (in hex with --hex)
    #[arg(long, value_name = "VALUE", conflicts_with_all = ["insert", "update"])]
    if_value: Option<String>,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    options: ChangeOptions,
}

/// What a put may do, by its options.
pub fn put_mode(insert: bool, update: bool) -> PutMode {
    match (insert, update) {
        (true, _) => PutMode::Insert,
        (_, true) => PutMode::Update,
        _ => PutMode::Upsert,
    }
}

impl Put {
    pub fn run(self) -> Result<ExitCode> {
        let ChangeOptions { hex, server, .. } = &self.options;
        let (key, value) = (decode(&self.key, *hex)?, given_value(&self.value, *hex)?);
        let expected = self.if_value.as_deref().map(|text| decode(text, *hex)).transpose()?;
        let mut client = server.connect_with(self.secret.encryption()?)?;
        if let Some(number) = self.owner {
            client = client.owner(owner::options(number, self.absent_for))?;
        }
        let (name, done) = match expected {
            Some(expected) => match client.compare_and_swap(&key, &expected, &value)? {
                SwapOutcome::Swapped => ("updated", true),
                SwapOutcome::Differs => ("differs", false),
                SwapOutcome::Absent => ("missing", false),
            },
            None => {
                let options =
                    PutOptions::from(put_mode(self.insert, self.update)).ttl(self.ttl.map(|Period(ttl)| ttl));
                match client.put_with(&key, &value, options)? {
                    Outcome::Inserted => ("inserted", true),
                    Outcome::Updated => ("updated", true),
                    Outcome::Exists => ("exists", false),
                    Outcome::Missing => ("missing", false),
                }
            }
        };
        self.options.say_outcome(name)?;
        Ok(status(done))
    }
}

/// Remove keys
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread del greeting
  oneread del a b c

With --json it prints {\"removed\": 2, \"absent\": 1, \"refused\": 0}; refused are
keys that the table cannot hold. Exit status 1 if a key was not removed.")]
pub struct Del {
    /// The keys to remove
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
    #[command(flatten)]
    options: ChangeOptions,
}

impl Del {
    pub fn run(self) -> Result<ExitCode> {
        let ChangeOptions { hex, json, server } = &self.options;
        let keys = self.keys.iter().map(|key| decode(key, *hex)).collect::<Result<Vec<_>>>()?;
        let mut client = server.connect()?;
        let (mut removed, mut refused) = (0, 0);
        for (there, given) in client.remove_many(&keys)?.into_iter().zip(&self.keys) {
            match there {
                Ok(true) => removed += 1,
                Ok(false) if *json => {}
                Ok(false) => show::complain(format_args!(
                    "oneread: no key \"{}\" at {}",
                    show::name(given),
                    client.address()
                )),
                Err(error) => {
                    refused += 1;
                    show::complain(format_args!(
                        "oneread: key \"{}\": {}",
                        show::name(given),
                        advice::in_options(&error)
                    ));
                }
            }
        }
        let absent = keys.len() - removed - refused;
        let told = serde_json::json!({ "removed": removed, "absent": absent, "refused": refused });
        show::outcome(*json, &told, || show::say(format_args!("removed {removed}")))?;
        Ok(status(removed == keys.len()))
    }
}

/// Put keys and values from a file
#[derive(Debug, Args)]
#[command(after_help = r#"FORMATS, by the file's extension or --format
  tsv    key TAB value; \t \n \r \\ and \xHH for special bytes; the default
  csv    key,value with the usual quoting
  jsonl  {"key": "...", "value": "..."}; key_hex, value_hex for what is no text;
         ends_ms (milliseconds since 1970) for an entry that ends by itself, and
         owner for one that has an owner, who is there until the command ends
         and for a minute more
Of more than two columns, the first two are used; in JSON, other members are
skipped, and numbers need quotes. Empty lines are skipped, and a byte order mark
at the beginning.

EXAMPLES
  oneread load words.tsv
  oneread load --header prices.csv
  oneread dump --at shm:/tmp/old.sock | oneread load - --at shm:/tmp/new.sock
  oneread dump --json > all.jsonl       with ends and owners, as load takes them
  cut -f1,3 big.tsv | oneread load -
  oneread get --json a b | oneread load --format jsonl - --at shm:/tmp/new.sock
  oneread load --insert more.tsv        keys that are there keep their values
  oneread load --key-file secret words.tsv      encrypts the values

A bad line is reported on stderr with its number, and what was wrong is summed
up. The others are loaded, and the exit status is 1. Nothing is loaded if nearly
all of the first thousand are bad and no --format is given.
What was loaded is printed also after Ctrl-C, or an error.
Without --key-file, values are put as they are: so are those of a dump that was
made without --key-file of encrypted values."#)]
pub struct Load {
    /// The file to read; `-` is stdin
    file: PathBuf,
    /// The file's format [default: by the extension of its name, else tsv]
    #[arg(long)]
    format: Option<Format>,
    /// Skip the first line, which names the columns
    #[arg(long)]
    header: bool,
    /// Put only keys that are absent
    #[arg(long, conflicts_with = "update")]
    insert: bool,
    /// Put only keys that are present
    #[arg(long)]
    update: bool,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    server: Server,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Summary {
    /// Lines that were answered, or were bad.
    lines: u64,
    inserted: u64,
    updated: u64,
    /// Present keys that --insert left alone, and absent ones that --update did.
    skipped: u64,
    /// Entries that had come to their end.
    ended: u64,
    failed: u64,
    seconds: f64,
    per_second: f64,
}

/// What was loaded, and what was not.
#[derive(Debug, Default)]
struct Loaded {
    summary: Summary,
    /// By its reason, without numbers.
    bad: HashMap<String, BadKind>,
}

/// Lines that are bad for the same reason.
#[derive(Debug)]
struct BadKind {
    lines: u64,
    first: u64,
    /// That of the first line.
    reason: String,
}

/// Lines put in one batch.
const BATCH: usize = 1024;
/// Lines put in one batch once puts are refused, each of which may take long. Ctrl-C waits for a batch.
const BATCH_OF_REFUSED: usize = 32;
/// Bytes of a line that are kept beside those of a key and a value: there may be columns that nobody needs.
const LINE_MORE: u64 = 16 << 20;
/// Bytes that one byte of a key or value takes at most: `\u001f` in JSON.
const LONGEST_ESCAPE: u64 = 6;
/// Bad lines, or values that do not decrypt, reported one by one. The rest are counted.
const COMPLAINTS_MAX: u64 = 20;
/// Reasons that are told in the end.
const KINDS_MAX: usize = 10;
/// After so many lines it is seen whether they are of the format at all.
const LINES_TO_TELL: u64 = 1_000;

/// How long a named pipe is waited for before that is told.
const PIPE_QUIET: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Opens a file to be loaded. Of a named pipe, it waits until somebody writes into it, and says so.
fn open(path: &Path) -> std::io::Result<File> {
    // To open a pipe usually waits for its writer without a word.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::Fifo {
        let mut within = Some(&PIPE_QUIET);
        loop {
            match poll(&mut [PollFd::new(&file, PollFlags::IN)], within) {
                Ok(0) => {
                    show::complain(format_args!(
                        "oneread: {} is a pipe, and nobody has written into it: waiting for that; Ctrl-C ends it",
                        show::path(path)
                    ));
                    within = None;
                }
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file.into())
}

impl Load {
    pub fn run(self) -> Result<ExitCode> {
        let stdin = self.file.as_os_str() == "-";
        let format = self.format.unwrap_or_else(|| Format::of(&self.file));
        if stdin && std::io::stdin().is_terminal() {
            show::complain("oneread: reading lines from the terminal; Ctrl-D ends them");
        }
        let mut file_bytes = None;
        let (input, bar): (Box<dyn Read>, _) = if stdin {
            let mut input = std::io::BufReader::new(std::io::stdin());
            // As much as there is: of a pipe, all that its writer wrote first.
            if let Some(unpack) = unpacks(input.fill_buf().context("reading the input")?) {
                bail!("the input is compressed; put {unpack} before this in the pipe");
            }
            (Box::new(input), Progress::of_unknown("loading", "lines"))
        } else {
            let name = self.file.display();
            let mut file = open(&self.file).with_context(|| format!("opening {name}"))?;
            let about = file.metadata().with_context(|| format!("looking at {name}"))?;
            ensure!(!about.is_dir(), "{name} is a folder; name a file");
            let mut begin = Vec::new();
            if about.is_file() {
                (&mut file).take(4).read_to_end(&mut begin).with_context(|| format!("reading {name}"))?;
                file.rewind().with_context(|| format!("reading {name}"))?;
            }
            if let Some(unpack) = unpacks(&begin) {
                // What the name without `.gz` says, since a pipe has none.
                let inner = self
                    .format
                    .unwrap_or_else(|| Format::of(Path::new(self.file.file_stem().unwrap_or_default())));
                let inner = inner.to_possible_value().expect("none is hidden");
                bail!("{name} is compressed; {unpack} {name} | oneread load --format {} -", inner.get_name());
            }
            file_bytes = Some(about.len());
            (Box::new(file), Progress::of_bytes(about.len(), "loading"))
        };
        let client = self.server.connect_with(self.secret.encryption()?)?;
        let geometry = client.geometry();
        let both = (geometry.key_max() + geometry.value_max()) as u64;
        let mut records = Records::new(input, format, LINE_MORE + LONGEST_ESCAPE * both);
        if self.header {
            records.next()?;
        }
        let mode = put_mode(self.insert, self.update);
        let summary = Arc::new(Mutex::new(Loaded::default()));
        let begun = Instant::now();
        let bar = bar.on_signal({
            let (summary, json) = (summary.clone(), self.json);
            move || {
                // Locked to the end: of the batch that is under way, all is told, and no other follows.
                report(&lock(&summary), begun, json).is_ok()
            }
        });
        let is_guess = self.format.is_none();
        let mut loading = Loading { bar: &bar, loaded: &summary, is_refused: false, file_bytes, is_guess };
        let loaded = loading.load(&mut EntryPuts::new(client, mode), &mut records, stdin, begun);
        bar.finish();
        let summary = lock(&summary);
        report(&summary, begun, self.json)?;
        loaded?;
        Ok(status(summary.summary.failed == 0))
    }
}

/// The command that unpacks what begins so, if it is compressed.
fn unpacks(begin: &[u8]) -> Option<&'static str> {
    match begin {
        [0x1f, 0x8b, ..] => Some("zcat"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstdcat"),
        [0xfd, b'7', b'z', b'X', ..] => Some("xzcat"),
        _ => None,
    }
}

/// Whether a record reads like the names of its columns.
fn is_header(Record { key, value, .. }: &Record) -> bool {
    let is = |name: &[u8], names: &[&str]| names.iter().any(|of| name.eq_ignore_ascii_case(of.as_bytes()));
    is(key, &["key", "id", "name"]) && is(value, &["value", "val"])
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn report(loaded: &Loaded, begun: Instant, json: bool) -> Result<()> {
    let mut summary = loaded.summary;
    summary.seconds = begun.elapsed().as_secs_f64();
    summary.per_second = summary.lines as f64 / summary.seconds;
    let Summary { lines, inserted, updated, skipped, ended, failed, seconds, per_second } = summary;
    if failed > COMPLAINTS_MAX {
        let mut kinds: Vec<_> = loaded.bad.values().collect();
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.lines));
        show::complain(format_args!("oneread: {} in all:", show::counted(failed, "bad line")));
        for BadKind { lines, first, reason } in &kinds[..kinds.len().min(KINDS_MAX)] {
            show::complain(format_args!("  {}, first line {first}: {reason}", show::count(*lines)));
        }
        if kinds.len() > KINDS_MAX {
            show::complain(format_args!(
                "  and {}",
                show::counted((kinds.len() - KINDS_MAX) as u64, "other kind")
            ));
        }
    }
    let some = |n, what| if n > 0 { format!("{} {what}, ", show::count(n)) } else { String::new() };
    let (skipped, ended) = (some(skipped, "skipped"), some(ended, "had ended"));
    show::outcome(json, &summary, || {
        show::say(format_args!(
            "{} in {seconds:.2} s ({}): {} inserted, {} updated, {skipped}{ended}{} failed",
            show::counted(lines, "line"),
            show::rate(per_second),
            show::count(inserted),
            show::count(updated),
            show::count(failed),
        ))
    })
}

struct Loading<'a> {
    bar: &'a Progress,
    loaded: &'a Mutex<Loaded>,
    /// Whether puts were refused for want of room, memory or time.
    is_refused: bool,
    /// Bytes of the file, until the server was told how many keys may come of them. None of stdin.
    file_bytes: Option<u64>,
    /// Whether nobody has said what the format is.
    is_guess: bool,
}

impl Loading<'_> {
    fn load(
        &mut self,
        puts: &mut EntryPuts,
        records: &mut Records<Box<dyn Read>>,
        stdin: bool,
        begun: Instant,
    ) -> Result<()> {
        let (mut batch, mut numbers) = (Vec::new(), Vec::new());
        let mut seen = 0;
        while let Some((number, record)) = records.next()? {
            seen += 1;
            match record {
                Ok(pair) => {
                    if number == 1 && is_header(&pair) {
                        self.bar.suspend(|| {
                            show::complain("oneread: line 1 reads like names of columns, and is put as a key; --header skips it");
                        });
                    }
                    batch.push(pair);
                    numbers.push(number);
                }
                Err(reason) => {
                    let loaded = &mut lock(self.loaded);
                    loaded.summary.lines += 1;
                    complain(self.bar, loaded, number, reason);
                }
            }
            // A batch is longer, so nothing was put yet.
            const { assert!(LINES_TO_TELL < BATCH as u64) };
            let bad = seen - batch.len() as u64;
            ensure!(
                !self.is_guess || seen != LINES_TO_TELL || bad < LINES_TO_TELL / 10 * 9,
                "{bad} of the first {} lines are bad, and nothing was put; --format names the format (tsv, csv, jsonl), also to load the few",
                show::count(LINES_TO_TELL)
            );
            if batch.len() >= if self.is_refused { BATCH_OF_REFUSED } else { BATCH } {
                if let Some(bytes) = self.file_bytes.take() {
                    // A guess, by the lines so far. A server that does not grow for it grows as it goes.
                    let lines = seen * bytes / records.bytes().max(1);
                    let _ = puts.client().grow_for(lines);
                }
                self.put(puts, &mut batch, &mut numbers)?;
                let lines = lock(self.loaded).summary.lines;
                self.bar.set_position(if stdin { lines } else { records.bytes() });
                let per_second = lines as f64 / begun.elapsed().as_secs_f64();
                let rate = show::rate(per_second);
                // Of stdin, the position is the number of lines.
                let told = if stdin { rate } else { format!("{}, {rate}", show::counted(lines, "line")) };
                self.bar.set_message(told);
            }
        }
        self.put(puts, &mut batch, &mut numbers)
    }

    fn put(&mut self, puts: &mut EntryPuts, batch: &mut Vec<Record>, numbers: &mut Vec<u64>) -> Result<()> {
        let Some(last) = numbers.last() else { return Ok(()) };
        let (bar, loaded) = (self.bar, &mut *lock(self.loaded));
        let mut is_answered = vec![false; numbers.len()];
        let entries: Vec<_> = batch
            .iter()
            .map(|Record { key, value, end, owner }| Entry { key, value, end: *end, owner: *owner })
            .collect();
        let ended = puts.put(&entries, |nth, became| {
            is_answered[nth] = true;
            loaded.summary.lines += 1;
            let summary = &mut loaded.summary;
            match &became {
                Became::Put(Outcome::Inserted) => summary.inserted += 1,
                Became::Put(Outcome::Updated) => summary.updated += 1,
                Became::Put(Outcome::Exists | Outcome::Missing) => summary.skipped += 1,
                Became::Ended => summary.ended += 1,
                Became::Refused(error) => self.is_refused |= !is_about_length(error),
                Became::NoOwner(_) => {}
            }
            if let Some(reason) = became.reason() {
                complain(bar, loaded, numbers[nth], reason);
            }
        });
        ended.with_context(|| {
            let first =
                is_answered.iter().position(|is_answered| !is_answered).map_or(last, |nth| &numbers[nth]);
            format!("loading lines {first} to {last}; those before are answered")
        })?;
        batch.clear();
        numbers.clear();
        Ok(())
    }
}

/// Whether a put was refused for its own sake, and not for want of something.
fn is_about_length(error: &PutError) -> bool {
    matches!(
        error,
        PutError::KeyLength { .. } | PutError::ValueLength { .. } | PutError::EncryptedLength { .. }
    )
}

fn complain(bar: &Progress, loaded: &mut Loaded, number: u64, reason: String) {
    loaded.summary.failed += 1;
    if loaded.summary.failed <= COMPLAINTS_MAX {
        bar.suspend(|| show::complain(format_args!("oneread: line {number}: {reason}")));
    }
    let kind = reason.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty()).collect();
    loaded.bad.entry(kind).or_insert(BadKind { lines: 0, first: number, reason }).lines += 1;
}

/// Print all keys and values
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread dump > all.tsv                `oneread load all.tsv` puts them back
  oneread dump --json | jq .key         with ends and owners, for `load`
  oneread dump --region /dev/shm/t.region     from a file, without a server
  oneread dump --key-file secret        decrypts the values

Without --key-file, encrypted values are printed as they are stored; `oneread
load` without --key-file puts them back, into any table. With it, a value that
does not decrypt is reported and left out, and the exit status is 1.

Only JSON says when an entry ends and whose it is. With the other formats,
stderr tells how many there are of which that is lost.

Reads the region slot by slot and asks the server nothing. It is no snapshot: a
key that is put, removed or moved meanwhile may be printed or not, or twice. A
table that grows still moves keys for some seconds after a load. `oneread
snapshot` misses none, nor does `oneread scan`.")]
pub struct Dump {
    /// The output format
    #[arg(long, default_value = "tsv")]
    format: Format,
    /// Print one JSON object for each key; the same as --format jsonl
    #[arg(long, conflicts_with = "format")]
    json: bool,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    source: Source,
}

impl Dump {
    pub fn run(self) -> Result<ExitCode> {
        let encryption = self.secret.encryption()?;
        let opened = self.source.open()?;
        let inspector = opened.inspector();
        let format = if self.json { Format::Jsonl } else { self.format };
        let out = Arc::new(Mutex::new(show::out(format.shown_as())));
        let printed = Arc::new(AtomicU64::new(0));
        // On a terminal, the output itself shows it.
        let bar = match std::io::stdout().is_terminal() {
            true => Progress::hidden(),
            false => Progress::of(inspector.slots_used(), "dumping", "slots"),
        };
        let bar = bar.on_signal({
            let (out, printed) = (out.clone(), printed.clone());
            move || {
                // Between two records, unless the reader of the output takes none.
                let is_whole = out.try_lock().is_ok_and(|mut out| out.flush().is_ok());
                let how = if is_whole { "" } else { ", the last of them perhaps in part" };
                let keys = show::counted(printed.load(Ordering::Relaxed), "key");
                show::complain(format_args!("oneread: interrupted; printed {keys}{how}"));
                true
            }
        });
        let (mut torn, mut undecrypted, mut lost) = (0u64, 0, 0);
        let now = SystemTime::now();
        for (nth, report) in inspector.slots().enumerate() {
            if nth.is_multiple_of(1024) {
                bar.set_position(nth as u64);
            }
            if report.verdict.is_err() {
                torn += 1;
                continue;
            }
            let end = inspector.end(&report);
            if report.key.is_empty() || inspector.is_hidden(&report) || end.is_some_and(|end| end <= now) {
                continue;
            }
            let Some(stored) = inspector.value(&report) else {
                torn += 1;
                continue;
            };
            let decrypted = encryption.as_ref().map(|of| of.decrypt(&report.key, &stored));
            match decrypted.transpose() {
                Ok(value) => {
                    let mut out = lock(&out);
                    let owner = report.life.map_or(0, |life| life.owner);
                    lost += u64::from(!format.has_all() && (end.is_some() || owner != 0));
                    let record = Record { key: report.key, value: value.unwrap_or(stored), end, owner };
                    records::write_whole(&mut *out, format, &record)?;
                    printed.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    undecrypted += 1;
                    if undecrypted <= COMPLAINTS_MAX {
                        let key = report.key.escape_ascii();
                        let error = advice::in_options(&error);
                        bar.suspend(|| {
                            show::complain(format_args!("oneread: key \"{key}\" is left out: {error}"));
                        });
                    }
                }
            }
        }
        bar.finish();
        lock(&out).flush()?;
        if undecrypted > COMPLAINTS_MAX {
            let more = show::counted(undecrypted - COMPLAINTS_MAX, "more key");
            show::complain(format_args!("oneread: and {more} whose values do not decrypt"));
        }
        if lost > 0 {
            show::complain(format_args!(
                "oneread: {} that end by themselves or have owners, which only --json says; loaded from this, they stay",
                show::counted(lost, "key")
            ));
        }
        if torn > 0 {
            show::complain(format_args!(
                "oneread: {} being written or damaged; what stands there is not in the dump",
                show::counted(torn, "slot")
            ));
        }
        Ok(status(torn == 0 && undecrypted == 0))
    }
}
