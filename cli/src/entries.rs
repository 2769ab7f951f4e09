//! Puts entries again as they were: each with its end, and as its owner.

use anyhow::Result;
use oneread::error::PutError;
use oneread::snapshot::SnapshotEntry;
use oneread::{Client, ConnectError, OwnerOptions, PutMode, PutOptions, PutOutcome};
use oneread_kit::advice;
use std::collections::HashMap;
use std::collections::hash_map;
use std::error::Error;
use std::time::{Duration, SystemTime};

/// How long an owner may be away that has entries again: as one of a snapshot with which a server begins.
const ABSENT_FOR: Duration = Duration::from_secs(60);
/// Owners that have a session at the same time. Each is a connection.
const OWNERS_AT_ONCE: usize = 64;

/// An entry that was somewhere, and is to be put.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// When it ends, by the time of day.
    pub end: Option<SystemTime>,
    /// Whose it is; 0: nobody's.
    pub owner: u16,
}

impl<'a> From<SnapshotEntry<'a>> for Entry<'a> {
    fn from(SnapshotEntry { key, value, end, owner, .. }: SnapshotEntry<'a>) -> Entry<'a> {
        Entry { key, value, end, owner }
    }
}

/// What became of an entry.
#[derive(Debug)]
pub enum Became<'a> {
    Put(PutOutcome),
    /// It had ended by then, and was not put.
    Ended,
    Refused(PutError),
    /// Its owner was refused.
    NoOwner(&'a ConnectError),
}

impl Became<'_> {
    /// Why it was not put. `None`: it was, or need not be.
    pub fn reason(&self) -> Option<String> {
        match self {
            Became::Put(_) | Became::Ended => None,
            Became::Refused(error) => Some(advice::in_options(error)),
            Became::NoOwner(error) => {
                let why = error.source().map(|why| format!(": {why}")).unwrap_or_default();
                Some(advice::in_options(&format_args!("{error}{why}")))
            }
        }
    }
}

/// Puts entries again, by one client and a session of each owner.
pub struct EntryPuts {
    client: Client,
    mode: PutMode,
    owners: HashMap<u16, Client>,
}

impl EntryPuts {
    pub fn new(client: Client, mode: PutMode) -> EntryPuts {
        EntryPuts { client, mode, owners: HashMap::new() }
    }

    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Puts entries, in their order. Tells `each` the number of an entry and what became of it. Neighbours of one owner go
    /// together, which takes as long as one.
    pub fn put(&mut self, entries: &[Entry<'_>], mut each: impl FnMut(usize, Became<'_>)) -> Result<()> {
        let mut first = 0;
        for of_one in entries.chunk_by(|a, b| a.owner == b.owner) {
            let now = SystemTime::now();
            let (mut puts, mut numbers) = (Vec::new(), Vec::new());
            for (number, entry) in (first..).zip(of_one) {
                if entry.end.is_some_and(|end| end <= now) {
                    each(number, Became::Ended);
                    continue;
                }
                let ttl = entry.end.map(|end| end.duration_since(now).unwrap_or_default());
                puts.push((entry.key, entry.value, PutOptions::from(self.mode).ttl(ttl)));
                numbers.push(number);
            }
            first += of_one.len();
            if puts.is_empty() {
                continue;
            }
            match self.as_owner(of_one[0].owner) {
                Ok(client) => client.put_many_by(&puts, |nth, answer| {
                    each(numbers[nth], answer.map_or_else(Became::Refused, Became::Put));
                })?,
                Err(error) if is_of_owner(&error) => {
                    numbers.into_iter().for_each(|number| each(number, Became::NoOwner(&error)));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The handle that puts as this owner. Its session is there until others need the place, or the command ends: then the
    /// owner is away.
    fn as_owner(&mut self, owner: u16) -> Result<&mut Client, ConnectError> {
        if owner == 0 {
            return Ok(&mut self.client);
        }
        if self.owners.len() >= OWNERS_AT_ONCE && !self.owners.contains_key(&owner) {
            self.owners.clear();
        }
        match self.owners.entry(owner) {
            hash_map::Entry::Occupied(there) => Ok(there.into_mut()),
            hash_map::Entry::Vacant(place) => {
                let options = OwnerOptions::new(owner).absent_for(ABSENT_FOR);
                Ok(place.insert(self.client.owner(options)?))
            }
        }
    }
}

/// Whether the server has refused the owner, and nothing else is wrong.
fn is_of_owner(error: &ConnectError) -> bool {
    match error {
        ConnectError::Owner { .. } => true,
        #[cfg(feature = "verbs")]
        ConnectError::Verbs(oneread::error::SetupError::Owner { .. }) => true,
        _ => false,
    }
}
