//! Holders: who may have blocks. Each has a number, which is a bit in the sets of blocks.
//!
//! ```text
//! mask    '#' 'm'                ->  a bit for each live holder
//! record  '#' 'h' number (u32)   ->  state (u8), incarnation (u32), the name's id
//! ```
//!
//! # Numbers
//!
//! A record says what its number is: *free*, *live* or *leaving*. Without a record nothing is known of the number,
//! because the record may have had to make room for other entries: it is taken for one that is leaving. Each step is
//! one compare-and-swap of the record:
//!
//! | step | from | to |
//! |---|---|---|
//! | registration | free | live, with a new incarnation |
//! | drop | live | leaving |
//! | cleaning begins | no record | leaving, with a new incarnation |
//! | cleaning ends: a walk took the bit out of all sets | the leaving record with which it began | free |
//!
//! So a number is given only where a record says that no set has it. An incarnation is leaving once at most, so the
//! last step knows that the record was there during the whole walk, and nobody had the number. Adds look at the
//! record before and after. What eviction takes of this, in any order, makes numbers unknown, and never free. In a
//! new table all are unknown: the first registration walks over it.
//!
//! Who registers pins mask, record and name; who cleans pins the records. Pins end with a connection, and with the
//! server.
//!
//! # The mask
//!
//! It is READ once a batch, and a holder counts only if its bit is there: so to hide a holder is one change. Bit and
//! record are two entries. Whoever changes the record *settles* the bit afterwards: sees the record, makes the bit
//! agree with it, sees the record again, and begins again if it is another one by then.
//!
//! *When all settling has ended, the bits agree with the records.* Take the last change of a bit. Who made it saw the
//! same record before and after. If the record has changed later, then the one who changed it looked at the bit later
//! still: had it not agreed, there would have been one more change. While two settle one number, for a moment a
//! dropped holder may be seen, or a live one not. Who dies in between leaves such a bit behind: registrations and
//! cleaning look at all numbers, and settle those that do not agree. An evicted mask is mended in the same way. Until
//! then nobody is live: lookups are too short, and none is wrong.

use crate::error::PrefixError;
use crate::names::{ID_BYTES, NameId, id_of, name_of, pin_name, pin_once, put_name, record_key};
use oneread::{Client, PartChange, SwapOutcome, Tell};

/// The most holders of a table.
pub const HOLDERS_MAX: usize = 256;
const MASK: &[u8] = b"#m";
const LIVE: u8 = 1;
const LEAVING: u8 = 2;
const FREE: u8 = 3;
const RECORD_BYTES: usize = 5 + ID_BYTES;

/// Holders, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HolderSet([u64; HOLDERS_MAX / 64]);

impl HolderSet {
    /// From the bytes of a set; those that are missing are zero.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> HolderSet {
        let mut all = [0; HOLDERS_MAX / 8];
        let length = bytes.len().min(all.len());
        all[..length].copy_from_slice(&bytes[..length]);
        let (words, _) = all.as_chunks::<8>();
        HolderSet(std::array::from_fn(|n| u64::from_le_bytes(words[n])))
    }

    /// The first `width` bytes of it.
    pub fn to_bytes(self, width: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(width);
        bytes
    }

    pub fn of(number: u16) -> HolderSet {
        let mut set = HolderSet::default();
        set.0[usize::from(number) / 64] = 1 << (number % 64);
        set
    }

    fn has(self, number: u16) -> bool {
        !self.and(HolderSet::of(number)).is_empty()
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == [0; HOLDERS_MAX / 64]
    }

    #[inline]
    pub fn and(self, other: HolderSet) -> HolderSet {
        HolderSet(std::array::from_fn(|n| self.0[n] & other.0[n]))
    }

    #[inline]
    pub fn and_not(self, other: HolderSet) -> HolderSet {
        HolderSet(std::array::from_fn(|n| self.0[n] & !other.0[n]))
    }

    pub fn or(self, other: HolderSet) -> HolderSet {
        HolderSet(std::array::from_fn(|n| self.0[n] | other.0[n]))
    }

    /// Calls `each` with every number in it.
    #[inline]
    pub fn for_each(self, mut each: impl FnMut(usize)) {
        for (nth, mut word) in self.0.into_iter().enumerate() {
            while word != 0 {
                each(nth * 64 + word.trailing_zeros() as usize);
                word &= word - 1;
            }
        }
    }
}

