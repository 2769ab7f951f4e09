//! `bench grow`: a table that grows and shrinks while other processes read it.
//!
//! This process has two servers: of a table that grows, and of a fixed one that is large enough.
//! Two other processes read. Part by part, the same keys are put into both tables, or removed from
//! both, and the readers read the one that changes.

mod outcome;
mod plot;
mod processes;
pub mod reader;
mod run;
mod seen;

use crate::arguments::whole;
use crate::measure::{KEY_BYTES, VALUE_BYTES, machine, pin};
use anyhow::{Result, ensure};
use clap::Args;
use oneread::{Address, Backing, Config, Server, ServerConfig, TableSize, layout::Layout};
use oneread_kit::folder::{Folder, bytes_behind};
use oneread_kit::progress::Progress;
use oneread_kit::{names, show};
use outcome::{DoublingSeen, Outcome, PARTS, Part, mean_of};
use processes::{Cpus, Readers};
use reader::{Page, Told};
use run::Run;
use seen::{Course, Loads, Side, Which};
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Let a table grow and shrink while other processes read it
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench grow
  oneread bench grow --keys 8388608 --plot grow.svg   2^23 keys, some minutes
  oneread bench grow --segment-slots 1024 --json

Keys are put, one after the other, and then removed again. Two other processes
GET random keys meanwhile, often those put last or to be removed next, and now
and then one that was removed or never put. Each answer is checked. The exit
status is 1 if one was not as it must be:
  failed  GETs that ended in an error
  wrong   another key's value, or a value for a key that is not there
  missed  keys put, and not yet being removed, that were not found
Part by part, the same changes are made to a fixed table, made for all the keys.
Its GETs meanwhile are what those of the growing table are compared with. The
readers run on other CPUs than the servers, where there are two or more.

For each doubling, GETs while a split or merge is under way are compared with
those of the fixed table (x fixed) and with those of the growing one while none
is (x quiet). The longest change is told by the clock on the wall, where others
may have had the CPU, and by its own CPU time.

A GET counts READs of windows, and of directory entries when it needs one whole.
On this host it also loads one word of the directory each time.")]
pub struct Grow {
    /// Most keys
    #[arg(long, value_name = "N", default_value = "524288", value_parser = keys)]
    keys: u64,
    /// Fewest keys: so many are put before the readers begin, and so many stay
    #[arg(long, value_name = "N", default_value = "65536", value_parser = keys)]
    from: u64,
    /// The layout of both tables
    #[arg(long, value_name = "NAME", default_value = "windowed:8", value_parser = names::layout(), hide_possible_values = true)]
    layout: Layout,
    /// Main slots of a segment [default: those of about 1 MiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    segment_slots: Option<u64>,
    /// Draw what happened into this SVG file
    #[arg(long, value_name = "FILE.svg", value_parser = crate::plot::svg_file, value_hint = clap::ValueHint::FilePath)]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Parses 1000000 and 1e6.
fn keys(text: &str) -> Result<u64, String> {
    let n = whole(text).ok().filter(|n| (1_000..=1_000_000_000).contains(n));
    n.ok_or_else(|| "a whole number from 1000 to 1e9, as in 1000000 or 1e6".into())
}

/// What is under way after the last remove has so long to end.
const SETTLE_MAX: Duration = Duration::from_secs(60);

impl Grow {
    pub fn run(self) -> Result<ExitCode> {
        ensure!(
            self.from < self.keys,
            "--from {} is not less than --keys {}; the table has to grow between them, so give more --keys",
            self.from,
            self.keys
        );
        let outcome = self.measure()?;
        show::outcome(self.json, &outcome, || outcome.show())?;
        crate::plot::write(self.plot.as_deref(), || plot::draw(&outcome))?;
        Ok(oneread_kit::status(outcome.failed + outcome.wrong + outcome.missed == 0))
    }

