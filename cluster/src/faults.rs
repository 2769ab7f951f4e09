//! Switches that break one rule each, to show that the worlds of `tests/worlds` notice.
//!
//! Without the feature `faults`, [`broken`] is `false` at compile time and costs nothing. With it, a test breaks a
//! rule on its own thread.

/// A rule of `docs/CLUSTER.md` that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// CL1: `asked` is stored after the beat was sent.
    AskedAfterwards,
    /// CL1: a node that was deposed goes on to beat.
    BeatAfterDeposed,
    /// CL2: the lease begins with the second READ.
    LeaseFromSecondRead,
    /// CL2: any newer `held` will do, not only one above the `asked` that was seen.
    AnyNewAnswer,
    /// CL2: words of two lives are compared.
    LivesMixed,
    /// CL2: leases outlast the TTL.
    LeaseTooLong,
    /// CL3: the shard's word is not looked at.
    NoWord,
    /// CL3: one shard's word counts for all shards of its node.
    WordOfOtherShard,
    /// CL3: a word counts that was READ before the lease's mark was there.
    WordBeforeMark,
    /// CL4: the clock is looked at before the READ of the value.
    ClockBeforeRead,
    /// CL4: a reply is believed without a lease.
    ReplyWithoutLease,
    /// CL5: a change is visible before the standbys have it.
    VisibleFirst,
    /// CL5: a change is acknowledged before the standbys have it.
    AnsweredFirst,
    /// CL6: a standby takes what comes, with gaps.
    ChannelWithGaps,
    /// CL6: answers of an earlier channel count.
    AnswerOfOldChannel,
    /// CL7: a standby that is late is left out, and etcd is not asked.
    LeftOutWithoutEtcd,
    /// CL8: a standby takes over whatever the primary's key says.
    TakenWhileItBeats,
    /// CL8: a standby does not wait for the TTL.
    NoTtl,
    /// CL9: the next primary changes at once.
    NoWaitAfterHandOver,
    /// CL9: who takes over from the next primary does not wait.
    WaitForgotten,
    /// CL9: the next primary has been left out meanwhile.
    NextIsOut,
    /// CL9: a primary that leaves gives its memory back at once.
    FrozenCopyFreed,
    /// CL10: a node that starts again leaves its words open.
    OpenAtStart,
    /// CL10: a node whose beat is refused leaves its words open.
    OpenWhenRefused,
    /// CL10: a primary that starts again goes on in its old epoch.
    OldEpochAtStart,
    /// CL11: a key is walked while a change of it is under way.
    WalkBesideLock,
    /// CL11: changes begin all the time while a newcomer has all but them.
    NewcomerStarved,
    /// CL11: a newcomer counts only when etcd has answered.
    CountsLate,
    /// CL11: a newcomer whose transaction was not answered is forgotten for another.
    NewcomerForgotten,
    /// CL11: in sync when the walk is answered, not what followed.
    WalkIsEnough,
    /// CL12: the room of standbys is not held. One without room answers as if it had taken the change.
    NoRoomHeld,
    /// CL12: the room of standbys is not held. One without room refuses, and the put is answered: full.
    RefusedLate,
    /// CL12: a newcomer gives its copy up by itself.
    CopyGivenUp,
    /// CL11: a newcomer begins with what it had.
    OldCopyKept,
    /// CL13: a primary removes entries from its own table, to make room, and tells nobody.
    EvictsAlone,
    /// CL13: an entry leaves at its end though a change of its key is under way.
    EndedMeanwhile,
    /// CL11: an entry is walked without its end.
    EndsNotWalked,
    /// CL19: an entry is walked without its owner.
    OwnersNotWalked,
    /// CL19: whoever claims to be an owner puts as that owner.
    AnyonePuts,
    /// CL19: a put does not wait while its owner is being changed.
    PutBesideOwner,
    /// CL19: an owner is gone after one pass, whatever that has found.
    OnePass,
    /// CL13: outcomes of requests, and owners, leave to make room, as entries do.
    ResultsEvicted,
    /// CL14: an outcome that changes nothing is answered at once.
    FailureAtOnce,
    /// CL15: only the primary remembers results.
    ResultsAlone,
    /// CL15: results are not walked.
    ResultsNotWalked,
    /// CL15: only changes are remembered, not what was refused.
    RefusalsForgotten,
    /// CL15: what a node was killed at stays half done.
    HalfDone,
    /// CL15: a request without an id is sent again.
    RepeatedWithoutId,
    /// CL15: one copy of a request that was not done is taken for all.
    OneCopyForAll,
    /// CL17: whatever etcd answers is believed.
    AnyEtcd,
    /// CL17: an etcd is refused only by who has seen more than it has.
    RevisionOnly,
    /// CL17: the operator goes by what the backup says.
    BackupBelieved,
    /// CL20: a copy goes to a node that nobody reaches.
    UnreachedJoined,
    /// CL20: a shard that nobody ever served is claimed by a node that reaches no other one.
    ClaimsUnheard,
    /// CL21: a standby that starts again counts at once.
    CountsAtStart,
    /// CL21: a standby that starts again is not sent what it had not answered.
    ForgottenAtStart,
    /// CL22: a node goes on with an old copy of its memory.
    OldCopyBelieved,
    /// CL18: a follower goes on where a change has its number, of whatever epoch.
    FeedByNumber,
    /// CL18: followers are told of a change before all replicas have it.
    ToldFirst,
    /// CL18: a newcomer counts from the last change that is visible, and not from the last that was begun.
    UnderWayUncounted,
}

#[cfg(feature = "faults")]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule on this thread, or none.
#[cfg(feature = "faults")]
pub fn breaks(rule: Option<Rule>) {
    BROKEN.set(rule);
}

/// One more than the rule that all threads break.
#[cfg(feature = "faults")]
static EVERYWHERE: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Breaks a rule on all threads of this process, or none.
#[cfg(feature = "faults")]
pub fn breaks_everywhere(rule: Option<Rule>) {
    EVERYWHERE.store(rule.map_or(0, |rule| rule as u8 + 1), std::sync::atomic::Ordering::Relaxed);
}

/// Whether this rule is broken on this thread.
#[inline(always)]
pub fn broken(rule: Rule) -> bool {
    #[cfg(feature = "faults")]
    return BROKEN.get() == Some(rule)
        || EVERYWHERE.load(std::sync::atomic::Ordering::Relaxed) == rule as u8 + 1;
    #[cfg(not(feature = "faults"))]
    {
        let _ = rule;
        false
    }
}

/// How much faster this process' clock is than the machine's, in millionths.
#[cfg(feature = "faults")]
static CLOCK_RATE: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

/// Gives this process a clock that is faster than the machine's by so many millionths, or slower. Call it before there
/// are nodes and clients: the clock jumps.
#[cfg(feature = "faults")]
pub fn run_clock_at(millionths: i32) {
    CLOCK_RATE.store(millionths, std::sync::atomic::Ordering::Relaxed);
}

/// The machine's time by this process' clock.
#[cfg(all(feature = "faults", feature = "net"))]
pub(crate) fn by_the_rate(time: u64) -> u64 {
    let rate = i128::from(CLOCK_RATE.load(std::sync::atomic::Ordering::Relaxed));
    (i128::from(time) * (1_000_000 + rate) / 1_000_000) as u64
}
