//! Switches for protocol rules, to show that a test notices when the rule is broken.
//!
//! Without the feature `faults` every question below is answered `false` at compile time and costs
//! nothing. With it, a test breaks a rule on its own thread with `Broken::rule`; dropping the guard
//! mends it.

/// A rule of the slot or movement protocol (`docs/PROTOCOL.md` explains each).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rule {
    /// The writer makes every stamp odd before it stores a byte.
    OddPass,
    /// The reader checks the stamps.
    StampCheck,
    /// The reader checks the CRC.
    CrcCheck,
    /// The CRC covers the slot's number.
    CrcBindsSlot,
    /// A move writes the copy before it takes the original away.
    CopyBeforeErase,
    /// A move leaves a ghost in the slot it empties.
    Ghost,
    /// A ghost stays for the grace time.
    GhostGrace,
    /// A ghost stays whatever is written into its slot meanwhile.
    GhostStays,
    /// The home's filter names a displaced key before its displaced copy is live.
    FilterBeforeCopy,
    /// The home's filter keeps naming a displaced key for the grace time after it left.
    FilterGrace,
    /// The client looks again when its GET took longer than the grace time.
    ClientClock,
    /// The client looks again when it saw a new ghost of its key.
    ClientGhost,
    /// A chain block is unlinked no earlier than the grace time after its last key left, and not reused within the grace time.
    BlockGrace,
    /// The shm reader fences its loads before it looks at the stamp again.
    ReaderFence,
    /// The writer fences the odd pass before it stores the bytes.
    WriterFence,
    /// The counter of begun moves goes up before the original is overwritten.
    CountBeforeErase,
    /// The shm reader compares the counter of begun moves before it reports a miss.
    MoveCounter,
    /// A slot with a ghost does not give up its occupant.
    OneGhost,
    /// An unlinked block keeps its own link until it is used again.
    BlockLink,
    /// The counter of begun moves goes up between a block's unlinking and its next use.
    BlockCount,
    /// A server that takes a region over waits for twice the grace time before it changes anything.
    TakeoverGrace,
    /// Every counter of begun moves goes up when a region is taken over.
    TakeoverCount,
    /// The shm reader fences the first stamp before it loads the words.
    StampFence,
    /// The writer fences the bytes before it stores the even stamps.
    EvenFence,
    /// A path's slots are locked before it is walked.
    SlotLock,
    /// Stripes are locked in increasing order.
    LockOrder,
    /// A path found without locks is checked again under them.
    PathCheck,
    /// Traces stay for twice the grace time, because the client's clock may run at half the rate of the server's.
    GraceTwice,
    /// Under the locks of what is to make room for a key, a path or a chain, that key is looked for again.
    LookAgain,
    /// Who will sleep fences its announcement before it looks a last time; who stored fences that before it looks
    /// whether the other sleeps.
    BellFence,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 30] = {
        use Rule::*;
        [
            OddPass,
            StampCheck,
            CrcCheck,
            CrcBindsSlot,
            CopyBeforeErase,
            Ghost,
            GhostGrace,
            GhostStays,
            FilterBeforeCopy,
            FilterGrace,
            ClientClock,
            ClientGhost,
            BlockGrace,
            ReaderFence,
            WriterFence,
            CountBeforeErase,
            MoveCounter,
            OneGhost,
            BlockLink,
            BlockCount,
            TakeoverGrace,
            TakeoverCount,
            StampFence,
            EvenFence,
            SlotLock,
            LockOrder,
            PathCheck,
            GraceTwice,
            LookAgain,
            BellFence,
        ]
    };
}

#[cfg(feature = "faults")]
std::thread_local! {
    static BROKEN: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Is `rule` switched off on this thread? Always `false` without the feature `faults`.
#[inline(always)]
pub(crate) fn broken(rule: Rule) -> bool {
    #[cfg(feature = "faults")]
    return BROKEN.get() & (1 << rule as u32) != 0;
    #[cfg(not(feature = "faults"))]
    {
        let _ = rule;
        false
    }
}

/// The rules that are broken on this thread, for [`break_all`] on another.
#[cfg(feature = "sim")]
pub(crate) fn all_broken() -> u32 {
    #[cfg(feature = "faults")]
    return BROKEN.get();
    #[cfg(not(feature = "faults"))]
    0
}

/// Breaks these rules on this thread for good.
#[cfg(feature = "sim")]
pub(crate) fn break_all(rules: u32) {
    #[cfg(feature = "faults")]
    BROKEN.set(rules);
    #[cfg(not(feature = "faults"))]
    let _ = rules;
}

/// While this lives, rules are broken on the thread that made it.
#[cfg(feature = "faults")]
#[derive(Debug)]
pub struct Broken(u32);

#[cfg(feature = "faults")]
impl Broken {
    /// Breaks `rule`.
    pub fn rule(rule: Rule) -> Broken {
        let newly = !BROKEN.get() & (1 << rule as u32);
        BROKEN.set(BROKEN.get() | newly);
        Broken(newly)
    }
}

#[cfg(feature = "faults")]
impl Drop for Broken {
    fn drop(&mut self) {
        BROKEN.set(BROKEN.get() & !self.0);
    }
}
