//! Clients of a world: their GETs run against its past, alone and in batches, and are judged.

use super::choices::Adversary;
use super::decided::{By, Decided};
use super::history::{History, Instant};
use super::keys::{KeyNumber, key};
use super::nic::{Aim, Hardware, Met, Sim, SimGetError};
use super::oracle::{GetAnswer, Violation};
use super::past::{Past, PlannedGet, PlannedGets};
use super::scene::LIMITS;
use super::world::{World, answer};
use crate::base::clock::Clock;
use crate::get::Proof;
use crate::hints::{Hints, slots_of};
use crate::layout::chain::CHAIN_MAX;
use crate::layout::geometry::SlotIx;
use crate::layout::slot::{Header, View};
use crate::placement::families;
use crate::reader::Reader;
use std::cell::Cell;
use std::collections::HashMap;

impl World {
    /// Whether a slot is half written at this instant, in any window that a GET of the key then
    /// READs.
    pub fn is_half_written(&self, history: &History, number: KeyNumber, at: Instant) -> bool {
        let (geometry, key) = (self.geometry(), key(number));
        let key = geometry.hashed(&key);
        let header = |slot: SlotIx| {
            let word = geometry.slot_word(slot);
            Header::from_words([history.word(word, at), history.word(word + 1, at)])
        };
        let primary = geometry.primary(key);
        let is_displaced = families::may_be_displaced(geometry, key, header(primary.first).aux);
        let further = (1..=CHAIN_MAX).scan(primary, |last, read| {
            *last = families::after(geometry, key, read, header(last.first).aux)?;
            Some(*last)
        });
        let windows = std::iter::once(primary).chain(further.take_while(|_| is_displaced));
        windows.flat_map(|window| window.iter()).any(|slot| !header(slot).stamp.is_multiple_of(2))
    }

    /// The stores into the key's windows during a wrong GET, then what its READs sampled.
    fn story(&self, history: &History, violation: &Violation, reads: &[String]) -> String {
        let geometry = self.geometry();
        let inspector = self.inspector();
        let (windows, _) = inspector.windows(&key(violation.key));
        let mut story = String::from("\nstores into the windows that the key has at the end:");
        for slot in windows.iter().flat_map(|window| window.iter()) {
            let first = geometry.slot_word(slot);
            for (at, word, value) in
                history.stores(first..first + geometry.shape().words(), violation.from, violation.to)
            {
                story += &format!("\n  {}: slot {} word {} = {value:#018x}", at.0, slot.0, word - first);
            }
        }
        reads.iter().fold(story, |story, read| story + "\n" + read)
    }

