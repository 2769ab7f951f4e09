//! Holders: who may have blocks. Each has a bit in the sets of blocks.
//!
//! ```text
//! mask    '#' 'm'              ->  a bit for each live holder
//! epoch   '#' 'g'              ->  a random number (u64); another one each time that a bit is given
//! page    '#' 'h' page (u32)   ->  the records of 64 bits, one behind the other
//! record: state (u8), what it keeps (u8), its owner (u16), incarnation (u32), the name's id
//! ```
//!
//! A holder is its name, for ever, and so is its number, which follows from the name's hash. Its bit is another one
//! after each drop.
//!
//! # Bits
//!
//! A record says what its bit is: *free*, *claimed*, *live* or *leaving*. Without a record nothing is known of the bit,
//! because its page may have had to make room for other entries: it is taken for one that is leaving. Each step is
//! one compare-and-swap of the page, which changes no other record; it is made again where another record of the page
//! has changed meanwhile:
//!
//! | step | from | to |
//! |---|---|---|
//! | registration begins | free | claimed, with a new incarnation |
//! | registration ends: the epoch was changed | claimed | live |
//! | another one registers the same name, or has drawn the same owner | claimed | free |
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
//! A holder that goes by itself is dropped by others: `crate::presence`.
//!
//! Who registers pins mask, epoch, page and name; who cleans pins the pages. Pins end with a connection, and with
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
use crate::faults::{Rule, broken};
use crate::names::{NameId, id_of, name_of, number_of, pin_name, pin_once, put_name};
use crate::presence::{self, Presence};
use crate::records::{self, Keeps, Record, State, record_of, records, swap};
use crate::sets::HolderSet;
use oneread::error::{MutateError, PartError};
use oneread::{Client, PartChange, Tell};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

const MASK: &[u8] = b"#m";
const EPOCH: &[u8] = b"#g";

/// How a holder is registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderOptions {
    /// Which blocks it has.
    pub keeps: Keeps,
    /// It goes by itself: when nobody has been there for it for this long, it has no block for any reader. Who is there for
    /// it has the [`Holder`], or a clone of it, that was registered with this. `None`: it goes when it is dropped.
    pub absent_for: Option<Duration>,
}

impl HolderOptions {
    /// A holder that may have any blocks, and goes when it is dropped.
    pub fn new() -> HolderOptions {
        HolderOptions::default()
    }

    /// Returns these options with `keeps` replaced.
    #[must_use]
    pub fn keeps(self, keeps: Keeps) -> HolderOptions {
        HolderOptions { keeps, ..self }
    }

    /// Returns these options with `absent_for` replaced.
    #[must_use]
    pub fn absent_for(self, absent_for: impl Into<Option<Duration>>) -> HolderOptions {
        HolderOptions { absent_for: absent_for.into(), ..self }
    }
}

impl From<Keeps> for HolderOptions {
    fn from(keeps: Keeps) -> HolderOptions {
        HolderOptions::new().keeps(keeps)
    }
}

/// A holder of blocks: a worker that has them. It was registered once; a drop ends it, and its name may be registered
/// again. Two are equal if they are one registration.
///
/// One that was registered with [`HolderOptions::absent_for`] is there as long as this value or a clone of it is: each
/// registration has a connection for that, which ends with the process.
#[derive(Clone, Debug)]
pub struct Holder {
    pub(crate) bit: u16,
    pub(crate) incarnation: u32,
    number: u64,
    keeps: Keeps,
    goes_by_itself: bool,
    /// What who registered it said. The table may say less, because of what was seen since.
    pub(crate) asked: HolderOptions,
    name: Arc<str>,
    /// Of who has registered it.
    presence: Option<Arc<Presence>>,
}

impl Holder {
    /// As somebody else sees it.
    pub(crate) fn new(bit: u16, record: Record, name: Arc<str>) -> Holder {
        let Record { keeps, incarnation, .. } = record;
        let (number, goes_by_itself) = (number_of(&record.id), record.owner != 0);
        Holder { bit, incarnation, number, keeps, goes_by_itself, asked: keeps.into(), name, presence: None }
    }

    /// The name's number, in every table and for ever: 64 bits of the name's hash.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which blocks it has, as the table said when this was told.
    pub fn keeps(&self) -> Keeps {
        self.keeps
    }

    /// Whether it goes when nobody is there for it ([`HolderOptions::absent_for`]).
    pub fn goes_by_itself(&self) -> bool {
        self.goes_by_itself
    }

    /// Whether this value is there for it.
    pub fn is_present(&self) -> bool {
        self.presence.is_some()
    }

    /// Which registration it is.
    fn registration(&self) -> (u64, u32, u16) {
        (self.number, self.incarnation, self.bit)
    }
}