/// A holder of blocks: a worker that has them. Its number is given again only when no block has it any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    number: u16,
    incarnation: u32,
    name: String,
}

impl Holder {
    /// Its number, the place of its length in [`PlacementIndex::match_prefix`](crate::PlacementIndex::match_prefix).
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What is written of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    state: u8,
    incarnation: u32,
    id: NameId,
}

impl Record {
    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [self.state; RECORD_BYTES];
        bytes[1..5].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[5..].copy_from_slice(&self.id);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Record> {
        let bytes: &[u8; RECORD_BYTES] = bytes.try_into().ok()?;
        let (incarnation, id) = bytes[1..].split_first_chunk::<4>()?;
        let incarnation = u32::from_le_bytes(*incarnation);
        Some(Record { state: bytes[0], incarnation, id: id.try_into().ok()? })
    }

    fn is_live(&self) -> bool {
        self.state == LIVE
    }
}

fn key_of(number: u16) -> [u8; 6] {
    record_key(b'h', number.into())
}

/// The live holders. 1 READ.
#[inline]
pub(crate) fn live(client: &mut Client) -> Result<HolderSet, PrefixError> {
    let mut bytes = Vec::with_capacity(HOLDERS_MAX / 8);
    Ok(match client.get_into(MASK, &mut bytes)? {
        true => HolderSet::from_bytes(&bytes),
        false => HolderSet::default(),
    })
}

/// What is known of each number. 1 READ for each.
fn records(client: &mut Client, width: usize) -> Result<Vec<Option<Record>>, PrefixError> {
    let keys: Vec<[u8; 6]> = (0..width as u16 * 8).map(key_of).collect();
    let record = |value: Result<Option<Vec<u8>>, _>| Record::from_bytes(&value.ok()??);
    Ok(client.get_many(&keys)?.into_iter().map(record).collect())
}

/// What is known of a number. 1 READ.
fn record_of(client: &mut Client, number: u16) -> Result<Option<Record>, PrefixError> {
    Ok(client.get(&key_of(number))?.as_deref().and_then(Record::from_bytes))
}

/// A number's record, and its bit in the mask.
trait Slot {
    type Error;

    fn record(&mut self) -> Result<Option<Record>, Self::Error>;
    fn has_bit(&mut self) -> Result<bool, Self::Error>;
    fn change_bit(&mut self, is_set: bool) -> Result<(), Self::Error>;

    /// Has the bit agree with the record, and returns this.
    fn settle(&mut self) -> Result<Option<Record>, Self::Error> {
        let mut record = self.record()?;
        loop {
            let is_live = record.is_some_and(|record| record.is_live());
            if self.has_bit()? != is_live {
                self.change_bit(is_live)?;
            }
            let now = self.record()?;
            if now == record {
                return Ok(record);
            }
            record = now;
        }
    }
}

/// Both in a table.
struct TableSlot<'a> {
    client: &'a mut Client,
    number: u16,
    width: usize,
}

impl Slot for TableSlot<'_> {
    type Error = PrefixError;

    fn record(&mut self) -> Result<Option<Record>, PrefixError> {
        record_of(self.client, self.number)
    }

    fn has_bit(&mut self) -> Result<bool, PrefixError> {
        Ok(live(self.client)?.has(self.number))
    }

    fn change_bit(&mut self, is_set: bool) -> Result<(), PrefixError> {
        let bits = &HolderSet::of(self.number).to_bytes(self.width)[..];
        let change = if is_set { PartChange::Or { bits } } else { PartChange::AndNot { bits } };
        self.client.change_part(MASK, change, Tell::Nothing)?;
        Ok(())
    }
}

/// Settles a number, and returns its record. 3 READs, and 1 round trip for a change; again as often as others change
/// the record meanwhile.
fn settle(client: &mut Client, number: u16, width: usize) -> Result<Option<Record>, PrefixError> {
    TableSlot { client, number, width }.settle()
}

/// Settles the bits that do not agree with these records. 1 READ where all do.
fn mend(client: &mut Client, known: &[Option<Record>], width: usize) -> Result<(), PrefixError> {
    let live = live(client)?;
    for (number, record) in (0..).zip(known) {
        if live.has(number) != record.is_some_and(|record| record.is_live()) {
            settle(client, number, width)?;
        }
    }
    Ok(())
}

