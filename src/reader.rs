//! Drives GET machines over a fabric: one at a time, or many in flight. Counts what it does, bounds what
//! it may do.

use crate::clock::Clock;
use crate::fabric::{Fabric, ReadId, Stretch};
use crate::faults::{Rule, by_rule, kept};
use crate::get::{Get, HintedLook, Landed, Retry, Step};
use crate::hints::{Hinted, Hints};
use crate::layout::crc;
use crate::layout::extent::Reference;
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::{First, Hashed};
use crate::layout::slot::Key;
use crate::outcome::{KeyLengthError, ReadError};
use crate::route::KnownEntries;
use smallvec::SmallVec;
use std::ops::{ControlFlow, Range};
use std::time::Duration;

/// Bounds of one GET. The first one reached ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Passes that may be inconclusive. Then a [`Client`](crate::Client)'s GET ends in
    /// [`GetError::Contended`](crate::GetError::Contended), a [`Reader`]'s in
    /// [`ReadError::Contended`].
    pub retries_max: u32,
    /// Time that a GET may take once it has to look again. Then a [`Client`](crate::Client)'s GET
    /// ends in [`GetError::Inconclusive`](crate::GetError::Inconclusive), a [`Reader`]'s in
    /// [`ReadError::Deadline`].
    ///
    /// A batch ends so when one of its keys has been looked for again for this long. It also ends
    /// when it gets nowhere: while some key has to be looked for again, the time of each round of
    /// READs that brings no key further is added up, and the time of each round that answers a key
    /// is taken off. The bound is on that sum. So a large batch may take longer than this in all.
    /// The time that the caller's callback takes does not count.
    pub deadline: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::new()
    }
}

impl Limits {
    /// 100,000 retries, one second.
    pub const fn new() -> Limits {
        Limits { retries_max: 100_000, deadline: Duration::from_secs(1) }
    }

    /// The same with another `retries_max`.
    #[must_use]
    pub const fn retries_max(self, retries_max: u32) -> Limits {
        Limits { retries_max, ..self }
    }

    /// The same with another `deadline`.
    #[must_use]
    pub const fn deadline(self, deadline: Duration) -> Limits {
        Limits { deadline, ..self }
    }
}

/// The outcome of one key of a batch: its value as it is stored, `None` if it is absent, or that the
/// table cannot hold it.
pub type StoredAnswer<'a> = Result<Option<&'a [u8]>, KeyLengthError>;

/// A batch's keys by their numbers.
type Keys<'k> = dyn Fn(usize) -> &'k [u8] + 'k;

/// Where a batch's answers go, with their keys' numbers, until it breaks off. By reference wherever time
/// goes to READs: the program of a batch is long, and else there would be one for each closure.
type Each<'e> = dyn FnMut(usize, Option<&[u8]>) -> ControlFlow<()> + 'e;

/// What was asked of the fabric. Add them up with `+=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadCounts {
    /// READs posted.
    pub reads: u64,
    /// Bytes those READs asked for.
    pub bytes: u64,
    /// Doorbells rung.
    pub doorbells: u64,
}

impl std::ops::AddAssign for ReadCounts {
    fn add_assign(&mut self, other: ReadCounts) {
        self.reads += other.reads;
        self.bytes += other.bytes;
        self.doorbells += other.doorbells;
    }
}

/// Counts of what GETs did. Add them up with `+=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GetStats {
    /// GETs answered.
    pub gets: u64,
    /// Of these, keys found.
    pub hits: u64,
    /// Passes repeated because a slot was being written.
    pub retries_torn: u64,
    /// Passes repeated because the key may have been moved meanwhile.
    pub retries_moved: u64,
    /// Passes over a network repeated because they took the grace time or longer.
    pub retries_late: u64,
    /// Passes repeated because a chain had no end: the memory is damaged.
    pub retries_chain: u64,
    /// Looks at keys repeated because the value was replaced, or moved, while it was read.
    pub retries_replaced: u64,
}

impl std::ops::AddAssign for GetStats {
    fn add_assign(&mut self, other: GetStats) {
        self.gets += other.gets;
        self.hits += other.hits;
        self.retries_torn += other.retries_torn;
        self.retries_moved += other.retries_moved;
        self.retries_late += other.retries_late;
        self.retries_chain += other.retries_chain;
        self.retries_replaced += other.retries_replaced;
    }
}

impl GetStats {
    fn count(&mut self, why: Retry) {
        match why {
            Retry::Torn => self.retries_torn += 1,
            Retry::Moved => self.retries_moved += 1,
            Retry::Late => self.retries_late += 1,
            Retry::Chain => self.retries_chain += 1,
            Retry::Replaced => self.retries_replaced += 1,
        }
    }
}

/// Counts of what hints did. Add them up with `+=`. [`GetStats`] and [`ReadCounts`] count the same
/// GETs and READs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HintCounts {
    /// GETs that began with one or two single slots, because hints named them.
    pub hinted: u64,
    /// Of these, GETs that found their key so.
    pub hits: u64,
    /// READs of single slots.
    pub reads: u64,
}

impl std::ops::AddAssign for HintCounts {
    fn add_assign(&mut self, other: HintCounts) {
        self.hinted += other.hinted;
        self.hits += other.hits;
        self.reads += other.reads;
    }
}

/// A value that was found.
#[derive(Clone, Copy, Debug)]
struct FoundValue {
    /// Its length.
    len: usize,
    /// Where it is, if it is not in its slot.
    extent: Option<Reference>,
}

/// A batch READs so many bytes of long values with one doorbell, and a value that is longer alone: they
/// land before the marks of their keys' passes are too old, and the memory that they land in stays small.
const TOGETHER_BYTES: usize = 256 << 10;

/// A batch asks for the lines of so many keys at once, before it looks at those of as many before: four lines of
/// each. A core has 10 to 24 line-fill buffers (docs/BENCHMARKS.md has the time for 16 keys).
const AHEAD: usize = 8;

/// Looks keys up through a fabric. One per thread (`&mut self`); cheap to make.
#[derive(Debug)]
pub struct Reader<'g, F> {
    fabric: F,
    geometry: &'g Geometry,
    clock: Clock,
    limits: Limits,
    stats: GetStats,
    reads: ReadCounts,
    direct: DirectAnswers,
    hints: Option<&'g Hints>,
    hinted: HintCounts,
    /// Where a batch's values land.
    value: Vec<u8>,
    /// Directory entries, in a table that grows. On shm they only say how many bits it uses.
    entries: KnownEntries,
}

