//! What engines and stores publish of their blocks, from the bytes of a batch.
//!
//! | form | written by |
//! |---|---|
//! | a batch `[time, [event...], rank]`, or a map with `ts`, `events`, `data_parallel_rank` | all |
//! | an event `[tag, field...]`, whose last fields may be missing, or be more | vLLM and SGLang, with `array_like` |
//! | an event as a map with `type` | newer vLLM |
//! | an event as a map with `event_type` | RFC 1527: Mooncake's master |
//!
//! Hashes are numbers of 64 bits, signed or not, or bytes. An event that cannot be read is told from one that needs
//! nothing done: what it removed is not known.

use crate::msgpack::{Container, Item, Reader, Unreadable, small, text};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// What an engine calls a block: it stands for all those before it, too. Only the engine's own are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineHash(pub [u8; 16]);

impl EngineHash {
    /// Of a number.
    pub fn number(number: u64) -> EngineHash {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        EngineHash(bytes)
    }

    /// The number, of one that was published as such.
    fn as_number(self) -> u64 {
        let [low @ .., _, _, _, _, _, _, _, _] = self.0;
        u64::from_le_bytes(low)
    }

    fn of(item: Item<'_>) -> Option<EngineHash> {
        match item {
            Item::Unsigned(number) => Some(EngineHash::number(number)),
            Item::Negative(number) => Some(EngineHash::number(number.cast_unsigned())),
            Item::Bytes(bytes) | Item::Text(bytes) => Some(EngineHash(xxh3_128(bytes).to_le_bytes())),
            Item::Nil | Item::Bool(_) | Item::Float(_) | Item::List(_) | Item::Map(_) | Item::Other => None,
        }
    }
}

/// In which memory a block is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// The device's. So is what names no medium.
    #[default]
    Gpu,
    /// The host's.
    Cpu,
    /// A disk, or a file system.
    Disk,
    /// Any other.
    Other,
}

impl Tier {
    /// All of them.
    pub const ALL: [Tier; 4] = [Tier::Gpu, Tier::Cpu, Tier::Disk, Tier::Other];

    /// The name in answers.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Gpu => "GPU",
            Tier::Cpu => "CPU",
            Tier::Disk => "DISK",
            Tier::Other => "OTHER",
        }
    }

    /// The tier of a medium, by the first letters of its name.
    pub fn of(medium: &str) -> Tier {
        let medium = medium.to_ascii_uppercase();
        let begins = |names: &[&str]| names.iter().any(|name| medium.starts_with(name));
        if begins(&["GPU", "HBM", "NPU", "XPU", "TPU", "DEVICE"]) || medium.is_empty() {
            Tier::Gpu
        } else if begins(&["CPU", "HOST", "DRAM"]) {
            Tier::Cpu
        } else if begins(&["DISK", "SSD", "NVME", "FS", "NFS", "DFS", "3FS", "FILE"]) {
            Tier::Disk
        } else {
            Tier::Other
        }
    }
}

/// What beside its tokens makes a block's hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extra {
    /// Nothing, or nothing but the adapter.
    #[default]
    None,
    /// One text: in a prompt's first block a salt, elsewhere an image, say. Here is its hash, of seed 1.
    Text(u64),
    /// Something else, of which this is a hash.
    Else(u64),
}

/// How the blocks of an event are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// By their tokens, from which hashes are computed.
    Tokens(Vec<u32>),
    /// By rolling hashes as RFC 1527 has them: these numbers.
    Rolling(Vec<u64>),
}

/// Blocks that follow each other were stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The engine's hashes of them.
    pub hashes: Vec<EngineHash>,
    /// The block before the first one.
    pub parent: Option<EngineHash>,
    /// What is in them.
    pub content: Content,
    /// Tokens a block, if the event says so.
    pub block_size: Option<u32>,
    /// The adapter. An empty one is none; `None`: the event does not say.
    pub lora: Option<String>,
    /// The salt that keeps caches apart.
    pub salt: Option<String>,
    /// Where they are.
    pub tier: Tier,
    /// The group of layers.
    pub group: u32,
    /// Beside the tokens, one for each block or none at all.
    pub extras: Vec<Extra>,
}

