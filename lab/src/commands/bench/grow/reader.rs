//! A reader of `bench grow`: a process of its own that GETs keys of one table after the other and
//! checks every answer.
//!
//! The process with the tables says in a *page* of shared memory which keys are there, and begins and
//! ends steps. A reader prints one line of JSON for each step.

use super::seen::StepReport;
use crate::measure::{KEY_BYTES, key, latencies, pin, value};
use anyhow::{Context, Result, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use oneread::internals::layout::hash::{mix, reduce};
use oneread::{Address, Backing, Client, ClientOptions, embedded::Region, stats::GetStats};
use oneread_kit::show;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Numbers of keys that are never put begin here.
const NEVER_PUT: u64 = 1 << 40;
/// One GET in so many asks for a key that is not there.
const ABSENT_EVERY: u64 = 16;
/// One GET in so many asks for one of the last keys put, or of the next to be removed.
const EDGE_EVERY: u64 = 8;
const EDGE: u64 = 64;

/// What the readers are told, each in a line of its own.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum Told {
    /// Keys from this number on are there, ...
    Low = 0,
    /// ... up to this one.
    High = 8,
    /// Keys below this number were put and removed.
    Removed = 16,
    /// The step that has begun, counted from 1, and the last one that has ended.
    Step = 24,
    Ended = 32,
    /// Which table is read: 0 the one that grows, 1 the fixed one.
    Table = 40,
    /// Whether a split or merge is under way.
    Busy = 48,
}

/// The page of shared memory.
pub struct Page(Region);

/// In place of a step: there is none any more.
pub const NO_STEP: u64 = u64::MAX;

impl Page {
    pub fn new() -> Result<Page> {
        Ok(Page(Region::create(&Backing::Anonymous, 4096)?))
    }

    /// What a reader gets as its standard input.
    pub fn to_hand_over(&self) -> Result<std::process::Stdio> {
        Ok(self.0.share()?.into())
    }

    fn handed_over() -> Result<Page> {
        let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Page(Region::map_shared(stdin).context("this command is for `bench grow` alone")?))
    }

    /// What was done before is seen by whoever sees this.
    pub fn tell(&self, what: Told, number: u64) {
        fence(Ordering::SeqCst);
        self.0.store(what as usize, number);
        fence(Ordering::SeqCst);
    }

    fn told(&self, what: Told) -> u64 {
        let number = self.0.load(what as usize);
        fence(Ordering::Acquire);
        number
    }
}

/// Read for `bench grow`
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct GrowReader {
    /// The server of the table that grows
    #[arg(long, value_name = "ADDRESS")]
    growing: Address,
    /// The server of the fixed one
    #[arg(long, value_name = "ADDRESS")]
    fixed: Address,
    /// Numbers of the CPUs to run on
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// This reader's number
    #[arg(long, value_name = "N", default_value_t = 0)]
    number: u64,
}

/// A reader's handles for one table: one for keys that are there, whose READs are counted, and one
/// for others.
struct Handles {
    present: Client,
    absent: Client,
}

impl GrowReader {
    pub fn run(self) -> Result<ExitCode> {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        if !self.cpus.is_empty() {
            pin(&self.cpus)?;
        }
        let page = Page::handed_over()?;
        let mut tables = Vec::new();
        for address in [&self.growing, &self.fixed] {
            let patient = ClientOptions::new().deadline(Duration::from_secs(30));
            let present = Client::connect_with(address, patient)?;
            let mut handles = Handles { absent: present.clone(), present };
            // All pages that are there are mapped before anything is timed, most of them by the kernel 16
            // at once.
            for client in [&mut handles.present, &mut handles.absent] {
                for number in 0..client.geometry().region_bytes() / 4096 {
                    client.contains(&key(NEVER_PUT + number))?;
                }
            }
            tables.push(handles);
        }
        show::say(serde_json::to_string(&StepReport::default())?)?;
        let mut random = mix(self.number + 1);
        let mut latencies = [latencies()?, latencies()?];
        for step in 1.. {
            while page.told(Told::Step) < step {
                std::thread::sleep(Duration::from_micros(50));
            }
            if page.told(Told::Step) == NO_STEP {
                break;
            }
            let table = page.told(Told::Table) as usize;
            let handles = tables.get_mut(table).context("a table that is not there")?;
            let report = handles.read(&page, step, &mut random, &mut latencies)?;
            show::say(serde_json::to_string(&report)?)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Handles {
    /// GETs until it is told to stop.
    fn read(
        &mut self,
        page: &Page,
        step: u64,
        random: &mut u64,
        latencies: &mut [Histogram<u64>; 2],
    ) -> Result<StepReport> {
        // Their memory is touched before anything is timed.
        latencies.iter_mut().for_each(Histogram::reset);
        let (before, faults) = (self.present.stats(), faults());
        let mut report = StepReport { step, ..StepReport::default() };
        let mut out = Vec::new();
        while page.told(Told::Ended) < step {
            let (low, high) = (page.told(Told::Low), page.told(Told::High));
            let removed = page.told(Told::Removed);
            ensure!(
                low < high,
                "no key is there to be read: the parent process has put none yet; run `oneread bench grow`, which starts its readers itself"
            );
            *random = random.wrapping_add(1);
            let drawn = mix(*random);
            let is_absent = drawn.is_multiple_of(ABSENT_EVERY);
            let number = match drawn {
                _ if is_absent && removed > 0 && drawn & ABSENT_EVERY > 0 => reduce(mix(drawn), removed),
                _ if is_absent => NEVER_PUT + drawn % NEVER_PUT,
                _ if drawn % EDGE_EVERY == 1 => {
                    let from_edge = reduce(mix(drawn), EDGE.min(high - low));
                    if removed > 0 { low + from_edge } else { high - 1 - from_edge }
                }
                _ => low + reduce(mix(drawn), high - low),
            };
            let client = if is_absent { &mut self.absent } else { &mut self.present };
            let is_busy = page.told(Told::Busy) != 0;
            let name: [u8; KEY_BYTES] = key(number);
            let begun = Instant::now();
            let found = client.get_into(&name, &mut out);
            latencies[usize::from(is_busy)].saturating_record(begun.elapsed().as_nanos() as u64);
            report.counts.gets += 1;
            report.counts.hits += u64::from(!is_absent);
            match found {
                Err(error) => {
                    report.failed += 1;
                    report.error.get_or_insert_with(|| error.to_string());
                }
                Ok(true) => report.wrong += u64::from(is_absent || out != value(number)),
                // One that is about to be removed may be gone.
                Ok(false) => report.missed += u64::from(!is_absent && page.told(Told::Low) <= number),
            }
        }
        let after = self.present.stats();
        report.counts.reads = after.read.reads - before.read.reads;
        report.counts.bytes = after.read.bytes - before.read.bytes;
        report.counts.faults = self::faults().saturating_sub(faults);
        report.counts.retries = retries(&after.get) - retries(&before.get);
        let pairs = |all: &Histogram<u64>| {
            all.iter_recorded().map(|at| (at.value_iterated_to(), at.count_since_last_iteration())).collect()
        };
        [report.quiet, report.busy] = [0, 1].map(|is_busy| pairs(&latencies[is_busy]));
        Ok(report)
    }
}

fn retries(of: &GetStats) -> u64 {
    of.retries_torn + of.retries_moved + of.retries_late + of.retries_chain
}

/// The minor faults of this process so far; see proc(5). 0 where that cannot be read.
fn faults() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or("").split_whitespace();
    fields.into_iter().nth(7).and_then(|field| field.parse().ok()).unwrap_or(0)
}
