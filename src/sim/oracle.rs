//! The oracle: every value that each key had, from when to when, and whether an answer is one of them.

use super::history::Instant;
use super::keys::KeyNumber;
use super::nic::SimGetError;
use super::stores::{StoreEvent, Stores};
use crate::layout::geometry::SlotIx;
use crate::outcome::ReadError;
use std::collections::BTreeMap;
use std::time::Duration;

/// A GET's answer, or why there was none.
pub type GetAnswer<E = SimGetError> = Result<Option<Vec<u8>>, E>;

/// A wrong report by a GET or a server thread, or memory whose content no change explains.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("key {key} from instant {} to {}: {answer}; right: {right}{story}", from.0, to.0)]
pub struct Violation {
    /// The key.
    pub key: KeyNumber,
    /// When the GET, or the other wrong thing, began.
    pub from: Instant,
    /// When it ended.
    pub to: Instant,
    /// What was wrong.
    pub answer: String,
    /// What would have been right.
    pub right: String,
    /// What the server stored meanwhile and what the GET's READs sampled, if a story was asked for.
    pub story: String,
}

impl Violation {
    pub(super) fn new(
        key: KeyNumber,
        (from, to): (Instant, Instant),
        answer: String,
        right: String,
    ) -> Box<Violation> {
        Box::new(Violation { key, from, to, answer, right, story: String::new() })
    }
}

pub(super) fn show_answer<E: std::error::Error>(answer: &GetAnswer<E>) -> String {
    match answer {
        Ok(Some(value)) => show_value(value),
        Ok(None) => "absent".into(),
        Err(error) => error.to_string(),
    }
}

fn show(value: &Option<Vec<u8>>) -> String {
    value.as_ref().map_or("absent".into(), |value| show_value(value))
}

/// The operation that wrote a value. For a mixture, all of them.
fn show_value(value: &[u8]) -> String {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
    let mut words: Vec<u64> = value.chunks_exact(8).map(word).collect();
    words.dedup();
    match words[..] {
        [operation] => format!("value of operation {operation}"),
        _ => format!("a mixture of operations {words:?}"),
    }
}

/// A step of a server thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Put a new value.
    Put(KeyNumber),
    /// Remove the key.
    Remove(KeyNumber),
    /// Take away traces that are due.
    Tidy,
    /// Let time pass.
    Wait(Duration),
    /// Look a key up, as a shm client does.
    Get(KeyNumber),
}

/// What a server thread did: a change, or a look as by a shm client.
#[derive(Debug)]
pub(super) enum Did {
    Change(Done),
    Look(KeyNumber, GetAnswer<ReadError>, (Instant, Instant)),
}

/// A change of a key: whether the server found the key, what it has then, and when the operation
/// began and ended.
#[derive(Debug)]
pub(super) struct Done {
    pub number: KeyNumber,
    pub had: bool,
    pub has: Option<Vec<u8>>,
    pub from: Instant,
    pub to: Instant,
    /// Whether it was a put into a full table.
    pub is_full: bool,
}

impl Done {
    pub fn changes(&self) -> bool {
        self.had || self.has.is_some()
    }

    /// The effective changes of one key, each with its event, in the order of the events. Each
    /// change must have its event, and each event its change. The key must have been absent at some
    /// instant of a change that did nothing.
    fn in_order(
        number: KeyNumber,
        mut done: Vec<Done>,
        events: &[StoreEvent],
        mut had: bool,
        during: (Instant, Instant),
    ) -> Result<Vec<(Done, &StoreEvent)>, Box<Violation>> {
        // A disappearance may be due to several removes. If any order is right, it is right to take
        // the one that ended first.
        done.sort_by_key(|done| done.to);
        let mut in_order = Vec::new();
        let mut absent_since = (!had).then_some(during.0);
        for event in events {
            let due_to = |done: &Done| {
                done.changes()
                    && done.has == event.has
                    && done.had == had
                    && (done.from < event.at && event.at <= done.to)
            };
            let Some(n) = done.iter().position(due_to) else {
                let what = format!("{} since {}, which no change explains", show(&event.has), event.at.0);
                let left: Vec<_> = done.iter().map(Done::show).collect();
                return Err(Violation::new(number, during, what, left.join(", ")));
            };
            in_order.push((done.remove(n), event));
            had = event.has.is_some();
            match (had, absent_since.take()) {
                (true, Some(since)) => done.retain(|done| !done.did_nothing(since, event.at)),
                (false, _) => absent_since = Some(event.at),
                (true, None) => {}
            }
        }
        if let Some(since) = absent_since {
            done.retain(|done| !done.did_nothing(since, Instant(usize::MAX)));
        }
        match done.first() {
            None => Ok(in_order),
            Some(done) => {
                let what = format!("{}, which no store bears out", done.show());
                Err(Violation::new(number, (done.from, done.to), what, "such a store".into()))
            }
        }
    }

