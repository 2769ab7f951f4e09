//! The last changes of a table, in memory of the server's process.
//!
//! ```text
//! words    the records, one behind the other, round and round
//! starts   at n modulo their number: where record n begins
//!
//! told     first goes up ── fence ── words, start ── next goes up (release)     (J5)
//! read     next (acquire) ── start, words ── fence ── first: still not above?   (J5)
//! ```
//!
//! One thread at a time tells. Any thread reads, and holds nothing: it never makes a change wait.

use super::cause::LeftCause;
use crate::base::sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence, lock};
use crate::faults::{Rule, in_order, kept};
use crate::index::seams::{Changed, KeyChange, SlotValue};
use crate::layout::WORD;
use crate::region::Region;
use smallvec::SmallVec;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Words of records for each start. Shorter records leave words unused.
const WORDS_PER_START: u64 = 4;
/// Words in front of a record's key.
const HEAD_WORDS: u64 = 1;

/// A value, as a record has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordValue<'r> {
    /// The key is absent after the change.
    None,
    /// The value.
    Here(&'r [u8]),
    /// The value is not in its slot, or is too long for the ring.
    Elsewhere,
}

/// A change, as it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChangeRecord<'r> {
    pub what: Changed,
    /// Why a key left.
    pub cause: LeftCause,
    /// Empty where an owner has gone.
    pub key: &'r [u8],
    /// The owner of the entry, or the owner that has gone; 0: nobody.
    pub owner: u16,
    pub value: RecordValue<'r>,
}

/// The ring.
#[derive(Debug)]
pub(super) struct ChangeRing {
    memory: Region,
    words: u64,
    starts: u64,
    /// The number of the oldest record that is whole.
    first: AtomicU64,
    /// The number of the next record.
    next: AtomicU64,
    /// What `next` was when somebody last asked. Relaxed: only the thread that tells reads it, and an older value does
    /// no harm.
    asked: AtomicU64,
    /// Where the next record begins. The holder of this lock tells changes.
    end: Mutex<u64>,
}

/// The content of a record's first word.
struct RecordHead {
    key: u64,
    owner: u64,
    value: u64,
    what: u64,
    cause: u64,
    kind: u64,
}

impl RecordHead {
    fn to_word(&self) -> u64 {
        self.key | self.what << 8 | self.kind << 12 | self.cause << 16 | self.value << 24 | self.owner << 48
    }

    fn from_word(word: u64) -> RecordHead {
        RecordHead {
            key: word & 255,
            owner: word >> 48,
            value: word >> 24 & 0xff_ffff,
            what: word >> 8 & 15,
            cause: word >> 16 & 255,
            kind: word >> 12 & 15,
        }
    }

    fn words(&self) -> u64 {
        HEAD_WORDS + words_of(self.key) + words_of(self.value)
    }
}

fn words_of(bytes: u64) -> u64 {
    bytes.div_ceil(WORD as u64)
}

/// A copy of a record's words.
pub(super) type RecordWords = SmallVec<[u64; 32]>;

