//! Holders: who may have blocks. Each has a bit in the sets of blocks.
//!
//! ```text
//! mask    '#' 'm'             ->  a bit for each live holder
//! epoch   '#' 'g'             ->  a random number (u64); another one each time that a bit is given
//! record  '#' 'h' bit (u32)   ->  state (u8), incarnation (u32), the name's id
//! ```
//!
//! A holder is its name, for ever, and so is its number, which follows from the name's hash. Its bit is another one
//! after each drop.
//!
//! # Bits
//!
//! A record says what its bit is: *free*, *claimed*, *live* or *leaving*. Without a record nothing is known of the bit,
//! because the record may have had to make room for other entries: it is taken for one that is leaving. Each step is
//! one compare-and-swap of the record:
//!
//! | step | from | to |
//! |---|---|---|
//! | registration begins | free | claimed, with a new incarnation |
//! | registration ends: the epoch was changed | claimed | live |
//! | another one registers the same name | claimed | free |
//! | drop | live | leaving |
//! | cleaning begins | no record | leaving, with a new incarnation |
//! | cleaning begins | claimed | leaving |
//! | cleaning ends: a walk took the bit out of all sets | the leaving record with which it began | free |
//!
//! So a bit is given only where a record says that no set has it. An incarnation is leaving once at most, so the
//! last step knows that the record was there during the whole walk, and nobody had the bit. Adds look at the
//! record before and after. What eviction takes of this, in any order, makes bits unknown, and never free. In a
//! new table all are unknown: the first registration walks over it.
//!
//! Who has claimed a bit looks at all records again before he goes on. He gives the bit up if he sees his name at
//! another one. Of two who register a name, the later one to claim sees the other's claim. So a name has one live bit.
//!
//! Who registers pins mask, epoch, record and name; who cleans pins the records. Pins end with a connection, and with
//! the server.
//!
//! # The epoch
//!
//! Readers keep a copy of the records ([`Directory`](crate::directory::Directory)), and the epoch that they READ
//! before it. If the epoch is the same after a lookup, the copy told who had each bit during the lookup. Proof: a
//! bit's next holder is live only after the epoch was changed, and adds only when it is live. A copy that was made
//! before that change has the older epoch. A copy that was made after it has the new holder's record, because the
//! claim was there before.
//!
//! # The mask
//!
//! It is READ once a batch, and a holder counts only if its bit is there: so to hide a holder is one change. Bit and
//! record are two entries. Whoever changes the record *settles* the bit afterwards: sees the record, makes the bit
//! agree with it, sees the record again, and begins again if it is another one by then.
//!
//! *When all settling has ended, the bits agree with the records.* Take the last change of a bit. Who made it saw the
//! same record before and after. If the record has changed later, then the one who changed it looked at the bit later
//! still: had it not agreed, there would have been one more change. While two settle one bit, for a moment a
//! dropped holder may be seen, or a live one not. Who dies in between leaves such a bit behind: registrations, drops
//! and cleaning look at all bits, and settle those that do not agree. An evicted mask is mended in the same way. Until
//! then nobody is live: lookups are too short, and none is wrong.

use crate::error::PrefixError;
use crate::names::{ID_BYTES, NameId, id_of, name_of, number_of, pin_name, pin_once, put_name, record_key};
use oneread::{Client, PartChange, SwapOutcome, Tell};
use std::sync::Arc;

/// The most holders of a table.
pub const HOLDERS_MAX: usize = 256;
const MASK: &[u8] = b"#m";
const EPOCH: &[u8] = b"#g";
const LIVE: u8 = 1;
const LEAVING: u8 = 2;
const FREE: u8 = 3;
const CLAIMED: u8 = 4;
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

    /// Calls `each` with every bit in it, up to an error.
    pub fn for_each_while<E>(self, mut each: impl FnMut(usize) -> Result<(), E>) -> Result<(), E> {
        let mut outcome = Ok(());
        self.for_each(|bit| {
            if outcome.is_ok() {
                outcome = each(bit);
            }
        });
        outcome
    }

    /// Calls `each` with every bit in it.
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

/// A holder of blocks: a worker that has them. It was registered once; a drop ends it, and its name may be registered
/// again. Two are equal if they are one registration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    pub(crate) bit: u16,
    pub(crate) incarnation: u32,
    number: u64,
    name: Arc<str>,
}

impl Holder {
    pub(crate) fn new(bit: u16, record: Record, name: Arc<str>) -> Holder {
        Holder { bit, incarnation: record.incarnation, number: number_of(&record.id), name }
    }