/// The live holder of this name; a new one if there is none. `None` if no number is known to be free, and some are
/// not live: they are to be cleaned.
pub(crate) fn register(client: &mut Client, name: &str, width: usize) -> Result<Option<Holder>, PrefixError> {
    let id = id_of(name)?;
    loop {
        let known = records(client, width)?;
        mend(client, &known, width)?;
        let find = |wanted: &dyn Fn(&Record) -> bool| {
            (0..).zip(&known).find_map(|(n, record)| record.filter(wanted).map(|record| (n, record)))
        };
        let (number, record) = match find(&|record| record.is_live() && record.id == id) {
            Some(mine) => mine,
            None => {
                let Some((number, free)) = find(&|record| record.state == FREE) else {
                    let is_full = known.iter().all(|record| record.is_some_and(|record| record.is_live()));
                    return if is_full { Err(PrefixError::Holders { max: known.len() }) } else { Ok(None) };
                };
                let record = Record { state: LIVE, incarnation: rand::random(), id };
                if !swap(client, number, free, record)? {
                    continue;
                }
                (number, record)
            }
        };
        put_name(client, name, &id)?;
        // What was dropped, or had to make room, meanwhile is registered again.
        if pin_once(client, &key_of(number))?
            && pin_name(client, &id)?
            && settle(client, number, width)? == Some(record)
            && pin_once(client, MASK)?
        {
            return Ok(Some(Holder { number, incarnation: record.incarnation, name: name.into() }));
        }
    }
}

/// Changes a record. Returns whether it was the one before.
fn swap(client: &mut Client, number: u16, before: Record, after: Record) -> Result<bool, PrefixError> {
    let swapped =
        client.compare_exchange(&key_of(number), Some(&before.to_bytes()), Some(&after.to_bytes()))?;
    Ok(swapped == SwapOutcome::Swapped)
}

/// All live holders. READs every record, and the names.
pub(crate) fn all(client: &mut Client, width: usize) -> Result<Vec<Holder>, PrefixError> {
    let mut holders = Vec::new();
    for (number, record) in (0..).zip(records(client, width)?) {
        if let Some(record) = record.filter(Record::is_live)
            && let Some(name) = name_of(client, &record.id)?
        {
            holders.push(Holder { number, incarnation: record.incarnation, name });
        }
    }
    Ok(holders)
}

/// Refuses a holder that was dropped. 1 READ.
pub(crate) fn check(client: &mut Client, holder: &Holder) -> Result<(), PrefixError> {
    let record = record_of(client, holder.number)?;
    if record.is_some_and(|it| it.is_live() && it.incarnation == holder.incarnation) {
        return Ok(());
    }
    Err(PrefixError::HolderGone { number: holder.number, name: holder.name.clone() })
}

/// Hides a holder. Returns whether it was there. 4 READs and 2 round trips.
pub(crate) fn hide(client: &mut Client, holder: &Holder, width: usize) -> Result<bool, PrefixError> {
    let record = record_of(client, holder.number)?;
    let was_there = match record.filter(|it| it.is_live() && it.incarnation == holder.incarnation) {
        Some(record) => swap(client, holder.number, record, Record { state: LEAVING, ..record })?,
        None => false,
    };
    // Also where it was not: whoever has dropped it may not have come to the bit, or the record had to make room.
    settle(client, holder.number, width)?;
    Ok(was_there)
}

/// Numbers that are to be cleaned: of holders that were dropped, and those of which nothing is known. Nobody is given
/// one of them before it is free. 2 READs a number, and some round trips for each that is to be cleaned.
pub(crate) fn leaving(client: &mut Client, width: usize) -> Result<Vec<(u16, Record)>, PrefixError> {
    let mut swaps = Vec::new();
    for (number, record) in (0..).zip(records(client, width)?) {
        if record.is_none() {
            let record = Record { state: LEAVING, incarnation: rand::random(), id: NameId::default() };
            swaps.push((key_of(number), None, Some(record.to_bytes())));
        }
    }
    for swapped in client.compare_exchange_many(&swaps)? {
        swapped?;
    }
    let known = records(client, width)?;
    mend(client, &known, width)?;
    let mut targets = Vec::new();
    for (number, record) in (0..).zip(known) {
        if let Some(record) = record.filter(|record| record.state == LEAVING)
            && pin_once(client, &key_of(number))?
        {
            targets.push((number, record));
        }
    }
    Ok(targets)
}

