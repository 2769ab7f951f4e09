//! What is written of each bit: records, 64 of them in a page.

use crate::error::PrefixError;
use crate::names::{ID_BYTES, NameId, pin_once, record_key};
use oneread::{Client, SwapOutcome};

/// Records of a page.
const PAGE: usize = 64;
const RECORD_BYTES: usize = 8 + ID_BYTES;
/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = PAGE * RECORD_BYTES;
/// Others may come between so often where a page is changed.
const ROUNDS: u32 = 10_000;

/// What a bit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Live,
    Leaving,
    Free,
    Claimed,
}

/// Which blocks a holder has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Keeps {
    /// Any: a prompt's blocks may be missing before others, as with sliding windows, or where layers of several kinds
    /// keep blocks of their own.
    #[default]
    Any,
    /// No block without those before it, and loses the last ones first. Lookups then look at some of its blocks only.
    PrefixClosed,
}

/// What is written of a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub state: State,
    pub keeps: Keeps,
    /// The owner with whose presence its holder goes (`crate::presence`). 0: it goes when it is dropped.
    pub owner: u16,
    pub incarnation: u32,
    pub id: NameId,
}

impl Record {
    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let state = match self.state {
            State::Live => 1,
            State::Leaving => 2,
            State::Free => 3,
            State::Claimed => 4,
        };
        let keeps = match self.keeps {
            Keeps::Any => 0,
            Keeps::PrefixClosed => 1,
        };
        let mut bytes = [0; RECORD_BYTES];
        (bytes[0], bytes[1]) = (state, keeps);
        bytes[2..4].copy_from_slice(&self.owner.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[8..].copy_from_slice(&self.id);
        bytes
    }

    /// `None` for what no version up to this one has written, and for a bit of which nothing is known.
    fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        let ([state, keeps], rest) = bytes.split_first_chunk::<2>()?;
        let (owner, rest) = rest.split_first_chunk::<2>()?;
        let (incarnation, id) = rest.split_first_chunk::<4>()?;
        let state = match state {
            1 => State::Live,
            2 => State::Leaving,
            3 => State::Free,
            4 => State::Claimed,
            _ => return None,
        };
        let keeps = match keeps {
            0 => Keeps::Any,
            1 => Keeps::PrefixClosed,
            _ => return None,
        };
        let (owner, incarnation) = (u16::from_le_bytes(*owner), u32::from_le_bytes(*incarnation));
        Some(Record { state, keeps, owner, incarnation, id: id.try_into().ok()? })
    }

    pub fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// Whether the bit is a name's, or is about to be.
    pub fn is_named(&self) -> bool {
        match self.state {
            State::Live | State::Claimed => true,
            State::Leaving | State::Free => false,
        }
    }

    /// Whether these are of one registration.
    pub fn is_same(&self, other: &Record) -> bool {
        self.is_named() && other.is_named() && (self.incarnation, self.id) == (other.incarnation, other.id)
    }
}

/// Records of 64 bits. `None`: nothing is known.
type Page = [Option<Record>; PAGE];

fn page_of(bytes: Option<&[u8]>) -> Page {
    let mut page = [None; PAGE];
    let (records, _) = bytes.unwrap_or_default().as_chunks();
    page.iter_mut().zip(records).for_each(|(record, bytes)| *record = Record::from_bytes(bytes));
    page
}

fn page_bytes(page: &Page) -> Vec<u8> {
    page.iter().flat_map(|record| record.map_or([0; RECORD_BYTES], Record::to_bytes)).collect()
}

fn page_key(page: usize) -> [u8; 6] {
    record_key(b'h', page as u32)
}

/// Where a bit's record is.
fn place_of(bit: u16) -> (usize, usize) {
    (usize::from(bit) / PAGE, usize::from(bit) % PAGE)
}

/// Which page has a bit's record.
pub(crate) fn page(bit: u16) -> usize {
    place_of(bit).0
}