    /// Runs a client's GETs one after the other. Returns how many had an answer, and what decided
    /// them. With `tell`, a violation comes with its story.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn client(
        &self,
        past: &Past,
        hardware: Hardware,
        adversary: &mut impl Adversary,
        asks: &mut PlannedGets<'_>,
        tell: bool,
    ) -> Result<Decided, Box<Violation>> {
        let mut decided = Decided::default();
        let mut seen: HashMap<KeyNumber, usize> = HashMap::new();
        let geometry = self.geometry();
        let mut fabric = Sim::new(&past.history, geometry, hardware, adversary, Instant(0));
        if tell {
            fabric.tell();
        }
        let hints = Hints::new(geometry, usize::MAX).filter(|_| hardware.hints);
        let mut reader = Reader::new(fabric, geometry, Clock::manual(), LIMITS);
        if let Some(hints) = &hints {
            reader = reader.with_hints(hints);
        }
        while let Some(PlannedGet { key: number, from, read_stores_max }) = asks(reader.fabric().now()) {
            let key = key(number);
            let key = geometry.hashed(&key);
            let leaps = past.leaps(number);
            let aim = Aim { home: key.home(), ghost: key.ghost(), read_stores_max, leaps };
            reader.fabric_mut().begin(from, aim);
            if let Some(hints) = &hints {
                self.mislead(&past.history, hints, reader.fabric_mut(), number);
            }
            let (from, before) = (reader.fabric().now(), reader.stats().retries_torn);
            let hinted = reader.hint_counts();
            let answer = answer(&mut reader, number);
            if hardware.error_one_in > 0 && matches!(answer, Err(SimGetError::ReadFailed)) {
                continue;
            }
            let newest = seen.entry(number).or_default();
            let judged = self.judge(number, &answer, (from, reader.fabric().now()), *newest);
            *newest = judged.map_err(|mut violation| {
                if tell {
                    violation.story = self.story(&past.history, &violation, reader.fabric().story());
                }
                violation
            })?;
            let during = (from, reader.fabric().now());
            let was_torn = reader.stats().retries_torn > before;
            decided.gets += 1;
            self.count(&mut decided, number, &answer, during, was_torn, reader.fabric().met());
            let hits = reader.hint_counts().hits > hinted.hits;
            decided.count(By::Hint, hits);
            decided.count(By::WrongHint, !hits && reader.hint_counts().hinted > hinted.hinted);
        }
        Ok(decided)
    }

    /// Lets the adversary decide what hints say of a key: what they say anyway, one of its slots,
    /// or two; in a table that grows one, of any segment. Slots that stay as they are, and never hold
    /// the key, are all the same to a GET: one of them stands for all.
    fn mislead(
        &self,
        history: &History,
        hints: &Hints,
        sim: &mut Sim<'_, impl Adversary>,
        number: KeyNumber,
    ) {
        let (geometry, name, now) = (self.geometry(), key(number), sim.now());
        let hashed = geometry.hashed(&name);
        let mut slots: Vec<SlotIx> = Vec::new();
        let (mut others, mut instants) = (None, Vec::new());
        for slot in slots_of(geometry, hashed) {
            let (first, words) = (geometry.slot_word(slot), geometry.shape().words());
            history.distinct(first, words, now, history.end(), &mut instants);
            let image: Vec<u64> = (first..first + words).map(|word| history.word(word, now)).collect();
            let holds = View::consistent(geometry.shape(), &image).is_ok_and(|view| view.holds(&name));
            if slots.contains(&slot) {
            } else if instants.len() > 1 || holds {
                slots.push(slot);
            } else {
                others = Some(slot);
            }
        }
        slots.extend(others);
        let pairs = (0..slots.len()).flat_map(|one| (one + 1..slots.len()).map(move |other| (one, other)));
        let mut named: Vec<Vec<SlotIx>> = slots.iter().map(|slot| vec![*slot]).collect();
        // With pairs of all segments' slots, small cases would have too many schedules.
        if !geometry.grows() {
            named.extend(pairs.map(|(one, other)| vec![slots[one], slots[other]]));
        }
        if let Some(nth) = sim.pick(named.len() + 1).checked_sub(1) {
            hints.pretend(geometry, hashed, &named[nth]);
        }
    }

    /// Counts what decided a GET.
    fn count(
        &self,
        decided: &mut Decided,
        number: KeyNumber,
        answer: &GetAnswer,
        (from, to): (Instant, Instant),
        was_torn: bool,
        met: &Met,
    ) {
        let found = matches!(answer, Ok(Some(_)));
        // Earlier passes that the GET did not accept: whether accepting one would have been wrong.
        let earlier = &met.passes[..met.passes.len().saturating_sub(1)];
        let saved = |proof| {
            earlier.iter().any(|pass| pass.proof == Some(proof) && self.stays(number, (pass.from, pass.to)))
        };
        let last = met.passes.last().and_then(|pass| pass.proof);
        let taken_over = self.killed().is_some_and(|(killed, until)| from < until && killed < to);
        for (what, is_so) in [
            (By::Choice, met.choice),
            (By::Torn, was_torn),
            (By::NewGhost, saved(Proof::InGrace)),
            (By::Late, saved(Proof::Late)),
            (By::Counter, saved(Proof::Moved)),
            (By::OldGhost, !found && last == Some(Proof::InGrace) && met.ghosts > 0),
            (By::Filter, !found && met.further > 0),
            (By::DisplacedHit, found && met.further > 0),
            (By::BlockHit, found && met.blocks > 0),
            (By::BlockReused, met.block_reused),
            (By::Takeover, taken_over),
            (By::Slept, met.slept),
        ] {
            decided.count(what, is_so);
        }
    }

    /// Runs a batch of GETs in one [`Reader::get_many`]. Returns how many had an answer. Each
    /// answer is judged over its own time, and by what the client had seen of the key before.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn batch(
        &self,
        past: &Past,
        hardware: Hardware,
        adversary: &mut impl Adversary,
        start: Instant,
        numbers: &[KeyNumber],
    ) -> Result<Decided, Box<Violation>> {
        /// A key that notes when it was last read before its answer. That is when its GET begins.
        struct Wanted<'w> {
            bytes: Vec<u8>,
            began: Cell<(Instant, usize)>,
            now: &'w Cell<Instant>,
            answers: &'w Cell<usize>,
        }
        impl AsRef<[u8]> for Wanted<'_> {
            fn as_ref(&self) -> &[u8] {
                self.began.set((self.now.get(), self.answers.get()));
                &self.bytes
            }
        }
        let geometry = self.geometry();
        let fabric = Sim::new(&past.history, geometry, hardware, adversary, start);
        let now = fabric.watch();
        let hints = Hints::new(geometry, usize::MAX).filter(|_| hardware.hints);
        let mut reader = Reader::new(fabric, geometry, Clock::manual(), LIMITS);
        if let Some(hints) = &hints {
            let sim = reader.fabric_mut();
            numbers.iter().for_each(|&number| self.mislead(&past.history, hints, sim, number));
            reader = reader.with_hints(hints);
        }
        let answers = Cell::new(0);
        let wanted = |&n: &KeyNumber| {
            let began = Cell::new((start, 0));
            Wanted { bytes: key(n), began, now: &now, answers: &answers }
        };
        let wanted: Vec<_> = numbers.iter().map(wanted).collect();
        // The key, its answer, when the GET began and how many answers there were by then, and when
        // the GET ended.
        let mut answered: Vec<(usize, GetAnswer, (Instant, usize), Instant)> = Vec::new();
        let ended = reader.get_many(&wanted, |n, value| {
            answered.push((n, Ok(value.map(<[u8]>::to_vec)), wanted[n].began.get(), now.get()));
            answers.set(answers.get() + 1);
        });
        let failed = hardware.error_one_in > 0 && matches!(ended, Err(SimGetError::ReadFailed));
        if let (Err(error), false) = (ended, failed) {
            let open = (0..numbers.len()).find(|n| answered.iter().all(|(other, ..)| other != n));
            let number = numbers[open.unwrap_or(0)];
            self.judge(number, &Err(error), (start, now.get()), 0)?;
        }
        let mut decided = Decided::default();
        let mut seen: Vec<(KeyNumber, usize)> = Vec::new();
        for (n, answer, (from, before), to) in answered {
            let known = seen[..before].iter().filter(|(number, _)| *number == numbers[n]);
            let newest = known.map(|(_, version)| *version).max().unwrap_or(0);
            seen.push((numbers[n], self.judge(numbers[n], &answer, (from, to), newest)?));
            decided.gets += 1;
        }
        let choice = reader.fabric().met().choice;
        (0..decided.gets).for_each(|_| decided.count(By::Choice, choice));
        let hinted = reader.hint_counts();
        (0..hinted.hits).for_each(|_| decided.count(By::Hint, true));
        Ok(decided)
    }
}
