//! GETs of a table that churns, grows by splits and shrinks by merges, counted change by change.
//!
//! READs are copied out of the table and judged as those that land from a network are, by a clock
//! that stands still: so directory entries are READ, old ones go on being used, and a slot counts
//! for the use of its segment only.

use super::demand::{
    GET_GROWN_HIT, GET_GROWN_MISS, GET_HINTED_HIT, GET_HINTED_MISS, GET_LINES, GROWING_INSERT, HERD_NS,
    UPDATE,
};
use super::sample::put_message;
use super::{Demand, Design, PlanError, SampleTable, Side, SplitPause, Workload, hinted_name, within};
use oneread::fabric::{Direct, Fabric, ReadId, Stretch};
use oneread::internals::fabric::landed::LandedWindow;
use oneread::internals::get::Proof;
use oneread::internals::hints::Hints;
use oneread::internals::layout::geometry::{Geometry, Window};
use oneread::sink::Sink;
use oneread::{
    Config, Limits, TableSize,
    embedded::{Clock, Reader, Region},
    error::ReadError,
    layout::Layout,
    stats::ReadCounts,
};
use serde::Serialize;
use std::time::Duration;

/// What a table and its clients go through.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GrowthRun {
    /// The table's layout.
    #[serde(serialize_with = "as_text")]
    pub layout: Layout,
    /// Main slots of a segment.
    pub segment_slots: u64,
    /// Keys in the beginning, and again at the end if it shrinks.
    pub from: u64,
    /// The most keys.
    pub keys: u64,
    /// Whether it churns before and after it has grown, shrinks again, and churns once more.
    pub shrinks: bool,
    /// Keys replaced beside each that is inserted or removed.
    pub replaced: u32,
    /// GETs of present keys, by each client, after each step: an insert, a remove, or in a table that
    /// only churns one key replaced.
    pub gets: f64,
    /// Exponent of the keys' popularity.
    pub zipf: f64,
    /// The most memory for hints.
    pub hint_bytes: usize,
    /// Parts of each of its courses.
    pub parts: u32,
}

fn as_text<S: serde::Serializer>(layout: &Layout, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(layout)
}

/// What happens to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Course {
    /// Keys are replaced.
    Churn,
    /// Keys are inserted.
    Grow,
    /// Keys are removed.
    Shrink,
}

/// What the GETs of one kind took, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct GetCosts {
    /// GETs.
    pub gets: u64,
    /// READs, those of directory entries included.
    pub reads: f64,
    /// READs of directory entries.
    pub directory: f64,
    /// Bytes.
    pub bytes: f64,
    /// Round trips.
    pub trips: f64,
}

/// What GETs took of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct GetKinds {
    /// A client without hints: keys that are there.
    pub hit: GetCosts,
    /// Keys that are not.
    pub miss: GetCosts,
    /// A client with hints: keys that are there.
    pub hinted_hit: GetCosts,
    /// Keys that are not.
    pub hinted_miss: GetCosts,
}

impl GetKinds {
    /// The means of all parts; of GETs the sum.
    fn mean(parts: &[GrowthPart]) -> GetKinds {
        let costs = |of: fn(&GetKinds) -> GetCosts| {
            let each = || parts.iter().map(|part| of(&part.gets));
            let mean = |of: fn(GetCosts) -> f64| each().map(of).sum::<f64>() / parts.len() as f64;
            GetCosts {
                gets: each().map(|costs| costs.gets).sum(),
                reads: mean(|costs| costs.reads),
                directory: mean(|costs| costs.directory),
                bytes: mean(|costs| costs.bytes),
                trips: mean(|costs| costs.trips),
            }
        };
        GetKinds {
            hit: costs(|kinds| kinds.hit),
            miss: costs(|kinds| kinds.miss),
            hinted_hit: costs(|kinds| kinds.hinted_hit),
            hinted_miss: costs(|kinds| kinds.hinted_miss),
        }
    }
}

