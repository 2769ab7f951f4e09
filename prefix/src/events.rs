//! What engines publish of their blocks: stored, removed, cleared.

use crate::digests::Digests;
use crate::error::PrefixError;
use crate::holders::{Holder, HolderOptions};
use crate::placement::PlacementIndex;

/// A change of an engine's blocks, as vLLM (`BlockStored`, `BlockRemoved`, `AllBlocksCleared`), SGLang and Dynamo
/// publish them. Whoever hears them decodes them: numbers of 64 bits are digests of 8 bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum KvEvent<'a> {
    /// Blocks were stored. The block before them, which events also name, plays no part: a digest stands for a block
    /// with all those before it. So it may be unknown, or be told later.
    Stored {
        /// Which.
        digests: Digests<'a>,
    },
    /// Blocks were removed.
    Removed {
        /// Which.
        digests: Digests<'a>,
    },
    /// All blocks of the engine are gone.
    Cleared,
}

/// What came of a batch of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventOutcome {
    /// Blocks that the holder did not have before.
    pub added: usize,
    /// Blocks that it had.
    pub removed: usize,
    /// It has been heard before, or comes after a later one: nothing was done.
    pub is_late: bool,
    /// Batches before this one that were not heard. What was stored in them is not found. What was removed in them
    /// is: have the publisher send them again, or drop the holder ([`EventStream::clear`]). Lookups do not jump over a
    /// holder's blocks from then on, until it is cleared.
    pub missed: u64,
}

/// The events of one engine, in the order in which it numbers its batches.
///
/// Blocks come without their place in a prompt, so the table is one with an entry for each
/// ([`PlacementTable::single`](crate::PlacementTable::single)).
#[derive(Clone, Debug)]
pub struct EventStream {
    holder: Holder,
    /// How it is registered when it is cleared.
    options: HolderOptions,
    /// The number of the next batch. `None` before the first.
    next: Option<u64>,
}

impl EventStream {
    /// Of this holder. The first batch may have any number.
    ///
    /// # Errors
    /// [`PrefixError::Grouped`] for a table whose blocks stand in groups.
    pub fn new(index: &PlacementIndex, holder: Holder) -> Result<EventStream, PrefixError> {
        if index.is_grouped() {
            return Err(PrefixError::Grouped);
        }
        let options = holder.asked;
        Ok(EventStream { holder, options, next: None })
    }

    /// The holder. It is another one, with the same name, after [`KvEvent::Cleared`].
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Takes a batch of events in. A batch with a number that was heard, or a lower one, is left out. After an
    /// error the same batch may be taken in again. Costs what [`PlacementIndex::add`] and
    /// [`PlacementIndex::remove`] cost, for each event.
    ///
    /// # Errors
    /// As these. [`PrefixError::HolderGone`] when somebody has dropped the holder: [`EventStream::clear`] makes
    /// another one.
    pub fn take(
        &mut self,
        index: &mut PlacementIndex,
        number: u64,
        events: &[KvEvent<'_>],
    ) -> Result<EventOutcome, PrefixError> {
        let next = self.next.unwrap_or(number);
        if number < next {
            return Ok(EventOutcome { is_late: true, ..EventOutcome::default() });
        }
        let mut outcome = EventOutcome { missed: number - next, ..EventOutcome::default() };
        if outcome.missed > 0 {
            index.has_missed(&self.holder)?;
        }
        for event in events {
            match event {
                KvEvent::Stored { digests } => outcome.added += index.add(&self.holder, digests, 0)?,
                KvEvent::Removed { digests } => outcome.removed += index.remove(&self.holder, digests, 0)?,
                KvEvent::Cleared => self.clear(index)?,
            }
        }
        self.next = Some(number.saturating_add(1));
        Ok(outcome)
    }

    /// Drops the holder, and registers another one with its name: it has no blocks. Batches go on where they were:
    /// for an engine that begins again with their numbers, there is [`EventStream::restarted`].
    ///
    /// # Errors
    /// As [`PlacementIndex::drop_holder`] and [`PlacementIndex::holder`].
    pub fn clear(&mut self, index: &mut PlacementIndex) -> Result<(), PrefixError> {
        index.drop_holder(self.holder.name())?;
        self.holder = index.holder_with(self.holder.name(), self.options)?;
        Ok(())
    }

    /// The engine has been started again: it has no blocks, and the next batch may have any number, as with a new
    /// stream. What it published before must not be taken in afterwards: the numbers of its new life would be late.
    ///
    /// # Errors
    /// As [`EventStream::clear`]. It may be repeated.
    pub fn restarted(&mut self, index: &mut PlacementIndex) -> Result<(), PrefixError> {
        self.clear(index)?;
        self.next = None;
        Ok(())
    }
}