/// A change of a worker's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Blocks were stored.
    Stored(Stored),
    /// Blocks were removed.
    Removed {
        /// Which.
        hashes: Vec<EngineHash>,
        /// From where.
        tier: Tier,
        /// Of which group of layers.
        group: u32,
    },
    /// All blocks are gone: of one tier, or of all.
    Cleared(Option<Tier>),
    /// Nothing that this index takes in, or nothing that it can: what was stored is not found.
    Ignored(Ignored),
    /// It may have removed blocks, and says which in a form that is not known.
    Unreadable,
}

/// Why an event is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// An event of another name.
    Unknown,
    /// Blocks were stored, in a form that is not known.
    Form,
    /// Layers that do not keep a prompt's whole prefix.
    Container,
}

/// The events of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The rank of the engine that tells them, if the batch says so.
    pub rank: Option<u32>,
    /// In their order.
    pub events: Vec<Event>,
}

/// Reads a batch.
///
/// # Errors
/// It is no batch: nothing of it is known.
pub fn read(bytes: &[u8]) -> Result<Batch, Unreadable> {
    let mut reader = Reader::new(bytes);
    let (mut events, mut rank) = (None, None);
    match reader.item()?.container().ok_or(Unreadable)? {
        Container::List(fields) => {
            for field in 0..fields {
                let mut value = Reader::new(reader.whole()?);
                match field {
                    1 => events = Some(read_events(&mut value)?),
                    2 => rank = value.optional(small)?,
                    _ => {}
                }
            }
        }
        Container::Map(pairs) => {
            for _ in 0..pairs {
                let name = text(reader.item()?).ok_or(Unreadable)?;
                let mut value = Reader::new(reader.whole()?);
                match name {
                    "events" => events = Some(read_events(&mut value)?),
                    "data_parallel_rank" | "dp_rank" => rank = value.optional(small)?,
                    _ => {}
                }
            }
        }
    }
    let events = events.ok_or(Unreadable)?;
    if reader.is_empty() { Ok(Batch { rank, events }) } else { Err(Unreadable) }
}

fn read_events(reader: &mut Reader<'_>) -> Result<Vec<Event>, Unreadable> {
    let Item::List(count) = reader.item()? else { return Err(Unreadable) };
    let mut events = Vec::new();
    for _ in 0..count {
        events.push(read_event(reader.whole()?));
    }
    Ok(events)
}

/// What an event is about, by its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Stored,
    Removed,
    Cleared,
}

impl Kind {
    fn of(tag: &str) -> Option<Kind> {
        match tag {
            "BlockStored" | "stored" => Some(Kind::Stored),
            "BlockRemoved" | "removed" => Some(Kind::Removed),
            "AllBlocksCleared" | "cleared" => Some(Kind::Cleared),
            _ => None,
        }
    }

    /// The names of the fields behind the tag, in their order.
    fn fields(self) -> &'static [&'static str] {
        match self {
            Kind::Stored => &[
                "block_hashes",
                "parent_block_hash",
                "token_ids",
                "block_size",
                "lora_id",
                "medium",
                "lora_name",
                "extra_keys",
                "group_idx",
                "kv_cache_spec_kind",
            ],
            Kind::Removed => &["block_hashes", "medium", "group_idx"],
            Kind::Cleared => &[],
        }
    }
}

/// One event. What cannot be read is told by what it may have changed.
fn read_event(bytes: &[u8]) -> Event {
    let (kind, fields) = match fields_of(bytes) {
        Ok(read) => read,
        Err(Failed { kind: Some(Kind::Stored) }) => return Event::Ignored(Ignored::Form),
        Err(Failed { kind: Some(Kind::Removed | Kind::Cleared) | None }) => return Event::Unreadable,
    };
    match kind {
        None => Event::Ignored(Ignored::Unknown),
        Some(Kind::Cleared) => Event::Cleared(fields.medium.map(|medium| Tier::of(&medium))),
        Some(Kind::Removed) => match fields.hashes {
            Some(hashes) => {
                let tier = Tier::of(&fields.medium.unwrap_or_default());
                Event::Removed { hashes, tier, group: fields.group.unwrap_or_default() }
            }
            None => Event::Unreadable,
        },
        Some(Kind::Stored) => fields.stored(),
    }
}

/// An event that could not be read, and what it was about if that could.
struct Failed {
    kind: Option<Kind>,
}