    fn measure(&self) -> Result<Outcome> {
        let (machine, cpus) = (machine(), Cpus::chosen()?);
        // Before the servers' threads begin.
        cpus.server.as_deref().map(pin).transpose()?;
        let folder = Folder::new()?;
        let growing = self.serve(&folder, Which::Growing)?;
        let fixed = self.serve(&folder, Which::Fixed)?;
        let begun = Instant::now();
        let bar = Progress::of(2 * (2 * self.keys - self.from), "growing", "changes");
        let mut run = Run { page: Page::new()?, tables: [growing, fixed], readers: None, step: 0, bar };
        for which in Which::BOTH {
            run.change(Course::Filling, which, 0..self.from, &mut Side::new()?, None)?;
        }
        run.readers = Some(Readers::start(&run.page, &run.tables, &cpus)?);
        let mut outcome = Outcome {
            machine,
            layout: self.layout.to_string(),
            cpus: cpus.to_string(),
            from: self.from,
            keys: self.keys,
            ..Outcome::default()
        };
        let mut sides = [Side::new()?, Side::new()?];
        let before = [0, 1].map(|n| run.tables[n].index().counts());
        let moved_before = run.tables[0].index().growth().moved;
        self.inserts(&mut run, &mut sides, &mut outcome)?;
        let after = [0, 1].map(|n| run.tables[n].index().counts());
        let growth = run.tables[0].index().growth();
        outcome.segments_max = growth.segments;
        outcome.fixed_load_end = run.tables[1].index().load_true();
        let inserts = (self.keys - self.from) as f64;
        let moves = [0, 1].map(|n| (after[n].moves - before[n].moves) as f64 / inserts);
        outcome.split_moves_per_insert = (growth.moved - moved_before) as f64 / inserts;
        outcome.moves_per_insert = moves[0] + outcome.split_moves_per_insert;
        outcome.fixed_moves_per_insert = moves[1];
        self.removes(&mut run, &mut sides, &mut outcome)?;
        run.bar.finish();
        outcome.seconds = begun.elapsed().as_secs_f64();
        let growth = run.tables[0].index().growth();
        (outcome.splits, outcome.merges, outcome.given_up) = (growth.splits, growth.merges, growth.given_up);
        outcome.segments_end = growth.segments;
        outcome.bytes_end = bytes_behind(&run.tables[0])?;
        outcome.bytes_returned = outcome.bytes_max.saturating_sub(outcome.bytes_end);
        run.readers.take().map(|readers| readers.end(&run.page)).transpose()?;
        outcome.judge(&sides, run.tables[0].index().geometry());
        Ok(outcome)
    }

    fn serve(&self, folder: &Folder, which: Which) -> Result<Server> {
        let config = Config::new().layout(self.layout).key_max(KEY_BYTES).value_max(VALUE_BYTES);
        let (name, size) = match which {
            // A table is never so empty that it would need more.
            Which::Growing => {
                let slot = config.geometry()?.shape().bytes() as u64;
                let bytes_max = 4 * self.keys * slot + (64 << 20);
                ("growing", TableSize::Growing { bytes_max, segment_slots: self.segment_slots })
            }
            Which::Fixed => ("fixed", TableSize::Keys(self.keys)),
        };
        let address = Address::Shm(folder.join(name));
        let how = ServerConfig::new(address, config.size(size)).backing(Backing::Anonymous).workers(1);
        Ok(Server::start(how)?)
    }

    /// The bounds of the parts: as many for each doubling of the keys.
    fn parts(&self) -> Vec<Range<u64>> {
        let doublings = (self.keys as f64 / self.from as f64).log2();
        let parts = (doublings * f64::from(PARTS)).ceil().max(1.0);
        let bound = |n: f64| (self.from as f64 * (doublings * n / parts).exp2()).round() as u64;
        let bounds: Vec<u64> = (0..=parts as u64).map(|n| bound(n as f64)).collect();
        bounds.windows(2).map(|pair| pair[0]..pair[1]).filter(|part| !part.is_empty()).collect()
    }