/// One part of a course, and the table at its end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GrowthPart {
    /// What happened.
    pub course: Course,
    /// Steps since the beginning.
    pub steps: u64,
    /// Keys.
    pub keys: u64,
    /// Keys to all slots.
    pub load: f64,
    /// Segments.
    pub segments: u64,
    /// Splits since the beginning.
    pub splits: u64,
    /// Merges since the beginning.
    pub merges: u64,
    /// Keys moved within segments in this part, for each step.
    pub moves: f64,
    /// Keys moved from one segment to another in this part, for each step.
    pub split_moves: f64,
    /// What its GETs took.
    #[serde(flatten)]
    pub gets: GetKinds,
    /// GETs of present keys that a hint answered, as a share.
    pub hinted: f64,
    /// Memory for hints of all slots that the client has come to, for each key.
    pub client_bytes_per_key: f64,
}

/// A run's parts, and what a client costs that comes late.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GrowthCourse {
    /// The parts, one after the other.
    pub parts: Vec<GrowthPart>,
    /// READs of directory entries for each split, by a client that knew the table as it was before it
    /// grew, and comes back when it has grown and all splits have ended.
    pub late_directory_reads: f64,
    /// Whether the client with hints has any. They save nothing in layouts that look for a key in one
    /// slot first.
    pub has_hints: bool,
}

/// Bytes of a word of the region.
const WORD: usize = size_of::<u64>();

/// READs as over a network, counted.
struct Copying<'f> {
    region: &'f Region,
    geometry: &'f Geometry,
    posted: Vec<(ReadId, Window)>,
    words: Vec<u64>,
    /// READs of directory entries.
    directory: u64,
}

impl<'f> Copying<'f> {
    fn reader(table: &'f oneread::embedded::Index) -> Reader<'f, Copying<'f>> {
        let (region, geometry) = (table.region(), table.geometry());
        let fabric = Copying { region, geometry, posted: Vec::new(), words: Vec::new(), directory: 0 };
        Reader::new(fabric, geometry, Clock::manual(), Limits::default())
    }
}

impl Direct for Copying<'_> {}

impl<'f> Fabric for Copying<'f> {
    type Landed<'a>
        = LandedWindow<'a>
    where
        Self: 'a;
    const EXACT: bool = false;
    type Mark = ();
    type Error = ReadError;

    fn credits(&self) -> usize {
        16
    }

    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), ReadError> {
        self.posted.extend_from_slice(reads);
        Ok(())
    }

    fn poll(&mut self, mut sink: impl FnMut(ReadId, &mut LandedWindow<'_>)) -> Result<(), ReadError> {
        for (token, window) in self.posted.drain(..) {
            let words = window.slots as usize * self.geometry.shape().words();
            self.words.clear();
            let first = self.geometry.slot_offset(window.first) as usize / WORD;
            self.words.extend((first..).take(words).map(|n| self.region.load(n)));
            self.directory += u64::from(window.first < self.geometry.segment_first(0));
            sink(token, &mut LandedWindow::new(self.geometry, window, &self.words));
        }
        Ok(())
    }

    fn mark(&mut self, _home: u64) {}

    fn proof(&mut self, _home: u64, _mark: ()) -> Proof {
        Proof::InGrace
    }

    fn took_less(&mut self, _mark: (), _allowance: Duration) -> bool {
        true
    }

    fn fetch(&mut self, stretches: &[Stretch], out: &mut impl Sink) -> Result<(), ReadError> {
        for bytes in stretches {
            let (first, skip) = (bytes.offset as usize / WORD, bytes.offset as usize % WORD);
            let words = (first..).take((skip + bytes.len).div_ceil(WORD));
            let all: Vec<u8> = words.flat_map(|n| self.region.load(n).to_le_bytes()).collect();
            out.put(&all[skip..][..bytes.len]);
        }
        Ok(())
    }
}