    fn show(&self) -> String {
        let [had, has] = [if self.had { "there" } else { "absent" }, &show(&self.has)];
        format!("a change from {} to {}: was {had}, is {has}", self.from.0, self.to.0)
    }

    /// Whether it rightly did nothing, given that the key was absent from `since` until `until`. A
    /// put into a full table looks for its key a last time (L6).
    fn did_nothing(&self, since: Instant, until: Instant) -> bool {
        let looked_last = if self.is_full { self.to } else { self.from };
        !self.changes() && since <= self.to && looked_last < until
    }
}

/// A value that a key had, or its absence.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    value: Option<Vec<u8>>,
    /// When the operation that made the version began, or when it made it, if that is known.
    from: Instant,
    /// When the operation that ended the version, or a later one, had ended. `None` for the last.
    until: Option<Instant>,
}

impl Version {
    /// The first version of every key.
    const ABSENT: Version = Version { value: None, from: Instant(0), until: None };

    fn is<E>(&self, answer: &GetAnswer<E>) -> bool {
        answer.as_ref().is_ok_and(|answer| *answer == self.value)
    }

    fn show(&self) -> String {
        show(&self.value)
    }
}

/// Every value of each key, and from when to when the key had it.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    versions: BTreeMap<KeyNumber, Vec<Version>>,
}