/// Leaves out those that somebody else has cleaned meanwhile. 1 READ for each.
pub(crate) fn still(client: &mut Client, targets: &mut Vec<(u16, Record)>) -> Result<(), PrefixError> {
    let keys: Vec<[u8; 6]> = targets.iter().map(|(number, _)| key_of(*number)).collect();
    let found = client.get_many(&keys)?;
    let mut found = found.into_iter();
    targets.retain(|(_, record)| match found.next() {
        Some(Ok(Some(bytes))) => Record::from_bytes(&bytes) == Some(*record),
        _ => false,
    });
    Ok(())
}

/// Frees numbers that no set has any more, but for those that somebody else has freed. Returns how many this call did.
pub(crate) fn free(client: &mut Client, targets: Vec<(u16, Record)>) -> Result<usize, PrefixError> {
    let swap = |(number, record): (u16, Record)| {
        (key_of(number), Some(record.to_bytes()), Some(Record { state: FREE, ..record }.to_bytes()))
    };
    let swaps: Vec<_> = targets.into_iter().map(swap).collect();
    let mut freed = 0;
    for swapped in client.compare_exchange_many(&swaps)? {
        freed += usize::from(swapped? == SwapOutcome::Swapped);
    }
    Ok(freed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn record(state: u8, incarnation: u32) -> Option<Record> {
        Some(Record { state, incarnation, id: NameId::default() })
    }

    /// What a client does with the one number.
    #[derive(Clone, Copy, Debug)]
    enum Script {
        Drop(u32),
        /// Registers a name that is live already, or mends the mask.
        Settle,
        /// Frees it after this incarnation, and registers the next.
        Next(u32),
    }

    /// One number, and clients that begin at a step of another's, and end before it goes on.
    struct Model {
        record: Option<Record>,
        bit: bool,
        steps: usize,
        starts: Vec<(usize, Script)>,
    }

    impl Model {
        /// The next step of whoever runs, unless somebody else comes between.
        fn step(&mut self) {
            let now = self.steps;
            self.steps += 1;
            while let Some(nth) = self.starts.iter().position(|(at, _)| *at == now) {
                let (_, script) = self.starts.remove(nth);
                self.run(script);
            }
        }

        fn swap(&mut self, before: Option<Record>, after: Option<Record>) -> bool {
            self.step();
            let is_it = self.record == before;
            if is_it {
                self.record = after;
            }
            is_it
        }

        fn run(&mut self, script: Script) {
            match script {
                Script::Drop(of) => drop(self.swap(record(LIVE, of), record(LEAVING, of))),
                Script::Settle => {}
                Script::Next(after) => {
                    if !self.swap(record(LEAVING, after), record(FREE, after))
                        || !self.swap(record(FREE, after), record(LIVE, after + 1))
                    {
                        return;
                    }
                }
            }
            let Ok(_) = self.settle();
        }
    }

    impl Slot for Model {
        type Error = Infallible;

        fn record(&mut self) -> Result<Option<Record>, Infallible> {
            self.step();
            Ok(self.record)
        }

        fn has_bit(&mut self) -> Result<bool, Infallible> {
            self.step();
            Ok(self.bit)
        }

        fn change_bit(&mut self, is_set: bool) -> Result<(), Infallible> {
            self.step();
            self.bit = is_set;
            Ok(())
        }
    }

    /// Whoever comes between whom, at whichever step: at the end the bit agrees with the record.
    #[test]
    fn the_bit_agrees_when_all_is_quiet() {
        let scripts = [Script::Drop(1), Script::Settle, Script::Next(1), Script::Drop(2)];
        let mut seen = 0;
        for first in 0..scripts.len() {
            let others: Vec<Script> = (1..4).map(|n| scripts[(first + n) % 4]).collect();
            for at in 0..14 * 14 * 14 {
                let starts = [at % 14, at / 14 % 14, at / 196];
                for bit in [false, true] {
                    let starts = starts.into_iter().zip(others.iter().copied()).collect();
                    let mut model = Model { record: record(LIVE, 1), bit, steps: 0, starts };
                    model.run(scripts[first]);
                    while let Some((_, script)) = model.starts.pop() {
                        model.run(script);
                    }
                    let is_live = model.record.is_some_and(|record| record.is_live());
                    assert_eq!(model.bit, is_live, "{first} {at} {bit}: {:?}", model.record);
                    seen |= 1 << model.record.map_or(0, |record| record.state * 2 + record.incarnation as u8);
                }
            }
        }
        assert_eq!(seen, 1 << (LEAVING * 2 + 1) | 1 << (LIVE * 2 + 2) | 1 << (LEAVING * 2 + 2), "all ends");
    }
}