/// A client, and what it has been counted at.
struct GrowthClient<'g> {
    reader: Reader<'g, Copying<'g>>,
    before: (ReadCounts, u64),
    value: Vec<u8>,
}

/// What the GETs of one kind took so far.
#[derive(Clone, Copy, Default)]
struct Sums {
    gets: u64,
    reads: ReadCounts,
    directory: u64,
}

impl Sums {
    fn mean(self) -> GetCosts {
        let of = |n: u64| n as f64 / self.gets.max(1) as f64;
        GetCosts {
            gets: self.gets,
            reads: of(self.reads.reads),
            directory: of(self.directory),
            bytes: of(self.reads.bytes),
            trips: of(self.reads.doorbells),
        }
    }
}

impl GrowthClient<'_> {
    /// One GET, whose answer is checked.
    fn get(
        &mut self,
        table: &SampleTable,
        number: u64,
        is_present: bool,
        sums: &mut Sums,
    ) -> Result<(), PlanError> {
        let found = self.reader.get_into(&SampleTable::key(number), &mut self.value);
        if found.map_err(|error| table.failed(error))? != is_present
            || is_present && self.value != SampleTable::value(number)
        {
            return Err(table.failed(format_args!("a GET of key {number} gave a wrong answer")));
        }
        let now = (self.reader.read_counts(), self.reader.fabric_mut().directory);
        let (before, directory) = std::mem::replace(&mut self.before, now);
        let mut reads = now.0;
        reads.reads -= before.reads;
        reads.bytes -= before.bytes;
        reads.doorbells -= before.doorbells;
        sums.gets += 1;
        sums.reads += reads;
        sums.directory += now.1 - directory;
        Ok(())
    }
}

/// One GET of an absent key comes with so many of present ones.
const HITS_PER_MISS: u64 = 8;
/// GETs of each key before anything is counted, as with a table of one size.
const LEARNING: u32 = 6;

