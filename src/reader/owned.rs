//! GETs in tables whose entries may have owners: is what was found hidden? (O2)
//!
//! ```text
//! look ── the owner's bit ──  clear, and none was cleared since before the look   -> Found
//!                             otherwise another look: the same entry?  clear      -> Found
//!                                                                      set        -> Absent
//!                                                     another entry?              -> from the beginning
//! ```

use super::Reader;
use super::patience::RetryBudget;
use crate::fabric::{Fabric, Proof, Stretch};
use crate::faults::{Rule, broken, kept};
use crate::get::Retry;
use crate::hints::Hints;
use crate::layout::WORD;
use crate::layout::extent::Reference;
use crate::layout::life::Life;
use crate::layout::owners;
use crate::sink::{BesideLife, LifeSink, Sink};

impl<F: Fabric> Reader<'_, F> {
    /// A GET of a key that cannot be looked for plainly: nothing may be hidden, or no table holds such a key.
    #[cold]
    #[inline(never)]
    pub(super) fn get_unhidden(
        &mut self,
        key: &[u8],
        hints: Option<&Hints>,
        value: &mut impl Sink,
    ) -> Result<Option<Option<Reference>>, F::Error> {
        self.check_key(key)?;
        let hashed = self.geometry.hashed(key);
        let mut patience = RetryBudget::default();
        let found = loop {
            let mark = self.fabric.mark(hashed.home());
            let mut entry = BesideLife::new(value);
            let direct = match hints {
                None => self.fabric.get_directly(hashed, &mut entry, &mut self.reads),
                Some(_) => None,
            };
            let found = match direct {
                Some(is_there) => {
                    self.reads.doorbells += 1;
                    self.count_read(self.geometry.primary(hashed));
                    is_there.then_some(None)
                }
                None => self.look_and_bring(key, hints, &mut entry, &mut patience)?,
            };
            let life = entry.life().filter(|life| found.is_some() && life.owner != 0);
            let Some(life) = life else { break found };
            match self.is_visible(key, &life, mark, &mut patience)? {
                Some(true) => break found,
                Some(false) => {
                    value.put_none();
                    break None;
                }
                None => {
                    self.stats.count(Retry::Replaced);
                    let now_ns = self.clock.now_ns();
                    patience.again(Retry::Replaced, now_ns, &self.limits)?.take(&self.clock);
                }
            }
        };
        self.stats.answered(found.is_some());
        Ok(found)
    }

    /// Whether an entry is there for readers that a look since `mark` has found. `None` if it was there, and that is all
    /// that is known.
    fn is_visible(
        &mut self,
        key: &[u8],
        life: &Life,
        mark: F::Mark,
        patience: &mut RetryBudget,
    ) -> Result<Option<bool>, F::Error> {
        if broken(Rule::OwnerMask) {
            return Ok(Some(true));
        }
        let is_hidden = self.is_hidden(life.owner)?;
        let home = self.geometry.hashed(key).home();
        // No bit was cleared that was set when the entry was found.
        let is_so_since = || matches!(self.fabric.proof(home, mark), Proof::NoMove | Proof::InGrace);
        if !is_hidden && kept(Rule::OwnerProof, is_so_since) {
            return Ok(Some(true));
        }
        if is_hidden && broken(Rule::OwnerAgain) {
            return Ok(Some(false));
        }
        let mut again = LifeSink::default();
        Ok(match self.look_and_bring(key, None, &mut again, patience)? {
            None => Some(false),
            // Then it was there when its owner's bit was read.
            _ if again.life().is_some_and(|now| now.number == life.number) => Some(!is_hidden),
            Some(_) => None,
        })
    }

    /// READs an owner's bit.
    fn is_hidden(&mut self, owner: u16) -> Result<bool, F::Error> {
        let (offset, mut bytes) = (self.geometry.owner_word(owner) * WORD, Vec::with_capacity(WORD));
        self.fetch(&[Stretch { offset: offset as u64, len: WORD }], &mut bytes)?;
        let word = bytes.try_into().map_or(0, u64::from_le_bytes);
        Ok(word & owners::bit(owner) != 0)
    }
}