impl PartialEq for Holder {
    fn eq(&self, other: &Holder) -> bool {
        self.registration() == other.registration()
    }
}

impl Eq for Holder {}

impl Hash for Holder {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.registration().hash(state);
    }
}

/// The live holders. 1 READ, or 2 where there are more than 256.
#[inline]
pub(crate) fn live(client: &mut Client, bytes: &mut Vec<u8>) -> Result<HolderSet, PrefixError> {
    Ok(match client.get_into(MASK, bytes)? {
        true => HolderSet::from_bytes(bytes),
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
}

impl Slot for TableSlot<'_> {
    type Error = PrefixError;

    fn record(&mut self) -> Result<Option<Record>, PrefixError> {
        record_of(self.client, self.bit)
    }

    fn has_bit(&mut self) -> Result<bool, PrefixError> {
        Ok(live(self.client, &mut Vec::new())?.has(self.bit))
    }

    fn change_bit(&mut self, is_set: bool) -> Result<(), PrefixError> {
        let bits = &HolderSet::of(self.bit).to_bytes()[..];
        let change = if is_set { PartChange::OrPadded { bits } } else { PartChange::AndNot { bits } };
        match self.client.change_part(MASK, change, Tell::Nothing) {
            // A shorter mask, which somebody has made since, does not have the bit.
            Ok(_) | Err(MutateError::Part(PartError::BitsLength { .. })) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Settles a bit, and returns its record. 5 READs, and 1 round trip for a change; again as often as others change
/// the record meanwhile.
fn settle(client: &mut Client, bit: u16) -> Result<Option<Record>, PrefixError> {
    TableSlot { client, bit }.settle()
}

/// Settles the bits that do not agree with these records, and puts an epoch where there is none. 2 READs where all is
/// well.
fn mend(client: &mut Client, known: &[Option<Record>]) -> Result<(), PrefixError> {
    if epoch(client)?.is_none() {
        new_epoch(client, false)?;
    }
    let live = live(client, &mut Vec::new())?;
    for (bit, record) in (0..).zip(known) {
        if live.has(bit) != record.is_some_and(|record| record.is_live()) {
            settle(client, bit)?;
        }
    }
    Ok(())
}

/// Puts another epoch; where there is none, if `is_other` is not so.
fn new_epoch(client: &mut Client, is_other: bool) -> Result<(), PrefixError> {
    let epoch = rand::random::<[u8; 8]>();
    if is_other {
        client.put(EPOCH, &epoch)?
    } else {
        client.insert(EPOCH, &epoch)?
    };
    Ok(())
}

/// The live holder of this name; a new one if there is none. `None` if no bit is known to be free, and some are
/// not live: they are to be cleaned.
pub(crate) fn register(
    client: &mut Client,
    name: &str,
    asked: HolderOptions,
    holders: usize,
) -> Result<Option<Holder>, PrefixError> {
    let id = id_of(name)?;
    let HolderOptions { keeps, absent_for } = asked;
    if absent_for.is_some() {
        presence::check(client)?;
    }
    // Of a holder that did not go by itself so far: kept until it is joined.
    let mut begun;
    loop {
        let known = records(client, holders)?;
        mend(client, &known)?;
        let find = |wanted: &dyn Fn(&Record) -> bool| {
            (0..).zip(&known).find_map(|(n, record)| record.filter(wanted).map(|record| (n, record)))
        };
        let mine = find(&|record| record.is_live() && record.id == id)
            .or_else(|| find(&|record| record.is_named() && record.id == id));
        if let (Some(absent_for), Some((bit, record))) = (absent_for, mine)
            && record.is_live()
            && record.owner == 0
        {
            let goes = Record { owner: presence::number_for(&known), ..record };
            begun = presence::begin(client, &goes, absent_for)?;
            if begun.is_some() && swap(client, bit, record, goes)? {
                new_epoch(client, true)?;
            }
            continue;
        }
        let (bit, record) = match mine {
            Some((bit, record)) if keeps == Keeps::Any && record.keeps != Keeps::Any => {
                keep_any(client, bit, record)?;
                continue;
            }
            Some(mine) => mine,
            None => {
                let Some((bit, free)) = find(&|record| record.state == State::Free) else {
                    let is_full = known.iter().all(|record| record.is_some_and(|record| record.is_live()));
                    let is_full = is_full && drop_absent(client, holders)? == 0;
                    return if is_full { Err(PrefixError::Holders { max: known.len() }) } else { Ok(None) };
                };
                let owner = absent_for.map_or(0, |_| presence::number_for(&known));
                let claimed = Record { state: State::Claimed, keeps, owner, incarnation: rand::random(), id };
                if !swap(client, bit, free, claimed)? {
                    continue;
                }
                let another = |(n, record): (u16, Option<Record>)| {
                    n != bit
                        && record.is_some_and(|record| {
                            record.is_named() && record.id == id || owner != 0 && record.owner == owner
                        })
                };
                if (0..).zip(records(client, holders)?).any(another) {
                    give_up(client, bit, claimed)?;
                    continue;
                }
                (bit, claimed)
            }
        };
        put_name(client, name, &id)?;
        let live = Record { state: State::Live, ..record };
        // H6
        let is_first = record.is_live() || !broken(Rule::PresenceFirst);
        let (is_there, mut presence) =
            if is_first { presence_of(client, &record, absent_for)? } else { (true, None) };
        if !is_there {
            match record.is_live() {
                true => drop(leave(client, bit, record)?),
                false => give_up(client, bit, record)?,
            }
            continue;
        }
        if !record.is_live() {
            new_epoch(client, true)?;
            if !swap(client, bit, record, live)? {
                continue;
            }
            if !is_first {
                (_, presence) = presence_of(client, &record, absent_for)?;
            }
        }
        if absent_for.is_some() && presence.is_none() {
            // It was somebody else's claim, who did not ask for that.
            continue;
        }
        // What was dropped, or had to make room, meanwhile is registered again.
        if records::pin(client, bit)?
            && pin_name(client, &id)?
            && settle(client, bit)? == Some(live)
            && pin_once(client, MASK)?
            && pin_once(client, EPOCH)?
        {
            let presence = presence.map(Arc::new);
            return Ok(Some(Holder { asked, presence, ..Holder::new(bit, live, name.into()) }));
        }
    }
}

/// Whether a registration is present, and its presence for who asks for one: that of a live one, or one that begins.
fn presence_of(
    client: &mut Client,
    record: &Record,
    absent_for: Option<Duration>,
) -> Result<(bool, Option<Presence>), PrefixError> {
    let presence = match absent_for {
        Some(_) if record.owner == 0 => return Ok((true, None)),
        None => return Ok((presence::is_there(client, record)?, None)),
        Some(absent_for) if record.is_live() => presence::join(client, record, absent_for)?,
        Some(absent_for) => presence::begin(client, record, absent_for)?,
    };
    Ok((presence.is_some(), presence))
}

/// Gives a claim up. No set has the bit: its holder was never told to anybody.
fn give_up(client: &mut Client, bit: u16, claimed: Record) -> Result<(), PrefixError> {
    swap(client, bit, claimed, Record { state: State::Free, ..claimed })?;
    Ok(())
}

/// Hides a holder, if it still is the registration of this record. Returns whether this call did. Some READs, and 2 round
/// trips.
fn leave(client: &mut Client, bit: u16, record: Record) -> Result<bool, PrefixError> {
    let has_left = swap(client, bit, record, Record { state: State::Leaving, ..record })?;
    settle(client, bit)?;
    Ok(has_left)
}

/// Hides the holders that go by themselves and are not present any more. Returns how many. READs all records, and 2 for each
/// that goes by itself.
pub(crate) fn drop_absent(client: &mut Client, holders: usize) -> Result<usize, PrefixError> {
    let known = records(client, holders)?;
    let mut dropped = 0;
    for (bit, record) in presence::absent(client, &known)? {
        dropped += usize::from(leave(client, bit, record)?);
    }
    Ok(dropped)
}

/// Has readers look at all blocks of a holder, until it is registered again. Returns whether they did not before. A round
/// trip, and another one for the epoch: readers READ the records again.
pub(crate) fn keep_any(client: &mut Client, bit: u16, record: Record) -> Result<bool, PrefixError> {
    let is_changed = swap(client, bit, record, Record { keeps: Keeps::Any, ..record })?;
    if is_changed {
        new_epoch(client, true)?;
    }
    Ok(is_changed)
}

/// All live holders that are present. READs all records, 2 for each that goes by itself, and the names.
pub(crate) fn all(client: &mut Client, holders: usize) -> Result<Vec<Holder>, PrefixError> {
    let mut all = Vec::new();
    let known = records(client, holders)?;
    let absent: HolderSet = presence::absent(client, &known)?.into_iter().map(|(bit, _)| bit).collect();
    for (bit, record) in (0..).zip(known) {
        if let Some(record) = record.filter(|record| record.is_live() && !absent.has(bit))
            && let Some(name) = name_of(client, &record.id)?
        {
            all.push(Holder::new(bit, record, name.into()));
        }
    }
    Ok(all)
}

/// Refuses a holder that was dropped, or is gone. 2 READs, and 2 more for one that goes by itself.
pub(crate) fn check(client: &mut Client, holder: &Holder) -> Result<(), PrefixError> {
    let record = record_of(client, holder.bit)?;
    if let Some(record) = record.filter(|it| it.is_live() && it.incarnation == holder.incarnation)
        // H7
        && (broken(Rule::AbsentAdds) || presence::is_there(client, &record)?)
    {
        return Ok(());
    }
    Err(PrefixError::HolderGone { name: holder.name.to_string() })
}

/// Hides the holder of a name, whoever has registered it. Returns whether it was there. READs all records; some READs more,
/// and 2 round trips.
pub(crate) fn hide(client: &mut Client, name: &str, holders: usize) -> Result<bool, PrefixError> {
    let id = id_of(name)?;
    let known = records(client, holders)?;
    // Also where it is not there: whoever has dropped it may not have come to the bit, or the record had to make room.
    mend(client, &known)?;
    let mut was_there = false;
    for (bit, record) in (0..).zip(known) {
        if let Some(record) = record.filter(|record| record.is_live() && record.id == id) {
            let is_present = presence::is_there(client, &record)?;
            was_there |= leave(client, bit, record)? && is_present;
        }
    }
    Ok(was_there)
}

/// Bits that are to be cleaned: of holders that were dropped, and those of which nothing is known. Nobody is given
/// one of them before it is free. 4 READs for 64 bits, and some round trips for pages that have one.
pub(crate) fn leaving(client: &mut Client, holders: usize) -> Result<Vec<(u16, Record)>, PrefixError> {
    drop_absent(client, holders)?;
    records::change_all(client, holders, |_, record| match record {
        None => {
            let (keeps, id) = (Keeps::Any, NameId::default());
            Some(Record { state: State::Leaving, keeps, owner: 0, incarnation: rand::random(), id })
        }
        // Who has claimed it may be dead. Who is not claims another one.
        Some(record) if record.state == State::Claimed => Some(Record { state: State::Leaving, ..*record }),
        Some(_) => None,
    })?;
    let known = records(client, holders)?;
    mend(client, &known)?;
    let is_leaving = |(bit, record): (u16, Option<Record>)| {
        Some((bit, record.filter(|record| record.state == State::Leaving)?))
    };
    let mut targets: Vec<(u16, Record)> = (0..).zip(known).filter_map(is_leaving).collect();
    let mut pinned = None;
    for (bit, _) in &targets {
        let page = records::page(*bit);
        if pinned != Some(page) {
            records::pin(client, *bit)?;
            pinned = Some(page);
        }
    }
    // What had to make room before it was pinned is left out.
    still(client, &mut targets, holders)?;
    Ok(targets)
}

/// Leaves out those that somebody else has cleaned meanwhile. READs all records.
pub(crate) fn still(
    client: &mut Client,
    targets: &mut Vec<(u16, Record)>,
    holders: usize,
) -> Result<(), PrefixError> {
    let known = records(client, holders)?;
    targets.retain(|(bit, record)| known.get(usize::from(*bit)) == Some(&Some(*record)));
    Ok(())
}

/// Frees bits that no set has any more, but for those that somebody else has freed. Returns how many this call did.
pub(crate) fn free(
    client: &mut Client,
    targets: &[(u16, Record)],
    holders: usize,
) -> Result<usize, PrefixError> {
    records::change_all(client, holders, |bit, record| {
        let is_target =
            targets.binary_search_by_key(&bit, |(of, _)| *of).is_ok_and(|at| *record == Some(targets[at].1));
        record.filter(|_| is_target).map(|record| Record { state: State::Free, ..record })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn record(state: State, incarnation: u32) -> Option<Record> {
        Some(Record { state, keeps: Keeps::Any, owner: 0, incarnation, id: NameId::default() })
    }

    /// A number for a state and an incarnation.
    fn end(state: State, incarnation: u32) -> u32 {
        1 + incarnation * 4 + state as u32
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
                Script::Drop(of) => drop(self.swap(record(State::Live, of), record(State::Leaving, of))),
                Script::Settle => {}
                Script::Next(after) => {
                    if !self.swap(record(State::Leaving, after), record(State::Free, after))
                        || !self.swap(record(State::Free, after), record(State::Claimed, after + 1))
                        || !self.swap(record(State::Claimed, after + 1), record(State::Live, after + 1))
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
                    let mut model = Model { record: record(State::Live, 1), bit, steps: 0, starts };
                    model.run(scripts[first]);
                    while let Some((_, script)) = model.starts.pop() {
                        model.run(script);
                    }
                    let is_live = model.record.is_some_and(|record| record.is_live());
                    assert_eq!(model.bit, is_live, "{first} {at} {bit}: {:?}", model.record);
                    seen |= 1 << model.record.map_or(0, |record| end(record.state, record.incarnation));
                }
            }
        }
        let ends = [(State::Leaving, 1), (State::Live, 2), (State::Leaving, 2)];
        assert_eq!(seen, ends.iter().fold(0, |all, (state, of)| all | 1 << end(*state, *of)), "all ends");
    }
}
