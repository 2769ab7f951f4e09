//! Drives one GET machine to its end.

use super::Reader;
use super::patience::RetryBudget;
use crate::fabric::Fabric;
use crate::get::Step;
use crate::layout::extent::Reference;
use crate::layout::geometry::Window;
use crate::outcome::{KeyLengthError, ReadError};

impl<F: Fabric> Reader<'_, F> {
    /// The whole algorithm, but for bringing a value that is not in its slot.
    #[inline(never)]
    pub(super) fn look_up(
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
