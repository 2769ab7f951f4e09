//! Holders: who may have blocks. Each has a number, which is a bit in the sets of blocks.
//!
//! ```text
//! mask    '#' 'm'                ->  a bit for each live holder
//! record  '#' 'h' number (u32)   ->  state (u8), incarnation (u32), the name's id
//! ```
//!
//! The mask is READ once a batch, and a holder counts only if its bit is there: so to hide a holder is one change.
//! The record comes first, in both directions of a holder's life:
//!
//! 1. A registration claims a number by inserting its record, then sets the bit.
//! 2. A drop marks the record as leaving, then clears the bit. From then on adds are refused, because they look at
//!    the record before and after. Where a drop ended between the two, cleaning does the second.
//! 3. Cleaning takes the bit out of all sets, then removes the record: the number is free.
//!
//! If the mask is lost (another table, an eviction), nobody is live until holders register again: then lookups are
//! too short, and none is wrong. Who registers pins mask, record and name against eviction.

use crate::error::PrefixError;
use crate::names::{ID_BYTES, NameId, id_of, name_of, pin_name, put_name, record_key};
use oneread::{Client, PartChange, PartEffect, SwapOutcome};

/// The most holders of a table.
pub const HOLDERS_MAX: usize = 256;
const MASK: &[u8] = b"#m";
const LIVE: u8 = 1;
const LEAVING: u8 = 2;
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

    pub fn is_live(&self) -> bool {
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

/// The records of all holders there are, with their numbers. 1 READ for each number that there can be.
pub(crate) fn records(client: &mut Client, max: usize) -> Result<Vec<(u16, Record)>, PrefixError> {
    let keys: Vec<[u8; 6]> = (0..max as u16).map(key_of).collect();
    let found = client.get_many(&keys)?;
    let record = |(number, value): (u16, _)| match value {
        Ok(Some(bytes)) => Record::from_bytes(Vec::as_slice(&bytes)).map(|record| (number, record)),
        _ => None,
    };
    Ok((0..).zip(found).filter_map(record).collect())
}

/// The live holder of this name; a new one if there is none.
pub(crate) fn register(client: &mut Client, name: &str, width: usize) -> Result<Holder, PrefixError> {
    let id = id_of(name)?;
    let max = width * 8;
    let known = records(client, max)?;
    let mut mine = known.iter().find(|(_, record)| record.is_live() && record.id == id).copied();
    if mine.is_none() {
        put_name(client, name, &id)?;
        let record = Record { state: LIVE, incarnation: rand::random(), id };
        for number in 0..max as u16 {
            let is_taken = known.iter().any(|(taken, _)| *taken == number);
            if !is_taken
                && client.compare_exchange(&key_of(number), None, Some(&record.to_bytes()))?
                    == SwapOutcome::Swapped
            {
                mine = Some((number, record));
                break;
            }
        }
    }
    let (number, record) = mine.ok_or(PrefixError::Holders { max })?;
    client.or(MASK, &HolderSet::of(number).to_bytes(width))?;
    client.pin(MASK)?;
    client.pin(&key_of(number))?;
    pin_name(client, &id)?;
    Ok(Holder { number, incarnation: record.incarnation, name: name.into() })
}

/// All live holders. READs every record, and the names.
pub(crate) fn all(client: &mut Client, max: usize) -> Result<Vec<Holder>, PrefixError> {
    let mut holders = Vec::new();
    for (number, record) in records(client, max)? {
        if record.is_live()
            && let Some(name) = name_of(client, &record.id)?
        {
            holders.push(Holder { number, incarnation: record.incarnation, name });
        }
    }
    Ok(holders)
}

/// Refuses a holder that was dropped. 1 READ.
pub(crate) fn check(client: &mut Client, holder: &Holder) -> Result<(), PrefixError> {
    let record = client.get(&key_of(holder.number))?;
    let record = record.as_deref().and_then(Record::from_bytes);
    if record.is_some_and(|it| it.is_live() && it.incarnation == holder.incarnation) {
        return Ok(());
    }
    Err(PrefixError::HolderGone { number: holder.number, name: holder.name.clone() })
}

/// Hides a holder. Returns whether it was there. 1 READ and 2 round trips.
pub(crate) fn hide(client: &mut Client, holder: &Holder, width: usize) -> Result<bool, PrefixError> {
    let record = client.get(&key_of(holder.number))?;
    let Some(record) = record.as_deref().and_then(Record::from_bytes) else { return Ok(false) };
    if record.incarnation != holder.incarnation {
        return Ok(false);
    }
    let leaving = Record { state: LEAVING, ..record }.to_bytes();
    let swapped =
        client.compare_exchange(&key_of(holder.number), Some(&record.to_bytes()), Some(&leaving))?;
    clear_live(client, holder.number, width)?;
    Ok(swapped == SwapOutcome::Swapped && record.is_live())
}

/// Takes the bit of a leaving holder out of the mask. It is repeated for one whose drop ended in the middle.
pub(crate) fn clear_live(client: &mut Client, number: u16, width: usize) -> Result<PartEffect, PrefixError> {
    let bits = &HolderSet::of(number).to_bytes(width);
    let cleared = client.change_part(MASK, PartChange::AndNot { bits }, oneread::Tell::Nothing)?;
    Ok(cleared.effect)
}

/// Holders that are leaving: they are to be cleaned.
pub(crate) fn leaving(client: &mut Client, max: usize) -> Result<Vec<(u16, Record)>, PrefixError> {
    let mut records = records(client, max)?;
    records.retain(|(_, record)| !record.is_live());
    Ok(records)
}

/// Whether these holders are the same ones still, and leaving.
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

/// Frees the number of a holder that no block has any more. Returns whether this call did.
pub(crate) fn free(client: &mut Client, number: u16, record: &Record) -> Result<bool, PrefixError> {
    client.unpin(&key_of(number))?;
    let freed = client.compare_exchange(&key_of(number), Some(&record.to_bytes()), None)?;
    Ok(freed == SwapOutcome::Swapped)
}
