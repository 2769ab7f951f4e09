//! The simulated NIC: each unit of a READ is sampled at an instant that an [`Adversary`] chooses.

use super::choices::Adversary;
use super::history::{History, Instant};
use crate::fabric::ReadCounts;
use crate::fabric::landed::LandedWindow;
use crate::fabric::{BegunLook, Direct, Fabric, ReadId, Stretch, direct};
use crate::get::Proof;
use crate::layout::compare::{Lines, Loadable};
use crate::layout::control::{CONTROL_WORDS, STATE_WORD, move_counter_word};
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::Hashed;
use crate::layout::slot::{COPY_SHIFT, View};
use crate::layout::words::Words;
use crate::layout::{LINE, WORD};
use crate::outcome::ReadError;
use crate::sink::Sink;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// The unit of memory that is sampled at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A 64-byte line (H1).
    Line,
    /// An 8-byte word (H0).
    Word,
}

/// What a client's miss rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// The grace time, as over a network.
    Clock,
    /// The counters of begun moves, as on shm.
    Counter,
    /// Like `Counter`, after a direct look, which loads word by word, each no earlier than the last.
    Loads,
}

/// How an adversary's READs behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// The unit that is sampled at one instant.
    pub unit: Unit,
    /// What the client's misses rest on.
    pub witness: Witness,
    /// The most stores during one READ.
    pub read_stores_max: usize,
    /// One READ in this many fails; with 0 none does.
    pub error_one_in: usize,
    /// How many nanoseconds of the server's clock one nanosecond of the client's clock takes.
    pub client_ns: u64,
    /// Passes of one GET that the adversary decides. Later passes see memory as it is at the end.
    pub passes_max: usize,
    /// Whether GETs have hints. The adversary decides which slots they name.
    pub hints: bool,
}

/// Why a GET over the simulated NIC gave no answer.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum SimGetError {
    /// An error that every fabric can have.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The adversary made a READ fail.
    #[error("the READ failed")]
    ReadFailed,
}

/// The most instants that a client chooses from when it sleeps.
const LEAPS_MAX: usize = 3;

/// What a GET looks for, and when its client sleeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aim<'a> {
    /// The key's home.
    pub home: u64,
    /// The key's ghost; 0 for none.
    pub ghost: u8,
    /// The most stores during one of its READs, if fewer than the hardware allows.
    pub read_stores_max: Option<usize>,
    /// Instants until which its client may sleep between two passes.
    pub leaps: &'a [Instant],
}

/// One pass of a GET.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// When the pass began.
    pub from: Instant,
    /// When the last READ of the pass had completed.
    pub to: Instant,
    /// The proof for the pass. `None` if a slot was torn, or no proof was needed.
    pub proof: Option<Proof>,
}

/// What a GET encountered.
#[derive(Clone, Debug, Default)]
pub struct Met {
    /// Whether some unit could show more than one thing.
    pub choice: bool,
    /// The GET's passes.
    pub passes: Vec<Pass>,
    /// Whether the client slept between two passes.
    pub slept: bool,
    /// In the last pass, the windows beyond the primary one.
    pub further: u32,
    /// In the last pass, the overflow blocks.
    pub blocks: u32,
    /// In the last pass, the ghosts of the key.
    pub ghosts: u32,
    /// Whether an overflow block had a key of another home.
    pub block_reused: bool,
}

/// A client's fabric over a history. It starts at some instant and moves on with each READ.
#[derive(Debug)]
pub struct Sim<'a, A> {
    history: &'a History,
    geometry: &'a Geometry,
    hardware: Hardware,
    adversary: &'a mut A,
    /// Shared, so that the code that takes answers can look at it.
    now: Rc<Cell<Instant>>,
    aim: Aim<'a>,
    met: Met,
    passes: usize,
    posted: Vec<(ReadId, Window, Instant)>,
    landing: Vec<u64>,
    instants: Vec<Instant>,
    story: Option<Vec<String>>,
}