    /// Changes both tables, part by part in turns, until all keys are put or removed. Returns the loads of the growing
    /// one.
    fn change(
        &self,
        course: Course,
        run: &mut Run,
        sides: &mut [Side; 2],
        outcome: &mut Outcome,
    ) -> Result<Loads> {
        let (mut all, mut doubling) = (Loads::default(), DoublingSeen::new(course)?);
        let mut parts = self.parts();
        if course == Course::Emptying {
            parts.reverse();
        }
        let last = parts.len() - 1;
        for (number, range) in parts.into_iter().enumerate() {
            let (keys, changed, there) = match course {
                Course::Filling => (range.end, range.clone(), 0..range.start),
                // Those put first go first.
                Course::Emptying => {
                    let gone = self.keys - range.end..self.keys - range.start;
                    (range.start, gone.clone(), gone.start..self.keys)
                }
            };
            let mut part = Part { keys, shrinks: course == Course::Emptying, ..Part::default() };
            let mut loads = Loads::default();
            // Neither is always the first.
            for which in [0, 1].map(|n| Which::BOTH[(n + number) % 2]) {
                let mut side = Side::new()?;
                let growing = which == Which::Growing;
                run.page.tell(Told::Low, there.start);
                run.page.tell(Told::Removed, there.start);
                run.page.tell(Told::High, there.end);
                run.begin(which)?;
                let begun = Instant::now();
                run.change(course, which, changed.clone(), &mut side, growing.then_some(&mut loads))?;
                if growing {
                    part.seconds = begun.elapsed().as_secs_f64();
                }
                run.end(course, &mut side, outcome, growing)?;
                part.note(which, &side.seen[course as usize], side.cpu, run.tables[0].index().geometry());
                sides[which as usize].add(&side)?;
                doubling.sides[which as usize].add(&side)?;
            }
            all.add(&loads);
            let part = self.end_part(part, &loads, run, outcome)?;
            doubling.end_part(&part, &loads, number == last, outcome)?;
        }
        Ok(all)
    }

    fn inserts(&self, run: &mut Run, sides: &mut [Side; 2], outcome: &mut Outcome) -> Result<()> {
        let all = self.change(Course::Filling, run, sides, outcome)?;
        (outcome.load_min, outcome.load_mean) = (all.min, all.mean());
        outcome.memory_load_mean = mean_of(outcome.parts.iter().map(|part| part.memory_load));
        Ok(())
    }

    fn removes(&self, run: &mut Run, sides: &mut [Side; 2], outcome: &mut Outcome) -> Result<()> {
        let all = self.change(Course::Emptying, run, sides, outcome)?;
        (outcome.shrinking_load_min, outcome.shrinking_load_mean) = (all.min, all.mean());
        // What can be merged on request is merged, while the readers go on.
        let mut side = Side::new()?;
        run.begin(Which::Growing)?;
        let patience = Instant::now() + SETTLE_MAX;
        let index = run.tables[0].index();
        loop {
            let begun = index.shrink();
            let growth = index.growth();
            if begun + growth.merging + growth.splitting == 0 || Instant::now() > patience {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Memory comes back after the grace time of the last merge.
        std::thread::sleep(Duration::from_millis(200));
        run.end(Course::Emptying, &mut side, outcome, true)?;
        sides[0].add(&side)
    }

    fn end_part(&self, mut part: Part, loads: &Loads, run: &Run, outcome: &mut Outcome) -> Result<Part> {
        let growing = &run.tables[0];
        (part.load_min, part.load_mean) = (loads.min, loads.mean());
        part.bytes = bytes_behind(growing)?;
        let slot = growing.index().geometry().shape().bytes() as u64;
        part.memory_load = (part.keys * slot) as f64 / part.bytes.max(1) as f64;
        part.segments = growing.index().growth().segments;
        part.seconds += outcome.parts.last().map_or(0.0, |last| last.seconds);
        outcome.bytes_max = outcome.bytes_max.max(part.bytes);
        outcome.parts.push(part);
        Ok(part)
    }
}
