//! What one operation of each design asks of the hardware.

use super::Workload;
use serde::Serialize;

/// Whose CPU looks a key up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Side {
    /// The client reads the server's memory: a layout of this crate.
    Layout,
    /// The client reads the server's memory: a layout as a paper describes it.
    OneSided,
    /// The server answers messages.
    TwoSided,
    /// Each client machine has a copy of everything, as old as the last PUT's way to it.
    Copy,
}

/// Instructions counted in this crate's code, with their bench: the one place for them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Cost {
    /// What is done.
    pub what: &'static str,
    /// Instructions, hashing of the key included: 16 + 32 bytes, `windowed:8`, 90 % load.
    pub instructions: f64,
    /// How it was counted.
    pub source: &'static str,
}

macro_rules! costs {
    ($($(#[doc = $what:literal])* $name:ident = $instructions:literal, $source:literal;)*) => {
        $(pub(crate) const $name: Cost =
            Cost { what: concat!($($what),*), instructions: $instructions, source: $source };)*
        /// Every cost.
        pub const COSTS: &[Cost] = &[$($name),*];
    };
}

costs! {
    /// GET of a present key.
    GET_HIT = 146.0, "benches/count.rs, `windowed:8`, 16 + 32 bytes";
    /// GET of an absent key.
    GET_MISS = 115.0, "the same";
    /// GET of a present key that a hint names the slot of.
    GET_HINTED_HIT = 840.0, "the same";
    /// GET of an absent key with hints.
    GET_HINTED_MISS = 4159.0, "the same";
    /// GET of a present key in a table that has grown.
    GET_GROWN_HIT = 219.0, "the same";
    /// GET of an absent key in a table that has grown.
    GET_GROWN_MISS = 237.0, "the same";
    /// PUT of a present key.
    UPDATE = 759.0, "the same";
    /// PUT of a new key, mean over a fill to 90 %.
    FILL = 1796.0, "the same";
    /// PUT of a new key into a table that grows fourfold, its splits included.
    GROWING_INSERT = 14874.0, "the same, 2,048 to 8,192 keys at 200,000 a second";
    /// PUT of a new key with room in its window.
    ROOM = 698.0, "the same; not used: the mean of a fill is";
    /// PUT of a new key with a search for a path.
    PATH = 17050.0, "the same; not used: the mean of a fill is";
    /// Request for one key that a worker answers over TCP, its system calls aside.
    TCP_GET = 996.0, "the same, one key a message; 316 a key by 50";
    /// GET or PUT in a concurrent map of this process.
    LOCAL = 265.0, "docs/BENCHMARKS.md: DashMap's GET out of cache takes 108 ns at 2.45 GHz";
}

/// What one operation asks for, on average. Demands of GETs and PUTs are added by weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Demand {
    /// READs.
    pub reads: f64,
    /// Messages to the server, each with one answer.
    pub messages: f64,
    /// Times that the client waits for the network.
    pub trips: f64,
    /// Doorbells that the client rings.
    pub doorbells: f64,
    /// Payload from server to client.
    pub fetched_bytes: f64,
    /// Payload from client to server.
    pub sent_bytes: f64,
    /// The client's instructions.
    pub client_instructions: f64,
    /// Accesses out of cache that the client waits for, one after the other. Over a network, those of
    /// what lands are none.
    pub client_lines: f64,
    /// Accesses out of cache to what the client remembers, over a network, too.
    pub hint_lines: f64,
    /// Lines that the client touches where it reads the server's memory itself, side by side or not.
    pub touched_lines: f64,
    /// The server's instructions.
    pub server_instructions: f64,
    /// Accesses out of cache that a server's core waits for, one after the other.
    pub server_lines: f64,
    /// The server's time for messages, in nanoseconds.
    pub server_ns: f64,
}

impl Demand {
    /// This demand `factor` times.
    #[must_use]
    pub fn times(self, factor: f64) -> Demand {
        Demand::default().plus(factor, self)
    }

    /// This demand and `factor` times another.
    #[must_use]
    pub fn plus(self, factor: f64, other: Demand) -> Demand {
        let add = |a: f64, b: f64| a + factor * b;
        Demand {
            reads: add(self.reads, other.reads),
            messages: add(self.messages, other.messages),
            trips: add(self.trips, other.trips),
            doorbells: add(self.doorbells, other.doorbells),
            fetched_bytes: add(self.fetched_bytes, other.fetched_bytes),
            sent_bytes: add(self.sent_bytes, other.sent_bytes),
            client_instructions: add(self.client_instructions, other.client_instructions),
            client_lines: add(self.client_lines, other.client_lines),
            hint_lines: add(self.hint_lines, other.hint_lines),
            touched_lines: add(self.touched_lines, other.touched_lines),
            server_instructions: add(self.server_instructions, other.server_instructions),
            server_lines: add(self.server_lines, other.server_lines),
            server_ns: add(self.server_ns, other.server_ns),
        }
    }

    /// Exchanges over the network: READs, and messages with their answers.
    pub fn exchanges(&self) -> f64 {
        self.reads + self.messages
    }
}

/// A way to keep keys and values, as what it asks for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Design {
    /// Its name.
    pub name: String,
    /// Whose CPU looks a key up.
    pub side: Side,
    /// One GET.
    pub get: Demand,
    /// One PUT.
    pub put: Demand,
    /// Memory of one key at the servers, everything included.
    pub bytes_per_key: f64,
    /// Memory of one key at each client machine.
    pub client_bytes_per_key: f64,
    /// PUTs that now and then take long. The mean is in `put`.
    pub pause: Option<SplitPause>,
    /// Where the demands come from.
    pub source: String,
}

