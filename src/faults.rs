//! Switches that break protocol rules, to show that a test notices.
//!
//! Without the feature `faults`, every check below is `false` at compile time and costs nothing.
//! With it, a test breaks a rule on its own thread with `Broken::rule`, or shortens its wait with
//! `Broken::wait`. Dropping the guard restores the rule.

/// A rule of `docs/PROTOCOL.md`, or a part of one. Each names the rule's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rule {
    /// F1: a digest has 128 bits. With fewer, many are equal.
    WideDigest,
    /// F1: a reader that finds a key's digest compares the whole key.
    WholeKeyRead,
    /// F1: a server that finds a key's digest compares the whole key.
    WholeKeyHeld,
    /// F2: a GET that has found another key with the same digest goes on without it.
    OthersPassed,
    /// W1: the writer makes every stamp odd before it stores a byte.
    OddPass,
    /// S1: the reader checks the stamps.
    StampCheck,
    /// S2: the reader checks the CRC.
    CrcCheck,
    /// S2: the CRC covers the slot's number.
    CrcBindsSlot,
    /// M1: a move writes the copy before it overwrites the original.
    CopyBeforeErase,
    /// M2: a move leaves a ghost in the slot that it empties.
    Ghost,
    /// M2: a ghost stays for twice the grace time.
    GhostGrace,
    /// M2: a ghost stays, whatever is written into its slot meanwhile.
    GhostStays,
    /// M5: the home's filter names a displaced key before its displaced copy is live.
    FilterBeforeCopy,
    /// M5: the home's filter names a displaced key until twice the grace time after the key left.
    FilterGrace,
    /// G4, G7: the client looks again when its pass took the grace time or longer.
    ClientClock,
    /// G5: the client looks again when it saw a new ghost of its key.
    ClientGhost,
    /// G5: the client tells a new ghost from an old one by slot and stamp.
    GhostStamp,
    /// B2: a chain block is unlinked no earlier than twice the grace time after its last key left.
    BlockGrace,
    /// B2: a chain block with a ghost in it is not unlinked.
    BlockGhost,
    /// B3: an unlinked block is reused no earlier than twice the grace time after.
    ReuseGrace,
    /// R2: the shm reader fences its loads before it loads the stamp again.
    ReaderFence,
    /// W2: the writer fences the odd pass before it stores the bytes.
    WriterFence,
    /// M4: the counter of begun moves goes up before the original is overwritten.
    CountBeforeErase,
    /// G6: the shm reader compares the counter of begun moves before it reports a miss.
    MoveCounter,
    /// G8: the bytes of a key stay the same as long as the key stays in its slot.
    KeyBytes,
    /// M3: a slot with a ghost does not give up its occupant.
    OneGhost,
    /// B1: a block is linked before a key is written into it.
    LinkFirst,
    /// B3: an unlinked block keeps its own link until it is reused.
    BlockLink,
    /// B3: the counter of begun moves goes up between a block's unlinking and its reuse.
    BlockCount,
    /// B3: the counter goes up before the block is given back.
    BlockCountFirst,
    /// T1: a server waits for twice the grace time before it changes a region that it takes over.
    TakeoverGrace,
    /// T5: every counter of begun moves goes up when a region is taken over.
    TakeoverCount,
    /// R1: the shm reader fences the first stamp before it loads the words.
    StampFence,
    /// W3: the writer fences the bytes before it stores the even stamps.
    EvenFence,
    /// L1: a path's slots are locked before it is walked.
    SlotLock,
    /// L3: stripes are locked in increasing order.
    LockOrder,
    /// L4: a path found without locks is checked again under them.
    PathCheck,
    /// L5: under the locks of the path or chain that is to make room for a key, that key is looked
    /// for again.
    LookAgain,
    /// L6: a put looks for its key a last time before it answers that the table is full.
    LastLook,
    /// V1: with each value an entry gets a number that no entry had.
    EntryNumber,
    /// V3: an entry's time is noted, and forgotten, under its key's lock.
    EndLock,
    /// V3: when an entry leaves that has an end, its time is forgotten.
    EndForgotten,
    /// V2: an entry is removed at its end only if the life that the slot has under the key's lock has ended.
    ExpiryCheck,
    /// V4: a reader that is to be exact takes an entry whose slot says that it has ended for absent.
    ReaderExpiry,
    /// V5: the time of a table is by the host's clock, whatever time namespace a process is in.
    TimeNamespace,
    /// V6: a reader takes the time of a table with the start of the machine that belongs to it.
    StartAround,
    /// Z1: a policy hears under the key's lock that the key came, or left.
    RecordLock,
    /// Z2: a pin is noted before the key is looked for under its lock.
    PinFirst,
    /// Z2: under the key's lock, an entry that is to make room is looked for among the pins.
    PinLook,
    /// Z3: a put without room has an entry go from where its key may stand.
    EvictBeside,
    /// Z5: where keys have all memory, entries of two segments leave until one of them can be a block of values.
    GiveSegment,
    /// L8: under its locks, a change looks whether the segment still has the key.
    StillHere,
    /// L9: a thread that has a pair looks, when it is the pair's one thread, whether the pair has ended.
    PairEnds,
    /// L10: a change takes its key's turn, where changes may wait.
    KeyTurn,
    /// L11: nobody but the change that holds a slot takes it.
    HeldSlot,
    /// L12: a home with a held slot is not carried to another segment.
    HeldHome,
    /// L13: a change is made only when what it waits for has ended.
    WaitFirst,
    /// L14: a change that depends on the value sees it under the lock under which it is made.
    ValueUnderLock,
    /// L15: a tidying that another thread's has met says that there may be more to do.
    TidyAlone,
    /// A3: a side that goes to sleep fences its announcement before its last look. A side that
    /// stored fences its store before it looks for the announcement.
    BellFence,
    /// U1: a slot with a key in it is written over only when an undo line keeps its image.
    Undo,
    /// U1: the undo line keeps the image before the slot's stamp becomes odd.
    UndoFirst,
    /// U2: the undo line keeps the image until the slot's stamps are even again.
    UndoStays,
    /// U3: one thread at a time uses an undo line.
    UndoClaim,
    /// U4: a takeover restores images before it mends other slots.
    RestoreFirst,
    /// U4: a takeover restores an image only while the slot's stamp is the image's plus one.
    RestoreStamp,
    /// U4: an undo line keeps the image until the slot is restored.
    RestoreStays,
    /// U5: a write over a slot left odd skips the stamp that the torn write would have had.
    TornStamp,
    /// T6: a server that stops hands its table over only when no trace is left.
    StopAtRest,
    /// T6: the state says that the server has stopped only when the handover is complete.
    StopLast,
    /// T7: a server says that it has the table before it takes a handover.
    HandoverOnce,
    /// T7: a handover counts only if its CRCs fit and no undo line names a slot.
    HandoverCheck,
    /// T7: a register that was handed over is read before its stripe is used.
    HandoverRead,
    /// D1: a walk over all keys holds a home's lock until it has seen all keys of the home.
    WalkLock,
    /// D2: a walk reads a displaced key's slot at rest.
    WalkSettled,
    /// D4: a walk over a table that grows shows only keys of the part that it is in.
    WalkPlaces,
    /// D5: a step of a walk counts only if no home went to the other segment of a pair meanwhile.
    WalkPair,
    /// D6: a scan shows the keys of a look in order, and goes on behind the last of them.
    ScanOrder,
    /// D7: that an owner's entries were hidden counts as a change.
    HidesCounted,
    /// D8: an entry comes back from a snapshot with its end and its owner.
    EntryWhole,
    /// D9: a segment that goes is summed once.
    CountedOnce,
    /// D9: a copy counts as one that came before it counts as an insert.
    CopiesCame,
    /// K1: a change is visible when its record is on the disk.
    LogFirst,
    /// K2: what a log's disk has after a failure, nobody knows.
    LogFailed,
    /// K3: a snapshot has the number below which all records were visible before its walk began.
    LogApplied,
    /// K4: a file's name is on the disk before a record in it counts.
    LogNames,
    /// K5: what some record says was on the disk is not cut off.
    LogTail,
    /// K6: a record is forgotten when a snapshot that has what it did is on the disk.
    LogForget,
    /// K7: a record has the end and the owner of its entry.
    LogLife,
    /// K8: that an owner has gone is on the disk before his entries are hidden.
    LogOwner,
    /// K6: a number that a snapshot is past is not given again.
    LogNumber,
    /// K9: of a table that is taken over, only the last record of each key is made again.
    LogLast,
    /// K10: what a table has that outlived its server, and its log has not, is saved before the log goes on.
    LogBehind,
    /// J1: a change is told under its key's lock.
    FeedLock,
    /// J2: the feed is on, and its number known, before a walk begins that is to join it.
    FeedStart,
    /// J3: the number that belongs to a look is taken under the look's locks.
    FeedNumber,
    /// J4: a look at a pair counts only if no key of it was changed between its two segments.
    FeedPair,
    /// J5: the number of the oldest record goes up before words of older ones are written over.
    RingFirst,
    /// J5: who has read a record looks whether it is still one.
    RingLook,
    /// J6: who has missed changes is told.
    FeedGap,
    /// J7: while a walk goes on, changes are told only of keys that it has passed.
    FeedPassed,
    /// J8: in its turn to be told, a change looks again at the bits of the owners that it concerns.
    OwnerTurn,
    /// J8: the number that belongs to a look is taken before the look at owners' bits.
    OwnerNumber,
    /// J8: no feed starts between an owner's bit and its telling.
    OwnerStart,
    /// G9: a slot that a hint named is validated before it is a hit.
    HintHit,
    /// G9: a GET whose hint named the wrong slot looks everywhere.
    HintMiss,
    /// E2: the directory names a child for its keys only when all homes have been split.
    DirectoryLast,
    /// E3: the depth of a home goes up before the originals are overwritten.
    DepthFirst,
    /// E4: a home is marked as merged before the originals are overwritten.
    MarkFirst,
    /// E5: the depth of a merged home's parent stays for twice the grace time.
    DepthStays,
    /// E6: a merge that is given up raises the depth again.
    DepthBack,
    /// E6: the mark of a home whose keys came back stays for twice the grace time.
    MarkStays,
    /// E7: the CRC of a slot covers which use of its segment's memory it is of.
    SegmentUse,
    /// E8: a reader on shm loads an entry that names a pair again after a pass that found nothing.
    EntryAgain,
    /// E9: a pass by a client's clock counts from the READ of the entry that it rests on.
    EntryBound,
    /// E9: the entry is asked for again before a pending child is looked at.
    AskFirst,
    /// E9: ghosts in the windows of a merged home and of its parent's count in one pass.
    BothWindows,
    /// E9: a home two splits deeper than its entry means that the entry is old.
    OldChild,
    /// X1: a word of the region goes up before an extent gets a number.
    NumberFirst,
    /// X2: an extent is written before a slot names it.
    ExtentFirst,
    /// X3: memory that a slot has named is used again no earlier than twice the allowance after.
    ExtentGrace,
    /// X3: the allowance grows with the length of the value.
    ExtentLength,
    /// X4: a reader that took longer than the allowance, and one on shm, looks the key up again.
    ExtentLook,
    /// X4: the second look goes by the number, not by the place.
    ExtentNumber,
    /// X5: a takeover uses memory that no slot names no earlier than twice the longest allowance after.
    TakeoverExtents,
    /// X6: an extent that moves gets a number of its own.
    MoveNumber,
    /// X6: a copy is named only if the slot still names the original.
    MoveCheck,
    /// X6: an extent that moves gets its new name where the key is, not in a copy of a split or merge.
    MoveHere,
    /// X11: a client by request takes pieces of a value together only if they have the number of one extent.
    PieceNumber,
    /// X9: the server fences the end of an extent's name before it stores into that memory again.
    NameFence,
    /// O1: nobody is told that an owner has gone before its entries are hidden.
    OwnerFirst,
    /// O1: an owner's entries are hidden when its puts under way have ended, and it puts nothing after that.
    OwnerPuts,
    /// O2: a reader that finds an entry with an owner looks whether it is hidden.
    OwnerMask,
    /// O2: an entry that was not hidden counts only if no bit may have been cleared since before it was found.
    OwnerProof,
    /// O2: a hidden entry is no miss before another look has found the same one.
    OwnerAgain,
    /// O3: a change treats a hidden entry as absent.
    OwnerAbsent,
    /// O4: a bit is cleared no earlier than twice the grace time after the owner's last entry has gone.
    OwnerGrace,
    /// O4: the counters of begun moves go up between the owner's last entry and its bit.
    OwnerCount,
    /// O5: an entry is removed with its owner only if that is its owner under the key's lock.
    OwnerCheck,
    /// O6: while the server is stopped, no owner is away.
    OwnerAwake,
    /// I1: each new or restored table has a number of its own, whatever its seeds.
    TableNumber,
    /// I2: an entry of another table is not the same.
    EntryTable,
    /// I3: each server has a number of its own, whatever its table.
    LaunchNumber,
    /// I4: who has been an owner is not the next one with its number.
    OwnerTenure,
    /// I5: an owner over TCP begins its session again by itself.
    OwnerStays,
    /// O7: who asks for an owner to be removed while another call is at it waits for that.
    OwnerTwice,
    /// O8: an owner who has come back is not removed for having been away.
    OwnerBack,
    /// O9: one thread at a time has the right to hide an owner's entries.
    OwnerOnce,
    /// L16: who has the lock of an owner takes no key's.
    OwnerLast,
    /// P1: a key has one put that is started.
    StartOnce,
    /// P1: a key that is started keeps its slot when it is removed.
    StartKeeps,
    /// P3: puts that are started hold no more than their share.
    StartShare,
    /// P4: a put whose time is over is not committed.
    StartTime,
    /// P5: a start makes room as a put does.
    StartRoom,
    /// Q6: while clients hold half of their memory, nobody is heard who leaves more than a reply unread.
    ShortMemory,
    /// Q7: when clients hold more than they may, the one that holds most ends.
    MostEnds,
    /// Q8: each step of an upload comes within a time, or its memory is free again.
    UploadTime,
    /// Q9: a change rings for workers that sleep with parked requests.
    ParkBell,
    /// Q9: a worker that is to sleep with parked requests looks a last time for a change.
    ParkLook,
    /// Q10: a parked request is looked at again after each change.
    ParkWake,
    /// Q11: a parked request is answered before the next one of its connection.
    ParkNext,
    /// Q12: a parked request that is over gives its place back.
    ParkPlace,
    /// Q13: requests behind a change that waits are answered after it.
    WaitOrder,
    /// Q14: what changes wait for rings for workers that sleep with some of them.
    WaitBell,
    /// Q14: a worker that is to sleep with changes that wait looks a last time for what they wait for.
    WaitLook,
    /// Q14: a change that waits is tried again when it is due.
    WaitWake,
    /// Q15: a change that is made, and waits before it is answered, is not made again.
    WaitOnce,
}