/// What is known of each bit. 2 READs for 64 of them.
pub(crate) fn records(client: &mut Client, holders: usize) -> Result<Vec<Option<Record>>, PrefixError> {
    let keys: Vec<[u8; 6]> = (0..holders.div_ceil(PAGE)).map(page_key).collect();
    let pages = client.get_many(&keys)?;
    let mut records: Vec<_> =
        pages.into_iter().flat_map(|page| page_of(page.ok().flatten().as_deref())).collect();
    records.truncate(holders);
    Ok(records)
}

/// What is known of a bit. 2 READs.
pub(crate) fn record_of(client: &mut Client, bit: u16) -> Result<Option<Record>, PrefixError> {
    let (page, nth) = place_of(bit);
    Ok(page_of(client.get(&page_key(page))?.as_deref())[nth])
}

/// Keeps the page of a bit's record from making room for other entries. Returns whether it is there.
pub(crate) fn pin(client: &mut Client, bit: u16) -> Result<bool, PrefixError> {
    pin_once(client, &page_key(place_of(bit).0))
}

/// Changes a record. Returns whether it was the one before.
pub(crate) fn swap(
    client: &mut Client,
    bit: u16,
    before: Record,
    after: Record,
) -> Result<bool, PrefixError> {
    let changed = change(client, place_of(bit).0, |of, record| {
        (of == bit && *record == Some(before)).then_some(after)
    })?;
    Ok(changed == 1)
}

/// Changes records of a page, in one step: `to` tells what becomes of each, `None` if it stays. Returns how many were
/// changed. 2 READs, and 1 round trip where there are any; again where others change the page meanwhile.
fn change(
    client: &mut Client,
    page: usize,
    mut to: impl FnMut(u16, &Option<Record>) -> Option<Record>,
) -> Result<usize, PrefixError> {
    let key = page_key(page);
    for _ in 0..ROUNDS {
        let before = client.get(&key)?;
        let (mut records, mut changed) = (page_of(before.as_deref()), 0);
        for (nth, record) in records.iter_mut().enumerate() {
            if let Some(after) = to((page * PAGE + nth) as u16, record) {
                *record = Some(after);
                changed += 1;
            }
        }
        if changed == 0 {
            return Ok(0);
        }
        let swapped = client.compare_exchange(&key, before.as_deref(), Some(&page_bytes(&records)))?;
        if swapped == SwapOutcome::Swapped {
            return Ok(changed);
        }
    }
    Err(PrefixError::Busy { rounds: ROUNDS })
}

/// Changes records of all pages, page by page. Returns how many were changed.
pub(crate) fn change_all(
    client: &mut Client,
    holders: usize,
    mut to: impl FnMut(u16, &Option<Record>) -> Option<Record>,
) -> Result<usize, PrefixError> {
    let mut changed = 0;
    for page in 0..holders.div_ceil(PAGE) {
        let there_are = |bit| usize::from(bit) < holders;
        changed += change(client, page, |bit, record| if there_are(bit) { to(bit, record) } else { None })?;
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page survives its bytes, also one that is shorter; what is no record is unknown.
    #[test]
    fn pages_have_bytes() {
        let mut page = [None; PAGE];
        let states = [State::Live, State::Leaving, State::Free, State::Claimed];
        for (n, state) in (0..).zip(states) {
            for (m, keeps) in (0..).zip([Keeps::Any, Keeps::PrefixClosed]) {
                let incarnation = n as u32 * 7 + 0x0102_0304;
                let (owner, id) = (n as u16 * 300, [n as u8 + 1; ID_BYTES]);
                page[n * 9 + m] = Some(Record { state, keeps, owner, incarnation, id });
            }
        }
        let bytes = page_bytes(&page);
        assert_eq!(bytes.len(), PAGE_BYTES);
        assert_eq!(page_of(Some(&bytes)), page);
        let cut = page_of(Some(&bytes[..RECORD_BYTES * 2 - 1]));
        assert_eq!((cut[0], cut[1..].iter().flatten().count()), (page[0], 0));
        assert_eq!(page_of(None), [None; PAGE]);
        for (at, wrong) in [(0, 5), (0, 0), (1, 2)] {
            let mut bytes = bytes.clone();
            bytes[at] = wrong;
            assert_eq!(page_of(Some(&bytes))[0], None);
        }
    }
}
