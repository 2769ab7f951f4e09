//! What a table of holders is made from, and the entry that says so.
//!
//! ```text
//! '#' 'f'   ->   form of the entry (u8, 1), form of blocks (u8; + 0x80: with owners), most holders (u16)
//! ```

use crate::digests::KEY_BYTES;
use crate::error::PrefixError;
use crate::groups;
use crate::location::LocationIndex;
use crate::names::pin_once;
use crate::records::PAGE_BYTES;
use crate::sets::{HOLDERS_MAX, WORD};
use oneread::{Client, Config, PutMode, Server, TableSize};

/// As many holders as a table has where nothing else is said.
pub const HOLDERS: usize = 1_024;
const MARKER: &[u8] = b"#f";
/// The form of the marker that this version writes and reads.
const FORM: u8 = 1;
const SINGLE: u8 = 1;
const GROUPED: u8 = 2;
const OWNERS: u8 = 0x80;
/// Words of a set that stands in a slot of one line, beside its key; and in one of two lines, beside its key and the entry's
/// life. (Of a value that does not fit, a slot has a reference of 24 bytes: with a life, one line is not enough for it.)
const SHORT_WORDS: usize = 4;
const SHORT_WORDS_WITH_LIFE: usize = 10;
/// What an extent has beside its value, and more.
const BESIDE: usize = 64;
/// The least memory for sets that do not fit their slots.
const HEAP_BYTES_MIN: u64 = 1 << 20;

/// How blocks stand in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Each in an entry of its own.
    Single,
    /// Eight neighbours of a prompt in one.
    Grouped,
}

/// What a table of a [`PlacementIndex`](crate::PlacementIndex) is: how its blocks stand, and how many holders it has at
/// most. Both stay as they are.
///
/// | made by | an entry | READs a block | for |
/// |---|---|---|---|
/// | [`PlacementTable::single`] | a block, in one line of 64 bytes | 1 | digests in any order: events without position, single keys |
/// | [`PlacementTable::grouped`] | eight neighbours of a prompt, in six lines (256 holders) | 1/8, and more where prompts part | digests from a prompt's first block on |
///
/// A set is as wide as its highest bit needs, in steps of 64 holders; the lowest bits are given first. One that does not
/// fit its slot is in memory of its own, and takes three READs more: sets of more than 256 holders, or in groups of a table for
/// more than 256, those of more than 64. With [owners](PlacementTable::owners) and an entry for each block, sets of more than
/// 640 holders are such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementTable {
    pub(crate) form: Form,
    pub(crate) holders: usize,
    owners: bool,
}

impl PlacementTable {
    /// A table with an entry for each block.
    ///
    /// # Errors
    /// [`PrefixError::HolderCount`] for no holders, or more than [`HOLDERS_MAX`].
    pub fn single(holders: usize) -> Result<PlacementTable, PrefixError> {
        PlacementTable { form: Form::Single, holders, owners: false }.checked()
    }

    /// A table with an entry for eight neighbours of a prompt. [`TableSize::Keys`] then counts groups.
    ///
    /// # Errors
    /// As [`PlacementTable::single`].
    pub fn grouped(holders: usize) -> Result<PlacementTable, PrefixError> {
        PlacementTable { form: Form::Grouped, holders, owners: false }.checked()
    }

    /// Returns this with entries that may have owners, or without: with them a holder may go by itself
    /// ([`HolderOptions::absent_for`](crate::HolderOptions)). The owners of such a table are its holders'. It costs no byte of
    /// a group. An entry of a block has a line more: 128 bytes, for up to 640 holders without a READ more.
    #[must_use]
    pub fn owners(self, owners: bool) -> PlacementTable {
        PlacementTable { owners, ..self }
    }

    /// Whether holders may go by themselves.
    pub fn has_owners(&self) -> bool {
        self.owners
    }