#[cfg(feature = "faults")]
impl Rule {
    /// The last rule.
    const LAST: Rule = Rule::WaitOnce;
}

/// A set of rules: a bit for each.
#[cfg(feature = "faults")]
#[derive(Clone, Copy, Debug)]
struct Rules([u64; Rule::LAST as usize / 64 + 1]);

#[cfg(feature = "faults")]
impl Rules {
    /// No rules.
    const NONE: Rules = Rules([0; Rule::LAST as usize / 64 + 1]);

    #[inline(always)]
    fn has(&self, rule: Rule) -> bool {
        self.0[rule as usize / 64] & 1 << (rule as usize % 64) != 0
    }

    /// The set with this rule, or without it.
    fn with(mut self, rule: Rule, is_in: bool) -> Rules {
        let (word, bit) = (&mut self.0[rule as usize / 64], 1 << (rule as usize % 64));
        *word = if is_in { *word | bit } else { *word & !bit };
        self
    }
}

#[cfg(feature = "faults")]
impl Default for Rules {
    fn default() -> Rules {
        Rules::NONE
    }
}

/// The rules broken on a thread, and the waits shortened there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    #[cfg(feature = "faults")]
    rules: Rules,
    #[cfg(feature = "faults")]
    waits: Waits,
}

/// Rules with shortened waits, and their waits in nanoseconds.
#[cfg(feature = "faults")]
type Waits = [Option<(Rule, u64)>; WAITS_MAX];