impl Oracle {
    /// Compares an answer with the key's versions. `seen` is the number of the newest version that
    /// the same client has seen before. Returns the number of the version that it has seen now.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn judge<E: std::error::Error>(
        &self,
        number: KeyNumber,
        answer: &GetAnswer<E>,
        (from, to): (Instant, Instant),
        seen: usize,
    ) -> Result<usize, Box<Violation>> {
        let versions = self.versions.get(&number).map_or(&[Version::ABSENT][..], |v| v);
        let right = |v: &Version| v.from <= to && v.until.is_none_or(|until| from < until);
        let matching = |(n, v): &(usize, &Version)| *n >= seen && right(v) && v.is(answer);
        if let Some((n, _)) = versions.iter().enumerate().find(matching) {
            return Ok(n);
        }
        let show = |(n, v): (usize, &Version)| format!("#{n} {}", v.show());
        let all: Vec<_> = versions.iter().enumerate().filter(|(_, v)| right(v)).map(show).collect();
        let right = format!("{all:?}, having seen #{seen}");
        Err(Violation::new(number, (from, to), format!("a GET answered {}", show_answer(answer)), right))
    }

    /// Whether the key was there at every instant of `[from, to]`.
    pub fn stays(&self, number: KeyNumber, (from, to): (Instant, Instant)) -> bool {
        let during = |v: &&Version| v.from <= to && v.until.is_none_or(|until| from <= until);
        let versions = self.versions.get(&number).map_or(&[][..], |versions| versions);
        let mut during = versions.iter().filter(during).peekable();
        during.peek().is_some() && during.all(|version| version.value.is_some())
    }

    /// Records a change: the key has another value from then on. The server must have been right
    /// about whether the key was there, because only one thread at a time changes a key.
    pub fn note(&mut self, done: &Done) {
        let versions = self.versions.entry(done.number).or_insert_with(|| vec![Version::ABSENT]);
        let last = versions.last_mut().expect("at least one");
        assert_eq!(
            done.had,
            last.value.is_some(),
            "key {}: {}, not {}",
            done.number,
            done.show(),
            last.show()
        );
        if done.changes() {
            last.until = Some(done.to);
            versions.push(Version { value: done.has.clone(), from: done.from, until: None });
        }
    }

    /// Finds each change of these among the stores, and remembers what the keys had. Returns where each key
    /// stands at the end.
    ///
    /// # Errors
    /// [`Violation`] if the stores are not those of the changes, one after the other in some order that their
    /// times allow, or if a key does not stand in exactly one slot.
    pub fn explain(
        &mut self,
        mut all_done: BTreeMap<KeyNumber, Vec<Done>>,
        stores: &Stores,
        during: (Instant, Instant),
    ) -> Result<BTreeMap<KeyNumber, SlotIx>, Box<Violation>> {
        let mut stands = BTreeMap::new();
        for &number in all_done.keys().chain(stores.copies.keys()) {
            self.versions.entry(number).or_insert_with(|| vec![Version::ABSENT]);
        }
        for (&number, versions) in &mut self.versions {
            let done = all_done.remove(&number).unwrap_or_default();
            let events = stores.events.get(&number).map_or(&[][..], |events| events);
            let had = versions.last().expect("at least one").value.is_some();
            let in_order = Done::in_order(number, done, events, had, during)?;
            // A change shows from its store on. The version before it shows until the change, or a
            // later one, has ended.
            for (n, (_, event)) in in_order.iter().enumerate() {
                versions.last_mut().expect("at least one").until =
                    in_order[n..].iter().map(|(done, _)| done.to).min();
                versions.push(Version { value: event.has.clone(), from: event.at, until: None });
            }
            let last = versions.last().expect("at least one");
            match (&last.value, stores.copies.get(&number).map_or(&[][..], |slots| slots)) {
                (Some(_), &[slot]) => {
                    stands.insert(number, slot);
                }
                (None, []) => {}
                (_, copies) => {
                    let answer = format!("{} slots hold it at the end", copies.len());
                    return Err(Violation::new(number, during, answer, last.show()));
                }
            }
        }
        Ok(stands)
    }

    /// What keys have after their server was killed and another has taken its region over. `answer` is a GET's
    /// of that one; `torn` slots were half written.
    ///
    /// # Errors
    /// [`Violation`] when a key is not as the last change that had ended left it, or as one that was
    /// under way would have.
    pub fn taken_over(
        &self,
        (killed, taken_over): (Instant, Instant),
        torn: u64,
        mut answer: impl FnMut(KeyNumber) -> GetAnswer<ReadError>,
    ) -> Result<Oracle, Box<Violation>> {
        let mut oracle = Oracle::default();
        for (&number, versions) in &self.versions {
            let mut versions: Vec<_> = versions.iter().filter(|v| v.from <= killed).cloned().collect();
            let answer = answer(number);
            // Operations that were under way may or may not have been done, and may take effect
            // only now.
            let under_way = |v: &Version| v.until.is_some_and(|until| until > killed);
            let ended = versions[..versions.len() - 1].iter().rposition(|v| !under_way(v));
            let sure = ended.map_or(0, |n| n + 1);
            let newest = (sure..versions.len()).rev().find(|&n| versions[n].is(&answer));
            versions.truncate(newest.map_or(versions.len(), |n| n + 1));
            versions[sure..].iter_mut().for_each(|version| version.until = Some(taken_over));
            let last = versions.last_mut().expect("each key was absent at first");
            last.until = None;
            if !last.is(&answer) {
                let right = format!("{}, {torn} slots half written", last.show());
                let answer = format!("a GET after the takeover answered {}", show_answer(&answer));
                return Err(Violation::new(number, (killed, taken_over), answer, right));
            }
            oracle.versions.insert(number, versions);
        }
        Ok(oracle)
    }

    /// The keys that it knows.
    pub fn keys(&self) -> impl Iterator<Item = KeyNumber> {
        self.versions.keys().copied()
    }
}