impl GrowthRun {
    /// Runs it. Time is simulated: the same run gives the same counts. `each` hears of each part.
    ///
    /// # Errors
    /// [`PlanError::Number`], [`PlanError::Sample`], or that there is no memory.
    pub fn count(&self, mut each: impl FnMut(&GrowthPart)) -> Result<GrowthCourse, PlanError> {
        within("keys in the beginning", self.from as f64, 64.0, 1e8)?;
        within("keys", self.keys as f64, self.from as f64 + 1.0, 1e8)?;
        within("GETs of a step", self.gets, 0.01, 1e4)?;
        within("keys replaced in a step", self.replaced.into(), 0.0, 100.0)?;
        within("zipf", self.zipf, 0.0, 2.0)?;
        within("parts", self.parts.into(), 1.0, 1000.0)?;
        let mut table = SampleTable::growing(self.layout, self.segment_slots, self.keys, 1)?;
        let index = table.shared();
        let geometry = index.geometry();
        let hints = Hints::new(geometry, self.hint_bytes);
        while table.keys() < self.from {
            let had_room = table.insert()?;
            has_room(&table, had_room)?;
        }
        table.shuffle();
        let client = |reader| GrowthClient { reader, before: Default::default(), value: Vec::new() };
        let mut plain = client(Copying::reader(&index));
        let mut hinted = client(match &hints {
            Some(hints) => Copying::reader(&index).with_hints(hints),
            None => Copying::reader(&index),
        });
        let mut late = client(Copying::reader(&index));
        for round in 0..LEARNING {
            for &number in table.live() {
                hinted.get(&table, number, true, &mut Sums::default())?;
                if round == 0 {
                    plain.get(&table, number, true, &mut Sums::default())?;
                    late.get(&table, number, true, &mut Sums::default())?;
                }
            }
        }
        let more = self.keys - self.from;
        let courses: &[_] = match self.shrinks {
            false => &[(Course::Grow, more)],
            true => &[
                (Course::Churn, self.from),
                (Course::Grow, more),
                (Course::Churn, self.from),
                (Course::Shrink, more),
                (Course::Churn, self.from),
            ],
        };
        let mut found =
            GrowthCourse { parts: Vec::new(), late_directory_reads: 0.0, has_hints: hints.is_some() };
        let (mut steps, mut due, mut absent, mut hits) = (0, 0.0, u64::MAX, 0u64);
        for &(course, all) in courses {
            for part in 0..u64::from(self.parts) {
                let count = all * (part + 1) / u64::from(self.parts) - all * part / u64::from(self.parts);
                let popular = table.popular(self.zipf);
                let (counts, moved) = (table.counts(), index.growth().moved);
                let hint_counts = hinted.reader.hint_counts();
                let mut sums = [Sums::default(); 4];
                for _ in 0..count {
                    steps += 1;
                    let mut had_room = match course {
                        Course::Churn => table.churn()?,
                        Course::Grow => table.insert()?,
                        Course::Shrink => table.remove().map(|()| true)?,
                    };
                    for _ in 0..if course == Course::Churn { 0 } else { self.replaced } {
                        had_room &= table.churn()?;
                    }
                    has_room(&table, had_room)?;
                    due += self.gets;
                    while due >= 1.0 {
                        due -= 1.0;
                        hits += 1;
                        let number = table.asked_for(popular.as_ref());
                        plain.get(&table, number, true, &mut sums[0])?;
                        hinted.get(&table, number, true, &mut sums[1])?;
                        if hits.is_multiple_of(HITS_PER_MISS) {
                            absent -= 1;
                            plain.get(&table, absent, false, &mut sums[2])?;
                            hinted.get(&table, absent, false, &mut sums[3])?;
                        }
                    }
                }
                let (after, growth) = (table.counts(), index.growth());
                let per_step = |n: u64| n as f64 / count.max(1) as f64;
                let by_hints = hinted.reader.hint_counts().hits - hint_counts.hits;
                let part = GrowthPart {
                    course,
                    steps,
                    keys: table.keys(),
                    load: after.keys as f64 / after.slots as f64,
                    segments: growth.segments,
                    splits: growth.splits,
                    merges: growth.merges,
                    moves: per_step(after.moves - counts.moves),
                    split_moves: per_step(growth.moved - moved),
                    gets: GetKinds {
                        hit: sums[0].mean(),
                        hinted_hit: sums[1].mean(),
                        miss: sums[2].mean(),
                        hinted_miss: sums[3].mean(),
                    },
                    hinted: by_hints as f64 / sums[1].gets.max(1) as f64,
                    client_bytes_per_key: hints.as_ref().map_or(0, Hints::bytes_used) as f64
                        / table.keys().max(1) as f64,
                };
                each(&part);
                found.parts.push(part);
            }
            if course == Course::Grow {
                // Later GETs of a split that is under way would count as well.
                table.rest();
                let mut asked = Sums::default();
                for &number in table.live() {
                    late.get(&table, number, true, &mut asked)?;
                }
                found.late_directory_reads = asked.directory as f64 / index.growth().splits.max(1) as f64;
            }
        }
        Ok(found)
    }
}

/// A change of a table that grows has room.
fn has_room(table: &SampleTable, had_room: bool) -> Result<(), PlanError> {
    if had_room { Ok(()) } else { Err(table.failed("the table that grows has no room")) }
}

// ---- what it means for a design --------------------------------------------------------------------