/// The most waits that a test may shorten at the same time.
#[cfg(feature = "faults")]
const WAITS_MAX: usize = 5;

#[cfg(feature = "faults")]
std::thread_local! {
    static RULES: std::cell::Cell<Rules> = const { std::cell::Cell::new(Rules::NONE) };
    static WAITS: std::cell::Cell<Waits> = const { std::cell::Cell::new([None; WAITS_MAX]) };
}

/// Whether `rule` is broken on this thread. Always `false` without the feature `faults`.
#[inline(always)]
pub(crate) fn broken(rule: Rule) -> bool {
    #[cfg(feature = "faults")]
    return RULES.get().has(rule);
    #[cfg(not(feature = "faults"))]
    {
        let _ = rule;
        false
    }
}

/// Whether the condition of `rule` holds. If the rule is broken, returns `true` without a check.
#[inline(always)]
pub(crate) fn kept(rule: Rule, is_so: impl FnOnce() -> bool) -> bool {
    broken(rule) || is_so()
}

/// Takes a step that `rule` demands. Leaves it out if the rule is broken.
#[inline(always)]
pub(crate) fn obey<T: Default>(rule: Rule, step: impl FnOnce() -> T) -> T {
    if broken(rule) { T::default() } else { step() }
}

/// Takes a step that `rule` forbids, if the rule is broken.
#[inline(always)]
pub(crate) fn disobey(rule: Rule, step: impl FnOnce()) {
    if broken(rule) {
        step();
    }
}