impl<'a, A: Adversary> Sim<'a, A> {
    /// A fabric that begins at `start`.
    pub fn new(
        history: &'a History,
        geometry: &'a Geometry,
        hardware: Hardware,
        adversary: &'a mut A,
        start: Instant,
    ) -> Sim<'a, A> {
        Sim {
            history,
            geometry,
            hardware,
            adversary,
            now: Rc::new(Cell::new(start)),
            aim: Aim::default(),
            met: Met::default(),
            passes: 0,
            posted: Vec::new(),
            landing: Vec::new(),
            instants: Vec::new(),
            story: None,
        }
    }

    /// Begins a new GET, no earlier than at `from`.
    pub fn begin(&mut self, from: Instant, aim: Aim<'a>) {
        self.now.set(self.now.get().max(from));
        self.passes = 0;
        self.aim = aim;
        self.met = Met::default();
        self.story.iter_mut().for_each(Vec::clear);
    }

    /// Lets the adversary decide: a number below `n`.
    pub(super) fn pick(&mut self, n: usize) -> usize {
        self.adversary.pick(n)
    }

    /// What the latest GET has encountered.
    pub fn met(&self) -> &Met {
        &self.met
    }

    /// A view of the instant that the client has reached, also during a batch.
    pub fn watch(&self) -> Rc<Cell<Instant>> {
        self.now.clone()
    }

    /// Records from now on what each READ of a GET samples.
    pub fn tell(&mut self) {
        self.story = Some(Vec::new());
    }

    /// What the READs of the latest GET have sampled.
    pub fn story(&self) -> &[String] {
        self.story.as_deref().unwrap_or_default()
    }

    /// The instant that the client has reached.
    pub fn now(&self) -> Instant {
        self.now.get()
    }

    /// The last instant of what begins at `from`.
    fn latest(&self, from: Instant) -> Instant {
        let stores_max = self.aim.read_stores_max.unwrap_or(usize::MAX >> 1);
        let stores_max = self.hardware.read_stores_max.min(stores_max);
        Instant(self.history.end().0.min(from.0 + stores_max))
    }

    /// Lands a READ that was posted at `posted`. Returns the instant of its last sample.
    fn land(&mut self, window: Window, posted: Instant) -> Instant {
        let first = self.geometry.slot_word(window.first);
        let words = window.slots as usize * self.geometry.shape().words();
        let latest = self.latest(posted);
        let last = window.end() - 1;
        let what = || format!("slots {}..={last}", window.first.0);
        let completed = self.sample(what, first..first + words, posted, latest);
        self.look_for_what_it_met(window);
        completed
    }

    /// Samples these words, each unit at an instant of its own. Returns the last instant.
    fn sample(
        &mut self,
        what: impl Fn() -> String,
        words: Range<usize>,
        posted: Instant,
        latest: Instant,
    ) -> Instant {
        let unit_words = match self.hardware.unit {
            Unit::Line => LINE / WORD,
            Unit::Word => 1,
        };
        self.landing.clear();
        let mut sampled = Vec::new();
        let mut completed = posted;
        let mut at = words.start;
        while at < words.end {
            let next = ((at / unit_words + 1) * unit_words).min(words.end);
            self.history.distinct(at, next - at, posted, latest, &mut self.instants);
            let instants = &self.instants;
            let (history, geometry) = (self.history, self.geometry);
            let whole = |n: usize| is_whole(history, geometry, at..next, instants[n]);
            let instant = match instants[..] {
                [only] => only,
                _ => instants[self.adversary.pick_sample(instants.len(), whole)],
            };
            self.met.choice |= self.instants.len() > 1;
            completed = completed.max(instant);
            if self.story.is_some() {
                sampled.push(instant.0);
            }
            self.landing.extend((at..next).map(|word| self.history.word(word, instant)));
            at = next;
        }
        if let Some(story) = &mut self.story {
            let (what, unit) = (what(), self.hardware.unit);
            story.push(format!(
                "READ of {what}, posted at {}; each {unit:?} as it was at {sampled:?}",
                posted.0
            ));
        }
        completed
    }

    fn look_for_what_it_met(&mut self, window: Window) {
        let is_block = window.first.0 >= self.geometry.main_slots();
        self.met.blocks += u32::from(is_block);
        self.met.further += u32::from(window.first != self.geometry.window(self.aim.home).first);
        if self.aim.ghost == 0 {
            return;
        }
        let shape = self.geometry.shape();
        for image in self.landing.chunks_exact(shape.words()) {
            let Ok(view) = View::consistent(shape, image) else { continue };
            let header = view.header();
            self.met.ghosts += u32::from(header.ghost == self.aim.ghost);
            if is_block && !header.is_free() && header.stamp.is_multiple_of(2) {
                let home = self.geometry.hashed(&view.key()).home();
                self.met.block_reused |= home != self.aim.home;
            }
        }
    }
}

