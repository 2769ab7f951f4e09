//! Holders that go by themselves: each is there as long as a session of its owner is.
//!
//! ```text
//! presence   '#' 'a' owner (u32)  ->  the registration's incarnation (u32); an entry of this owner
//! ```
//!
//! Who registers a holder with `absent_for` is an owner of the table (docs/PROTOCOL.md, O), and has one entry as such: the
//! holder's presence. Its connection is the owner's session. When it has ended, and the server was awake for `absent_for`
//! since, the server hides the entry. So a worker that says nothing is there, one that is suspended is there, and while the
//! server is stopped or gone nobody goes.
//!
//! The holder's record names the owner. Numbers are drawn at random, and no two records of a table have one. A lookup looks
//! now and then who is not present any more, and leaves these holders out. Whoever registers, cleans, or drops drops them.
//!
//! | rule | what is kept |
//! |---|---|
//! | H5 | a holder whose presence is hidden has no block for any lookup that begins [`LOOK_EVERY`] later, whoever it is |
//! | H6 | presence is put before the holder is live. Only a live record that was READ before its presence tells that its holder is gone; a READ that fails tells nothing |
//! | H7 | what is added for a holder that is gone is refused |
//!
//! Each has a switch in `crate::faults`.

use crate::error::PrefixError;
use crate::names::{pin_once, record_key};
use crate::records::Record;
use oneread::error::{ConnectError, MutateError, PutError};
use oneread::layout::OWNER_MAX;
use oneread::{Client, OwnerOptions};
use std::sync::Mutex;
use std::time::Duration;

/// A handle's lookups look so often who is not present any more.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A session of a holder's owner. The holder is there as long as there is one.
#[derive(Debug)]
pub(crate) struct Presence {
    /// Nobody asks it for anything. With the lock, threads may share the holder.
    _session: Mutex<Client>,
}

fn key(owner: u16) -> [u8; 6] {
    record_key(b'a', owner.into())
}

fn is_of(record: &Record, found: Option<&[u8]>) -> bool {
    found == Some(&record.incarnation.to_le_bytes()[..])
}

/// Refuses a table whose entries have no owners.
pub(crate) fn check(client: &Client) -> Result<(), PrefixError> {
    match client.geometry().has_owners() {
        true => Ok(()),
        false => Err(PrefixError::Table {
            address: Box::new(client.address().clone()),
            why: "keeps no owners, so a holder cannot go by itself",
            make: "PlacementTable::owners",
        }),
    }
}

/// The number of an owner that no record names.
pub(crate) fn number_for(known: &[Option<Record>]) -> u16 {
    loop {
        let number = rand::random::<u16>();
        let is_named = known.iter().flatten().any(|record| record.owner == number);
        if (1..=OWNER_MAX).contains(&number) && !is_named {
            return number;
        }
    }
}

/// A session of the owner that a record names. `None` while entries of an earlier one with the number are being removed.
fn session(client: &Client, record: &Record, absent_for: Duration) -> Result<Option<Client>, PrefixError> {
    match client.owner(OwnerOptions::new(record.owner).absent_for(absent_for)) {
        Ok(session) => Ok(Some(session)),
        Err(ConnectError::Owner { source: PutError::OwnerGone { .. }, .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Begins the presence of a holder that is not live yet. `None` if the owner's number cannot be had now. A connection, and
/// 4 round trips.
pub(crate) fn begin(
    client: &Client,
    record: &Record,
    absent_for: Duration,
) -> Result<Option<Presence>, PrefixError> {
    let Some(mut session) = session(client, record, absent_for)? else { return Ok(None) };
    match session.put(&key(record.owner), &record.incarnation.to_le_bytes()) {
        Ok(_) => {}
        Err(MutateError::OwnerGone { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    pin_once(&mut session, &key(record.owner))?;
    Ok(Some(Presence { _session: Mutex::new(session) }))
}

/// Joins the presence of a live holder. `None` if it is gone.
pub(crate) fn join(
    client: &Client,
    record: &Record,
    absent_for: Duration,
) -> Result<Option<Presence>, PrefixError> {
    let Some(mut session) = session(client, record, absent_for)? else { return Ok(None) };
    // It may have been the number of nobody by then.
    let found = session.get(&key(record.owner))?;
    if !is_of(record, found.as_deref()) {
        return Ok(None);
    }
    pin_once(&mut session, &key(record.owner))?;
    Ok(Some(Presence { _session: Mutex::new(session) }))
}

/// Whether a registration is present: also one that does not go by itself. 2 READs for one that does.
pub(crate) fn is_there(client: &mut Client, record: &Record) -> Result<bool, PrefixError> {
    Ok(record.owner == 0 || is_of(record, client.get(&key(record.owner))?.as_deref()))
}

/// Which of these live holders are not present any more. 2 READs for each that goes by itself.
pub(crate) fn absent(
    client: &mut Client,
    known: &[Option<Record>],
) -> Result<Vec<(u16, Record)>, PrefixError> {
    let may_go = |(bit, record): (u16, &Option<Record>)| {
        let record = record.filter(|record| record.is_live() && record.owner != 0)?;
        Some((bit, record))
    };
    let holders: Vec<(u16, Record)> = (0..).zip(known).filter_map(may_go).collect();
    let keys: Vec<[u8; 6]> = holders.iter().map(|(_, record)| key(record.owner)).collect();
    let found = client.get_many(&keys)?;
    let is_gone = |((bit, record), found): ((u16, Record), Result<Option<Vec<u8>>, _>)| {
        found.is_ok_and(|found| !is_of(&record, found.as_deref())).then_some((bit, record))
    };
    Ok(holders.into_iter().zip(found).filter_map(is_gone).collect())
}