/// Takes two steps in the order that `rule` demands. Reverses the order if the rule is broken.
#[inline(always)]
pub(crate) fn in_order<S>(rule: Rule, mut on: S, first: impl FnOnce(&mut S), then: impl FnOnce(&mut S)) {
    if broken(rule) {
        then(&mut on);
        first(&mut on);
    } else {
        first(&mut on);
        then(&mut on);
    }
}

/// Takes a step. If `rule` is broken, these rules are broken meanwhile, too.
#[inline(always)]
pub(crate) fn breaking<T>(rule: Rule, others: &[Rule], step: impl FnOnce() -> T) -> T {
    #[cfg(feature = "faults")]
    let _broken: Vec<Broken> =
        others.iter().filter(|_| broken(rule)).map(|&other| Broken::rule(other)).collect();
    #[cfg(not(feature = "faults"))]
    let _ = (rule, others);
    step()
}

/// Returns `right`, or `wrong` if `rule` is broken.
#[inline(always)]
pub(crate) fn by_rule<T>(rule: Rule, right: T, wrong: T) -> T {
    if broken(rule) { wrong } else { right }
}

/// Steps that a rule demands before other steps. If the rule is broken, they come after those.
pub(crate) struct AtOnce<T> {
    rule: Rule,
    #[cfg(feature = "faults")]
    late: Vec<T>,
    #[cfg(not(feature = "faults"))]
    late: std::marker::PhantomData<T>,
}