/// Whether no write of these words' slots is under way, by their stamps. Extents have none, and what stands before
/// the slots.
fn is_whole(history: &History, geometry: &Geometry, mut words: Range<usize>, at: Instant) -> bool {
    let slot_words = geometry.shape().words();
    let first = geometry.slot_word(SlotIx(0));
    let heap = geometry.heap();
    if words.start < first || (heap.offset..heap.offset + heap.bytes).contains(&((words.start * WORD) as u64))
    {
        return true;
    }
    words.all(|word| {
        let nth = (word - first) % slot_words;
        let is_odd = |shift: u32| history.word(word, at) >> shift & 1 == 1;
        match nth {
            0 => !is_odd(0),
            _ if nth >= LINE / WORD && nth % (LINE / WORD) == LINE / WORD - 1 => !is_odd(COPY_SHIFT),
            _ => true,
        }
    })
}

/// Memory as a client loads it, word by word.
struct Loading<'l, 'a, A> {
    sim: RefCell<&'l mut Sim<'a, A>>,
    latest: Instant,
}

impl<A: Adversary> Loading<'_, '_, A> {
    fn load(&self, word: usize) -> u64 {
        let mut sim = self.sim.borrow_mut();
        let Sim { history, geometry, adversary, now, met, instants, story, .. } = &mut **sim;
        let (from, to) = (now.get(), self.latest.max(now.get()));
        history.distinct(word, 1, from, to, instants);
        if let [_, _, ..] = instants[..] {
            let is_in_a_slot = word >= geometry.slot_word(SlotIx(0));
            let whole = |n: usize| is_in_a_slot && is_whole(history, geometry, word..word + 1, instants[n]);
            let instant = instants[adversary.pick_sample(instants.len(), whole)];
            met.choice = true;
            now.set(instant);
            story.iter_mut().for_each(|story| story.push(format!("word {word} as it was at {}", instant.0)));
        }
        history.word(word, now.get())
    }
}

impl<A: Adversary> Loadable for Loading<'_, '_, A> {
    type Words<'w>
        = LoadedWords<'w, Self>
    where
        Self: 'w;

    /// Whatever is not there is a bug: no history has damaged bytes.
    fn words_within(&self, first: usize, len: usize) -> Option<LoadedWords<'_, Self>> {
        if len > 1 {
            let mut sim = self.sim.borrow_mut();
            let main_end = sim.geometry.slot_word(SlotIx(sim.geometry.main_slots()));
            let is_primary = first == sim.geometry.home_word(sim.aim.home);
            sim.met.further += u32::from(!is_primary);
            sim.met.blocks += u32::from(first >= main_end);
        }
        Some(LoadedWords { memory: self, range: (first, len) })
    }

    fn control(&self) -> LoadedWords<'_, Self> {
        LoadedWords { memory: self, range: (STATE_WORD, CONTROL_WORDS) }
    }
}

