//! Followers of a source whose answers a test writes: gaps of each kind, answers of another server between two requests,
//! and what makes no sense.

use super::{FeedPosition, FeedSource, Follower, GapCause, HeardItem, HeardValue};
use crate::index::{ChangeRecord, Changed, LeftCause, RecordValue};
use crate::wire::{ChangedWriter, FeedReply, ScannedWriter, SentValue};
use std::collections::VecDeque;

/// What the source is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FeedAsked {
    Look { table: u64, cursor: Vec<u8> },
    Changes { from: FeedPosition, end: u64, passed: Option<Vec<u8>> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    OtherTable,
    Gone,
    Nonsense,
}

/// Gives its answers one after the other.
#[derive(Debug, Default)]
struct Script {
    answers: VecDeque<Result<Vec<u8>, Wrong>>,
    asked: Vec<FeedAsked>,
}

impl Script {
    fn new(answers: impl IntoIterator<Item = Result<Vec<u8>, Wrong>>) -> Script {
        Script { answers: answers.into_iter().collect(), asked: Vec::new() }
    }

    fn answer(&mut self, asked: FeedAsked) -> Result<Vec<u8>, Wrong> {
        self.asked.push(asked);
        self.answers.pop_front().expect("an answer for each request")
    }
}

impl FeedSource for Script {
    type Error = Wrong;

    fn look(&mut self, table: u64, cursor: &[u8]) -> Result<Vec<u8>, Wrong> {
        self.answer(FeedAsked::Look { table, cursor: cursor.to_vec() })
    }

    fn changes(&mut self, from: FeedPosition, end: u64, passed: Option<&[u8]>) -> Result<Vec<u8>, Wrong> {
        self.answer(FeedAsked::Changes { from, end, passed: passed.map(<[u8]>::to_vec) })
    }

    fn is_of_other_table(&self, error: &Wrong) -> bool {
        *error == Wrong::OtherTable
    }

    fn nonsense(&mut self) -> Wrong {
        Wrong::Nonsense
    }
}

fn at(table: u64, launch: u64, number: u64) -> FeedPosition {
    FeedPosition { table, launch, number }
}

/// A reply of this server with the changes of these numbers.
fn changes(from: FeedPosition, next: u64, told: &[u64]) -> Result<Vec<u8>, Wrong> {
    let mut out = ChangedWriter::new(1 << 12).unwrap();
    for number in told {
        let (what, cause) = (Changed::Left, LeftCause::Removed);
        let key = [*number as u8];
        let record = ChangeRecord { what, cause, key: &key, owner: 0, value: RecordValue::None };
        assert!(out.change(*number, &record, false));
    }
    let FeedReply::Changed(body) = out.finish(from.table, from.launch, from.number..next) else {
        panic!("changes")
    };
    Ok(body)
}

/// A reply of this server with a look for each number, of one key each. The last one ends the walk, if that is said.
fn looks(of: FeedPosition, numbers: &[u64], is_end: bool) -> Result<Vec<u8>, Wrong> {
    let mut out = ScannedWriter::new(of.table, of.launch, 1 << 12).unwrap();
    for (nth, number) in numbers.iter().enumerate() {
        out.begin();
        assert!(out.key(&[100 + *number as u8], 0, SentValue::None));
        let is_last = is_end && nth + 1 == numbers.len();
        out.end(*number, if is_last { b"" } else { b"cursor" });
    }
    let FeedReply::Scanned(body) = out.finish() else { panic!("looks") };
    Ok(body)
}

fn change(number: u64) -> HeardItem {
    HeardItem::Change {
        number,
        what: Changed::Left,
        cause: LeftCause::Removed,
        key: vec![number as u8],
        value: HeardValue::None,
        owner: 0,
    }
}

fn all(follower: &mut Follower) -> Vec<HeardItem> {
    std::iter::from_fn(|| follower.take()).collect()
}

