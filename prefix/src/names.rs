//! Names that have numbers in a table. They stand beside the blocks, in keys that are shorter than a block's.
//!
//! ```text
//! record      '#' kind number (u32)             ->  the name's id, and what else is to be told of the number
//! part of it  '#' 'p' part (u8) hash (12 bytes) ->  up to 20 bytes of the name
//! ```
//!
//! An *id* is a name's length and 12 bytes of its hash. Parts are found by the hash, so they are the same
//! whoever puts them, and are put before a record names them.

use crate::digests::hashed;
use crate::error::PrefixError;
use oneread::error::MutateError;
use oneread::{Client, PutOutcome};

/// Longest name, in bytes.
pub const NAME_MAX: usize = 200;
/// Bytes of a name's id.
pub(crate) const ID_BYTES: usize = 13;
/// Bytes of a name that one entry has.
const PART_BYTES: usize = 20;

/// A name's length, and 12 bytes of its hash.
pub(crate) type NameId = [u8; ID_BYTES];

/// The key of the record of a number.
pub(crate) fn record_key(kind: u8, number: u32) -> [u8; 6] {
    let [a, b, c, d] = number.to_le_bytes();
    [b'#', kind, a, b, c, d]
}

fn part_key(id: &NameId, part: usize) -> [u8; 15] {
    let mut key = [0; 15];
    (key[0], key[1], key[2]) = (b'#', b'p', part as u8);
    key[3..].copy_from_slice(&id[1..]);
    key
}

/// The id of a name.
pub(crate) fn id_of(name: &str) -> Result<NameId, PrefixError> {
    if !(1..=NAME_MAX).contains(&name.len()) {
        return Err(PrefixError::Name { given: name.len(), max: NAME_MAX });
    }
    let mut id = [name.len() as u8; ID_BYTES];
    id[1..].copy_from_slice(&hashed(name.as_bytes(), b"oneread's names.")[..ID_BYTES - 1]);
    Ok(id)
}

/// The number of a name, in every table and for ever.
pub(crate) fn number_of(id: &NameId) -> u64 {
    let [_, number @ .., _, _, _, _] = *id;
    u64::from_le_bytes(number)
}

/// Puts the parts of a name. 1 round trip.
pub(crate) fn put_name(client: &mut Client, name: &str, id: &NameId) -> Result<(), PrefixError> {
    let parts = name.as_bytes().chunks(PART_BYTES).enumerate();
    let pairs: Vec<([u8; 15], &[u8])> = parts.map(|(part, bytes)| (part_key(id, part), bytes)).collect();
    client.put_many(&pairs)?.into_iter().try_for_each(|put| put.map(|_| ()))?;
    Ok(())
}

/// Keeps an entry from making room for others, however often the same client asks for it. Returns whether it is
/// there. 2 round trips. A connection has pins for some thousands; what comes after these is not pinned.
pub(crate) fn pin_once(client: &mut Client, key: &[u8]) -> Result<bool, PrefixError> {
    client.unpin(key)?;
    match client.pin(key) {
        Ok(is_there) => Ok(is_there),
        Err(MutateError::Pins { .. }) => Ok(client.get(key)?.is_some()),
        Err(error) => Err(error.into()),
    }
}

/// Keeps a name from making room for other entries. Returns whether it is there. 2 round trips for 20 bytes.
pub(crate) fn pin_name(client: &mut Client, id: &NameId) -> Result<bool, PrefixError> {
    for part in 0..usize::from(id[0]).div_ceil(PART_BYTES) {
        if !pin_once(client, &part_key(id, part))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The name of an id. `None` if a part of it is not there, or is none of it. 1 READ for 20 bytes.
pub(crate) fn name_of(client: &mut Client, id: &NameId) -> Result<Option<String>, PrefixError> {
    let parts = usize::from(id[0]).div_ceil(PART_BYTES);
    let keys: Vec<[u8; 15]> = (0..parts).map(|part| part_key(id, part)).collect();
    let found: Option<Vec<Vec<u8>>> =
        client.get_many(&keys)?.into_iter().map(|part| part.ok().flatten()).collect();
    let name = found.and_then(|parts| String::from_utf8(parts.concat()).ok());
    Ok(name.filter(|name| id_of(name).is_ok_and(|of_it| of_it == *id)))
}

/// The number of an endpoint's name, which follows from its hash: who has lost his record gets the same number again.
/// 1 READ; for a new name 2 round trips.
pub(crate) fn intern(client: &mut Client, name: &str) -> Result<u32, PrefixError> {
    let id = id_of(name)?;
    let mut number = u32::from_le_bytes([id[1], id[2], id[3], id[4]]);
    let mut found = Vec::new();
    loop {
        let key = record_key(b'e', number);
        if !client.get_into(&key, &mut found)? {
            put_name(client, name, &id)?;
            match client.insert(&key, &id)? {
                PutOutcome::Inserted => return Ok(number),
                // Somebody else's, meanwhile: look again.
                _ => continue,
            }
        }
        if found == id {
            return Ok(number);
        }
        // Another name has the same number: once in some billion pairs.
        number = number.wrapping_add(1);
    }
}

/// The name of an endpoint's number. 2 READs, and more for a name of more than 20 bytes.
pub(crate) fn endpoint_name(client: &mut Client, number: u32) -> Result<Option<String>, PrefixError> {
    match client.get(&record_key(b'e', number))?.as_deref().map(NameId::try_from) {
        Some(Ok(id)) => name_of(client, &id),
        _ => Ok(None),
    }
}