impl<T> AtOnce<T> {
    #[inline(always)]
    pub fn new(rule: Rule) -> AtOnce<T> {
        AtOnce { rule, late: Default::default() }
    }

    /// Takes a step with the argument `with`, or puts it off if the rule is broken.
    #[inline(always)]
    pub fn step(&mut self, with: T, step: impl FnOnce(T)) {
        if broken(self.rule) {
            #[cfg(feature = "faults")]
            self.late.push(with);
        } else {
            step(with);
        }
    }

    /// Takes the steps that were put off.
    #[inline(always)]
    pub fn finish(self, step: impl FnMut(T)) {
        #[cfg(feature = "faults")]
        self.late.into_iter().for_each(step);
        #[cfg(not(feature = "faults"))]
        let _ = step;
    }
}

/// How long `rule` waits: `right_ns`, unless it is broken or shortened on this thread.
#[inline(always)]
pub(crate) fn wait_ns(rule: Rule, right_ns: u64) -> u64 {
    #[cfg(feature = "faults")]
    if let Some((_, short_ns)) = WAITS.get().into_iter().flatten().find(|(short, _)| *short == rule) {
        return short_ns;
    }
    by_rule(rule, right_ns, 0)
}

/// The faults of this thread, for [`break_all`] on another thread.
pub(crate) fn all_broken() -> Faults {
    #[cfg(feature = "faults")]
    return Faults { rules: RULES.get(), waits: WAITS.get() };
    #[cfg(not(feature = "faults"))]
    Faults::default()
}

