//! Reads msgpack item by item, where it lies.
//!
//! Nothing is copied, and nothing is set aside for what a message says that it has: a list of n items has n bytes at
//! least, or it is no message. Nesting costs no stack.

use rmp::Marker;

/// What is not msgpack, or not what was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// The next item. Of a list or a map, its items come next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Item<'a> {
    /// Nothing.
    Nil,
    /// A truth value.
    Bool(bool),
    /// A number that is not negative.
    Unsigned(u64),
    /// A negative number.
    Negative(i64),
    /// A number with a fraction.
    Float(f64),
    /// A text, which may be none of UTF-8.
    Text(&'a [u8]),
    /// Bytes.
    Bytes(&'a [u8]),
    /// A list of so many items.
    List(usize),
    /// A map of so many pairs.
    Map(usize),
    /// A type of somebody's own.
    Other,
}

/// What items are in: they come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// A list of so many items.
    List(usize),
    /// A map of so many pairs.
    Map(usize),
}

impl Item<'_> {
    /// The list or the map, if it is one.
    pub fn container(self) -> Option<Container> {
        match self {
            Item::List(items) => Some(Container::List(items)),
            Item::Map(pairs) => Some(Container::Map(pairs)),
            Item::Nil
            | Item::Bool(_)
            | Item::Unsigned(_)
            | Item::Negative(_)
            | Item::Float(_)
            | Item::Text(_)
            | Item::Bytes(_)
            | Item::Other => None,
        }
    }
}

/// The rest of a message.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Of a message.
    pub fn new(message: &'a [u8]) -> Reader<'a> {
        Reader { rest: message }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Unreadable> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(Unreadable)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A big-endian number of so many bytes, up to 8.
    fn number(&mut self, bytes: usize) -> Result<u64, Unreadable> {
        Ok(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, bytes: usize) -> Result<usize, Unreadable> {
        usize::try_from(self.number(bytes)?).map_err(|_| Unreadable)
    }

    /// A list or map of `count` items of `bytes` each at least.
    fn counted(&self, count: usize, bytes: usize) -> Result<usize, Unreadable> {
        if count.checked_mul(bytes).is_some_and(|least| least <= self.rest.len()) {
            Ok(count)
        } else {
            Err(Unreadable)
        }
    }

    /// The next item.
    ///
    /// # Errors
    /// The message ends before, or is none.
    pub fn item(&mut self) -> Result<Item<'a>, Unreadable> {
        let [first] = *self.take(1)? else { return Err(Unreadable) };
        let signed = |number: i64| match u64::try_from(number) {
            Ok(number) => Item::Unsigned(number),
            Err(_) => Item::Negative(number),
        };
        Ok(match Marker::from_u8(first) {
            Marker::Null => Item::Nil,
            Marker::True => Item::Bool(true),
            Marker::False => Item::Bool(false),
            Marker::FixPos(number) => Item::Unsigned(number.into()),
            Marker::FixNeg(number) => Item::Negative(number.into()),
            Marker::U8 => Item::Unsigned(self.number(1)?),
            Marker::U16 => Item::Unsigned(self.number(2)?),
            Marker::U32 => Item::Unsigned(self.number(4)?),
            Marker::U64 => Item::Unsigned(self.number(8)?),
            Marker::I8 => signed((self.number(1)? as i8).into()),
            Marker::I16 => signed((self.number(2)? as i16).into()),
            Marker::I32 => signed((self.number(4)? as i32).into()),
            Marker::I64 => signed(self.number(8)? as i64),
            Marker::F32 => Item::Float(f32::from_bits(self.number(4)? as u32).into()),
            Marker::F64 => Item::Float(f64::from_bits(self.number(8)?)),
            Marker::FixStr(bytes) => Item::Text(self.take(bytes.into())?),
            Marker::Str8 => self.length(1).and_then(|length| self.take(length)).map(Item::Text)?,
            Marker::Str16 => self.length(2).and_then(|length| self.take(length)).map(Item::Text)?,
            Marker::Str32 => self.length(4).and_then(|length| self.take(length)).map(Item::Text)?,
            Marker::Bin8 => self.length(1).and_then(|length| self.take(length)).map(Item::Bytes)?,
            Marker::Bin16 => self.length(2).and_then(|length| self.take(length)).map(Item::Bytes)?,
            Marker::Bin32 => self.length(4).and_then(|length| self.take(length)).map(Item::Bytes)?,
            Marker::FixArray(count) => Item::List(self.counted(count.into(), 1)?),
            Marker::Array16 => self.length(2).and_then(|count| self.counted(count, 1)).map(Item::List)?,
            Marker::Array32 => self.length(4).and_then(|count| self.counted(count, 1)).map(Item::List)?,
            Marker::FixMap(count) => Item::Map(self.counted(count.into(), 2)?),
            Marker::Map16 => self.length(2).and_then(|count| self.counted(count, 2)).map(Item::Map)?,
            Marker::Map32 => self.length(4).and_then(|count| self.counted(count, 2)).map(Item::Map)?,
            Marker::FixExt1 => self.take(2).map(|_| Item::Other)?,
            Marker::FixExt2 => self.take(3).map(|_| Item::Other)?,
            Marker::FixExt4 => self.take(5).map(|_| Item::Other)?,
            Marker::FixExt8 => self.take(9).map(|_| Item::Other)?,
            Marker::FixExt16 => self.take(17).map(|_| Item::Other)?,
            Marker::Ext8 => self.other(1)?,
            Marker::Ext16 => self.other(2)?,
            Marker::Ext32 => self.other(4)?,
            Marker::Reserved => return Err(Unreadable),
        })
    }

    /// A type of somebody's own: its length in so many bytes, its number, its bytes.
    fn other(&mut self, bytes: usize) -> Result<Item<'a>, Unreadable> {
        let length = self.length(bytes)?;
        self.take(1)?;
        self.take(length).map(|_| Item::Other)
    }

    /// The bytes of the next item, with all that is in it.
    ///
    /// # Errors
    /// As [`Reader::item`].
    pub fn whole(&mut self) -> Result<&'a [u8], Unreadable> {
        let before = self.rest;
        let mut left = 1_usize;
        while left > 0 {
            left -= 1;
            left += match self.item()?.container() {
                Some(Container::List(items)) => items,
                Some(Container::Map(pairs)) => pairs.checked_mul(2).ok_or(Unreadable)?,
                None => 0,
            };
        }
        Ok(&before[..before.len() - self.rest.len()])
    }

    /// A number, a text as UTF-8, or nothing, of a type that the caller wants.
    ///
    /// # Errors
    /// It is something else.
    pub fn optional<T>(
        &mut self,
        wanted: impl FnOnce(Item<'a>) -> Option<T>,
    ) -> Result<Option<T>, Unreadable> {
        match self.item()? {
            Item::Nil => Ok(None),
            item => wanted(item).map(Some).ok_or(Unreadable),
        }
    }
}