    fn checked(self) -> Result<PlacementTable, PrefixError> {
        match self.holders {
            1..=HOLDERS_MAX => Ok(self),
            given => Err(PrefixError::HolderCount { given, max: HOLDERS_MAX }),
        }
    }

    /// Whether eight neighbours stand in one entry.
    pub fn is_grouped(&self) -> bool {
        self.form == Form::Grouped
    }

    /// Blocks of an entry, at most.
    pub(crate) fn blocks_of_entry(&self) -> usize {
        match self.form {
            Form::Single => 1,
            Form::Grouped => groups::GROUP,
        }
    }

    /// The most holders at a time.
    pub fn holders(&self) -> usize {
        self.holders
    }

    /// What a table is made from. Besides blocks it has an entry for 64 holders, and for 20 bytes of each name. With
    /// [`Config::life`] slots have a line more.
    ///
    /// In a table of one size there may be memory for the widest set of each block: taken as sets need it, over verbs at the
    /// start. [`Config::heap_bytes`] says otherwise.
    pub fn config(&self, size: TableSize) -> Config {
        let (longest, in_slot) = self.lengths();
        let config = Config::new().size(size).key_max(KEY_BYTES).value_max(longest).inline_max(in_slot);
        let config = config.life(self.owners).owners(self.owners);
        match size {
            TableSize::Keys(entries) | TableSize::Slots(entries) if self.longest_block() > in_slot => {
                let bytes = (self.longest_block() + BESIDE) as u64;
                config.heap_bytes(entries.saturating_mul(bytes).max(HEAP_BYTES_MIN))
            }
            _ => config,
        }
    }

    /// The longest value of a block or a group.
    fn longest_block(&self) -> usize {
        let words = self.holders.div_ceil(64);
        match self.form {
            Form::Single => words * WORD,
            Form::Grouped => groups::value_max(words),
        }
    }

    /// The longest value, and the longest one that stands in its slot.
    fn lengths(&self) -> (usize, usize) {
        let in_slot = match self.form {
            Form::Single if self.owners => SHORT_WORDS_WITH_LIFE * WORD,
            Form::Single => SHORT_WORDS * WORD,
            Form::Grouped if self.holders <= SHORT_WORDS * 64 => self.longest_block(),
            Form::Grouped => groups::value_max(1),
        };
        (self.longest_block().max(PAGE_BYTES), in_slot)
    }

    /// Marks the table of a server of this process as one of these. It may be repeated. Clients do it by
    /// [`PlacementIndex::create`](crate::PlacementIndex::create).
    ///
    /// # Errors
    /// [`PrefixError::Table`] if the table was made for something else, or is marked as another one.
    pub fn mark(&self, server: &Server) -> Result<(), PrefixError> {
        let no = |why| PrefixError::Table { address: Box::new(server.address().clone()), why, make: MAKE };
        let (table, geometry) = (server.index(), server.index().geometry());
        if geometry.key_max() < KEY_BYTES || geometry.value_max() < self.lengths().0 {
            return Err(no(LENGTHS));
        }
        if self.owners && !geometry.has_owners() {
            return Err(no(NO_OWNERS));
        }
        table.put(MARKER, &self.to_bytes(), PutMode::Insert)?;
        let mut found = Vec::new();
        let is_there = table.reader().get_into(MARKER, &mut found).is_ok_and(|is_there| is_there);
        if is_there && PlacementTable::from_bytes(&found) == Some(*self) { Ok(()) } else { Err(no(OTHER)) }
    }

    /// Marks the table of a client. 1 READ, and 1 round trip.
    pub(crate) fn mark_by(&self, client: &mut Client) -> Result<(), PrefixError> {
        let no = |client: &Client, why| PrefixError::Table {
            address: Box::new(client.address().clone()),
            why,
            make: MAKE,
        };
        if client.geometry().key_max() < KEY_BYTES || client.value_max() < self.lengths().0 {
            return Err(no(client, LENGTHS));
        }
        if self.owners && !client.geometry().has_owners() {
            return Err(no(client, NO_OWNERS));
        }
        client.insert(MARKER, &self.to_bytes())?;
        match client.get(MARKER)?.as_deref().and_then(PlacementTable::from_bytes) {
            Some(found) if found == *self => Ok(()),
            _ => Err(no(client, OTHER)),
        }
    }