/// What an event has said.
#[derive(Debug, Default)]
struct Fields {
    hashes: Option<Vec<EngineHash>>,
    /// Whether the hashes are rolling ones as RFC 1527 has them.
    are_rolling: bool,
    parent: Option<EngineHash>,
    tokens: Option<Vec<u32>>,
    block_size: Option<u32>,
    lora_id: Option<u64>,
    lora_name: Option<String>,
    salt: Option<String>,
    medium: Option<String>,
    /// The bytes of each block's list.
    extras: Option<Vec<Extras>>,
    group: Option<u32>,
    spec: Option<String>,
    /// Blocks before the first one.
    depth: Option<u32>,
}

/// What one block's hash has beside its tokens.
#[derive(Debug, Default)]
struct Extras {
    texts: Vec<String>,
    /// A hash of what is no text.
    others: Option<u64>,
}

fn fields_of(bytes: &[u8]) -> Result<(Option<Kind>, Fields), Failed> {
    let mut reader = Reader::new(bytes);
    let mut fields = Fields::default();
    let mut tag = None;
    let failed = |_| Failed { kind: None };
    match reader.item().map_err(failed)?.container() {
        None | Some(Container::List(0)) => Err(Failed { kind: None }),
        Some(Container::List(count)) => {
            let name = reader.item().ok().and_then(text).ok_or(Failed { kind: None })?;
            let Some(kind) = Kind::of(name) else { return Ok((None, fields)) };
            for field in kind.fields().iter().take(count - 1) {
                let value = reader.whole().map_err(|_| Failed { kind: Some(kind) })?;
                fields.set(field, value).map_err(|_| Failed { kind: Some(kind) })?;
            }
            Ok((Some(kind), fields))
        }
        Some(Container::Map(pairs)) => {
            let mut unread = false;
            for _ in 0..pairs {
                let name = reader.item().ok().and_then(text).ok_or(Failed { kind: None })?;
                let value = reader.whole().map_err(failed)?;
                match name {
                    // Where there are both, they say one thing.
                    "type" | "event_type" => tag = tag.or(Reader::new(value).item().ok().and_then(text)),
                    name => unread |= fields.set(name, value).is_err(),
                }
            }
            let kind = Kind::of(tag.ok_or(Failed { kind: None })?);
            if unread && kind.is_some() { Err(Failed { kind }) } else { Ok((kind, fields)) }
        }
    }
}

impl Fields {
    /// Takes a field. One that is not known is nothing.
    fn set(&mut self, name: &str, value: &[u8]) -> Result<(), Unreadable> {
        let mut reader = Reader::new(value);
        let owned = |item| text(item).map(str::to_owned);
        match name {
            "seq_hashes" => {
                self.hashes = hashes(&mut reader)?;
                self.are_rolling = self.hashes.is_some();
            }
            "block_hashes" if self.are_rolling => {}
            "block_hashes" => self.hashes = hashes(&mut reader)?,
            "parent_block_hash" | "parent_hash" => {
                self.parent = reader.optional(EngineHash::of)?.or(self.parent);
            }
            "token_ids" => self.tokens = tokens(&mut reader)?,
            "block_size" => self.block_size = reader.optional(small)?,
            "lora_id" => {
                self.lora_id = reader.optional(|item| match item {
                    Item::Unsigned(number) => Some(number),
                    _ => None,
                })?;
            }
            "lora_name" => self.lora_name = reader.optional(owned)?,
            "cache_salt" | "additional_salt" => self.salt = reader.optional(owned)?,
            "medium" => self.medium = reader.optional(owned)?,
            "extra_keys" => self.extras = extras(&mut reader)?,
            "group_idx" => self.group = reader.optional(small)?,
            "base_block_idx" => self.depth = reader.optional(small)?,
            "kv_cache_spec_kind" => self.spec = reader.optional(owned)?,
            _ => {}
        }
        Ok(())
    }

    fn lora(&self) -> Option<String> {
        let by_number = self.lora_id.filter(|number| *number != 0).map(|number| number.to_string());
        self.lora_name.clone().or(by_number)
    }