/// Some words of [`Loading`] memory: the first, and how many.
struct LoadedWords<'w, M> {
    memory: &'w M,
    range: (usize, usize),
}

impl<M> Copy for LoadedWords<'_, M> {}
impl<M> Clone for LoadedWords<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: Adversary> Words for LoadedWords<'_, Loading<'_, '_, A>> {
    fn len(self) -> usize {
        self.range.1
    }

    fn load(self, word: usize) -> u64 {
        assert!(word < self.range.1, "word {word} of {}", self.range.1);
        self.memory.load(self.range.0 + word)
    }

    fn split(self, words: usize) -> Option<(Self, Self)> {
        let (first, len) = self.range;
        let others = len.checked_sub(words)?;
        let part = |range| LoadedWords { range, ..self };
        Some((part((first, words)), part((first + words, others))))
    }
}

impl<A: Adversary> Lines for LoadedWords<'_, Loading<'_, '_, A>> {}

impl<A: Adversary> Direct for Sim<'_, A> {
    fn is_direct(&self) -> bool {
        self.hardware.witness == Witness::Loads
    }

    fn get_directly(
        &mut self,
        key: Hashed<'_>,
        value: &mut impl Sink,
        reads: &mut ReadCounts,
    ) -> Option<bool> {
        // A glance without an answer leaves nothing behind, so it, the one of a batch, and the look that follows
        // them are tried each by itself.
        let geometry = self.geometry;
        let can_glance = self.is_direct() && geometry.can_glance(key.key());
        let way = if can_glance { self.adversary.pick(3) } else { 1 };
        self.look_by_loads(key, 1, |memory| match way {
            0 => direct::glance(memory, geometry, key, value),
            1 => direct::look(memory, geometry, key.key(), key.first(), value, reads),
            _ => {
                let expected = direct::expect(memory, geometry, key.key());
                direct::glance_expected(memory, geometry, key.key(), &expected, value)
            }
        })
    }

    /// The look begins, whether it has begun or not: a look at memory as it was before the GET would be older than any.
    fn get_unhidden(
        &mut self,
        key: &[u8],
        _expected: &BegunLook,
        value: &mut impl Sink,
        reads: &mut ReadCounts,
    ) -> Option<bool> {
        // A look, the owner's bit, another look.
        let geometry = self.geometry;
        self.look_by_loads(geometry.hashed(key), 3, |memory| {
            let expected = direct::expect(memory, geometry, key);
            direct::look_unhidden(memory, geometry, key, &expected, value, reads)
        })
    }
}

impl<'a, A: Adversary> Sim<'a, A> {
    /// Looks for a key by loads, which take as long as `reads` READs one after the other may.
    fn look_by_loads(
        &mut self,
        key: Hashed<'_>,
        reads: u32,
        look: impl FnOnce(&Loading<'_, 'a, A>) -> Option<bool>,
    ) -> Option<bool> {
        if !self.is_direct() {
            return None;
        }
        let from = self.mark(key.home());
        let latest = (0..reads).fold(from, |from, _| self.latest(from));
        let found = look(&Loading { latest, sim: RefCell::new(self) });
        let to = self.now.get();
        let pass = self.met.passes.last_mut().expect("begun above");
        (pass.to, pass.proof) = (to, (found == Some(false)).then_some(Proof::NoMove));
        found
    }
}