    /// The name's number, in every table and for ever: 64 bits of the name's hash.
    pub fn number(&self) -> u64 {
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
    pub id: NameId,
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

    /// Whether the bit is a name's, or is about to be.
    pub fn is_named(&self) -> bool {
        self.state == LIVE || self.state == CLAIMED
    }

    /// Whether these are of one registration.
    pub fn is_same(&self, other: &Record) -> bool {
        self.is_named() && other.is_named() && (self.incarnation, self.id) == (other.incarnation, other.id)
    }
}

fn key_of(bit: u16) -> [u8; 6] {
    record_key(b'h', bit.into())
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

/// The epoch. `None` where it had to make room, or was never there. 1 READ.
#[inline]
pub(crate) fn epoch(client: &mut Client) -> Result<Option<[u8; 8]>, PrefixError> {
    let mut bytes = Vec::with_capacity(8);
    Ok(match client.get_into(EPOCH, &mut bytes)? {
        true => bytes.as_slice().try_into().ok(),
        false => None,
    })
}

/// What is known of each bit. 1 READ for each.
pub(crate) fn records(client: &mut Client, width: usize) -> Result<Vec<Option<Record>>, PrefixError> {
    let keys: Vec<[u8; 6]> = (0..width as u16 * 8).map(key_of).collect();
    let record = |value: Result<Option<Vec<u8>>, _>| Record::from_bytes(&value.ok()??);
    Ok(client.get_many(&keys)?.into_iter().map(record).collect())
}

/// What is known of a bit. 1 READ.
fn record_of(client: &mut Client, bit: u16) -> Result<Option<Record>, PrefixError> {
    Ok(client.get(&key_of(bit))?.as_deref().and_then(Record::from_bytes))
}

/// A bit's record, and the bit in the mask.
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
    bit: u16,
    width: usize,
}

impl Slot for TableSlot<'_> {
    type Error = PrefixError;

    fn record(&mut self) -> Result<Option<Record>, PrefixError> {
        record_of(self.client, self.bit)
    }

    fn has_bit(&mut self) -> Result<bool, PrefixError> {
        Ok(live(self.client)?.has(self.bit))
    }

    fn change_bit(&mut self, is_set: bool) -> Result<(), PrefixError> {
        let bits = &HolderSet::of(self.bit).to_bytes(self.width)[..];
        let change = if is_set { PartChange::Or { bits } } else { PartChange::AndNot { bits } };
        self.client.change_part(MASK, change, Tell::Nothing)?;
        Ok(())
    }
}

/// Settles a bit, and returns its record. 3 READs, and 1 round trip for a change; again as often as others change
/// the record meanwhile.
fn settle(client: &mut Client, bit: u16, width: usize) -> Result<Option<Record>, PrefixError> {
    TableSlot { client, bit, width }.settle()
}

/// Settles the bits that do not agree with these records, and puts an epoch where there is none. 2 READs where all is
/// well.
fn mend(client: &mut Client, known: &[Option<Record>], width: usize) -> Result<(), PrefixError> {
    if epoch(client)?.is_none() {
        client.insert(EPOCH, &rand::random::<[u8; 8]>())?;
    }
    let live = live(client)?;
    for (bit, record) in (0..).zip(known) {
        if live.has(bit) != record.is_some_and(|record| record.is_live()) {
            settle(client, bit, width)?;
        }
    }
    Ok(())
}

/// The live holder of this name; a new one if there is none. `None` if no bit is known to be free, and some are
/// not live: they are to be cleaned.
pub(crate) fn register(client: &mut Client, name: &str, width: usize) -> Result<Option<Holder>, PrefixError> {
    let id = id_of(name)?;
    loop {
        let known = records(client, width)?;
        mend(client, &known, width)?;
        let find = |wanted: &dyn Fn(&Record) -> bool| {
            (0..).zip(&known).find_map(|(n, record)| record.filter(wanted).map(|record| (n, record)))
        };
        let mine = find(&|record| record.is_live() && record.id == id)
            .or_else(|| find(&|record| record.is_named() && record.id == id));
        let (bit, record) = match mine {
            Some(mine) => mine,
            None => {
                let Some((bit, free)) = find(&|record| record.state == FREE) else {
                    let is_full = known.iter().all(|record| record.is_some_and(|record| record.is_live()));
                    return if is_full { Err(PrefixError::Holders { max: known.len() }) } else { Ok(None) };
                };
                let claimed = Record { state: CLAIMED, incarnation: rand::random(), id };
                if !swap(client, bit, free, claimed)? {
                    continue;
                }
                let another = |(n, record): (u16, Option<Record>)| {
                    n != bit && record.is_some_and(|record| record.is_named() && record.id == id)
                };
                if (0..).zip(records(client, width)?).any(another) {
                    // No set has the bit: its holder was never told to anybody.
                    swap(client, bit, claimed, Record { state: FREE, ..claimed })?;
                    continue;
                }
                (bit, claimed)
            }
        };
        put_name(client, name, &id)?;
        let live = Record { state: LIVE, ..record };
        if !record.is_live() {
            client.put(EPOCH, &rand::random::<[u8; 8]>())?;
            if !swap(client, bit, record, live)? {
                continue;
            }
        }
        // What was dropped, or had to make room, meanwhile is registered again.
        if pin_once(client, &key_of(bit))?
            && pin_name(client, &id)?
            && settle(client, bit, width)? == Some(live)
            && pin_once(client, MASK)?
            && pin_once(client, EPOCH)?
        {
            return Ok(Some(Holder::new(bit, live, name.into())));
        }
    }
}