    fn stored(self) -> Event {
        let full = ["full_attention", "mla_attention", "mla", "full"];
        match (&self.spec, self.group) {
            (Some(spec), _) if !full.iter().any(|name| spec.eq_ignore_ascii_case(name)) => {
                return Event::Ignored(Ignored::Container);
            }
            (None, Some(1..)) => return Event::Ignored(Ignored::Container),
            (Some(_), _) | (None, None | Some(0)) => {}
        }
        let lora = self.lora();
        let Some(hashes) = self.hashes else { return Event::Ignored(Ignored::Form) };
        let content = match self.tokens {
            // Without their parent, what they go on from is not known.
            Some(tokens)
                if !tokens.is_empty() && self.parent.is_none() && self.depth.unwrap_or_default() > 0 =>
            {
                return Event::Ignored(Ignored::Form);
            }
            Some(tokens) if !tokens.is_empty() => Content::Tokens(tokens),
            _ if self.are_rolling => Content::Rolling(hashes.iter().map(|hash| hash.as_number()).collect()),
            _ => return Event::Ignored(Ignored::Form),
        };
        let named = lora.as_deref().unwrap_or_default();
        let extra = |extras: Extras| match (extras.others, &*extras.texts) {
            (None, texts) if texts.iter().all(|text| text == named) => Extra::None,
            (None, texts) => {
                let texts: Vec<&String> = texts.iter().filter(|text| *text != named).collect();
                match *texts {
                    [one] => Extra::Text(xxhash_rust::xxh3::xxh3_64_with_seed(one.as_bytes(), 1)),
                    _ => Extra::Else(xxh3_64(format!("{texts:?}").as_bytes())),
                }
            }
            (Some(others), _) => Extra::Else(others),
        };
        let extras: Vec<Extra> = self.extras.unwrap_or_default().into_iter().map(extra).collect();
        if !extras.is_empty() && extras.len() != hashes.len() {
            return Event::Ignored(Ignored::Form);
        }
        Event::Stored(Stored {
            parent: self.parent,
            content,
            block_size: self.block_size,
            lora,
            salt: self.salt.filter(|salt| !salt.is_empty()),
            tier: Tier::of(&self.medium.unwrap_or_default()),
            group: self.group.unwrap_or_default(),
            extras,
            hashes,
        })
    }
}