/// Sets these faults on this thread, for good.
pub(crate) fn break_all(faults: Faults) {
    #[cfg(feature = "faults")]
    {
        RULES.set(faults.rules);
        WAITS.set(faults.waits);
    }
    #[cfg(not(feature = "faults"))]
    let _ = faults;
}

/// While the rule is broken, some execution of a model shows it.
///
/// Loom's threads run on this one, so a broken rule is broken for all of them. (It is mended here, because
/// loom does not unwind the others when one panics.)
#[cfg(all(loom, test, feature = "faults"))]
pub(crate) fn must_be_caught(rule: Rule, preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    println!("{rule:?} broken:");
    let _broken = Broken::rule(rule);
    let ended = catch_unwind(AssertUnwindSafe(|| crate::base::sync::model(preemptions, test)));
    let panic = ended.expect_err("not caught");
    // A stack that is too small is another kind of panic.
    assert!(panic.is::<String>() || panic.is::<&str>(), "{rule:?}: nothing asserted has failed");
}

/// How many more stores into region files this process makes before it is killed.
#[cfg(feature = "faults")]
static STORES_LEFT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(u64::MAX);

/// Kills this process (SIGKILL) when it has stored `stores` more words into region files, and is about
/// to store another.
#[cfg(feature = "faults")]
pub fn kill_after_stores(stores: u64) {
    STORES_LEFT.store(stores, std::sync::atomic::Ordering::Relaxed);
}

/// This process is about to store a word into a region file.
#[cfg(feature = "faults")]
pub(crate) fn before_store() {
    use std::sync::atomic::Ordering::Relaxed;
    if STORES_LEFT.load(Relaxed) != u64::MAX && STORES_LEFT.fetch_sub(1, Relaxed) == 0 {
        let killed = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        unreachable!("killed: {killed:?}");
    }
}

/// Breaks a rule, or shortens its wait, on the thread that made this, until it is dropped.
#[cfg(feature = "faults")]
#[derive(Debug)]
pub struct Broken {
    /// The rule, if it was not broken before.
    newly: Option<Rule>,
    shortened: Option<Rule>,
}

#[cfg(feature = "faults")]
impl Broken {
    /// Breaks `rule`.
    pub fn rule(rule: Rule) -> Broken {
        let newly = (!broken(rule)).then_some(rule);
        RULES.set(RULES.get().with(rule, true));
        Broken { newly, shortened: None }
    }

    /// Shortens the wait of `rule`, which says how long something stays, to `wait`.
    ///
    /// # Panics
    /// When its wait is already shortened, or too many waits are.
    pub fn wait(rule: Rule, wait: std::time::Duration) -> Broken {
        let mut waits = WAITS.get();
        assert!(waits.iter().flatten().all(|(short, _)| *short != rule), "{rule:?} is shortened already");
        let free = waits.iter_mut().find(|wait| wait.is_none()).expect("few rules are shortened at once");
        *free = Some((rule, wait.as_nanos() as u64));
        WAITS.set(waits);
        Broken { newly: None, shortened: Some(rule) }
    }
}