/// A PUT that begins a split first makes the new segment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SplitPause {
    /// The chance that a PUT does.
    pub chance: f64,
    /// The server's time for that, in nanoseconds.
    pub ns: f64,
}

/// Lines that a GET of slots of one line touches in a window: docs/BENCHMARKS.md, three to four
/// slots at 90 % load.
pub(crate) const GET_LINES: f64 = 3.5;

/// Bytes of a request or a reply that are neither key nor value: kind, number, lengths.
pub(crate) const MESSAGE_HEADER: f64 = 16.0;

/// A server core's time to take a request, look a key up with its accesses overlapped, and answer:
/// HERD's code (rdma_bench, herd/README.md), 12.3 M requests a second on one core.
pub(crate) const HERD_NS: f64 = 1e9 / 12.3e6;

/// HERD without sharing doorbells among answers: 6.69 M a second.
pub(crate) const HERD_SINGLE_NS: f64 = 1e9 / 6.69e6;

/// eRPC (NSDI'19): 10 M small RPCs a second on one core, without a table behind them.
pub(crate) const ERPC_NS: f64 = 100.0;

/// The kernel's time on each side for a request over TCP and its answer: TAS (EuroSys'19, table 1) has 15,700 cycles
/// on Linux, the program's own aside (from memory), here at 2.45 GHz.
pub(crate) const TCP_NS: f64 = 15_700.0 / 2.45;

/// Instructions that a core of the shipped profiles does in that time, for a client's side.
pub(crate) const TCP_INSTRUCTIONS: f64 = TCP_NS * 4.9;

/// READs of a GET in Pilaf at 75 % load: 1.6 probes, and the extent.
pub(crate) const PILAF_PROBES: f64 = 1.6;

/// READs of a GET in FaRM at 90 % of the main slots.
pub(crate) const FARM_READS: f64 = 1.04;

pub(crate) fn one_sided(reads: f64, trips: f64, fetched_bytes: f64) -> Demand {
    Demand {
        reads,
        trips,
        doorbells: trips,
        fetched_bytes,
        client_instructions: GET_HIT.instructions,
        client_lines: trips,
        touched_lines: reads * GET_LINES,
        ..Demand::default()
    }
}

pub(crate) fn two_sided(sent_bytes: f64, fetched_bytes: f64, server_ns: f64, server_lines: f64) -> Demand {
    Demand {
        messages: 1.0,
        trips: 1.0,
        doorbells: 1.0,
        fetched_bytes,
        sent_bytes,
        client_instructions: 100.0,
        server_ns,
        server_lines,
        ..Demand::default()
    }
}