/// A list, or nothing.
fn list<T>(
    reader: &mut Reader<'_>,
    mut one: impl FnMut(&mut Reader<'_>) -> Result<T, Unreadable>,
) -> Result<Option<Vec<T>>, Unreadable> {
    let count = match reader.item()? {
        Item::Nil => return Ok(None),
        Item::List(count) => count,
        _ => return Err(Unreadable),
    };
    (0..count).map(|_| one(reader)).collect::<Result<_, _>>().map(Some)
}

fn hashes(reader: &mut Reader<'_>) -> Result<Option<Vec<EngineHash>>, Unreadable> {
    list(reader, |reader| EngineHash::of(reader.item()?).ok_or(Unreadable))
}

fn tokens(reader: &mut Reader<'_>) -> Result<Option<Vec<u32>>, Unreadable> {
    list(reader, |reader| small(reader.item()?).ok_or(Unreadable))
}

fn extras(reader: &mut Reader<'_>) -> Result<Option<Vec<Extras>>, Unreadable> {
    list(reader, |reader| {
        let whole = reader.whole()?;
        let mut items = Reader::new(whole);
        let mut extras = Extras::default();
        match items.item()? {
            Item::Nil => {}
            Item::List(count) => {
                for _ in 0..count {
                    let one = items.whole()?;
                    match Reader::new(one).item()? {
                        Item::Nil => {}
                        Item::Text(bytes) => match std::str::from_utf8(bytes) {
                            Ok(text) => extras.texts.push(text.to_owned()),
                            Err(_) => extras.others = Some(xxh3_64(whole)),
                        },
                        _ => extras.others = Some(xxh3_64(whole)),
                    }
                }
            }
            _ => extras.others = Some(xxh3_64(whole)),
        }
        Ok(extras)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::{Value, pack};
    use proptest::prelude::*;

    fn numbers(numbers: &[u64]) -> Value {
        Value::List(numbers.iter().map(|number| Value::Number(*number)).collect())
    }

    fn hashes_of(numbers: &[u64]) -> Vec<EngineHash> {
        numbers.iter().map(|number| EngineHash::number(*number)).collect()
    }

    fn batch(events: Vec<Value>) -> Batch {
        read(&pack(&Value::List(vec![Value::Float(1.0), Value::List(events)]))).unwrap()
    }

    fn stored() -> Stored {
        Stored {
            hashes: hashes_of(&[5, 6]),
            parent: Some(EngineHash::number(4)),
            content: Content::Tokens(vec![1, 2, 3, 4]),
            block_size: Some(2),
            lora: None,
            salt: None,
            tier: Tier::Gpu,
            group: 0,
            extras: Vec::new(),
        }
    }

    /// A list with its last fields missing, with all, and with more than are known; and a map: each says one thing.
    #[test]
    fn forms_of_an_event_agree() {
        let fields = || {
            vec![
                Value::text("BlockStored"),
                numbers(&[5, 6]),
                Value::Number(4),
                numbers(&[1, 2, 3, 4]),
                Value::Number(2),
            ]
        };
        let short = fields();
        let mut long = fields();
        long.extend([Value::Nil, Value::text("GPU"), Value::Nil, Value::Nil, Value::Number(0)]);
        long.extend([Value::text("full_attention"), Value::Nil, Value::text("more"), Value::Number(7)]);
        let map = Value::Map(vec![
            ("block_size", Value::Number(2)),
            ("token_ids", numbers(&[1, 2, 3, 4])),
            ("more", numbers(&[1])),
            ("parent_block_hash", Value::Number(4)),
            ("block_hashes", numbers(&[5, 6])),
            ("type", Value::text("BlockStored")),
        ]);
        let all = batch(vec![Value::List(short), Value::List(long), map]);
        assert_eq!(all.events, vec![Event::Stored(stored()); 3]);
        assert_eq!(all.rank, None);
        let bytes = pack(&Value::Map(vec![
            ("ts", Value::Float(2.5)),
            ("data_parallel_rank", Value::Number(3)),
            ("events", Value::List(vec![Value::List(vec![Value::text("AllBlocksCleared")])])),
        ]));
        assert_eq!(read(&bytes), Ok(Batch { rank: Some(3), events: vec![Event::Cleared(None)] }));
    }

    /// A hash is a number, signed or not, or bytes; a negative number is the one that has the same bits.
    #[test]
    fn hashes_have_several_forms() {
        let removed = |hash| {
            let events =
                batch(vec![Value::List(vec![Value::text("BlockRemoved"), Value::List(vec![hash])])]).events;
            match &events[..] {
                [Event::Removed { hashes, tier: Tier::Gpu, group: 0 }] => hashes[0],
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(removed(Value::Number(u64::MAX)), removed(Value::Signed(-1)));
        assert_eq!(removed(Value::Number(7)), removed(Value::Signed(7)));
        let digest = Value::Bytes(vec![7; 32]);
        assert_eq!(removed(digest.clone()), removed(digest));
        assert_ne!(removed(Value::Bytes(vec![7; 32])), removed(Value::Bytes(vec![8; 32])));
    }

    /// An event of RFC 1527: with rolling hashes alone, and with its older names beside.
    #[test]
    fn events_of_the_rfc_are_read() {
        let rfc = |mut more: Vec<(&'static str, Value)>| {
            more.extend([
                ("event_id", Value::Number(42)),
                ("block_size", Value::Number(64)),
                ("lora_name", Value::Nil),
                ("additional_salt", Value::text("w8a8")),
                ("medium", Value::text("cpu")),
                ("seq_hashes", numbers(&[11, 12])),
                ("token_ids", Value::Nil),
                ("parent_hash", Value::Number(10)),
            ]);
            Value::Map(more)
        };
        let plain = rfc(vec![("event_type", Value::text("stored"))]);
        let both = rfc(vec![
            ("event_type", Value::text("stored")),
            ("type", Value::text("BlockStored")),
            ("block_hashes", numbers(&[11, 12])),
        ]);
        let events = batch(vec![plain, both]).events;
        let expected = Stored {
            hashes: hashes_of(&[11, 12]),
            parent: Some(EngineHash::number(10)),
            content: Content::Rolling(vec![11, 12]),
            block_size: Some(64),
            salt: Some("w8a8".into()),
            tier: Tier::Cpu,
            ..stored()
        };
        assert_eq!(events, vec![Event::Stored(expected); 2]);
        let gone = [
            ("removed", Event::Removed { hashes: hashes_of(&[11]), tier: Tier::Disk, group: 0 }),
            ("cleared", Event::Cleared(Some(Tier::Disk))),
        ];
        for (name, expected) in gone {
            let event = Value::Map(vec![
                ("event_type", Value::text(name)),
                ("seq_hashes", numbers(&[11])),
                ("medium", Value::text("disk")),
            ]);
            assert_eq!(batch(vec![event]).events, [expected]);
        }
    }

    /// What is beside the tokens of a block is told: the adapter is not, a text is, and so is what is no text.
    #[test]
    fn what_else_makes_a_hash_is_told() {
        let with = |extras: Value, lora: &str| {
            let mut fields = vec![
                Value::text("BlockStored"),
                numbers(&[5, 6]),
                Value::Nil,
                numbers(&[1, 2, 3, 4]),
                Value::Number(2),
                Value::Number(1),
                Value::Nil,
            ];
            fields.extend([Value::text(lora), extras]);
            match batch(vec![Value::List(fields)]).events.remove(0) {
                Event::Stored(stored) => (stored.lora, stored.extras),
                other => panic!("{other:?}"),
            }
        };
        let list = |texts: &[&str]| Value::List(texts.iter().map(|text| Value::text(text)).collect());
        let salted = xxhash_rust::xxh3::xxh3_64_with_seed(b"salt", 1);
        let (lora, extras) = with(Value::List(vec![list(&["sql", "salt"]), list(&["sql"])]), "sql");
        assert_eq!((lora.as_deref(), &extras[..]), (Some("sql"), &[Extra::Text(salted), Extra::None][..]));
        let pair = Value::List(vec![Value::List(vec![Value::text("image"), Value::Number(3)])]);
        let (_, extras) = with(Value::List(vec![pair, Value::Nil]), "");
        assert!(matches!(extras[..], [Extra::Else(_), Extra::None]), "{extras:?}");
    }

    /// What is not taken in is told by what it may have changed.
    #[test]
    fn what_cannot_be_read_is_told_by_what_it_may_have_changed() {
        let list = |items: Vec<Value>| Value::List(items);
        let sliding = Value::Map(vec![
            ("type", Value::text("BlockStored")),
            ("block_hashes", numbers(&[1])),
            ("token_ids", numbers(&[1, 2])),
            ("block_size", Value::Number(2)),
            ("kv_cache_spec_kind", Value::text("sliding_window")),
        ]);
        let pairs =
            list(vec![Value::text("BlockStored"), numbers(&[1]), Value::Nil, list(vec![numbers(&[1, 2])])]);
        for (event, expected) in [
            (list(vec![Value::text("BlockMoved"), numbers(&[1])]), Event::Ignored(Ignored::Unknown)),
            (list(vec![Value::text("BlockStored"), Value::text("a")]), Event::Ignored(Ignored::Form)),
            (list(vec![Value::text("BlockStored"), numbers(&[1])]), Event::Ignored(Ignored::Form)),
            (pairs, Event::Ignored(Ignored::Form)),
            (sliding, Event::Ignored(Ignored::Container)),
            (list(vec![Value::text("BlockRemoved"), Value::text("a")]), Event::Unreadable),
            (list(vec![Value::text("BlockRemoved")]), Event::Unreadable),
            (list(vec![]), Event::Unreadable),
            (Value::Number(3), Event::Unreadable),
            (Value::Map(vec![("block_hashes", numbers(&[1]))]), Event::Unreadable),
        ] {
            assert_eq!(batch(vec![event]).events, [expected]);
        }
        for bytes in [&b""[..], b"\x90", b"\xc0", b"\x92\x01\x02", b"\x92\x01\x90\x00"] {
            assert_eq!(read(bytes), Err(Unreadable), "{bytes:?}");
        }
    }

    proptest! {
        /// Any bytes, and a batch with any byte changed or cut anywhere, are read or refused.
        #[test]
        fn garbage_is_read_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            at in any::<proptest::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let _ = read(&bytes);
            let event = Value::List(vec![
                Value::text("BlockStored"), numbers(&[5, 6]), Value::Number(4), numbers(&[1, 2, 3, 4]), Value::Number(2),
            ]);
            let mut whole = pack(&Value::List(vec![Value::Float(1.0), Value::List(vec![event])]));
            let at = at.index(whole.len());
            let _ = read(&whole[..at]);
            whole[at] = byte;
            if let Ok(batch) = read(&whole) {
                prop_assert!(batch.events.len() <= whole.len());
            }
        }
    }
}