impl ChangeRing {
    /// A ring of `bytes` for records, rounded down to a power of two, and a quarter of that for their starts.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub fn new(bytes: u64) -> io::Result<ChangeRing> {
        let words = 1 << (bytes / WORD as u64).max(4 * WORDS_PER_START).ilog2();
        let starts = words / WORDS_PER_START;
        let memory = Region::try_private((words + starts) * WORD as u64)?;
        let (first, next, asked) = (AtomicU64::new(1), AtomicU64::new(1), AtomicU64::new(1));
        Ok(ChangeRing { memory, words, starts, first, next, asked, end: Mutex::new(0) })
    }

    /// The number of the next record. Acquire: pairs with the release of [`ChangeRing::push`].
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Waits for the turn to tell changes.
    pub fn turn(&self) -> MutexGuard<'_, u64> {
        lock(&self.end)
    }

    /// Leaves out one number, and all records so far. A follower that has read some of them has a gap.
    pub fn skip(&self, _turn: &MutexGuard<'_, u64>) {
        let next = self.next.load(Relaxed) + 1;
        self.first.store(next, Relaxed);
        self.asked.store(next, Relaxed);
        self.next.store(next, Ordering::Release);
    }

    /// Notes that somebody asks. From now on the ring may go round once more.
    pub fn ask(&self) {
        self.asked.store(self.next(), Relaxed);
    }

    /// Adds a record. Returns `false`, and adds none, if the ring has gone round since somebody last asked.
    pub fn push(&self, turn: &mut MutexGuard<'_, u64>, change: &KeyChange<'_>, cause: LeftCause) -> bool {
        let value = match change.value {
            None => RecordValue::None,
            Some(SlotValue::Inline(value)) if self.has_room_for(change.key, value) => {
                RecordValue::Here(value)
            }
            Some(_) => RecordValue::Elsewhere,
        };
        let (kind, bytes) = match value {
            RecordValue::None => (0, &[][..]),
            RecordValue::Here(bytes) => (1, bytes),
            RecordValue::Elsewhere => (2, &[][..]),
        };
        let head = RecordHead {
            key: change.key.len() as u64,
            owner: change.owner.into(),
            value: bytes.len() as u64,
            what: change.what as u64,
            cause: cause.to_byte().into(),
            kind,
        };
        let (number, begins) = (self.next.load(Relaxed), **turn);
        let ends = begins + head.words();
        let first = self.first_that_stays(number, ends);
        if first > self.asked.load(Relaxed) {
            return false;
        }
        in_order(
            Rule::RingFirst,
            (),
            |()| {
                self.first.store(first, Relaxed);
                // J5: pairs with the fence in `load`.
                fence(Ordering::Release);
            },
            |()| {
                self.store(begins, head.to_word());
                self.store_bytes(begins + HEAD_WORDS, change.key);
                self.store_bytes(begins + HEAD_WORDS + words_of(head.key), bytes);
                self.memory.store(self.start_word(number), begins);
            },
        );
        **turn = ends;
        self.next.store(number + 1, Ordering::Release);
        true
    }

    /// Whether a record with this key and value takes at most a quarter of the ring.
    fn has_room_for(&self, key: &[u8], value: &[u8]) -> bool {
        value.len() < 1 << 24
            && 4 * (HEAD_WORDS + words_of(key.len() as u64) + words_of(value.len() as u64)) <= self.words
    }

    /// The oldest record that is still whole when record `number` ends there.
    fn first_that_stays(&self, number: u64, ends: u64) -> u64 {
        let mut first = self.first.load(Relaxed);
        while first < number
            && (number - first >= self.starts || ends - self.memory.load(self.start_word(first)) > self.words)
        {
            first += 1;
        }
        first
    }

    fn start_word(&self, number: u64) -> usize {
        (self.words + number % self.starts) as usize
    }

    fn store(&self, at: u64, word: u64) {
        self.memory.store((at % self.words) as usize, word);
    }

    fn store_bytes(&self, at: u64, bytes: &[u8]) {
        for (word, part) in bytes.chunks(WORD).enumerate() {
            let mut whole = [0; WORD];
            whole[..part.len()].copy_from_slice(part);
            self.store(at + word as u64, u64::from_le_bytes(whole));
        }
    }

    /// Shows records from `range` that are still there, oldest first, until `see` returns `false`: that record counts
    /// as not shown. Returns the numbers of the shown ones.
    pub fn read(&self, range: Range<u64>, see: &mut dyn FnMut(u64, &ChangeRecord<'_>) -> bool) -> Range<u64> {
        let end = range.end.min(self.next());
        let first = || self.first.load(Ordering::Relaxed);
        let (mut begin, mut words, mut bytes) = (range.start.max(first()), RecordWords::new(), Vec::new());
        let mut at = begin;
        while at < end {
            if !self.load(at, &mut words) {
                if at > begin {
                    break;
                }
                // The writer is at the oldest record. A record further on stays for a while.
                begin = first() + (self.next() - first().min(self.next())) / 8;
                at = begin;
                continue;
            }
            bytes.clear();
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            if !record(&bytes).is_none_or(|record| see(at, &record)) {
                break;
            }
            at += 1;
        }
        begin..at
    }

    /// Copies a record. `false` if it is written over.
    fn load(&self, number: u64, words: &mut RecordWords) -> bool {
        words.clear();
        let begins = self.memory.load(self.start_word(number));
        let word = |at: u64| self.memory.load((begins.wrapping_add(at) % self.words) as usize);
        let head = RecordHead::from_word(word(0));
        // A record that is being overwritten may say anything.
        if head.words() <= self.words {
            words.extend((0..head.words()).map(word));
        }
        // J5: pairs with the fence in `push`. Who saw a word of a later record sees that `first` went up.
        fence(Ordering::Acquire);
        kept(Rule::RingLook, || self.first.load(Relaxed) <= number) && !words.is_empty()
    }
}

