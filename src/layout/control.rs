//! The control page: words that change while readers read. Each word is atomic by itself.
//!
//! ```text
//! page + 0      state word             incarnation << 8 | phase
//! page + 64*k   counter of begun moves, k = 1..=32
//! page + 2112   overflow blocks ever used; memory beyond them was never written
//! page + 2176   directory of a table that grows: how many bits of the directory hash it uses
//! page + 2240   incarnations: how often memory has become a segment
//! page + 2304   no extent has this number, or a higher one (X1)
//! page + 2368   no entry has this number, or a higher one (X1); of a table whose entries have a life
//! page + 2376   when the table was made: by the host's clock, in nanoseconds (V5); which start of the machine it counts from
//! page + 2392   the same in nanoseconds since 1970
//! page + 2432   incarnation << 8 | what became of the last snapshot of that server, which has stopped; nobody else's
//! ```
//!
//! Each word has its own line, but for the three of entries' times, so a reader's line is invalidated only when its word changes.
//!
//! **Counters of begun moves.** A move of a key whose home is `h` adds 1 to counter `h mod 32` in
//! its middle: the copy is live (M1), and the key's old slot is about to be overwritten (M4). A shm
//! reader loads its key's counter before and after each pass. If both are equal, a miss is right
//! (G6). This needs no clock. Readers over a network use the grace time instead.

use super::{LINE, PAGE, WORD};

/// Byte offset of the control page in a region.
pub const CONTROL_OFFSET: usize = PAGE;
/// The number of counters of begun moves.
pub const MOVE_COUNTERS: u64 = if cfg!(loom) { 2 } else { 32 };
/// The number of the region's word that holds the state.
pub const STATE_WORD: usize = CONTROL_OFFSET / WORD;

/// Words of the control page.
pub(crate) const CONTROL_WORDS: usize = PAGE / WORD;

/// The line of the control page that counts begun moves of keys whose home is `home`.
#[inline(always)]
pub(crate) fn move_counter_line(home: u64) -> usize {
    1 + (home % MOVE_COUNTERS) as usize
}

/// The number of the region's word that does.
#[inline]
pub fn move_counter_word(home: u64) -> usize {
    STATE_WORD + move_counter_line(home) * (LINE / WORD)
}

/// The number of the region's word that counts the overflow blocks ever used.
pub const BLOCKS_WORD: usize = STATE_WORD + (1 + MOVE_COUNTERS as usize) * (LINE / WORD);

/// The number of the region's word that says how many bits of the directory hash the directory uses.
pub const DIRECTORY_WORD: usize = STATE_WORD + DIRECTORY_LINE * (LINE / WORD);
/// The line of the control page in which that is.
pub(crate) const DIRECTORY_LINE: usize = 2 + MOVE_COUNTERS as usize;
/// The number of the region's word that counts uses of memory as segments.
pub const INCARNATIONS_WORD: usize = DIRECTORY_WORD + LINE / WORD;
/// The number of the region's word that no extent's number has reached (X1).
pub const NUMBERS_WORD: usize = INCARNATIONS_WORD + LINE / WORD;

/// The number of the region's word that no entry's number has reached (X1).
pub const ENTRIES_WORD: usize = NUMBERS_WORD + LINE / WORD;
/// The number of the region's word that says when the table was made, by the host's clock (V5); the next word says
/// from which start of the machine that counts.
pub const EPOCH_WORD: usize = ENTRIES_WORD + 1;
/// The number of the region's word that says when the table was made, in nanoseconds since 1970.
pub const MADE_WORD: usize = EPOCH_WORD + 2;

/// The number of the region's word that says what became of the last snapshot of a server that has stopped. (The pages of the
/// model checker are shorter.)
pub const SAVED_WORD: usize = ENTRIES_WORD + if cfg!(loom) { 4 } else { LINE / WORD };

const _: () = assert!(MADE_WORD < SAVED_WORD && (SAVED_WORD + 1) * WORD <= CONTROL_OFFSET + PAGE);

/// What became of the snapshot that a server makes when it stops. `oneread stop` reads it in the region, which outlives
/// the server's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastSnapshot {
    /// The file has every change.
    Made,
    /// It was not made.
    Failed,
}

impl LastSnapshot {
    /// The word as the server with this incarnation stores it.
    pub fn to_word(self, incarnation: u64) -> u64 {
        let what = match self {
            LastSnapshot::Made => 1,
            LastSnapshot::Failed => 2,
        };
        incarnation << 8 | what
    }