#[cfg(feature = "faults")]
impl Drop for Broken {
    fn drop(&mut self) {
        if let Some(rule) = self.newly {
            RULES.set(RULES.get().with(rule, false));
        }
        let mended = |wait: &Option<(Rule, u64)>| wait.is_some_and(|(rule, _)| Some(rule) == self.shortened);
        WAITS.set(WAITS.get().map(|wait| wait.filter(|_| !mended(&wait))));
    }
}

#[cfg(all(test, feature = "faults"))]
mod tests {
    use super::*;
    use std::panic::catch_unwind;
    use std::time::Duration;

    /// The set has a bit for each rule: none stands behind the last one.
    #[test]
    fn the_last_rule_is_the_last() {
        let (_, rules) = include_str!("faults.rs").split_once("pub enum Rule {").expect("the rules");
        let (rules, _) = rules.split_once("\n}").expect("their end");
        let names = rules.lines().filter_map(|line| line.trim().strip_suffix(','));
        let names: Vec<_> = names.filter(|line| !line.starts_with("//")).collect();
        assert_eq!(
            (names.len(), names.last()),
            (Rule::LAST as usize + 1, Some(&&*format!("{:?}", Rule::LAST)))
        );
        let last = Broken::rule(Rule::LAST);
        assert!(broken(Rule::LAST) && !broken(Rule::WideDigest));
        drop(last);
        assert!(!broken(Rule::LAST));
    }

    /// A rule is broken on one thread, until its last guard is dropped. Otherwise a test that
    /// breaks a rule would show nothing, or would spoil the next test.
    #[test]
    fn a_rule_is_broken_until_the_last_guard_is_dropped() {
        let outer = Broken::rule(Rule::Ghost);
        let inner = Broken::rule(Rule::Ghost);
        let other = Broken::rule(Rule::BellFence);
        drop(inner);
        assert!(broken(Rule::Ghost) && broken(Rule::BellFence) && !broken(Rule::GhostGrace));
        std::thread::scope(|scope| {
            let elsewhere = scope.spawn(|| broken(Rule::Ghost)).join().unwrap();
            assert!(!elsewhere, "another thread");
        });
        drop(outer);
        assert!(!broken(Rule::Ghost) && broken(Rule::BellFence));
        drop(other);
        assert!(!broken(Rule::BellFence));
    }

    /// A wait has its right length, or none if the rule is broken. A test's length comes before
    /// both.
    #[test]
    fn waits_are_shortened_one_by_one() {
        let waits = || [Rule::GhostGrace, Rule::ReuseGrace].map(|rule| wait_ns(rule, 70));
        let short = Broken::wait(Rule::GhostGrace, Duration::from_nanos(40));
        assert_eq!(waits(), [40, 70]);
        assert!(!broken(Rule::GhostGrace));
        let none = [Rule::GhostGrace, Rule::ReuseGrace].map(Broken::rule);
        assert_eq!(waits(), [40, 0]);
        let twice = catch_unwind(|| drop(Broken::wait(Rule::GhostGrace, Duration::ZERO)));
        assert!(twice.is_err(), "shortened already");
        let other = Broken::wait(Rule::ReuseGrace, Duration::from_nanos(50));
        drop(short);
        assert_eq!(waits(), [0, 50]);
        drop(none);
        assert_eq!(waits(), [70, 50]);
        drop(other);
        assert_eq!(waits(), [70, 70]);
    }

    /// The faults of this thread can be set on another thread, for good.
    #[cfg(feature = "sim")]
    #[test]
    fn faults_can_be_set_on_another_thread() {
        let _rule = Broken::rule(Rule::OddPass);
        let _wait = Broken::wait(Rule::BlockGrace, Duration::from_nanos(3));
        let all = all_broken();
        let there = std::thread::spawn(move || {
            break_all(all);
            (broken(Rule::OddPass), broken(Rule::Ghost), wait_ns(Rule::BlockGrace, 9))
        });
        assert_eq!(there.join().unwrap(), (true, false, 3));
    }
}