/// Where a follower is whose gap was heard and not taken: in front of it, for each of the three causes. Behind it, when it
/// was taken.
#[test]
fn a_pending_gap_is_before_its_follower() {
    let here = at(1, 1, 10);
    let causes = [
        (GapCause::TooSlow, vec![changes(at(1, 1, 1_010), 1_010, &[])], at(1, 1, 1_010)),
        (GapCause::OtherServer, vec![changes(at(1, 2, 5), 5, &[])], at(1, 2, 5)),
        // An equal number, and a lower one, of another server.
        (GapCause::OtherServer, vec![changes(at(1, 2, 10), 10, &[])], at(1, 2, 10)),
        (GapCause::OtherServer, vec![changes(at(1, 2, 3), 3, &[])], at(1, 2, 3)),
        (GapCause::OtherTable, vec![Err(Wrong::OtherTable), changes(at(2, 1, 1), 7, &[])], at(2, 1, 7)),
    ];
    for (cause, answers, to) in causes {
        let begin = changes(here, 10, &[]);
        let mut source = Script::new([begin].into_iter().chain(answers));
        let mut follower = Follower::new(here);
        assert_eq!(follower.step(&mut source), Ok(false), "{cause:?}: nothing is new");
        assert_eq!(follower.step(&mut source), Ok(true), "{cause:?}");
        assert_eq!(follower.position(), here, "{cause:?}: nothing was taken");
        assert_eq!(all(&mut follower), [HeardItem::Gap { from: here, to, cause }]);
        assert_eq!(follower.position(), to, "{cause:?}");
    }
}

/// Where a follower is that has taken some of what it heard: in front of the first change that is left, also where a gap
/// comes behind.
#[test]
fn a_place_is_behind_what_was_taken() {
    let mut source = Script::new([changes(at(1, 1, 10), 20, &[11, 14]), changes(at(1, 1, 50), 50, &[])]);
    let mut follower = Follower::new(at(1, 1, 10));
    assert_eq!((follower.step(&mut source), follower.step(&mut source)), (Ok(true), Ok(true)));
    let gap = HeardItem::Gap { from: at(1, 1, 20), to: at(1, 1, 50), cause: GapCause::TooSlow };
    for (number, item) in [(11, change(11)), (14, change(14)), (20, gap)] {
        assert_eq!(follower.position(), at(1, 1, number));
        assert_eq!(follower.take(), Some(item));
    }
    assert_eq!((follower.position(), follower.take()), (at(1, 1, 50), None));
    let from = |number| FeedAsked::Changes { from: at(1, 1, number), end: u64::MAX, passed: None };
    assert_eq!(source.asked, [from(10), from(20)]);
}

/// Who follows whatever is there begins with no gap, whichever number comes first; and one that has begun is told of another
/// table, while one that has not is refused.
#[test]
fn a_beginning_is_no_gap() {
    let mut source = Script::new([changes(at(1, 1, 1_000), 1_001, &[1_000])]);
    let mut follower = Follower::new(FeedPosition::default());
    assert_eq!(follower.step(&mut source), Ok(true));
    assert_eq!(all(&mut follower), [change(1_000)]);
    assert_eq!(follower.position(), at(1, 1, 1_001));
    for wrong in [Wrong::OtherTable, Wrong::Gone] {
        let mut source = Script::new([Err(wrong)]);
        assert_eq!(Follower::new(at(1, 1, 10)).step(&mut source), Err(wrong), "its caller's error");
    }
    // What is no word of another table is an error later, too, and changes nothing.
    let mut source = Script::new([Err(Wrong::Gone), changes(at(1, 1, 1_001), 1_002, &[1_001])]);
    assert_eq!(follower.step(&mut source), Err(Wrong::Gone));
    assert_eq!(follower.position(), at(1, 1, 1_001));
    assert_eq!(follower.step(&mut source), Ok(true));
    assert_eq!(all(&mut follower), [change(1_001)]);
}

/// Another server answers between two requests of a walk: no key that it shows counts with numbers of the one before. The
/// next request tells of the gap, and the walk is over.
#[test]
fn a_walk_ends_with_its_server() {
    let (old, new) = (at(1, 1, 10), at(1, 2, 4));
    let mut source = Script::new([
        changes(old, 10, &[]),
        looks(old, &[10], false),
        // The second part of the walk is another server's.
        looks(new, &[4, 4], true),
        changes(new, 4, &[]),
        changes(new, 5, &[4]),
    ]);
    let mut follower = Follower::new(old);
    follower.join(&mut source).unwrap();
    assert_eq!((follower.step(&mut source), follower.step(&mut source)), (Ok(true), Ok(true)));
    assert_eq!(all(&mut follower), [HeardItem::Key(vec![110], HeardValue::None, 0)]);
    assert_eq!(follower.step(&mut source), Ok(true));
    assert!(!follower.is_joining());
    let gap = HeardItem::Gap { from: old, to: new, cause: GapCause::OtherServer };
    assert_eq!(all(&mut follower), [gap]);
    assert_eq!(follower.step(&mut source), Ok(true));
    assert_eq!(all(&mut follower), [change(4)]);
    let walked = FeedAsked::Look { table: 1, cursor: b"cursor".to_vec() };
    assert_eq!(source.asked[2], walked);
}