/// Changes a record. Returns whether it was the one before.
fn swap(client: &mut Client, bit: u16, before: Record, after: Record) -> Result<bool, PrefixError> {
    let swapped = client.compare_exchange(&key_of(bit), Some(&before.to_bytes()), Some(&after.to_bytes()))?;
    Ok(swapped == SwapOutcome::Swapped)
}

/// All live holders. READs every record, and the names.
pub(crate) fn all(client: &mut Client, width: usize) -> Result<Vec<Holder>, PrefixError> {
    let mut holders = Vec::new();
    for (bit, record) in (0..).zip(records(client, width)?) {
        if let Some(record) = record.filter(Record::is_live)
            && let Some(name) = name_of(client, &record.id)?
        {
            holders.push(Holder::new(bit, record, name.into()));
        }
    }
    Ok(holders)
}

/// Refuses a holder that was dropped. 1 READ.
pub(crate) fn check(client: &mut Client, holder: &Holder) -> Result<(), PrefixError> {
    let record = record_of(client, holder.bit)?;
    if record.is_some_and(|it| it.is_live() && it.incarnation == holder.incarnation) {
        return Ok(());
    }
    Err(PrefixError::HolderGone { name: holder.name.to_string() })
}

/// Hides the holder of a name, whoever has registered it. Returns whether it was there. 1 READ for each bit, some READs,
/// and 2 round trips.
pub(crate) fn hide(client: &mut Client, name: &str, width: usize) -> Result<bool, PrefixError> {
    let id = id_of(name)?;
    let known = records(client, width)?;
    // Also where it is not there: whoever has dropped it may not have come to the bit, or the record had to make room.
    mend(client, &known, width)?;
    let mut was_there = false;
    for (bit, record) in (0..).zip(known) {
        if let Some(record) = record.filter(|record| record.is_live() && record.id == id) {
            was_there |= swap(client, bit, record, Record { state: LEAVING, ..record })?;
            settle(client, bit, width)?;
        }
    }
    Ok(was_there)
}

/// Bits that are to be cleaned: of holders that were dropped, and those of which nothing is known. Nobody is given
/// one of them before it is free. 2 READs a bit, and some round trips for each that is to be cleaned.
pub(crate) fn leaving(client: &mut Client, width: usize) -> Result<Vec<(u16, Record)>, PrefixError> {
    let mut swaps = Vec::new();
    for (bit, record) in (0..).zip(records(client, width)?) {
        let leaving = match record {
            None => Record { state: LEAVING, incarnation: rand::random(), id: NameId::default() },
            // Who has claimed it may be dead. Who is not claims another one.
            Some(record) if record.state == CLAIMED => Record { state: LEAVING, ..record },
            Some(_) => continue,
        };
        swaps.push((key_of(bit), record.map(Record::to_bytes), Some(leaving.to_bytes())));
    }
    for swapped in client.compare_exchange_many(&swaps)? {
        swapped?;
    }
    let known = records(client, width)?;
    mend(client, &known, width)?;
    let mut targets = Vec::new();
    for (bit, record) in (0..).zip(known) {
        if let Some(record) = record.filter(|record| record.state == LEAVING)
            && pin_once(client, &key_of(bit))?
        {
            targets.push((bit, record));
        }
    }
    Ok(targets)
}

/// Leaves out those that somebody else has cleaned meanwhile. 1 READ for each.
pub(crate) fn still(client: &mut Client, targets: &mut Vec<(u16, Record)>) -> Result<(), PrefixError> {
    let keys: Vec<[u8; 6]> = targets.iter().map(|(bit, _)| key_of(*bit)).collect();
    let found = client.get_many(&keys)?;
    let mut found = found.into_iter();
    targets.retain(|(_, record)| match found.next() {
        Some(Ok(Some(bytes))) => Record::from_bytes(&bytes) == Some(*record),
        _ => false,
    });
    Ok(())
}

/// Frees bits that no set has any more, but for those that somebody else has freed. Returns how many this call did.
pub(crate) fn free(client: &mut Client, targets: Vec<(u16, Record)>) -> Result<usize, PrefixError> {
    let swap = |(bit, record): (u16, Record)| {
        (key_of(bit), Some(record.to_bytes()), Some(Record { state: FREE, ..record }.to_bytes()))
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
                        || !self.swap(record(FREE, after), record(CLAIMED, after + 1))
                        || !self.swap(record(CLAIMED, after + 1), record(LIVE, after + 1))
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