    /// What the table of this client is. 1 READ.
    pub(crate) fn of(client: &mut Client) -> Result<PlacementTable, PrefixError> {
        let found = client.get(MARKER)?;
        found.as_deref().and_then(PlacementTable::from_bytes).ok_or_else(|| PrefixError::Table {
            address: Box::new(client.address().clone()),
            why: "is not marked as one of holders",
            make: MAKE,
        })
    }

    /// Keeps the marker from making room for other entries. Puts it again where it had to.
    pub(crate) fn pin(&self, client: &mut Client) -> Result<(), PrefixError> {
        if !pin_once(client, MARKER)? {
            self.mark_by(client)?;
            pin_once(client, MARKER)?;
        }
        Ok(())
    }

    fn to_bytes(self) -> [u8; 4] {
        let form = match self.form {
            Form::Single => SINGLE,
            Form::Grouped => GROUPED,
        };
        let [low, high] = (self.holders as u16).to_le_bytes();
        [FORM, form | if self.owners { OWNERS } else { 0 }, low, high]
    }

    fn from_bytes(bytes: &[u8]) -> Option<PlacementTable> {
        let [FORM, form, low, high] = *bytes else { return None };
        let owners = form & OWNERS != 0;
        let form = match form & !OWNERS {
            SINGLE => Form::Single,
            GROUPED => Form::Grouped,
            _ => return None,
        };
        PlacementTable { form, holders: u16::from_le_bytes([low, high]).into(), owners }.checked().ok()
    }
}

/// For 1,024 holders, with an entry for each block.
impl Default for PlacementTable {
    fn default() -> PlacementTable {
        PlacementTable { form: Form::Single, holders: HOLDERS, owners: false }
    }
}

/// What a server's table is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexTable {
    /// A [`LocationIndex`].
    Location,
    /// A [`PlacementIndex`](crate::PlacementIndex).
    Placement(PlacementTable),
}

impl IndexTable {
    /// What it is made from.
    pub fn config(&self, size: TableSize) -> Config {
        match self {
            IndexTable::Location => LocationIndex::config(size),
            IndexTable::Placement(table) => table.config(size),
        }
    }

    /// Marks the table of a server of this process, where it is to be marked. It may be repeated.
    ///
    /// # Errors
    /// As [`PlacementTable::mark`].
    pub fn mark(&self, server: &Server) -> Result<(), PrefixError> {
        match self {
            IndexTable::Location => Ok(()),
            IndexTable::Placement(table) => table.mark(server),
        }
    }
}

const MAKE: &str = "PlacementTable::config";
const LENGTHS: &str = "has other lengths of keys and values";
const NO_OWNERS: &str = "keeps no owners";
const OTHER: &str = "is of other holders, or of blocks in the other form";

#[cfg(test)]
mod tests {
    use super::*;

    /// A marker survives its bytes, and no other bytes are one.
    #[test]
    fn markers_have_bytes() {
        for holders in [1, 64, 1_024, HOLDERS_MAX] {
            for table in [PlacementTable::single(holders), PlacementTable::grouped(holders)] {
                let table = table.unwrap().owners(holders % 128 == 64);
                let bytes = table.to_bytes();
                assert_eq!(PlacementTable::from_bytes(&bytes), Some(table));
                for wrong in
                    [&bytes[..3], &[2, bytes[1], 1, 0], &[1, 3, 1, 0], &[1, 1, 0, 0], &[1, 1, 1, 16], &[]]
                {
                    assert_eq!(PlacementTable::from_bytes(wrong), None, "{wrong:?}");
                }
            }
        }
        assert_eq!(PlacementTable::default(), PlacementTable::single(HOLDERS).unwrap());
    }
}