/// The ring is overrun within a walk, and another table comes within one: both are gaps, and end it.
#[test]
fn a_walk_ends_with_what_it_misses() {
    let here = at(1, 1, 10);
    let overrun = vec![changes(at(1, 1, 500), 500, &[])];
    let other = vec![Err(Wrong::OtherTable), changes(at(2, 1, 1), 7, &[])];
    for (answers, to, cause) in
        [(overrun, at(1, 1, 500), GapCause::TooSlow), (other, at(2, 1, 7), GapCause::OtherTable)]
    {
        // The look is further on than the follower, so the changes before it are asked for.
        let walk = [changes(here, 10, &[]), looks(here, &[12], false)];
        let mut source = Script::new(walk.into_iter().chain(answers));
        let mut follower = Follower::new(here);
        follower.join(&mut source).unwrap();
        assert_eq!(follower.step(&mut source), Ok(true), "the looks came");
        assert_eq!(follower.step(&mut source), Ok(true), "{cause:?}");
        assert!(!follower.is_joining(), "{cause:?}");
        assert_eq!(all(&mut follower), [HeardItem::Gap { from: here, to, cause }]);
        // Of nothing passed: an empty cursor, up to the look's number.
        assert_eq!(source.asked[2], FeedAsked::Changes { from: here, end: 12, passed: Some(Vec::new()) });
    }
}

/// A walk that begins again drops what was heard and not taken, and begins where the feed is by then; also at another table
/// than before, which is no error for who has begun.
#[test]
fn a_walk_begins_where_the_feed_is() {
    let mut source = Script::new([
        changes(at(1, 1, 10), 12, &[10, 11]),
        Err(Wrong::OtherTable),
        changes(at(2, 5, 30), 33, &[]),
        looks(at(2, 5, 0), &[33], true),
    ]);
    let mut follower = Follower::new(at(1, 1, 10));
    assert_eq!(follower.step(&mut source), Ok(true));
    follower.join(&mut source).unwrap();
    assert!(follower.peek().is_none());
    assert_eq!(follower.position(), at(2, 5, 33));
    assert_eq!((follower.step(&mut source), follower.step(&mut source)), (Ok(true), Ok(true)));
    assert_eq!(all(&mut follower), [HeardItem::Key(vec![133], HeardValue::None, 0), HeardItem::Joined]);
    let place = |asked: &FeedAsked| match asked {
        FeedAsked::Changes { from, .. } => Some(*from),
        FeedAsked::Look { .. } => None,
    };
    let places: Vec<_> = source.asked.iter().filter_map(place).collect();
    assert_eq!(places, [at(1, 1, 10), at(1, 1, 0), FeedPosition::default()]);
    // Who has not begun is refused.
    let mut source = Script::new([Err(Wrong::OtherTable)]);
    assert_eq!(Follower::new(at(1, 1, 10)).join(&mut source), Err(Wrong::OtherTable));
}

/// Bodies that make no sense are errors, and change nothing: the next answer goes on.
#[test]
fn nonsense_changes_nothing() {
    let good = || changes(at(1, 1, 10), 12, &[10, 11]);
    let mut half = good().unwrap();
    half.truncate(half.len() - 1);
    // The second change has a number that the reply does not have.
    let out_of_range = changes(at(1, 1, 10), 11, &[10, 11]);
    for wrong in [Ok(Vec::new()), Ok(half), out_of_range] {
        let mut source = Script::new([changes(at(1, 1, 10), 10, &[]), wrong, good()]);
        let mut follower = Follower::new(at(1, 1, 10));
        assert_eq!(follower.step(&mut source), Ok(false));
        assert_eq!(follower.step(&mut source), Err(Wrong::Nonsense));
        assert!(follower.peek().is_none());
        assert_eq!(follower.position(), at(1, 1, 10));
        assert_eq!(follower.step(&mut source), Ok(true));
        assert_eq!(all(&mut follower), [change(10), change(11)]);
    }
    let mut source = Script::new([changes(at(1, 1, 10), 10, &[]), Ok(vec![1; 20])]);
    let mut follower = Follower::new(at(1, 1, 10));
    follower.join(&mut source).unwrap();
    assert_eq!(follower.step(&mut source), Err(Wrong::Nonsense));
    assert!(follower.is_joining());
}