impl<A: Adversary> Fabric for Sim<'_, A> {
    type Landed<'l>
        = LandedWindow<'l>
    where
        Self: 'l;
    const EXACT: bool = false;
    type Mark = Instant;
    type Error = SimGetError;

    fn credits(&self) -> usize {
        8
    }

    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), SimGetError> {
        self.posted.extend(reads.iter().map(|&(token, window)| (token, window, self.now.get())));
        Ok(())
    }

    fn poll(&mut self, mut take: impl FnMut(ReadId, &mut LandedWindow<'_>)) -> Result<(), SimGetError> {
        if self.posted.is_empty() {
            return Ok(());
        }
        let one_in = self.hardware.error_one_in;
        if one_in > 0 && self.adversary.pick(one_in) == 0 {
            self.posted.clear();
            return Err(SimGetError::ReadFailed);
        }
        let which = self.adversary.pick(self.posted.len());
        let (token, window, posted) = self.posted.swap_remove(which);
        let completed = self.land(window, posted);
        self.now.set(self.now.get().max(completed));
        if let Some(pass) = self.met.passes.last_mut() {
            pass.to = self.now.get();
        }
        take(token, &mut LandedWindow::new(self.geometry, window, &self.landing));
        Ok(())
    }

    fn took_less(&mut self, mark: Instant, allowance: Duration) -> bool {
        let took_ns = self.history.time_ns(self.now.get()).saturating_sub(self.history.last_ns(mark));
        self.hardware.witness == Witness::Clock
            && u128::from(took_ns / self.hardware.client_ns) < allowance.as_nanos()
    }

    fn fetch(&mut self, stretches: &[Stretch], out: &mut impl Sink) -> Result<(), SimGetError> {
        let from = self.now.get();
        let latest = self.latest(from);
        for &Stretch { offset, len } in stretches {
            let (first, skip) = (offset as usize / WORD, offset as usize % WORD);
            let words = (skip + len).div_ceil(WORD);
            if self.is_direct() {
                let memory = Loading { latest, sim: RefCell::new(&mut *self) };
                let Some(loaded) = memory.words_within(first, words) else { continue };
                let bytes: Vec<u8> = (0..words).flat_map(|word| loaded.load(word).to_le_bytes()).collect();
                out.put(&bytes[skip..][..len]);
                continue;
            }
            let what = || format!("bytes {offset}+{len}");
            let completed = self.sample(what, first..first + words, from, latest);
            self.now.set(self.now.get().max(completed));
            let bytes: &[u8] = bytemuck::cast_slice(&self.landing);
            out.put(&bytes[skip..skip + len]);
        }
        Ok(())
    }

    fn is_by_counter(&self) -> bool {
        self.hardware.witness != Witness::Clock
    }

    fn mark(&mut self, _home: u64) -> Instant {
        let now = self.now.get();
        let begins = match self.passes {
            0 => now,
            n if n < self.hardware.passes_max => {
                // Between two passes the server may do nothing, or one store, or much while the
                // client sleeps.
                let next = Instant((now.0 + 1).min(self.history.end().0));
                let leaps = self.aim.leaps;
                let ahead = &leaps[leaps.partition_point(|leap| *leap <= next)..];
                match self.adversary.pick_pause(ahead.len().min(LEAPS_MAX)) {
                    0 => now,
                    1 => next,
                    n => {
                        self.met.slept = true;
                        ahead[n - 2].min(self.history.end())
                    }
                }
            }
            _ => self.history.end(),
        };
        self.now.set(begins);
        self.passes += 1;
        self.met.passes.push(Pass { from: begins, to: begins, proof: None });
        (self.met.further, self.met.blocks, self.met.ghosts) = (0, 0, 0);
        begins
    }

    fn proof(&mut self, home: u64, mark: Instant) -> Proof {
        let proof = match self.hardware.witness {
            Witness::Clock => {
                // The pass may have begun late in the first instant and ended early in the last.
                let took_ns = self.history.time_ns(self.now.get()).saturating_sub(self.history.last_ns(mark));
                Proof::by_clock(took_ns / self.hardware.client_ns, self.geometry.grace())
            }
            Witness::Counter | Witness::Loads => {
                let word = move_counter_word(home);
                Proof::by_counter(self.history.word(word, mark), self.history.word(word, self.now.get()))
            }
        };
        if let Some(pass) = self.met.passes.last_mut() {
            pass.proof = Some(proof);
        }
        proof
    }
}