    /// What the server with this incarnation has stored. `None`: nothing.
    pub fn from_word(word: u64, incarnation: u64) -> Option<LastSnapshot> {
        match (word >> 8 == incarnation, word as u8) {
            (true, 1) => Some(LastSnapshot::Made),
            (true, 2) => Some(LastSnapshot::Failed),
            _ => None,
        }
    }
}

/// What the state word says about the table. GETs on shm look at it before they begin, and refuse
/// [`Phase::Retired`] only. GETs over a network do not look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Being made: some main slots were never written. No client has the region yet. If its server
    /// dies now, no other server takes the region over.
    Starting,
    /// In service, or left behind by a server that is gone, or being mended by the next one.
    /// Clients read in all three cases.
    Serving,
    /// Given up on purpose. Clients must connect again.
    Retired,
    /// Left by a server that stopped, with a handover behind the table (T6). Clients read.
    Stopped,
}

/// [`Phase::Serving`] in a state word.
const SERVING: u8 = 1;

/// The state word: a phase and the number of the server process that set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The number of servers that have opened this region. It never repeats.
    pub incarnation: u64,
    /// What that server says about the table.
    pub phase: Phase,
}

impl State {
    /// The word as stored.
    pub fn to_word(self) -> u64 {
        let phase = match self.phase {
            Phase::Starting => 0,
            Phase::Serving => u64::from(SERVING),
            Phase::Retired => 2,
            Phase::Stopped => 3,
        };
        self.incarnation << 8 | phase
    }

    /// Whether a state word says that the table is in service.
    #[inline(always)]
    pub(crate) fn is_serving(word: u64) -> bool {
        word as u8 == SERVING
    }

    /// The state in a word. An unknown phase counts as retired, which sends clients back to the
    /// server.
    pub fn from_word(word: u64) -> State {
        let phase = match word as u8 {
            0 => Phase::Starting,
            SERVING => Phase::Serving,
            3 => Phase::Stopped,
            _ => Phase::Retired,
        };
        State { incarnation: word >> 8, phase }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These positions are part of the format: a region outlives the server that wrote it.
    #[test]
    fn the_control_page_has_fixed_words() {
        assert_eq!(CONTROL_OFFSET, 4096);
        assert_eq!(STATE_WORD, 512);
        let counters: Vec<usize> = (0..MOVE_COUNTERS).map(move_counter_word).collect();
        assert_eq!(counters, (520..776).step_by(8).collect::<Vec<_>>(), "one to a line, behind the state's");
        assert_eq!(move_counter_word(MOVE_COUNTERS * 7 + 3), counters[3], "homes share counters");
        assert_eq!([BLOCKS_WORD, DIRECTORY_WORD, INCARNATIONS_WORD, NUMBERS_WORD], [776, 784, 792, 800]);
        assert_eq!([ENTRIES_WORD, EPOCH_WORD, MADE_WORD, SAVED_WORD], [808, 809, 811, 816]);
    }

    /// What one server has stored is not taken for another one's.
    #[test]
    fn last_snapshots_in_a_word() {
        for (what, low) in [(LastSnapshot::Made, 1), (LastSnapshot::Failed, 2)] {
            assert_eq!(what.to_word(7), 0x700 | low);
            assert_eq!(LastSnapshot::from_word(0x700 | low, 7), Some(what));
            assert_eq!(LastSnapshot::from_word(0x700 | low, 8), None);
        }
        assert_eq!([0, 0x700, 0x703].map(|word| LastSnapshot::from_word(word, 7)), [None; 3]);
    }

    #[test]
    fn states_in_a_word() {
        let phases = [Phase::Starting, Phase::Serving, Phase::Retired, Phase::Stopped];
        for (phase, low) in phases.into_iter().zip(0..) {
            let state = State { incarnation: 0x1234_5678_9abc, phase };
            assert_eq!(state.to_word(), 0x12_3456_789a_bc00 | low);
            assert_eq!(State::from_word(state.to_word()), state);
            assert_eq!(State::is_serving(state.to_word()), phase == Phase::Serving, "{phase:?}");
        }
        assert_eq!(State::from_word(3 << 8 | 0x77), State { incarnation: 3, phase: Phase::Retired });
    }
}