/// Decodes a record's words. A whole record is always valid.
fn record(bytes: &[u8]) -> Option<ChangeRecord<'_>> {
    let (head, rest) = bytes.split_first_chunk::<WORD>()?;
    let head = RecordHead::from_word(u64::from_le_bytes(*head));
    let (key, value) = rest.split_at_checked(WORD * words_of(head.key) as usize)?;
    let what = match head.what {
        0 => Changed::Came,
        1 => Changed::Replaced,
        _ => Changed::Left,
    };
    let value = match head.kind {
        0 => RecordValue::None,
        1 => RecordValue::Here(value.get(..head.value as usize)?),
        _ => RecordValue::Elsewhere,
    };
    let (cause, owner) = (LeftCause::from_byte(head.cause as u8), head.owner as u16);
    Some(ChangeRecord { what, cause, key: key.get(..head.key as usize)?, owner, value })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn change<'c>(key: &'c [u8], value: Option<&'c [u8]>) -> KeyChange<'c> {
        let what = if value.is_some() { Changed::Replaced } else { Changed::Left };
        KeyChange { what, key, value: value.map(SlotValue::Inline), owner: 0, expiry: 0 }
    }

    fn push(ring: &ChangeRing, key: &[u8], value: Option<&[u8]>) -> bool {
        ring.push(&mut ring.turn(), &change(key, value), LeftCause::Removed)
    }

    type Seen = Vec<(u64, Vec<u8>, Option<Vec<u8>>)>;

    fn read(ring: &ChangeRing, range: Range<u64>) -> (Seen, Range<u64>) {
        let mut seen = Seen::new();
        let read = ring.read(range, &mut |number, record| {
            let value = match record.value {
                RecordValue::Here(value) => Some(value.to_vec()),
                _ => None,
            };
            seen.push((number, record.key.to_vec(), value));
            true
        });
        (seen, read)
    }

    /// Records come back as they were told, with their numbers, whatever their lengths. The oldest go first,
    /// and who asks for one of them is told where the rest begins.
    #[test]
    fn records_come_back_until_they_are_written_over() {
        let ring = ChangeRing::new(1 << 12).unwrap();
        let key = |n: u64| vec![n as u8; 1 + n as usize % 255];
        let value = |n: u64| (!n.is_multiple_of(3)).then(|| vec![!n as u8; n as usize % 60]);
        for n in 1..=500 {
            ring.ask();
            assert!(push(&ring, &key(n), value(n).as_deref()));
            let (seen, read) = read(&ring, 1..u64::MAX);
            assert_eq!(read.end, n + 1);
            assert!(n < 4 || read.end - read.start >= 2, "{n}: {read:?}");
            let right: Seen = read.map(|n| (n, key(n), value(n))).collect();
            assert_eq!(seen, right);
        }
        let (seen, part) = read(&ring, 499..500);
        assert_eq!((seen.len(), part), (1, 499..500));
    }

    /// A value that would take more than a quarter of the ring is elsewhere. Small records are bounded by their
    /// number.
    #[test]
    fn records_are_bounded() {
        let ring = ChangeRing::new(1 << 10).unwrap();
        assert!(push(&ring, b"key", Some(&[1; 500])));
        ring.read(1..2, &mut |_, record| {
            assert_eq!(record.value, RecordValue::Elsewhere);
            true
        });
        for _ in 0..100 {
            ring.ask();
            assert!(push(&ring, b"k", None));
        }
        let (seen, range) = read(&ring, 0..u64::MAX);
        assert_eq!((seen.len(), range), (32, 70..102));
    }

    /// When nobody has asked while all of it was written over, nothing more is told.
    #[test]
    fn a_ring_that_nobody_reads_ends() {
        let ring = ChangeRing::new(1 << 10).unwrap();
        let told = (0..1_000).take_while(|_| push(&ring, b"k", None)).count();
        assert_eq!(told, 32);
        ring.ask();
        let told = (0..1_000).take_while(|_| push(&ring, b"k", None)).count();
        assert_eq!(told, 32, "what was there by then may go");
        let before = ring.next();
        ring.skip(&ring.turn());
        assert_eq!(read(&ring, before..u64::MAX), (vec![], before + 1..before + 1), "a gap");
    }

    /// Two threads tell and one reads what it can: each record is whole, those of a thread are in order, and
    /// what was missed is missing at the front.
    fn beside(seconds: f64) -> Result<[u64; 2], String> {
        let ring = &ChangeRing::new(1 << 12).unwrap();
        let ends = &AtomicBool::new(false);
        let faults = crate::faults::all_broken();
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                scope.spawn(move || {
                    crate::faults::break_all(faults);
                    let mut n = 0u64;
                    while !ends.load(Relaxed) {
                        ring.ask();
                        let key = (thread << 32 | n).to_le_bytes();
                        let value = key.repeat(n as usize % 7);
                        push(ring, &key, Some(&value));
                        n += 1;
                    }
                });
            }
            let begun = std::time::Instant::now();
            let (mut at, mut last, mut counts) = (1, [None; 2], [0; 2]);
            let mut wrong = None;
            while wrong.is_none() && begun.elapsed().as_secs_f64() < seconds {
                let mut numbers = None;
                let range = ring.read(at..u64::MAX, &mut |number, record| {
                    let Ok(key) = record.key.try_into().map(u64::from_le_bytes) else {
                        wrong = Some(format!("{number}: {record:?}"));
                        return false;
                    };
                    let (thread, n) = (key >> 32, key & 0xffff_ffff);
                    let value = record.key.repeat(n as usize % 7);
                    if thread > 1 || record.value != RecordValue::Here(&value) {
                        wrong = Some(format!("{number}: {record:?}"));
                        return false;
                    }
                    let before = last[thread as usize].replace(n);
                    if before.is_some_and(|before| before >= n) || numbers.is_some_and(|it| it + 1 != number)
                    {
                        wrong = Some(format!("{number}: {n} after {before:?}"));
                    }
                    numbers = Some(number);
                    counts[0] += 1;
                    wrong.is_none()
                });
                if range.start < at {
                    wrong = Some(format!("asked from {at} on, told {range:?}"));
                }
                counts[1] += range.start - at.min(range.start);
                at = range.end;
            }
            ends.store(true, Relaxed);
            wrong.map_or(Ok(counts), Err)
        })
    }

    #[test]
    fn two_tell_and_one_reads() {
        let [seen, missed] = beside(0.5).unwrap();
        println!("{seen} records were read, {missed} were missed");
        assert!(seen > 1_000);
    }

    #[cfg(feature = "faults")]
    #[test]
    fn broken_rules_of_the_ring_are_noticed() {
        for rule in [Rule::RingLook, Rule::RingFirst] {
            let _broken = crate::faults::Broken::rule(rule);
            let found = (0..60).find_map(|_| beside(0.5).err());
            println!("{rule:?}: {}", found.unwrap_or_else(|| panic!("case lost: {rule:?}")));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::base::sync::model;
    use std::sync::Arc;

    fn push(ring: &ChangeRing, byte: u8) {
        let value = SlotValue::Inline(&[byte; 16][..]);
        let change =
            KeyChange { what: Changed::Came, key: &[byte; 8], value: Some(value), owner: 0, expiry: 0 };
        ring.ask();
        assert!(ring.push(&mut ring.turn(), &change, LeftCause::Removed));
    }

    /// The ring has room for four records. The fifth is told while a reader reads the first, whose words it takes:
    /// the reader shows it whole, or begins behind it.
    fn reader_against_a_record_written_over() {
        let ring = Arc::new(ChangeRing::new(0).expect("private memory"));
        (1..5).for_each(|byte| push(&ring, byte));
        let reader = {
            let ring = Arc::clone(&ring);
            loom::thread::spawn(move || {
                let mut shown = None;
                let read = ring.read(1..2, &mut |number, record| {
                    assert_eq!((number, record.key), (1, &[1; 8][..]), "another record");
                    assert_eq!(record.value, RecordValue::Here(&[1; 16]), "a mixture");
                    shown = Some(number);
                    true
                });
                assert_eq!(read.contains(&1), shown.is_some());
            })
        };
        push(&ring, 5);
        reader.join().expect("the reader ends");
        assert!(!ring.read(1..2, &mut |_, _| true).contains(&1), "it was written over");
    }

    #[test]
    fn loom_reader_against_a_record_written_over() {
        model(2, reader_against_a_record_written_over);
    }

    #[cfg(feature = "faults")]
    #[test]
    fn loom_rules_of_the_ring() {
        for rule in [Rule::RingLook, Rule::RingFirst] {
            let _broken = crate::faults::Broken::rule(rule);
            let ended = std::panic::catch_unwind(|| model(2, reader_against_a_record_written_over));
            let panic = ended.expect_err("not caught");
            // A stack that is too small is another kind of panic.
            assert!(panic.is::<String>(), "{rule:?}: nothing asserted has failed");
        }
    }
}
