//! Drives one GET machine to its end.

use super::Reader;
use super::patience::RetryBudget;
use crate::fabric::Fabric;
use crate::get::{HintedLook, Landed, Step};
use crate::hints::Hints;
use crate::layout::extent::Reference;
use crate::layout::geometry::{SlotIx, Window};
use crate::layout::hash::First;
use crate::outcome::{KeyLengthError, ReadError};
use crate::sink::{AnySink, Sink};
use smallvec::SmallVec;

impl<F: Fabric> Reader<'_, F> {
    /// The hinted look. `None` if the hints name no slots, or the key is in none of them.
    #[inline]
    pub(super) fn look_where_hinted(
        &mut self,
        hints: &Hints,
        key: &[u8],
        value: &mut impl Sink,
    ) -> Result<Option<Looked<F::Mark>>, F::Error> {
        let key = self.geometry.hashed(key);
        let windows = self.entries.hinted(hints, self.geometry, key);
        if windows.is_empty() || windows.len() > self.fabric.credits() {
            return Ok(None);
        }
        let mut look = HintedLook::new(self.geometry, key);
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
        hints.correct_all(&wrong, key, ended == Some(Step::Found));
        let Some(step) = ended else { return Ok(None) };
        self.hinted.hits += u64::from(step == Step::Found);
        Ok(Some(match (look.reference(), mark) {
            (Some(reference), Some(mark)) => Looked::At(reference, mark),
            _ if step == Step::Found => Looked::Here,
            _ => Looked::Absent,
        }))
    }

    /// Counts the READs of a hinted look.
    pub(super) fn count_hinted(&mut self, slots: usize) {
        self.hinted.hinted += 1;
        self.hinted.reads += slots as u64;
        self.reads.reads += slots as u64;
        self.reads.bytes += (slots * self.geometry.shape().bytes()) as u64;
    }

    /// The whole algorithm, but for bringing a value that is not in its slot. Passes over extents of `others` (F2).
    #[inline(never)]
    pub(super) fn look_up(
        &mut self,
        key: &[u8],
        others: &[u64],
        value: &mut AnySink<'_>,
        patience: &mut RetryBudget,
    ) -> Result<Looked<F::Mark>, F::Error> {
        let mut get = self.entries.machine(self.geometry, key, self.fabric.is_by_counter()).past(others);
        let home = get.home();
        let mut mark = self.fabric.mark(home);
        let mut step = Step::Read(get.start());
        loop {
            step = match step {
                Step::Read(window) => {
                    self.reads.doorbells += 1;
                    self.count_read(window);
                    let hints = self.hints;
                    self.fabric.read(window, |landed| {
                        hints.inspect(|hints| hints.learn(window, landed, get.key()));
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
                    self.entries.learn(&get, true);
                    return Ok(get.reference().map_or(Looked::Here, |reference| Looked::At(reference, mark)));
                }
                Step::Absent => {
                    self.entries.learn(&get, false);
                    value.put_none();
                    return Ok(Looked::Absent);
                }
            };
        }
    }

    #[inline]
    pub(super) fn count_read(&mut self, window: Window) {
        self.reads.reads += 1;
        self.reads.bytes += self.geometry.window_bytes(window);
    }

    #[inline]
    pub(super) fn check_key(&mut self, key: &[u8]) -> Result<(), F::Error> {
        match self.length_of(key) {
            Ok(()) => Ok(()),
            Err(error) => self.fabric.check().and(Err(ReadError::from(error).into())),
        }
    }

    #[inline]
    pub(super) fn length_of(&self, key: &[u8]) -> Result<(), KeyLengthError> {
        let max = self.geometry.key_max();
        match self.geometry.may_hold(key) {
            true => Ok(()),
            false => Err(KeyLengthError { given: key.len(), max }),
        }
    }
}

/// What a look at a key ended in.
#[derive(Clone, Copy)]
pub(super) enum Looked<M> {
    Absent,
    /// The value has been copied out of its slot.
    Here,
    /// The value is there. The mark is of the pass.
    At(Reference, M),
}

/// Slots that hints named, and that do not hold the key: what they seem to hold.
pub(super) type WrongSlots = SmallVec<[(SlotIx, Option<First>); 2]>;