/// Pilaf, FaRM, RACE and XStore as one-sided rivals, HERD and eRPC as two-sided ones, and a copy at
/// each client, from the papers. Where a paper gives no instructions, ours stand in. And this crate over TCP.
pub fn rivals(workload: &Workload) -> Vec<Design> {
    let (key, value) = (workload.key_bytes as f64, workload.value_bytes as f64);
    let pair = key + value;
    // A PUT goes to the server as a message, as ours does.
    let message = pair + MESSAGE_HEADER;
    let put = Demand {
        server_instructions: UPDATE.instructions,
        ..two_sided(message, MESSAGE_HEADER, HERD_NS, 1.0)
    };
    let rpc = |ns, lines| {
        let get = two_sided(key + MESSAGE_HEADER, value + MESSAGE_HEADER, ns, lines);
        (get, two_sided(message, MESSAGE_HEADER, ns, lines))
    };
    let new = |name: &str, side, (get, put): (Demand, Demand), bytes_per_key: f64, source: &str| Design {
        name: name.into(),
        side,
        get,
        put,
        bytes_per_key,
        client_bytes_per_key: 0.0,
        pause: None,
        source: source.into(),
    };
    // Slots are whole words: header, key, value.
    let farm_slot = ((pair + 8.0) / 8.0).ceil() * 8.0;
    // Blocks are whole lines: header, key, value, CRC.
    let block = ((pair + 16.0) / 64.0).ceil() * 64.0;
    let machines = f64::from(workload.machines());
    let copy_put = Demand {
        // One to the server, and from there one to each machine, where a map takes it.
        messages: 1.0 + machines,
        trips: 1.0,
        doorbells: 1.0,
        sent_bytes: message,
        fetched_bytes: machines * message,
        client_instructions: machines * LOCAL.instructions,
        client_lines: machines,
        touched_lines: machines,
        server_instructions: UPDATE.instructions,
        server_lines: 1.0,
        // A core that answers HERD's way once for each machine.
        server_ns: HERD_NS * machines.max(1.0),
        ..Demand::default()
    };
    let copy_get = Demand {
        client_instructions: LOCAL.instructions,
        client_lines: 1.0,
        touched_lines: 1.0,
        ..Demand::default()
    };
    let mut copy = new(
        "local map",
        Side::Copy,
        (copy_get, copy_put),
        pair / 0.9 + 16.0,
        "DashMap as measured in docs/BENCHMARKS.md; PUTs are sent to every machine",
    );
    copy.client_bytes_per_key = copy.bytes_per_key;
    vec![
        new(
            "Pilaf",
            Side::OneSided,
            (one_sided(PILAF_PROBES + 1.0, PILAF_PROBES + 1.0, PILAF_PROBES * 32.0 + pair + 16.0), put),
            32.0 / 0.75 + pair + 16.0,
            "ATC'13: 1.6 probes at 75 %, then the extent; entries of 32 bytes (M)",
        ),
        new(
            "FaRM",
            Side::OneSided,
            (one_sided(FARM_READS, FARM_READS, FARM_READS * 8.0 * farm_slot), put),
            farm_slot / 0.81,
            "NSDI'14: 1.04 READs of 8 inlined slots at 90 %, 81 % with overflow",
        ),
        new(
            "RACE",
            Side::OneSided,
            // Two combined buckets of 128 bytes in one trip, then the block.
            (one_sided(3.0, 2.0, 2.0 * 128.0 + block), put),
            8.0 / 0.9 + block,
            "ATC'21: 2 bucket READs at once, then the block; its clients' PUTs are taken as messages here",
        ),
        new(
            "XStore",
            Side::OneSided,
            // The keys of a leaf, then the value.
            (one_sided(2.0, 2.0, 16.0 * key + value), put),
            (pair + 8.0) / 0.5,
            "OSDI'20: a leaf of 16 keys by a learned guess, then the value (M); leaves half full",
        ),
        new(
            "HERD",
            Side::TwoSided,
            rpc(HERD_NS, 0.0),
            (pair + 16.0) / 0.9,
            "its code's README: 81 ns a request",
        ),
        new(
            "eRPC",
            Side::TwoSided,
            rpc(ERPC_NS, 2.0),
            (pair + 16.0) / 0.9,
            "NSDI'19: 100 ns an RPC, and two lines of a table, one after the other",
        ),
        new(
            "TCP",
            Side::TwoSided,
            {
                let (get, put) = rpc(TCP_NS, 1.0);
                let by_kernel = |demand, server_instructions| Demand {
                    client_instructions: TCP_INSTRUCTIONS,
                    server_instructions,
                    ..demand
                };
                (by_kernel(get, TCP_GET.instructions), by_kernel(put, UPDATE.instructions))
            },
            // `windowed:8`: whole lines, 90 % full.
            ((pair + 16.0) / 64.0).ceil() * 64.0 / 0.9,
            "this crate over tcp://, each GET a request of its own: 996 instructions, and TAS's 15,700 cycles of the kernel (M)",
        ),
        copy,
    ]
}