/// What GETs and inserts cost while a table grows, counted on a table that grows fourfold. Time is
/// simulated, 200,000 inserts a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GrowthSample {
    /// The layout's name.
    pub layout: String,
    #[serde(skip)]
    shape: Layout,
    /// GETs of a client, beside each insert.
    pub gets_per_insert: f64,
    /// Segments, on average.
    pub segments: f64,
    /// Keys to all slots, on average.
    pub load: f64,
    /// Keys moved within segments, for each insert.
    pub moves: f64,
    /// Keys moved from one segment to another, for each insert.
    pub split_moves: f64,
    /// What GETs took.
    #[serde(flatten)]
    pub gets: GetKinds,
    /// Memory for hints, for each key, on average.
    pub client_bytes_per_key: f64,
    /// Splits, for each insert.
    pub splits_per_insert: f64,
    /// READs of directory entries by which a client learns of one split.
    pub directory_per_split: f64,
    #[serde(skip)]
    has_hints: bool,
}

/// What a READ of a directory entry brings with it in a GET: itself, and the windows that were READ in
/// vain before, and once more after it.
const READS_PER_ASK: f64 = 3.0;
/// READs in vain of a client that learns of a split after it has ended: a window, and the entry.
const READS_PER_SPLIT_LEARNED: f64 = 2.0;
/// A server's time for a new segment of a MiB: docs/BENCHMARKS.md, the pages' first use mostly.
const SEGMENT_NS_PER_BYTE: f64 = 1e6 / (1u64 << 20) as f64;

impl GrowthSample {
    /// Has a table grow fourfold, to so many slots at the least, while a client with hints and one
    /// without make so many GETs beside each insert.
    ///
    /// # Errors
    /// As [`GrowthRun::count`].
    pub fn count(
        layout: Layout,
        slots: u64,
        zipf: f64,
        gets_per_insert: f64,
    ) -> Result<GrowthSample, PlanError> {
        // More GETs change nothing, fewer cannot be counted.
        let gets = gets_per_insert.clamp(0.25, 16.0);
        let segment_slots = (slots / 64).max(4 * u64::from(layout.window_slots())).max(128);
        let keys = slots.max(16 * segment_slots);
        let run = GrowthRun {
            layout,
            segment_slots,
            from: keys / 4,
            keys,
            shrinks: false,
            replaced: 0,
            gets,
            zipf,
            hint_bytes: usize::MAX,
            parts: 16,
        };
        let GrowthCourse { parts, late_directory_reads, has_hints } = run.count(|_| {})?;
        let n = parts.len() as f64;
        let mean = |of: fn(&GrowthPart) -> f64| parts.iter().map(of).sum::<f64>() / n;
        Ok(GrowthSample {
            layout: layout.preset().map_or_else(|| layout.to_string(), |preset| preset.name.into()),
            shape: layout,
            gets_per_insert: gets,
            segments: mean(|part| part.segments as f64),
            load: mean(|part| part.load),
            moves: mean(|part| part.moves),
            split_moves: mean(|part| part.split_moves),
            gets: GetKinds::mean(&parts),
            client_bytes_per_key: mean(|part| part.client_bytes_per_key),
            splits_per_insert: parts.last().map_or(0.0, |last| last.splits as f64 / last.keys as f64),
            directory_per_split: late_directory_reads,
            has_hints,
        })
    }