impl<'g, F: Fabric> Reader<'g, F> {
    /// A reader of the table with this geometry.
    pub fn new(fabric: F, geometry: &'g Geometry, clock: Clock, limits: Limits) -> Reader<'g, F> {
        let (stats, reads, direct, hinted, value, entries) = Default::default();
        Reader { fabric, geometry, clock, limits, stats, reads, direct, hints: None, hinted, value, entries }
    }

    /// The same reader with hints. Each GET first READs the single slots that they name, and teaches
    /// them what it sees. It makes no direct looks.
    #[must_use]
    pub fn with_hints(mut self, hints: &'g Hints) -> Reader<'g, F> {
        self.set_hints(hints);
        self
    }

    /// The same in place.
    #[inline]
    pub(crate) fn set_hints(&mut self, hints: &'g Hints) {
        self.hints = Some(hints);
    }

    /// Changes places with directory entries of this table: what a client remembers outlives its readers.
    #[inline]
    pub(crate) fn swap_entries(&mut self, entries: &mut KnownEntries) {
        std::mem::swap(&mut self.entries, entries);
    }

    /// The fabric.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The fabric, to be told of something between GETs.
    pub fn fabric_mut(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// Counts so far.
    pub fn stats(&self) -> GetStats {
        let mut stats = self.stats;
        self.direct.add_gets_to(&mut stats);
        stats
    }

    /// What was asked of the fabric so far.
    pub fn read_counts(&self) -> ReadCounts {
        let mut counts = self.reads;
        self.direct.add_reads_to(&mut counts);
        counts
    }

    /// Counts of what hints did so far.
    pub fn hint_counts(&self) -> HintCounts {
        self.hinted
    }

    /// Looks `key` up; its value replaces what was in `value`. Returns whether it was found. Usually 1
    /// READ and 1 round trip, and one more of each if the value is not in its slot; allocates only if
    /// `value` is too small.
    ///
    /// # Errors
    /// [`ReadError`], or the fabric's own; absence is not one.
    #[inline]
    pub fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, F::Error> {
        if self.hints.is_none()
            && let Some(found) = self.fabric.glance(key, value)
        {
            self.direct.count(found, self.geometry);
            return Ok(found);
        }
        self.get_otherwise(key, value)
    }

    /// A GET for which a glance does not suffice.
    #[inline(never)]
    pub(crate) fn get_otherwise(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, F::Error> {
        self.check_key(key)?;
        if let Some(hints) = self.hints {
            return self.get_hinted(hints, key, value);
        }
        match self.fabric.get_directly(self.geometry.hashed(key), value, &mut self.reads) {
            Some(found) => {
                self.direct.count(found, self.geometry);
                Ok(found)
            }
            None => self.get_all(key, value),
        }
    }

    /// The GET of a whole value by the machine.
    pub(crate) fn get_all(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, F::Error> {
        Ok(self.get_part(key, &(0..usize::MAX), value)?.is_some())
    }

    /// Looks `key` up, and says in which extent its value is. `None` if it is in its slot. For X7.
    pub(crate) fn get_with_extent(
        &mut self,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<Option<Reference>>, F::Error> {
        self.check_key(key)?;
        Ok(self.get_part(key, &(0..usize::MAX), value)?.map(|found| found.extent))
    }

    /// Looks `key` up; the bytes `range` of its value replace what was in `part`. Returns the length of
    /// the whole value; `None` if the key is absent. Bytes beyond the value's end are left out. Costs what
    /// [`Reader::get_into`] costs, but READs no more bytes of a long value than these.
    ///
    /// # Errors
    /// As [`Reader::get_into`].
    pub fn get_range(
        &mut self,
        key: &[u8],
        range: Range<usize>,
        part: &mut Vec<u8>,
    ) -> Result<Option<usize>, F::Error> {
        self.check_key(key)?;
        Ok(self.get_part(key, &range, part)?.map(|found| found.len))
    }

    /// The length of the key's value, without its bytes; `None` if the key is absent. Usually 1 READ.
    ///
    /// # Errors
    /// As [`Reader::get_into`].
    pub fn value_len(&mut self, key: &[u8]) -> Result<Option<usize>, F::Error> {
        self.check_key(key)?;
        let mut value = std::mem::take(&mut self.value);
        let looked = self.look_up(key, &mut value, &mut RetryBudget::default());
        let len = value.len();
        self.value = value;
        let found = match looked? {
            Looked::Absent => None,
            Looked::Here => Some(len),
            Looked::At(reference, _) => Some(reference.len as usize),
        };
        self.stats.gets += 1;
        self.stats.hits += u64::from(found.is_some());
        Ok(found)
    }

    /// A GET by the machine, of a part of the value.
    fn get_part(
        &mut self,
        key: &[u8],
        range: &Range<usize>,
        part: &mut Vec<u8>,
    ) -> Result<Option<FoundValue>, F::Error> {
        let mut patience = RetryBudget::default();
        let looked = self.look_up(key, part, &mut patience)?;
        let found = self.bring(key, looked, range, part, &mut patience)?;
        self.stats.gets += 1;
        self.stats.hits += u64::from(found.is_some());
        Ok(found)
    }

    /// Brings the part of the value that a look has found, and looks again as often as X4 demands.
    fn bring(
        &mut self,
        key: &[u8],
        mut looked: Looked<F::Mark>,
        range: &Range<usize>,
        part: &mut Vec<u8>,
        patience: &mut RetryBudget,
    ) -> Result<Option<FoundValue>, F::Error> {
        let mut times = 0;
        loop {
            let (reference, mark) = match looked {
                Looked::Absent => {
                    part.clear();
                    return Ok(None);
                }
                Looked::Here => {
                    let len = part.len();
                    part.truncate(range.end);
                    part.drain(..range.start.min(part.len()));
                    return Ok(Some(FoundValue { len, extent: None }));
                }
                Looked::At(reference, mark) => (reference, mark),
            };
            self.fetch(&[self.stretch(&reference, range)?], part)?;
            times += 1;
            let Some(again) = self.look_again(key, &reference, mark, part, patience)? else {
                return Ok(Some(FoundValue { len: reference.len as usize, extent: Some(reference) }));
            };
            looked = again;
            match looked {
                Looked::Absent => {}
                Looked::Here => std::mem::swap(part, &mut self.value),
                Looked::At(now, _) => {
                    self.stats.count(Retry::Replaced);
                    match patience.again(Retry::Replaced, self.clock.now_ns(), &self.limits) {
                        Ok(rest) => rest.take(&self.clock),
                        Err(_) => return Err(ReadError::Replaced { len: now.len as usize, times }.into()),
                    }
                }
            }
        }
    }

    /// Whether bytes that were READ are the value, or a part of it (X4): `None` if they are. Else what another
    /// look has shown; a value that is in its slot is then in `self.value`.
    fn look_again(
        &mut self,
        key: &[u8],
        reference: &Reference,
        mark: F::Mark,
        part: &[u8],
        patience: &mut RetryBudget,
    ) -> Result<Option<Looked<F::Mark>>, F::Error> {
        let allowance = self.geometry.heap().allowance(self.geometry.grace(), reference.len);
        let is_proven = self.fabric.took_less(mark, allowance);
        if kept(Rule::ExtentLook, || is_proven) {
            return self.check_crc(reference, part).map(|()| None);
        }
        // The second look, begun after the last byte. It has another place for a short value.
        let mut short = std::mem::take(&mut self.value);
        let again = self.look_up(key, &mut short, patience);
        self.value = short;
        let again = again?;
        let is_same = match &again {
            Looked::At(now, _) => by_rule(
                Rule::ExtentNumber,
                now.number == reference.number,
                (now.offset, now.len) == (reference.offset, reference.len),
            ),
            Looked::Absent | Looked::Here => false,
        };
        if is_same {
            return self.check_crc(reference, part).map(|()| None);
        }
        Ok(Some(again))
    }

    /// Where this part of a long value is. May be empty.
    fn stretch(&self, reference: &Reference, range: &Range<usize>) -> Result<Stretch, ReadError> {
        if !reference.is_sound(self.geometry) {
            return Err(ReadError::Damaged { what: "its slot names no place of the heap" });
        }
        let len = reference.len as usize;
        let start = range.start.min(len);
        let end = range.end.clamp(start, len);
        Ok(Stretch { offset: reference.offset + start as u64, len: end - start })
    }

    /// READs parts of long values, one behind the other, with one doorbell.
    fn fetch(&mut self, stretches: &[Stretch], parts: &mut Vec<u8>) -> Result<(), F::Error> {
        let bytes: usize = stretches.iter().map(|bytes| bytes.len).sum();
        if bytes == 0 {
            parts.clear();
            return Ok(());
        }
        let reads = stretches.len() as u64;
        self.reads += ReadCounts { reads, bytes: bytes as u64, doorbells: 1 };
        self.fabric.fetch(stretches, parts)
    }

    /// Over a network a whole value is checked once more, as a belt: X4 suffices.
    fn check_crc(&self, reference: &Reference, part: &[u8]) -> Result<(), F::Error> {
        let is_whole = !F::EXACT && part.len() == reference.len as usize;
        if is_whole && kept(Rule::CrcCheck, || crc::append_long(0, part) == reference.crc) {
            return Ok(());
        }
        if is_whole {
            return Err(ReadError::Damaged { what: "its CRC is another" }.into());
        }
        Ok(())
    }

    /// The hinted look, and where it does not find the key, the whole algorithm. Out of line: a
    /// reader without hints pays for one branch.
    #[cold]
    #[inline(never)]
    fn get_hinted(&mut self, hints: &Hints, key: &[u8], value: &mut Vec<u8>) -> Result<bool, F::Error> {
        let key = self.geometry.hashed(key);
        let windows = self.entries.hinted(hints, self.geometry, key);
        if windows.is_empty() || windows.len() > self.fabric.credits() {
            return self.get_all(key.key(), value);
        }
        let mut look = HintedLook::new(self.geometry, key.key());
        let needs_mark = self.geometry.has_heap() || !look.is_proof(F::EXACT);
        let mark = needs_mark.then(|| self.fabric.mark(key.home()));
        let mut wrong = WrongSlots::new();
        let mut take = |nth: usize, landed: &mut F::Landed<'_>| {
            let slot = windows[nth].first;
            if !look.feed(slot, landed, value) {
                wrong.push((slot, landed.occupant(slot)));
            }
        };
        self.count_hinted(windows.len());
        self.reads.doorbells += 1;
        if let [window] = windows[..] {
            self.fabric.read(window, |landed| take(0, landed))?;
        } else {
            let reads: Vec<_> = (0..).zip(windows.iter().copied()).collect();
            self.fabric.post(&reads)?;
            let mut left = reads.len();
            while left > 0 {
                self.fabric.poll(|nth, landed| {
                    left -= 1;
                    take(nth as usize, landed);
                })?;
            }
        }
        let proof = || self.fabric.proof(key.home(), mark.expect("taken where a hit needs proof"));
        let ended = look.judge(F::EXACT, proof);
        hints.correct_all(self.geometry, &wrong, key, ended == Some(Step::Found));
        match ended {
            None => self.get_all(key.key(), value),
            Some(step) => {
                self.hinted.hits += u64::from(step == Step::Found);
                if let (Some(reference), Some(mark)) = (look.reference(), mark) {
                    let looked = Looked::At(reference, mark);
                    return self.finish(key.key(), looked, value).map(|found| found.is_some());
                }
                self.stats.gets += 1;
                self.stats.hits += u64::from(step == Step::Found);
                Ok(step == Step::Found)
            }
        }
    }

    /// Brings the whole value of a look that has ended, and counts the GET.
    fn finish(
        &mut self,
        key: &[u8],
        looked: Looked<F::Mark>,
        value: &mut Vec<u8>,
    ) -> Result<Option<FoundValue>, F::Error> {
        let found = self.bring(key, looked, &(0..usize::MAX), value, &mut RetryBudget::default())?;
        self.stats.gets += 1;
        self.stats.hits += u64::from(found.is_some());
        Ok(found)
    }

    fn count_hinted(&mut self, slots: usize) {
        self.hinted.hinted += 1;
        self.hinted.reads += slots as u64;
        self.reads.reads += slots as u64;
        self.reads.bytes += (slots * self.geometry.shape().bytes()) as u64;
    }

    /// The whole algorithm, but for bringing a value that is not in its slot.
    #[inline(never)]
    fn look_up(
        &mut self,
        key: &[u8],
        value: &mut Vec<u8>,
        patience: &mut RetryBudget,
    ) -> Result<Looked<F::Mark>, F::Error> {
        let mut get = self.entries.machine(self.geometry, key, self.fabric.is_by_counter());
        let home = get.home();
        let mut mark = self.fabric.mark(home);
        let mut step = Step::Read(get.start());
        loop {
            step = match step {
                Step::Read(window) => {
                    self.reads.doorbells += 1;
                    self.count_read(window);
                    let (hints, geometry) = (self.hints, self.geometry);
                    self.fabric.read(window, |landed| {
                        hints.inspect(|hints| hints.learn(geometry, window, landed, key));
                        get.feed(landed, F::EXACT, value)
                    })?
                }
                Step::Judge => get.judge(self.fabric.proof(home, mark)),
                Step::Again(window, why) => {
                    self.stats.count(why);
                    patience.again(why, self.clock.now_ns(), &self.limits)?.take(&self.clock);
                    mark = self.fabric.mark(home);
                    Step::Read(window)
                }
                Step::Found => {
                    self.entries.learn(&get);
                    return Ok(get.reference().map_or(Looked::Here, |reference| Looked::At(reference, mark)));
                }
                Step::Absent => {
                    self.entries.learn(&get);
                    value.clear();
                    return Ok(Looked::Absent);
                }
            };
        }
    }

    /// Looks many keys up with as many READs in flight as the fabric allows: whenever some have completed, a
    /// doorbell for all that are ready to follow. Hands each answer to `each` with the key's number in `keys`,
    /// in no particular order.
    ///
    /// On a fabric whose READs are loads, the keys are looked for in order instead, in blocks of eight
    /// whose memory accesses overlap.
    ///
    /// A GET that has to look again rests by itself, while the others go on. While one looks again because it
    /// was late, answers are handed over only when no pass is under way: so a slow `each` makes no GET late twice.
    ///
    /// # Errors
    /// [`ReadError`], or the fabric's own, as soon as one GET ends in one, or the batch reaches its deadline; `each` has then not
    /// been called for every key.
    pub fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut each: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), F::Error> {
        keys.iter().try_for_each(|key| self.check_key(key.as_ref()))?;
        let to_the_end = |number, value: Option<&[u8]>| {
            each(number, value);
            ControlFlow::Continue(())
        };
        self.get_fitting(keys, to_the_end).map(|_| ())
    }

    /// Like [`Reader::get_many`], but a key that the table cannot hold has an outcome of its own, after
    /// those of the others, and `each` may end the batch: it is then not called again. READs that are
    /// under way are waited for.
    ///
    /// # Errors
    /// As [`Reader::get_many`], but for the lengths of keys.
    pub fn get_each<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut each: impl FnMut(usize, StoredAnswer<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, F::Error> {
        if keys.iter().all(|key| self.length_of(key.as_ref()).is_ok()) {
            return self.get_fitting(keys, |number, value| each(number, Ok(value)));
        }
        self.get_fitting_of(&|number| keys[number].as_ref(), keys.len(), &mut each)
    }

    /// The rest of [`Reader::get_each`] where some keys do not fit.
    #[cold]
    fn get_fitting_of(
        &mut self,
        keys: &Keys<'_>,
        len: usize,
        each: &mut dyn FnMut(usize, StoredAnswer<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, F::Error> {
        let (mut fitting, mut others) = (Vec::new(), Vec::new());
        for number in 0..len {
            match self.length_of(keys(number)) {
                Ok(()) => fitting.push(number),
                Err(error) => others.push((number, error)),
            }
        }
        let those = self.ask_for(keys, fitting, &mut |number, value| each(number, Ok(value)))?;
        if those.is_break() {
            return Ok(those);
        }
        self.fabric.check()?;
        Ok(others.into_iter().try_for_each(|(number, error)| each(number, Err(error))))
    }

    /// Looks for keys whose lengths were checked.
    #[inline]
    fn get_fitting<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut each: impl FnMut(usize, Option<&[u8]>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, F::Error> {
        let left = if self.hints.is_some() || !self.fabric.is_direct() {
            (0..keys.len()).collect()
        } else {
            match self.get_many_directly(keys, &mut each) {
                ControlFlow::Break(()) => return Ok(ControlFlow::Break(())),
                ControlFlow::Continue(left) if left.is_empty() => return Ok(ControlFlow::Continue(())),
                ControlFlow::Continue(left) => left,
            }
        };
        self.ask_for(&|number| keys[number].as_ref(), left, &mut each)
    }

    /// Looks for keys directly, while the lines of those that follow come in. Returns the numbers of those
    /// that only the machine can tell.
    fn get_many_directly<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: &mut impl FnMut(usize, Option<&[u8]>) -> ControlFlow<()>,
    ) -> ControlFlow<(), Vec<usize>> {
        let mut value = std::mem::take(&mut self.value);
        let (mut left, mut flow) = (Vec::new(), ControlFlow::Continue(()));
        // Looks that read a window, answers, and hits.
        let (mut looked, mut answered, mut found) = (0, 0, 0);
        let mut firsts = [[First(0); AHEAD]; 2];
        self.expect_all(keys, &mut firsts[0]);
        let mut number = 0;
        'all: for (turn, block) in keys.chunks(AHEAD).enumerate() {
            self.expect_all(&keys[number + block.len()..], &mut firsts[(turn + 1) % 2]);
            for (key, first) in block.iter().zip(&firsts[turn % 2]) {
                let key = self.geometry.hashed_to(key.as_ref(), *first);
                number += 1;
                let is_there = match self.fabric.glance_expected(key, &mut value) {
                    Some(is_there) => is_there,
                    None => match self.look_directly(key, &mut value) {
                        Ok(is_there) => is_there,
                        Err(reads) => {
                            left.push(number - 1);
                            looked += u64::from(reads > 0);
                            continue;
                        }
                    },
                };
                answered += 1;
                found += u64::from(is_there);
                flow = each(number - 1, is_there.then_some(&value));
                if flow.is_break() {
                    break 'all;
                }
            }
        }
        looked += answered;
        self.direct.count_all(answered, found, self.geometry);
        self.direct.doorbells_shared += looked - looked.div_ceil(AHEAD as u64);
        self.value = value;
        flow.map_continue(|()| left)
    }

    /// Asks for the lines of the first of these keys. Their first hashes come into `firsts`.
    #[inline(never)]
    fn expect_all<K: AsRef<[u8]>>(&self, keys: &[K], firsts: &mut [First; AHEAD]) {
        for (key, first) in keys.iter().zip(firsts) {
            let key = self.geometry.hashed(key.as_ref());
            self.fabric.expect(key);
            *first = key.first();
        }
    }

    /// The whole direct look for a key of a batch. Where it has no answer, it says how many windows it read.
    #[cold]
    #[inline(never)]
    fn look_directly(&mut self, key: Hashed<'_>, value: &mut Vec<u8>) -> Result<bool, u64> {
        let before = self.reads.reads;
        let found = self.fabric.get_directly(key, value, &mut self.reads);
        found.ok_or(self.reads.reads - before)
    }

    /// Looks for the keys with these numbers: where hints say, if there are any, and then
    /// everywhere.
    #[inline(never)]
    fn ask_for(
        &mut self,
        keys: &Keys<'_>,
        numbers: Vec<usize>,
        each: &mut Each<'_>,
    ) -> Result<ControlFlow<()>, F::Error> {
        let left = match self.hints {
            None => ControlFlow::Continue(numbers),
            Some(hints) => self.get_many_hinted(hints, keys, numbers, each)?,
        };
        match left {
            ControlFlow::Break(()) => Ok(ControlFlow::Break(())),
            ControlFlow::Continue(left) => self.ask_machines(keys, left, each),
        }
    }

    /// The hinted look for many keys, with as many READs in flight as the fabric allows. Returns the
    /// numbers of the keys that it did not find.
    fn get_many_hinted(
        &mut self,
        hints: &Hints,
        keys: &Keys<'_>,
        numbers: Vec<usize>,
        each: &mut Each<'_>,
    ) -> Result<ControlFlow<(), Vec<usize>>, F::Error> {
        let geometry = self.geometry;
        let credits = self.fabric.credits();
        let (mut todo, mut left) = (numbers.into_iter(), Vec::new());
        let mut next_look = |entries: &KnownEntries| {
            todo.find_map(|number| {
                let key = geometry.hashed(keys(number));
                let windows = entries.hinted(hints, geometry, key);
                if windows.is_empty() || windows.len() > credits {
                    left.push(number);
                    return None;
                }
                Some(PendingHint::new(geometry, number, key, windows))
            })
        };
        // The next look, while there is no room for its READs.
        let mut next = next_look(&self.entries);
        let mut looks: Vec<PendingHint<'_, F::Mark>> = Vec::new();
        // Looks that have ended: their places, and the memory for their values, are used again.
        let mut idle: Vec<usize> = Vec::new();
        let mut ready: Vec<(ReadId, Window)> = Vec::new();
        let mut ended: Vec<(usize, Option<Step>)> = Vec::new();
        let mut missed = Vec::new();
        let mut named = Vec::new();
        let mut in_flight = 0;
        loop {
            while let Some(mut look) =
                next.take_if(|look| in_flight + ready.len() + look.windows.len() <= credits)
            {
                if geometry.has_heap() || !look.look.is_proof(F::EXACT) {
                    look.mark = Some(self.fabric.mark(look.key.home()));
                }
                let at = idle.pop().unwrap_or(looks.len());
                // Two READs of a look have numbers side by side.
                let reads = look.windows.iter().enumerate();
                ready.extend(reads.map(|(nth, &window)| ((2 * at + nth) as ReadId, window)));
                self.count_hinted(look.windows.len());
                match looks.get_mut(at) {
                    None => looks.push(look),
                    Some(old) => {
                        look.value = std::mem::take(&mut old.value);
                        *old = look;
                    }
                }
                next = next_look(&self.entries);
            }
            if !ready.is_empty() {
                self.fabric.post(&ready)?;
                self.reads.doorbells += 1;
                in_flight += ready.len();
                ready.clear();
            }
            if in_flight == 0 {
                break;
            }
            self.fabric.poll(|token, landed| {
                in_flight -= 1;
                let (at, nth) = (token as usize / 2, token as usize % 2);
                if looks[at].feed(nth, landed) {
                    ended.push((at, None));
                }
            })?;
            // All that landed is judged before anything else takes time.
            for (at, step) in &mut ended {
                let PendingHint { look, key, mark, .. } = &looks[*at];
                *step = look.judge(F::EXACT, || {
                    self.fabric.proof(key.home(), mark.expect("taken where a hit needs proof"))
                });
            }
            for (at, step) in ended.drain(..) {
                let PendingHint { number, key, wrong, value, .. } = &looks[at];
                hints.correct_all(geometry, wrong, *key, step == Some(Step::Found));
                idle.push(at);
                let Some(step) = step else {
                    missed.push(*number);
                    continue;
                };
                if let (Some(reference), Some(mark)) = (looks[at].look.reference(), looks[at].mark) {
                    self.hinted.hits += 1;
                    named.push((*number, reference, mark));
                    continue;
                }
                let is_found = step == Step::Found;
                self.stats.gets += 1;
                self.stats.hits += u64::from(is_found);
                self.hinted.hits += u64::from(is_found);
                if each(*number, is_found.then_some(value)).is_break() {
                    // They must not be taken for READs of the next batch.
                    while in_flight > 0 {
                        self.fabric.poll(|_, _| in_flight -= 1)?;
                    }
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        left.append(&mut missed);
        Ok(self.finish_each(keys, named, each)?.map_continue(|()| left))
    }

    /// Looks for the keys with these numbers, by a machine for each.
    fn ask_machines(
        &mut self,
        keys: &Keys<'_>,
        numbers: Vec<usize>,
        each: &mut Each<'_>,
    ) -> Result<ControlFlow<()>, F::Error> {
        let lanes_max = self.fabric.credits().min(numbers.len());
        let mut todo = numbers.into_iter().map(|number| (number, keys(number)));
        let first = todo.by_ref().take(lanes_max);
        let by_counter = self.fabric.is_by_counter();
        let machine = |key| self.entries.machine(self.geometry, key, by_counter);
        let mut lanes: Vec<_> = first.map(|(number, key)| PendingGet::new(machine(key), number)).collect();
        // READs for the next doorbell, lanes that rest until their time has come, lanes that have an answer.
        let mut ready: Vec<(ReadId, Window)> = (0..).zip(lanes.iter().map(|lane| lane.get.start())).collect();
        let mut resting: Vec<(u64, ReadId)> = Vec::new();
        let mut answered: Vec<ReadId> = Vec::with_capacity(lanes_max);
        let mut landed: Vec<(ReadId, Step)> = Vec::with_capacity(lanes_max);
        let mut in_flight = 0;
        // GETs that have looked again, and those of them that were late.
        let mut looking_again = 0;
        // Keys whose values are not in their slots.
        let mut named = Vec::new();
        let mut late = 0;
        let mut lag = Lag::default();
        while in_flight + ready.len() + resting.len() > 0 {
            if !resting.is_empty() {
                if in_flight + ready.len() == 0 {
                    lag.sleep_until(resting.iter().map(|(until_ns, _)| *until_ns).min(), &self.clock);
                }
                let now_ns = lag.now_ns(&self.clock);
                ready.extend(
                    resting
                        .extract_if(.., |(until_ns, _)| *until_ns <= now_ns)
                        .map(|(_, token)| (token, lanes[token as usize].get.start())),
                );
            }
            if !ready.is_empty() {
                // A mark is no older than its READ, whatever took time before.
                for &(token, _) in &ready {
                    let lane = &mut lanes[token as usize];
                    if lane.get.begins_pass() {
                        lane.mark = Some(self.fabric.mark(lane.get.home()));
                    }
                }
                self.fabric.post(&ready)?;
                self.reads.doorbells += 1;
                ready.iter().for_each(|&(_, window)| self.count_read(window));
                in_flight += ready.len();
                ready.clear();
            }
            // What has completed makes room for what comes next, while the rest is still under way.
            let (hints, geometry) = (self.hints, self.geometry);
            self.fabric.poll(|token, window| {
                let lane = &mut lanes[token as usize];
                hints.inspect(|hints| hints.learn(geometry, lane.get.window(), window, lane.get.key()));
                landed.push((token, lane.get.feed(window, F::EXACT, &mut lane.value)));
            })?;
            in_flight -= landed.len();
            // All that landed is judged before anything else takes time.
            for (token, step) in &mut landed {
                let lane = &mut lanes[*token as usize];
                if *step == Step::Judge {
                    let mark = lane.mark.expect("taken before the pass's first READ");
                    *step = lane.get.judge(self.fabric.proof(lane.get.home(), mark));
                }
            }
            let mut round = Round { rest: (in_flight == 0).then_some(Rest::Sleep), ..Round::default() };
            for (token, step) in landed.drain(..) {
                let lane = &mut lanes[token as usize];
                match step {
                    Step::Read(window) => {
                        ready.push((token, window));
                        round.rest = None;
                        round.went_on |= lane.patience.retries == 0;
                    }
                    Step::Again(window, why) => {
                        self.stats.count(why);
                        looking_again += usize::from(lane.patience.retries == 0);
                        late -= usize::from(std::mem::replace(&mut lane.is_late, why == Retry::Late));
                        late += usize::from(lane.is_late);
                        let now_ns = lag.now_ns(&self.clock);
                        let rest = lane.patience.again(why, now_ns, &self.limits)?;
                        round.again = Some((now_ns, lane.patience.retries, why));
                        round.rest = round.rest.map(|shortest| shortest.min(rest));
                        match rest {
                            Rest::Sleep => resting.push((now_ns + SLEEP_NS, token)),
                            Rest::Spin | Rest::Yield => ready.push((token, window)),
                        }
                    }
                    Step::Found | Step::Absent | Step::Judge => {
                        lane.is_found = step == Step::Found;
                        answered.push(token);
                        round.answered = true;
                    }
                }
            }
            lag.add(&round, looking_again > 0, &self.clock, &self.limits)?;
            let no_pass_under_way =
                in_flight == 0 && ready.iter().all(|&(token, _)| lanes[token as usize].get.begins_pass());
            if late == 0 || no_pass_under_way {
                let flow = lag.pause(&self.clock, || {
                    for token in answered.drain(..) {
                        let lane = &mut lanes[token as usize];
                        looking_again -= usize::from(lane.patience.retries > 0);
                        late -= usize::from(lane.is_late);
                        match (lane.get.reference().filter(|_| lane.is_found), lane.mark) {
                            (Some(reference), Some(mark)) => named.push((lane.number, reference, mark)),
                            _ => {
                                self.stats.gets += 1;
                                self.stats.hits += u64::from(lane.is_found);
                                each(lane.number, lane.is_found.then_some(lane.value.as_slice()))?;
                            }
                        }
                        self.entries.learn(&lane.get);
                        if let Some((number, key)) = todo.next() {
                            lane.restart(self.entries.machine(self.geometry, key, by_counter), number);
                            ready.push((token, lane.get.start()));
                        }
                    }
                    ControlFlow::Continue(())
                });
                if flow.is_break() {
                    // They must not be taken for READs of the next batch.
                    while in_flight > 0 {
                        self.fabric.poll(|_, _| in_flight -= 1)?;
                    }
                    return Ok(flow);
                }
            }
            if !round.answered
                && let Some(short @ (Rest::Spin | Rest::Yield)) = round.rest
            {
                short.take(&self.clock);
            }
        }
        self.finish_each(keys, named, each)
    }

    /// Brings the values of keys whose slots say where they are: as many with one doorbell as have
    /// [`TOGETHER_BYTES`].
    fn finish_each(
        &mut self,
        keys: &Keys<'_>,
        named: Vec<(usize, Reference, F::Mark)>,
        each: &mut Each<'_>,
    ) -> Result<ControlFlow<()>, F::Error> {
        let (mut values, mut value) = (Vec::new(), Vec::new());
        let mut left = &named[..];
        while !left.is_empty() {
            let mut bytes = 0;
            let fits = |(_, reference, _): &&(usize, Reference, F::Mark)| {
                bytes += reference.len as usize;
                bytes <= TOGETHER_BYTES
            };
            let (together, others) = left.split_at(left.iter().take_while(fits).count().max(1));
            left = others;
            let places = together.iter().map(|(_, reference, _)| self.stretch(reference, &(0..usize::MAX)));
            let places = places.collect::<Result<SmallVec<[_; 4]>, _>>()?;
            self.fetch(&places, &mut values)?;
            let mut rest = &values[..];
            for (number, reference, mark) in together {
                let (part, others) = rest.split_at(reference.len as usize);
                rest = others;
                let (key, mut patience) = (keys(*number), RetryBudget::default());
                let found = match self.look_again(key, reference, *mark, part, &mut patience)? {
                    None => Some(part),
                    Some(again) => {
                        if let Looked::Here = again {
                            std::mem::swap(&mut value, &mut self.value);
                        }
                        let brought = self.bring(key, again, &(0..usize::MAX), &mut value, &mut patience)?;
                        brought.map(|_| value.as_slice())
                    }
                };
                self.stats.gets += 1;
                self.stats.hits += u64::from(found.is_some());
                if each(*number, found).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    #[inline]
    fn count_read(&mut self, window: Window) {
        self.reads.reads += 1;
        self.reads.bytes += self.geometry.window_bytes(window);
    }

    #[inline]
    fn check_key(&mut self, key: &[u8]) -> Result<(), F::Error> {
        match self.length_of(key) {
            Ok(()) => Ok(()),
            Err(error) => self.fabric.check().and(Err(ReadError::from(error).into())),
        }
    }

    #[inline]
    fn length_of(&self, key: &[u8]) -> Result<(), KeyLengthError> {
        let max = self.geometry.key_max();
        match self.geometry.may_hold(key) {
            true => Ok(()),
            false => Err(KeyLengthError { given: key.len(), max }),
        }
    }
}

/// What a look at a key ended in.
#[derive(Clone, Copy)]
enum Looked<M> {
    Absent,
    /// The value has been copied out of its slot.
    Here,
    /// The value is there. The mark is of the pass.
    At(Reference, M),
}

/// GETs that a direct look answered. Each read its primary window, at least. (To add to all the counts that
/// follow from these takes as long as a tenth of a GET.)
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DirectAnswers {
    absent: u64,
    found: u64,
    /// Bytes of the primary windows.
    bytes: u64,
    /// Doorbells that are not one for each first window of a look.
    doorbells_shared: u64,
}

impl DirectAnswers {
    #[inline(always)]
    pub fn count(&mut self, found: bool, geometry: &Geometry) {
        match found {
            true => self.found += 1,
            false => self.absent += 1,
        }
        self.bytes += geometry.home_window_bytes();
    }

    /// The same of so many answers, of which some were hits.
    fn count_all(&mut self, answered: u64, found: u64, geometry: &Geometry) {
        self.found += found;
        self.absent += answered - found;
        self.bytes += answered * geometry.home_window_bytes();
    }

    /// Adds them to the counts of all GETs.
    pub fn add_gets_to(&self, stats: &mut GetStats) {
        stats.gets += self.found + self.absent;
        stats.hits += self.found;
    }

    /// Adds their first windows to the counts of all READs.
    pub fn add_reads_to(&self, counts: &mut ReadCounts) {
        let reads = self.found + self.absent;
        counts.reads += reads;
        counts.bytes += self.bytes;
        // Some are shared with looks that had no answer, which are in the counts already.
        counts.doorbells += reads;
        counts.doorbells -= self.doorbells_shared;
    }
}

/// Slots that hints named, and that do not hold the key: what they seem to hold.
pub(crate) type WrongSlots = SmallVec<[(SlotIx, Key); 2]>;

/// One of several hinted looks in flight.
struct PendingHint<'a, M> {
    look: HintedLook<'a>,
    number: usize,
    key: Hashed<'a>,
    windows: Hinted,
    /// How many of them have landed.
    landed: usize,
    wrong: WrongSlots,
    mark: Option<M>,
    value: Vec<u8>,
}

impl<'a, M> PendingHint<'a, M> {
    fn new(geometry: &'a Geometry, number: usize, key: Hashed<'a>, windows: Hinted) -> Self {
        let look = HintedLook::new(geometry, key.key());
        let (landed, wrong, mark, value) = (0, WrongSlots::new(), None, Vec::new());
        PendingHint { look, number, key, windows, landed, wrong, mark, value }
    }

    /// Takes in one of the slots. Returns whether it is the last.
    fn feed<L: Landed>(&mut self, nth: usize, landed: &mut L) -> bool {
        let slot = self.windows[nth].first;
        if !self.look.feed(slot, landed, &mut self.value) {
            self.wrong.push((slot, landed.occupant(slot)));
        }
        self.landed += 1;
        self.landed == self.windows.len()
    }
}

/// One of several GETs in flight.
struct PendingGet<'a, M> {
    get: Get<'a>,
    number: usize,
    /// Of the pass under way.
    mark: Option<M>,
    value: Vec<u8>,
    patience: RetryBudget,
    is_found: bool,
    /// Has it looked again because it was late?
    is_late: bool,
}

impl<'a, M> PendingGet<'a, M> {
    fn new(get: Get<'a>, number: usize) -> Self {
        let patience = RetryBudget::default();
        PendingGet { get, number, mark: None, value: Vec::new(), patience, is_found: false, is_late: false }
    }

    fn restart(&mut self, get: Get<'a>, number: usize) {
        let value = std::mem::take(&mut self.value);
        *self = PendingGet { value, ..PendingGet::new(get, number) };
    }
}

/// How long one GET goes on looking again, and how it rests in between.
#[derive(Default)]
struct RetryBudget {
    retries: u32,
    since_ns: u64,
}

/// What a GET does before it looks again, shortest first: it spins, because a slot is rewritten in some 20 ns;
/// then it lets others run, because the writer may have been preempted; then it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rest {
    Spin,
    Yield,
    Sleep,
}

/// Retries that spin, retries after which it sleeps, and for how long.
const SPINS: u32 = 8;
const YIELDS: u32 = 64;
const SLEEP_NS: u64 = 50_000;

impl RetryBudget {
    /// A look was inconclusive; what to do before the next one.
    #[cold]
    fn again(&mut self, last: Retry, now_ns: u64, limits: &Limits) -> Result<Rest, ReadError> {
        self.retries += 1;
        if self.retries >= limits.retries_max {
            return Err(ReadError::Contended { retries: self.retries, last });
        }
        if self.retries == 1 {
            self.since_ns = now_ns;
        }
        if Duration::from_nanos(now_ns - self.since_ns) >= limits.deadline {
            return Err(ReadError::Deadline { deadline: limits.deadline, retries: self.retries, last });
        }
        Ok(if self.retries <= SPINS {
            Rest::Spin
        } else if self.retries <= YIELDS {
            Rest::Yield
        } else {
            Rest::Sleep
        })
    }
}

impl Rest {
    fn take(self, clock: &Clock) {
        match (self, clock) {
            (Rest::Spin, _) | (Rest::Yield, Clock::Manual(_)) => std::hint::spin_loop(),
            (Rest::Yield, Clock::System) => std::thread::yield_now(),
            (Rest::Sleep, clock) => clock.sleep_until(clock.now_ns() + SLEEP_NS),
        }
    }
}

/// What one round of a batch brought: all that one poll gave.
#[derive(Default)]
struct Round {
    answered: bool,
    /// Has a GET that has not looked again read a window, and goes on to the next one?
    went_on: bool,
    /// When the last GET that has to look again was judged, its retries, and why.
    again: Option<(u64, u32, Retry)>,
    /// The shortest rest before a READ of this round; `None` when another GET goes on.
    rest: Option<Rest>,
}

/// How far a batch has fallen behind, while GETs of it look again: rounds that brought no GET on add their
/// time, rounds that answered keys take it off. Nothing is measured, and no clock read, while none looks again.
#[derive(Default)]
struct Lag {
    behind_ns: u64,
    /// When the last round ended; `None` while nothing is measured.
    since_ns: Option<u64>,
    /// Time spent in the caller's code, which does not count.
    elsewhere_ns: u64,
}

impl Lag {
    /// The time on `clock`, without what was spent elsewhere.
    fn now_ns(&self, clock: &Clock) -> u64 {
        clock.now_ns() - self.elsewhere_ns
    }

    fn sleep_until(&self, until_ns: Option<u64>, clock: &Clock) {
        clock.sleep_until(until_ns.unwrap_or(0) + self.elsewhere_ns);
    }

    /// A round has ended. Does any GET look again?
    fn add(
        &mut self,
        round: &Round,
        looks_again: bool,
        clock: &Clock,
        limits: &Limits,
    ) -> Result<(), ReadError> {
        if self.since_ns.is_none() && !looks_again {
            return Ok(());
        }
        let now_ns = round.again.map_or_else(|| self.now_ns(clock), |(now_ns, ..)| now_ns);
        let took_ns = self.since_ns.map_or(0, |since_ns| now_ns - since_ns);
        self.behind_ns = match round {
            Round { answered: true, .. } => self.behind_ns.saturating_sub(took_ns),
            Round { went_on: true, .. } => self.behind_ns,
            _ => self.behind_ns + took_ns,
        };
        self.since_ns = (self.behind_ns > 0 || looks_again).then_some(now_ns);
        match round.again {
            Some((_, retries, last)) if Duration::from_nanos(self.behind_ns) >= limits.deadline => {
                Err(ReadError::Deadline { deadline: limits.deadline, retries, last })
            }
            _ => Ok(()),
        }
    }

    /// Runs the caller's code.
    fn pause<R>(&mut self, clock: &Clock, each: impl FnOnce() -> R) -> R {
        let begun_ns = self.since_ns.map(|_| clock.now_ns());
        let result = each();
        self.elsewhere_ns += begun_ns.map_or(0, |begun_ns| clock.now_ns() - begun_ns);
        result
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::fabric::shm::{MappedSlots, Shm};
    use crate::get::{Look, Proof};
    use crate::layout::chain::{Block, with_link};
    use crate::layout::control::move_counter_word;
    use crate::layout::slot::Header;
    use crate::region::Region;
    use std::sync::LazyLock;
    use std::time::Instant;

    fn pause(patience: &mut RetryBudget, clock: &Clock, limits: &Limits) -> Result<(), ReadError> {
        patience.again(Retry::Torn, clock.now_ns(), limits).map(|rest| rest.take(clock))
    }

    #[test]
    fn patience_ends_at_its_bounds() {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(5));
        let last = Retry::Torn;
        let limits = Limits { retries_max: 3, deadline: Duration::from_nanos(10) };
        let mut patience = RetryBudget::default();
        assert_eq!(pause(&mut patience, &clock, &limits), Ok(()));
        assert_eq!(pause(&mut patience, &clock, &limits), Ok(()));
        let contended = Err(ReadError::Contended { retries: 3, last });
        assert_eq!(pause(&mut patience, &clock, &limits), contended);

        let limits = Limits { retries_max: 1000, ..limits };
        let mut patience = RetryBudget::default();
        assert_eq!(pause(&mut patience, &clock, &limits), Ok(()), "the time until now does not count");
        clock.advance(Duration::from_nanos(9));
        assert_eq!(pause(&mut patience, &clock, &limits), Ok(()));
        clock.advance(Duration::from_nanos(1));
        let late = Err(ReadError::Deadline { deadline: limits.deadline, retries: 3, last });
        assert_eq!(pause(&mut patience, &clock, &limits), late);
    }

    #[test]
    fn patience_sleeps_after_a_while() {
        let limits = Limits { retries_max: 1000, deadline: Duration::from_secs(600) };
        let mut patience = RetryBudget::default();
        for _ in 0..YIELDS {
            pause(&mut patience, &Clock::System, &limits).unwrap();
        }
        let begun = Instant::now();
        for _ in 0..100 {
            pause(&mut patience, &Clock::System, &limits).unwrap();
        }
        assert!(begun.elapsed() >= 100 * Duration::from_nanos(SLEEP_NS));
    }

    /// First it spins, then lets others run, then sleeps, for as long as is said.
    #[test]
    fn patience_rests_longer_and_longer() {
        let limits = Limits { retries_max: 1000, deadline: Duration::from_secs(1) };
        let mut patience = RetryBudget::default();
        let mut rest = || patience.again(Retry::Torn, 7, &limits).unwrap();
        let (spins, yields, sleeps) = (Rest::Spin, Rest::Yield, Rest::Sleep);
        assert!((0..8).all(|_| rest() == spins));
        assert!((0..56).all(|_| rest() == yields));
        assert!((0..100).all(|_| rest() == sleeps));
        let clock = Clock::manual();
        [spins, yields, sleeps].into_iter().for_each(|rest| rest.take(&clock));
        assert_eq!(clock.now_ns(), 50_000);
    }

    // ---- batches, over a fabric whose READs take as long as is said --------------------------------------

    /// Milliseconds, in nanoseconds.
    const MS: u64 = 1_000_000;
    const GRACE: Duration = Duration::from_millis(2);

    /// Slots that show nothing, by what is said of the key that is looked for.
    struct Shown<'a> {
        is_torn: &'a mut dyn FnMut(u32) -> bool,
        windows: fn(u32) -> u32,
        geometry: &'a Geometry,
    }

    impl Landed for Shown<'_> {
        fn look(&mut self, slot: SlotIx, key: &[u8], _value: &mut Vec<u8>) -> Look {
            let number = u32::from_le_bytes(key.try_into().unwrap());
            // Chains of single slots, block after block.
            let nth = slot.0.checked_sub(self.geometry.main_slots()).map_or(0, |block| block as u32 + 1);
            let aux =
                with_link(self.geometry, 0xff, (nth + 1 < (self.windows)(number)).then_some(Block(nth)));
            let free = Header { stamp: 2, crc: 0, klen: 0, ghost: 0, vlen: 0, aux };
            if (self.is_torn)(number) { Look::Torn } else { Look::Other(free) }
        }
    }

    /// READs over one queue pair: they complete in the order in which they were posted, each so long after. Time
    /// passes while one waits for a READ, sleeps, or hands an answer over, and never otherwise.
    struct Slow<'a, L, T> {
        clock: Clock,
        credits: usize,
        posted: std::collections::VecDeque<(ReadId, u64)>,
        /// How long a READ takes that is posted now.
        takes_ns: L,
        /// Is the slot of the key with this number being written now?
        is_torn: T,
        /// Windows that the key with this number is looked for in.
        windows: fn(u32) -> u32,
        geometry: &'a Geometry,
        reads: u64,
    }

    /// What one poll brings at the most.
    const COMPLETIONS: usize = 16;

    impl<'g, L: FnMut(u64) -> u64, T: FnMut(u64, u32) -> bool> Fabric for Slow<'g, L, T> {
        type Landed<'a>
            = Shown<'a>
        where
            Self: 'a;
        const EXACT: bool = false;
        type Mark = u64;
        type Error = ReadError;

        fn credits(&self) -> usize {
            self.credits
        }

        fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), ReadError> {
            let now = self.clock.now_ns();
            let done = (now + (self.takes_ns)(now)).max(self.posted.back().map_or(0, |(_, done)| *done));
            self.posted.extend(reads.iter().map(|(token, _)| (*token, done)));
            self.reads += reads.len() as u64;
            assert!(self.posted.len() <= self.credits, "no more in flight than there are credits");
            Ok(())
        }

        fn poll(&mut self, mut sink: impl FnMut(ReadId, &mut Shown<'_>)) -> Result<(), ReadError> {
            self.clock.sleep_until(self.posted.front().expect("something is in flight").1);
            let now = self.clock.now_ns();
            for _ in 0..COMPLETIONS {
                let Some((token, _)) = self.posted.pop_front_if(|(_, done)| *done <= now) else { break };
                let is_torn = &mut |number| (self.is_torn)(now, number);
                sink(token, &mut Shown { is_torn, windows: self.windows, geometry: self.geometry });
            }
            Ok(())
        }

        fn mark(&mut self, _home: u64) -> u64 {
            self.clock.now_ns()
        }

        fn took_less(&mut self, _mark: Self::Mark, _allowance: Duration) -> bool {
            false
        }

        fn fetch(&mut self, _stretches: &[Stretch], _out: &mut Vec<u8>) -> Result<(), ReadError> {
            unreachable!("no value is so long")
        }

        fn proof(&mut self, _home: u64, mark: u64) -> Proof {
            Proof::by_clock(self.clock.now_ns() - mark, GRACE)
        }
    }

    /// What a batch came to.
    struct Came {
        result: Result<(), ReadError>,
        stats: GetStats,
        reads: u64,
        /// When each key was answered, in nanoseconds.
        at_ns: Vec<Option<u64>>,
        took_ns: u64,
    }

    /// Looks up `keys` keys over `credits` lanes, with the default limits; each answer takes the caller `each_ns`.
    fn batch(
        shape: (u32, usize, u64),
        takes_ns: impl FnMut(u64) -> u64,
        is_torn: impl FnMut(u64, u32) -> bool,
    ) -> Came {
        batch_of(|_| 1, shape, takes_ns, is_torn)
    }

    /// The same, of keys that are looked for in so many windows.
    fn batch_of(
        windows: fn(u32) -> u32,
        (keys, credits, each_ns): (u32, usize, u64),
        takes_ns: impl FnMut(u64) -> u64,
        is_torn: impl FnMut(u64, u32) -> bool,
    ) -> Came {
        let config = Config {
            layout: "list".parse().unwrap(),
            size: TableSize::Slots(64),
            key_max: 4,
            value_max: 8,
            ..Config::default()
        };
        let geometry = config.geometry().unwrap();
        let clock = Clock::manual();
        let (posted, reads) = Default::default();
        let fabric = Slow {
            clock: clock.clone(),
            credits,
            posted,
            takes_ns,
            is_torn,
            windows,
            geometry: &geometry,
            reads,
        };
        let mut reader = Reader::new(fabric, &geometry, clock.clone(), Limits::default());
        let numbers: Vec<_> = (0..keys).map(u32::to_le_bytes).collect();
        let mut at_ns = vec![None; keys as usize];
        let result = reader.get_many(&numbers, |n, value| {
            assert_eq!((value, at_ns[n]), (None, None));
            at_ns[n] = Some(clock.now_ns());
            clock.advance(Duration::from_nanos(each_ns));
        });
        Came { result, stats: reader.stats(), reads: reader.fabric().reads, at_ns, took_ns: clock.now_ns() }
    }

    impl Came {
        fn all_answered(&self) {
            assert_eq!(self.result, Ok(()));
            assert!(self.at_ns.iter().all(Option::is_some));
        }

        fn reached_its_deadline(&self) -> u64 {
            let deadline = Limits::default().deadline;
            assert!(matches!(self.result, Err(ReadError::Deadline { deadline: d, .. }) if d == deadline));
            self.took_ns
        }
    }

    /// READs that take longer than the grace time for a while: with any number of lanes a batch goes on as soon as they
    /// are fast again. Each lane's mark is as old as its own READ, not as the rest of another lane.
    #[test]
    fn a_batch_recovers_from_slow_reads() {
        for credits in [1, 16, 32, 64, 512] {
            let slow = |now| if now < 300 * MS { 3 * MS } else { 2_000 };
            let came = batch((20_064, credits, 0), slow, |_, _| false);
            came.all_answered();
            let fast_ns = 20_064 / credits as u64 * 2_000;
            assert!(came.took_ns < 304 * MS + 2 * fast_ns, "{credits} lanes: {} ns", came.took_ns);
            assert_eq!(came.stats.retries_late, 100 * credits as u64, "{credits} lanes");
        }
    }

    /// Slots that are being written for a while: the lanes that need them look again, the others know nothing of it.
    #[test]
    fn one_lanes_trouble_is_not_the_others() {
        for (torn, credits) in [(1, 2), (16, 64), (63, 64)] {
            let came = batch((20_000, credits, 0), |_| 10_000, |now, n| n < torn && now < 300 * MS);
            came.all_answered();
            assert_eq!((came.stats.retries_late, came.stats.retries_moved), (0, 0));
            let free = credits as u64 - u64::from(torn);
            // Twice what it takes when nobody looks again.
            let others = came.at_ns[torn as usize..].iter().flatten().max().unwrap();
            assert!(*others < 2 * 20_000 / free * 10_000, "{torn} of {credits}: {others} ns");
            let torn_ones = came.at_ns[..torn as usize].iter().flatten();
            assert!(torn_ones.min().unwrap() >= &(300 * MS));
            // They rest in between.
            let retries = came.stats.retries_torn / u64::from(torn);
            assert!((100..300 * MS / SLEEP_NS + 100).contains(&retries), "{retries} retries");
        }
    }

    /// However many keys of a batch have to be looked for again, one after the other or side by side, the
    /// deadline bounds the batch; and one key that never becomes conclusive ends it though all others do.
    #[test]
    fn the_deadline_bounds_a_batch() {
        let second = 1_000 * MS;
        for (keys, credits) in [(50, 1), (50, 50), (500, 64), (3_000, 7)] {
            // Each is torn for 900 ms from when it is first looked at.
            let mut first_look = vec![None; keys as usize];
            let is_torn = |now, n: u32| now < *first_look[n as usize].get_or_insert(now) + 900 * MS;
            let took = batch((keys, credits, 0), |_| 5_000, is_torn);
            if keys as usize > credits {
                let took_ns = took.reached_its_deadline();
                assert!((second..second + 200 * MS).contains(&took_ns), "{keys}, {credits}: {took_ns}");
            } else {
                took.all_answered();
            }
        }
        let never = batch((u32::pow(10, 6), 64, 0), |_| 100_000, |_, n| n == 7);
        let took_ns = never.reached_its_deadline();
        assert!((second..second + 2 * MS).contains(&took_ns), "{took_ns}");
        assert!(never.at_ns.iter().flatten().count() > 600_000);
    }

    /// A large batch, of which now and then a key is to be looked for again, takes longer than the deadline allows for
    /// looking again, and is answered. So does one whose caller takes his time.
    #[test]
    fn a_batch_that_goes_on_has_no_deadline() {
        for (keys, credits, each_ns) in
            [(1_000_000, 64, 0), (40_000, 1, 0), (2_000, 64, 5 * MS), (500, 1, 5 * MS)]
        {
            let mut looks = vec![0; keys as usize];
            let is_torn = |_, n: u32| {
                looks[n as usize] += 1;
                n % 20 == 3 && looks[n as usize] < 12
            };
            let came = batch((keys, credits, each_ns), |_| 100_000, is_torn);
            came.all_answered();
            assert!(came.took_ns > 1_500 * MS, "{} ns", came.took_ns);
        }
    }

    /// Keys in several windows: that a GET reads one after the other is no sign that it looks again.
    #[test]
    fn long_ways_are_no_lag() {
        for credits in [1, 16] {
            let mut looks = vec![0; 200_000];
            let is_torn = |_, n: u32| {
                looks[n as usize] += 1;
                n % 1_000 == 3 && looks[n as usize] == 1
            };
            let came = batch_of(|_| 4, (200_000, credits, 0), |_| 20_000 * credits as u64, is_torn);
            came.all_answered();
            assert!(came.took_ns > 10_000 * MS, "{} ns", came.took_ns);
            assert_eq!(came.reads, 4 * 200_000 + 200, "one more for each key that was torn");
        }
    }

    /// Windows that a GET reads on its first way change nothing; those that it reads when it looks again are time
    /// that the batch loses. The bound is reached at the very READ that this gives.
    #[test]
    fn only_a_second_way_is_lag() {
        const READ_NS: u64 = 400_000;
        let mut looks = vec![0; 1_000];
        // Each key is read in four windows, twice: the last one is torn at first.
        let is_torn = |_, n: u32| {
            looks[n as usize] += 1;
            looks[n as usize] == 4
        };
        let came = batch_of(|_| 4, (1_000, 1, 0), |_| READ_NS, is_torn);
        // A key adds the READ that is torn and the three of its second way that lead on; the one that answers is
        // taken off. Of the first key, the READ that is torn begins the measure. So key n comes to its torn READ
        // with 3 n READs behind, and the first with a second behind is number 834.
        let last = (1_000 * MS).div_ceil(3 * READ_NS);
        assert_eq!(came.reached_its_deadline(), (8 * last + 4) * READ_NS);
        assert_eq!(came.at_ns.iter().flatten().count() as u64, last);
        assert_eq!((came.stats.gets, came.stats.retries_torn), (last, last + 1));
    }

    /// A caller that takes longer with each answer than the grace time makes GETs late that are under way, but none of
    /// them twice; nor one that has further windows to read.
    #[test]
    fn a_slow_caller_makes_no_get_late_twice() {
        for (windows, credits) in
            [((|_| 1) as fn(u32) -> u32, 64), (|n| 1 + u32::from(n == 0), 2), (|n| 1 + n % 3, 64)]
        {
            let mut looks = vec![0; 3_200];
            let is_torn = |_, n: u32| {
                looks[n as usize] += 1;
                false
            };
            let came = batch_of(windows, (3_200, credits, 5 * MS), |_| 10_000, is_torn);
            came.all_answered();
            assert!(came.stats.retries_late > 0);
            for (n, &looks) in (0..).zip(&looks) {
                assert!(looks <= 2 * windows(n), "key {n} in {} windows: {looks} READs", windows(n));
            }
        }
    }

    type Never = fn(u64, u32) -> bool;

    /// A reader of a table of single slots, and the clock that its READs advance.
    fn reader_of<L: FnMut(u64) -> u64>(
        geometry: &Geometry,
        windows: fn(u32) -> u32,
        credits: usize,
        takes_ns: L,
    ) -> Reader<'_, Slow<'_, L, Never>> {
        let clock = Clock::manual();
        let is_torn: Never = |_, _| false;
        let (posted, reads) = Default::default();
        let fabric =
            Slow { clock: clock.clone(), credits, posted, takes_ns, is_torn, windows, geometry, reads };
        Reader::new(fabric, geometry, clock, Limits::default())
    }

    fn list() -> Geometry {
        let (layout, size) = ("list".parse().unwrap(), TableSize::Slots(64));
        Config { layout, size, key_max: 4, value_max: 8, ..Config::default() }.geometry().unwrap()
    }

    /// A pass over several windows is as old as its first READ: two READs of three quarters of the grace time
    /// each prove nothing. The next pass is as old as its own first READ.
    #[test]
    fn a_pass_is_as_old_as_its_first_read() {
        let geometry = list();
        let slow = |now| if now < 100 * MS { 3 * MS / 2 } else { 2_000 };
        // Of 3 ms each; the one that begins after 99 ms has one slow READ.
        let expected = GetStats { gets: 1, retries_late: 33, ..GetStats::default() };
        let key = 7u32.to_le_bytes();
        let mut one = reader_of(&geometry, |_| 2, 1, slow);
        let mut value = vec![1, 2, 3];
        assert_eq!(one.get_into(&key, &mut value), Ok(false));
        assert_eq!((value, one.stats(), one.fabric().reads), (vec![], expected, 68));
        let mut many = reader_of(&geometry, |_| 2, 1, slow);
        let mut answers = Vec::new();
        many.get_many(&[key], |n, value| answers.push((n, value.map(Vec::from)))).unwrap();
        assert_eq!((answers, many.stats(), many.fabric().reads), (vec![(0, None)], expected, 68));
    }

    /// What a GET rests before it looks again is not part of the pass: after 50 microseconds of sleep, a READ that takes
    /// nearly the grace time still proves something.
    #[test]
    fn a_pass_begins_after_the_rest() {
        let geometry = list();
        let takes_ns = |_| GRACE.as_nanos() as u64 - 20_000;
        for batch in [false, true] {
            let (clock, mut looks) = (Clock::manual(), 0);
            let fabric = Slow {
                clock: clock.clone(),
                credits: 1,
                posted: Default::default(),
                takes_ns,
                is_torn: |_, _| {
                    looks += 1;
                    looks <= YIELDS + 5
                },
                windows: |_| 1,
                geometry: &geometry,
                reads: 0,
            };
            let mut reader = Reader::new(fabric, &geometry, clock, Limits::default());
            match batch {
                false => assert_eq!(reader.get_into(&[0; 4], &mut Vec::new()), Ok(false)),
                true => reader.get_many(&[[0; 4]], |_, value| assert_eq!(value, None)).unwrap(),
            }
            let torn = u64::from(YIELDS) + 5;
            assert_eq!(reader.stats(), GetStats { gets: 1, retries_torn: torn, ..GetStats::default() });
        }
    }

    /// A mapping whose server counts a move during each of the next passes.
    struct Moving {
        shm: Shm<'static>,
        region: &'static Region,
        moves: u32,
    }

    impl Fabric for Moving {
        type Landed<'a> = MappedSlots<'static>;
        const EXACT: bool = true;
        type Mark = u64;
        type Error = ReadError;

        fn credits(&self) -> usize {
            self.shm.credits()
        }

        fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), ReadError> {
            self.shm.post(reads)
        }

        fn poll(&mut self, sink: impl FnMut(ReadId, &mut MappedSlots<'static>)) -> Result<(), ReadError> {
            self.shm.poll(sink)
        }

        fn mark(&mut self, home: u64) -> u64 {
            let mark = self.shm.mark(home);
            if self.moves > 0 {
                self.moves -= 1;
                self.region.add(move_counter_word(home));
            }
            mark
        }

        fn took_less(&mut self, _mark: Self::Mark, _allowance: Duration) -> bool {
            false
        }

        fn fetch(&mut self, _stretches: &[Stretch], _out: &mut Vec<u8>) -> Result<(), ReadError> {
            unreachable!("no value is so long")
        }

        fn proof(&mut self, home: u64, mark: u64) -> Proof {
            self.shm.proof(home, mark)
        }
    }

    /// On shm a move during a pass is counted and reported as a move. Nothing there is late.
    #[test]
    fn a_move_on_shm_is_not_late() {
        static TABLE: LazyLock<(Geometry, Region)> = LazyLock::new(|| {
            let geometry = list();
            let region = Region::private(geometry.region_bytes());
            (geometry, region)
        });
        let (geometry, region) = &*TABLE;
        let limits = Limits { retries_max: 4, ..Limits::default() };
        for batch in [false, true] {
            let moving = Moving { shm: Shm::new(region, geometry), region, moves: 3 };
            let mut reader = Reader::new(moving, geometry, Clock::manual(), limits);
            let get = |reader: &mut Reader<'_, Moving>| match batch {
                false => reader.get_into(&[1; 4], &mut Vec::new()).map(|found| assert!(!found)),
                true => reader.get_many(&[[1; 4]], |_, value| assert_eq!(value, None)),
            };
            assert_eq!(get(&mut reader), Ok(()));
            assert_eq!(reader.stats(), GetStats { gets: 1, retries_moved: 3, ..GetStats::default() });
            reader.fabric_mut().moves = 4;
            assert_eq!(get(&mut reader), Err(ReadError::Contended { retries: 4, last: Retry::Moved }));
        }
    }

    /// A fabric over which nothing can be READ.
    struct NoReads;

    const BROKEN: ReadError = ReadError::Contended { retries: 77, last: Retry::Torn };

    impl Fabric for NoReads {
        type Landed<'a>
            = Shown<'a>
        where
            Self: 'a;
        const EXACT: bool = false;
        type Mark = ();
        type Error = ReadError;

        fn credits(&self) -> usize {
            5
        }

        fn post(&mut self, _: &[(ReadId, Window)]) -> Result<(), ReadError> {
            Err(BROKEN)
        }

        fn poll(&mut self, _: impl FnMut(ReadId, &mut Shown<'_>)) -> Result<(), ReadError> {
            Err(BROKEN)
        }

        fn mark(&mut self, _home: u64) {}

        fn took_less(&mut self, _mark: Self::Mark, _allowance: Duration) -> bool {
            false
        }

        fn fetch(&mut self, _stretches: &[Stretch], _out: &mut Vec<u8>) -> Result<(), ReadError> {
            unreachable!("no value is so long")
        }

        fn proof(&mut self, _home: u64, (): ()) -> Proof {
            Proof::Late
        }
    }

    /// A doorbell counts once for all its READs, each READ for all its bytes; what a batch could not post is
    /// not counted.
    #[test]
    fn what_is_read_is_counted() {
        let geometry = list();
        let slot = geometry.shape().bytes() as u64;
        let mut reader = reader_of(&geometry, |_| 3, 4, |_| 1_000);
        assert_eq!(reader.read_counts(), ReadCounts::default());
        reader.get_into(&[7; 4], &mut Vec::new()).unwrap();
        let one = ReadCounts { reads: 3, bytes: 3 * slot, doorbells: 3 };
        assert_eq!(reader.read_counts(), one);
        // Four at once in three windows each, then the fifth.
        reader.get_many(&[[1; 4]; 5], |_, _| {}).unwrap();
        let six = ReadCounts { reads: 18, bytes: 18 * slot, doorbells: 9 };
        assert_eq!((reader.read_counts(), reader.fabric().reads), (six, 18));

        let config = Config { size: TableSize::Slots(64), key_max: 4, value_max: 100, ..Config::default() };
        let geometry = config.geometry().unwrap();
        assert_eq!((geometry.window(3).slots, geometry.shape().bytes()), (8, 128));
        let mut reader = Reader::new(NoReads, &geometry, Clock::manual(), Limits::default());
        assert_eq!(reader.get_many(&[[1; 4]; 3], |n, _| panic!("{n} is answered")), Err(BROKEN));
        assert_eq!((reader.read_counts(), reader.stats()), Default::default());
        assert_eq!(reader.get_into(&[1; 4], &mut Vec::new()), Err(BROKEN));
        let window = ReadCounts { reads: 1, bytes: 8 * 128, doorbells: 1 };
        assert_eq!(reader.read_counts(), window);

        let mut sum = ReadCounts { reads: 1, bytes: 20, doorbells: 300 };
        sum += ReadCounts { reads: 4_000, bytes: 50_000, doorbells: 600_000 };
        assert_eq!(sum, ReadCounts { reads: 4_001, bytes: 50_020, doorbells: 600_300 });
    }

    /// As many keys as there are lanes, one less, one more, none: each is READ once and answered once.
    #[test]
    fn batches_of_every_size() {
        let geometry = list();
        for keys in [0, 1, 3, 4, 5, 8, 9] {
            let mut reader = reader_of(&geometry, |_| 1, 4, |_| 1_000);
            let keys: Vec<_> = (0..keys).map(u32::to_le_bytes).collect();
            let mut answered = vec![0; keys.len()];
            reader.get_many(&keys, |n, _| answered[n] += 1).unwrap();
            assert!(answered.iter().all(|&times| times == 1), "{answered:?}");
            let gets = keys.len() as u64;
            assert_eq!(reader.stats(), GetStats { gets, ..GetStats::default() });
            assert_eq!(reader.fabric().reads, gets);
        }
    }

    /// A batch that breaks off reads nothing more, and waits for what is under way: the next one begins
    /// with an empty queue. So does a GET.
    #[test]
    fn nothing_is_under_way_after_a_break() {
        let geometry = list();
        for credits in [1, 4, 64] {
            for last in [1, 3, 20] {
                let mut reader = reader_of(&geometry, |n| 1 + n % 3, credits, |_| 1_000);
                let keys: Vec<_> = (0..20).map(u32::to_le_bytes).collect();
                let mut answered = 0;
                let flow = reader.get_each(&keys, |_, value| {
                    assert_eq!(value, Ok(None));
                    answered += 1;
                    if answered == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                assert_eq!((flow, answered), (Ok(ControlFlow::Break(())), last));
                assert!(reader.fabric().posted.is_empty(), "{credits} credits, broken off at {last}");
                assert_eq!(reader.stats().gets, last, "only answers count");
                let mut all = 0;
                reader.get_many(&keys, |_, _| all += 1).unwrap();
                assert_eq!((all, reader.get_into(&keys[0], &mut Vec::new())), (20, Ok(false)));
            }
        }
    }

    /// A key that the table does not take is refused before anything is READ, wherever it stands in a batch.
    #[test]
    fn lengths_are_looked_at_first() {
        let geometry = list();
        let mut reader = reader_of(&geometry, |_| 1, 4, |_| 1_000);
        for given in [0, 5, 256] {
            let refused = Err(ReadError::KeyLength { given, max: 4 });
            let bad = vec![1; given];
            assert_eq!(reader.get_into(&bad, &mut Vec::new()).map(|_| ()), refused);
            let last = [vec![vec![1; 4]; 20], vec![bad.clone()]].concat();
            for keys in
                [vec![bad.clone()], vec![vec![1; 4], bad.clone()], vec![bad.clone(), vec![1; 4]], last]
            {
                assert_eq!(reader.get_many(&keys, |n, _| panic!("{n} is answered")), refused);
            }
        }
        assert_eq!((reader.stats(), reader.fabric().reads), (GetStats::default(), 0));
        assert_eq!(reader.get_into(&[1; 4], &mut Vec::new()), Ok(false));
    }

    /// A key that is torn for long, and a caller that takes long with each of the others: in the end nothing
    /// is under way but the one that rests, and it sleeps by the clock that counts the caller's time, too.
    #[test]
    fn a_rest_after_a_slow_caller() {
        let came = batch((100, 2, MS), |_| 10_000, |now, n| n == 0 && now < 300 * MS);
        came.all_answered();
        let at_ns = came.at_ns[0].unwrap();
        assert!((300 * MS..301 * MS).contains(&at_ns), "{at_ns} ns");
        // Every 60 us while nothing else goes on, and less often before.
        assert!((3_000..5_100).contains(&came.stats.retries_torn), "{:?}", came.stats);
    }

    /// A key whose value does not fit its slot, until that was fetched. By then it has another one.
    struct Replaced<'g> {
        geometry: &'g Geometry,
        was_fetched: bool,
        posted: Vec<ReadId>,
        /// The times within which bytes would count.
        allowances: Vec<Duration>,
        /// What is said of a value that is fetched, and of a server that is asked for.
        failure: Option<ReadError>,
    }

    /// The bytes in the key's slot, or where the value is.
    struct InSlot(Result<&'static [u8], Reference>);

    const SHORT: &[u8] = b"short";

    impl Landed for InSlot {
        /// For hints: the key seems to be in one slot of eight, so in one of each window.
        fn occupant(&self, slot: SlotIx) -> Key {
            if slot.0.is_multiple_of(8) { Key::from_slice(&[1; 4]) } else { Key::new() }
        }

        fn look(&mut self, _slot: SlotIx, _key: &[u8], value: &mut Vec<u8>) -> Look {
            match self.0 {
                Err(reference) => Look::Reference(reference),
                Ok(bytes) => {
                    value.clear();
                    value.extend_from_slice(bytes);
                    Look::Match
                }
            }
        }
    }

    impl Replaced<'_> {
        fn reference(&self) -> Reference {
            let offset = self.geometry.heap().offset + 24;
            Reference { number: 1, offset, len: 700, crc: 0 }
        }
    }

    impl Fabric for Replaced<'_> {
        type Landed<'a>
            = InSlot
        where
            Self: 'a;
        const EXACT: bool = false;
        type Mark = ();
        type Error = ReadError;

        fn credits(&self) -> usize {
            2
        }

        fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), ReadError> {
            self.posted.extend(reads.iter().map(|(token, _)| token));
            Ok(())
        }

        fn poll(&mut self, mut sink: impl FnMut(ReadId, &mut InSlot)) -> Result<(), ReadError> {
            let there = if self.was_fetched { Ok(SHORT) } else { Err(self.reference()) };
            self.posted.drain(..).for_each(|token| sink(token, &mut InSlot(there)));
            Ok(())
        }

        fn mark(&mut self, _home: u64) {}

        fn took_less(&mut self, (): (), allowance: Duration) -> bool {
            self.allowances.push(allowance);
            false
        }

        fn check(&mut self) -> Result<(), ReadError> {
            self.failure.clone().map_or(Ok(()), Err)
        }

        fn fetch(&mut self, stretches: &[Stretch], out: &mut Vec<u8>) -> Result<(), ReadError> {
            self.check()?;
            out.clear();
            out.resize(stretches.iter().map(|bytes| bytes.len).sum(), 9);
            self.was_fetched = true;
            Ok(())
        }

        fn proof(&mut self, _home: u64, (): ()) -> Proof {
            Proof::InGrace
        }
    }

    fn with_heap() -> Geometry {
        let config = Config { size: TableSize::Slots(64), key_max: 4, value_max: 1000, ..Config::default() };
        config.inline_max(30).heap_bytes(64 << 10).geometry().unwrap()
    }

    /// A reader of a table whose every key is such a one.
    fn reader_of_replaced(geometry: &Geometry) -> Reader<'_, Replaced<'_>> {
        let (was_fetched, posted, allowances, failure) = Default::default();
        let fabric = Replaced { geometry, was_fetched, posted, allowances, failure };
        Reader::new(fabric, geometry, Clock::manual(), Limits::default())
    }

    /// X4: bytes that took A(n) or longer count only if another look agrees. If that finds a value in the slot,
    /// this is the answer, and no byte of the long one.
    #[test]
    fn a_value_that_became_short_while_it_was_fetched() {
        let geometry = with_heap();
        let mut reader = reader_of_replaced(&geometry);
        let mut value = vec![7; 3];
        assert_eq!((reader.get_into(&[1; 4], &mut value), &value[..]), (Ok(true), SHORT));
        reader.fabric_mut().was_fetched = false;
        assert_eq!(reader.get_range(&[1; 4], 1..3, &mut value), Ok(Some(SHORT.len())));
        assert_eq!(value, SHORT[1..3]);
        reader.fabric_mut().was_fetched = false;
        let mut answered = 0;
        let each = |_, value: Option<&[u8]>| {
            assert_eq!(value, Some(SHORT));
            answered += 1;
        };
        assert_eq!((reader.get_many(&[[1; 4], [2; 4]], each), answered), (Ok(()), 2));
        let allowed = geometry.heap().allowance(geometry.grace(), 700);
        assert_eq!(reader.fabric().allowances, [allowed; 4]);
    }

    /// A GET is counted when it has an answer. One whose value could not be brought has none: by hints or
    /// without, alone or in a batch.
    #[test]
    fn a_value_that_was_not_brought_is_no_answer() {
        let geometry = with_heap();
        let hints = Hints::new(&geometry, usize::MAX).unwrap();
        let failure = ReadError::Damaged { what: "it is" };
        for hinted in [false, true] {
            let mut reader = reader_of_replaced(&geometry);
            if hinted {
                reader.set_hints(&hints);
            }
            let mut value = Vec::new();
            reader.fabric_mut().failure = Some(failure.clone());
            // The first one learns where the key is.
            for _ in 0..2 {
                assert_eq!(reader.get_into(&[1; 4], &mut value), Err(failure.clone()));
            }
            assert_eq!(reader.get_range(&[1; 4], 1..3, &mut value), Err(failure.clone()));
            let each = |_, _: Option<&[u8]>| panic!("an answer");
            assert_eq!(reader.get_many(&[[1; 4]], each), Err(failure.clone()));
            assert_eq!(reader.stats(), GetStats::default(), "hints: {hinted}");
            reader.fabric_mut().failure = None;
            assert_eq!(reader.get_into(&[1; 4], &mut value), Ok(true));
            assert_eq!(reader.stats(), GetStats { gets: 1, hits: 1, ..GetStats::default() });
            assert_eq!(reader.hint_counts().hinted, 3 * u64::from(hinted));
        }
    }

    /// A key is refused for its length only while the server is there: the next one may take it. So it is with
    /// one key, and in a batch, whose other keys have had their answers then.
    #[test]
    fn a_length_is_refused_by_a_server_that_is_there() {
        let geometry = with_heap();
        let (long, gone) = ([1; 5], ReadError::Damaged { what: "it is gone" });
        let refused = KeyLengthError { given: 5, max: 4 };
        let mut reader = reader_of_replaced(&geometry);
        reader.fabric_mut().was_fetched = true;
        let mut value = Vec::new();
        let batch = |reader: &mut Reader<'_, Replaced<'_>>, keys: &[&[u8]]| {
            let mut answers = Vec::new();
            let each = |number, answer: Result<Option<&[u8]>, _>| {
                answers.push((number, answer.map(|value| value.is_some())));
                ControlFlow::Continue(())
            };
            (reader.get_each(keys, each).map(|_| ()), answers)
        };
        let keys: [&[u8]; 3] = [&long, &[1; 4], &[]];
        for is_gone in [true, false] {
            reader.fabric_mut().failure = is_gone.then(|| gone.clone());
            let expected = if is_gone { gone.clone() } else { refused.into() };
            assert_eq!(reader.get_into(&long, &mut value), Err(expected.clone()));
            assert_eq!(reader.value_len(&long), Err(expected.clone()));
            assert_eq!(reader.get_range(&long, 0..1, &mut value), Err(expected.clone()));
            assert_eq!(reader.get_many(&[&long], |_, _| panic!("an answer")), Err(expected));
            let (alone, both) = (batch(&mut reader, &keys[..1]), batch(&mut reader, &keys));
            if is_gone {
                assert_eq!(alone, (Err(gone.clone()), vec![]));
                assert_eq!(both, (Err(gone.clone()), vec![(1, Ok(true))]));
            } else {
                let none = KeyLengthError { given: 0, max: 4 };
                assert_eq!(alone, (Ok(()), vec![(0, Err(refused))]));
                assert_eq!(both, (Ok(()), vec![(1, Ok(true)), (0, Err(refused)), (2, Err(none))]));
            }
        }
    }

    /// What is in the documentation.
    #[test]
    fn limits_by_default() {
        let documented = Limits { retries_max: 100_000, deadline: Duration::from_secs(1) };
        assert_eq!(Limits::default(), documented);
    }

    #[test]
    fn counts_are_added_up() {
        let counts = |n: u64| GetStats {
            gets: n,
            hits: 2 * n,
            retries_torn: 3 * n,
            retries_moved: 4 * n,
            retries_late: 5 * n,
            retries_chain: 6 * n,
            retries_replaced: 7 * n,
        };
        let mut sum = counts(10);
        sum += counts(100);
        assert_eq!(sum, counts(110));
        let numbers = |n: u64| HintCounts { hinted: n, hits: 2 * n, reads: 3 * n };
        let mut hinted = numbers(10);
        hinted += numbers(100);
        assert_eq!(hinted, numbers(110));
        let numbers = |n: u64| ReadCounts { reads: n, bytes: 2 * n, doorbells: 3 * n };
        let mut reads = numbers(10);
        reads += numbers(100);
        assert_eq!(reads, numbers(110));
        let mut counted = counts(10);
        for (times, why) in
            [(2, Retry::Torn), (3, Retry::Moved), (4, Retry::Late), (5, Retry::Chain), (6, Retry::Replaced)]
        {
            (0..times).for_each(|_| counted.count(why));
        }
        let expected = GetStats {
            retries_torn: 32,
            retries_moved: 43,
            retries_late: 54,
            retries_chain: 65,
            retries_replaced: 76,
            ..counts(10)
        };
        assert_eq!(counted, expected);
    }
}