/// A text.
pub fn text(item: Item<'_>) -> Option<&str> {
    match item {
        Item::Text(bytes) | Item::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
        Item::Nil
        | Item::Bool(_)
        | Item::Unsigned(_)
        | Item::Negative(_)
        | Item::Float(_)
        | Item::List(_)
        | Item::Map(_)
        | Item::Other => None,
    }
}

/// A number of 32 bits that is not negative.
pub fn small(item: Item<'_>) -> Option<u32> {
    match item {
        Item::Unsigned(number) => u32::try_from(number).ok(),
        Item::Nil
        | Item::Bool(_)
        | Item::Negative(_)
        | Item::Float(_)
        | Item::Text(_)
        | Item::Bytes(_)
        | Item::List(_)
        | Item::Map(_)
        | Item::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rmp::encode;

    /// Each form of a number, text and list is read as what it is, whichever width its writer chose.
    #[test]
    fn items_are_read() {
        let mut bytes = Vec::new();
        encode::write_nil(&mut bytes).unwrap();
        for number in [0_u64, 127, 128, 70_000, u64::MAX] {
            encode::write_uint(&mut bytes, number).unwrap();
        }
        for number in [-1_i64, -33, -200, -70_000, i64::MIN, 5] {
            encode::write_sint(&mut bytes, number).unwrap();
        }
        encode::write_i64(&mut bytes, 7).unwrap();
        encode::write_f64(&mut bytes, 1.5).unwrap();
        encode::write_str(&mut bytes, "GPU").unwrap();
        encode::write_bin(&mut bytes, &[9; 300]).unwrap();
        encode::write_ext_meta(&mut bytes, 3, 4).unwrap();
        bytes.extend([0; 3]);
        encode::write_array_len(&mut bytes, 2).unwrap();
        encode::write_bool(&mut bytes, true).unwrap();
        encode::write_map_len(&mut bytes, 1).unwrap();
        encode::write_str(&mut bytes, "a").unwrap();
        encode::write_nil(&mut bytes).unwrap();
        let mut reader = Reader::new(&bytes);
        let expected = [
            Item::Nil,
            Item::Unsigned(0),
            Item::Unsigned(127),
            Item::Unsigned(128),
            Item::Unsigned(70_000),
            Item::Unsigned(u64::MAX),
            Item::Negative(-1),
            Item::Negative(-33),
            Item::Negative(-200),
            Item::Negative(-70_000),
            Item::Negative(i64::MIN),
            Item::Unsigned(5),
            Item::Unsigned(7),
            Item::Float(1.5),
            Item::Text(b"GPU"),
            Item::Bytes(&[9; 300]),
            Item::Other,
            Item::List(2),
            Item::Bool(true),
            Item::Map(1),
            Item::Text(b"a"),
            Item::Nil,
        ];
        for item in expected {
            assert_eq!(reader.item(), Ok(item));
        }
        assert!(reader.is_empty() && reader.item() == Err(Unreadable));
    }

    /// A list that says it has more items than there are bytes is refused before anything is set aside for them; one
    /// within a million others costs no stack.
    #[test]
    fn lengths_are_not_believed() {
        for bytes in [
            &[0xdd, 0xff, 0xff, 0xff, 0xff, 0][..],
            &[0xdf, 0xff, 0xff, 0xff, 0xff],
            &[0xdb, 0, 0, 1, 0],
            &[0xc1],
        ] {
            assert_eq!(Reader::new(bytes).whole(), Err(Unreadable), "{bytes:?}");
        }
        let mut deep = vec![0x91; 1_000_000];
        deep.push(0xc0);
        assert_eq!(Reader::new(&deep).whole().map(<[u8]>::len), Ok(1_000_001));
    }

    proptest! {
        /// Of any bytes, an item that is whole is made of the first of them, and no more.
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = Reader::new(&bytes);
            if let Ok(whole) = reader.whole() {
                prop_assert_eq!(whole, &bytes[..whole.len()]);
                prop_assert_eq!(Reader::new(whole).whole(), Ok(whole));
                prop_assert_eq!(reader.rest.len(), bytes.len() - whole.len());
            }
        }
    }
}