    /// The designs that the sample stands for, without hints and, if they save anything, with them, for
    /// tables that grow by the workload's inserts.
    ///
    /// # Errors
    /// [`PlanError::Config`] when keys and values do not fit into a slot.
    pub fn designs(&self, workload: &Workload) -> Result<Vec<Design>, PlanError> {
        let w = workload;
        let lengths = (w.key_bytes as usize, w.value_bytes as usize);
        // How far it may grow changes nothing of a segment.
        let config = Config::new().layout(self.shape).size(TableSize::up_to(1 << 40));
        let geometry = config.key_max(lengths.0).value_max(lengths.1).inline_max(lengths.1).geometry()?;
        let slot = geometry.shape().bytes() as f64;
        let segment_slots = geometry.main_slots() as f64;
        let keys = w.keys as f64 / f64::from(w.servers);
        let segments = (keys / (segment_slots * self.load)).max(1.0);
        // As many splits as segments while the keys double.
        let splits_per_insert = segments / keys.max(1.0);
        let inserts = (1.0 - w.gets) * w.inserts;
        let gets_per_insert = w.gets / inserts;
        // Each client learns of each split once. The other GETs of directory entries are those while a
        // home's split is under way: as many inserts long as in the sample, in so many more segments.
        let learned =
            |splits: f64, clients: f64, gets: f64| self.directory_per_split * splits * clients / gets;
        let ours = learned(self.splits_per_insert, 1.0, self.gets_per_insert);
        let theirs = learned(splits_per_insert, w.clients.into(), gets_per_insert).min(1.0);
        let fewer = (self.segments / segments).min(1.0);
        let scaled = |costs: GetCosts| {
            let ours = ours.min(costs.directory);
            let gone = (costs.directory - ours) * (1.0 - fewer);
            let directory = costs.directory - gone - ours + theirs;
            let more = READS_PER_SPLIT_LEARNED * (theirs - ours) - READS_PER_ASK * gone;
            // Of these, the directory's take a slot, the others a window.
            let entries = directory - costs.directory;
            let slots = (more - entries) * f64::from(self.shape.window_slots()) + entries;
            GetCosts {
                reads: costs.reads + more,
                trips: costs.trips + more,
                directory,
                bytes: slot * (costs.bytes / SAMPLE_SLOT_BYTES + slots),
                ..costs
            }
        };
        let mean = |hit: f64, miss: f64| w.hits * hit + (1.0 - w.hits) * miss;
        let get = |hit: GetCosts, miss: GetCosts, instructions: [f64; 2], hint_lines: f64, lines: f64| {
            let (hit, miss) = (scaled(hit), scaled(miss));
            let (reads, trips) = (mean(hit.reads, miss.reads), mean(hit.trips, miss.trips));
            Demand {
                reads,
                trips,
                doorbells: trips,
                fetched_bytes: mean(hit.bytes, miss.bytes),
                // Each look in vain is one of an absent key.
                client_instructions: mean(instructions[0], instructions[1])
                    + mean(hit.directory, miss.directory) * READS_PER_ASK * GET_GROWN_MISS.instructions,
                client_lines: trips,
                hint_lines,
                touched_lines: reads * lines,
                ..Demand::default()
            }
        };
        let plain = [GET_GROWN_HIT.instructions, GET_GROWN_MISS.instructions];
        let hinted = [GET_HINTED_HIT.instructions, GET_HINTED_MISS.instructions];
        let pause = SplitPause {
            chance: w.inserts * splits_per_insert,
            ns: segment_slots * slot * SEGMENT_NS_PER_BYTE,
        };
        let put = Demand {
            server_instructions: UPDATE.instructions
                + w.inserts * (GROWING_INSERT.instructions - UPDATE.instructions),
            // The home window; for each move one more, and for one to another segment two.
            server_lines: 1.0 + w.inserts * (self.moves + 2.0 * self.split_moves),
            server_ns: HERD_NS + pause.chance * pause.ns,
            ..put_message(w)
        };
        let design = |name: String, get: Demand, client_bytes_per_key: f64| Design {
            name,
            side: Side::Layout,
            get,
            put,
            bytes_per_key: slot / self.load,
            client_bytes_per_key,
            pause: Some(pause),
            source: format!("counted while it grew to {:.0} segments", 2.0 * self.segments),
        };
        let mut designs =
            vec![design(self.layout.clone(), get(self.gets.hit, self.gets.miss, plain, 0.0, GET_LINES), 0.0)];
        if self.has_hints {
            let get = get(self.gets.hinted_hit, self.gets.hinted_miss, hinted, 1.0, 1.0);
            designs.push(design(hinted_name(&self.layout), get, self.client_bytes_per_key));
        }
        Ok(designs)
    }
}

/// A slot of a sample table.
const SAMPLE_SLOT_BYTES: f64 = 64.0;
