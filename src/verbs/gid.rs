//! Which of a port's GIDs to use, and why.
//!
//! A GID is a port's address on its network. An Ethernet port has several: for each IP address of
//! its interface, one for RoCE v1 and one for RoCE v2. Two queue pairs can talk only if both sides
//! chose the same RoCE version and the same kind of IP address. The order of preference is
//! therefore the same on every machine. RoCE v2 comes before v1. Within a version, the order is:
//!
//! 1. a GID in the peer's subnet, IPv4 before IPv6;
//! 2. a GID of the peer's kind of address, or IPv4 while no peer is known;
//! 3. any other GID that is not link-local;
//! 4. a link-local GID.
//!
//! Among equals, the lowest index wins. On InfiniBand, ports of one subnet need no GID: they are
//! addressed by LID.
//!
//! Everything here is a pure function of its arguments. Tables are sparse: an index is not a
//! position.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// One entry of a port's GID table. An entry whose GID is zero is empty and is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its index in the table. A queue pair names the GID by this index.
    pub index: u32,
    /// The GID, in network byte order.
    pub gid: [u8; 16],
    /// The packet format that it stands for.
    pub kind: GidKind,
    /// The number of the network interface it belongs to; 0 if there is none.
    pub ifindex: u32,
    /// The name of that interface.
    pub netdev: Option<String>,
}

/// The packet format of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// InfiniBand.
    Ib,
    /// RDMA in Ethernet frames of its own type: works within one Ethernet segment.
    RoceV1,
    /// RDMA in UDP: routed like IP.
    RoceV2,
}

/// What a port is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// An InfiniBand fabric.
    InfiniBand,
    /// Ethernet: the device speaks RoCE.
    Ethernet,
}

/// The kind of network address that a GID is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressFamily {
    /// An IPv4 address, mapped into IPv6.
    V4,
    /// An IPv6 address.
    V6,
    /// An IPv6 address of fe80::/10, which has no meaning beyond one segment.
    LinkLocal,
}

/// The facts on which the choice of a GID depends.
#[derive(Clone, Copy, Debug)]
pub struct GidQuery<'a> {
    /// The port's GID table, in any order.
    pub entries: &'a [Entry],
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// The port's LID; 0 if it has none. Only InfiniBand ports have one.
    pub lid: u16,
    /// The peer's IP address, if known. Not used on InfiniBand.
    pub peer: Option<IpAddr>,
    /// The first 8 bytes of the peer's GID, if known. On InfiniBand they tell whether a router is
    /// in between.
    pub peer_prefix: Option<[u8; 8]>,
    /// The known addresses of this machine's interfaces, with the lengths of their prefixes in
    /// bits.
    pub addresses: &'a [(IpAddr, u8)],
    /// The index that the user asked for.
    pub index: Option<u32>,
}

/// The chosen GID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The GID's index. `None` on InfiniBand: by LID, without a GRH (the header that holds GIDs).
    pub index: Option<u32>,
    /// The choice in words, as in "chose index 3: RoCE v2, IPv4, same subnet as the peer". After a
    /// semicolon: what may go wrong with it, and the remedy.
    pub why: String,
    /// Whether something may go wrong. `why` then ends in a warning.
    pub doubtful: bool,
}

/// An entry, and how well it suits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked<'a> {
    /// The entry.
    pub entry: &'a Entry,
    /// How well it suits, in words, as in "RoCE v2, IPv4, same subnet as the peer".
    pub why: String,
}

/// Why there is no GID to use.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidError {
    /// The table is empty.
    #[error(
        "the port has no GID: its network interface is missing or down; bring it up, as in `ip link set eth0 up`, and give it an address"
    )]
    NoGid,
    /// The table has entries, and all are empty.
    #[error(
        "all {places} GIDs of the port are zero: its network interface has no address; give it one, as in `ip addr add 192.168.1.2/24 dev eth0`"
    )]
    OnlyZero {
        /// How many entries the table has.
        places: usize,
    },
    /// There is no GID at the index that was asked for.
    #[error("the port has no GID at index {asked}; it has some at {}; ask for one of these, or for none", list(.exist))]
    NoSuchIndex {
        /// The index asked for.
        asked: u32,
        /// The indexes that have a GID, ascending.
        exist: Vec<u32>,
    },
    /// The GID's index does not fit into the description of a queue pair.
    #[error("queue pairs can name the GIDs at index 0 to 255, not {index}; ask for another one")]
    IndexTooHigh {
        /// The index.
        index: u32,
    },
}

/// One side of a connection: what decides who can talk to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// The GID that it uses and its kind. `None`: by LID.
    pub gid: Option<([u8; 16], GidKind)>,
}

/// Why two ends cannot talk.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidMismatch {
    /// InfiniBand against Ethernet.
    #[error(
        "this side's port is {local}, the peer's is {remote}: no packet passes between them; choose ports of the same network"
    )]
    LinkLayers {
        /// This side's.
        local: LinkLayer,
        /// The peer's.
        remote: LinkLayer,
    },
    /// RoCE v1 against v2.
    #[error(
        "this side chose a GID of {local}, the peer one of {remote}: they do not understand each other; choose {} GIDs on both sides",
        GidKind::RoceV2
    )]
    Versions {
        /// This side's.
        local: GidKind,
        /// The peer's.
        remote: GidKind,
    },
    /// IPv4 against IPv6.
    #[error(
        "this side chose a GID that is an {} address, the peer one that is an {} address: no route joins them; choose the same kind on both sides", ip(.local), ip(.remote)
    )]
    Families {
        /// This side's.
        local: AddressFamily,
        /// The peer's.
        remote: AddressFamily,
    },
}

impl Entry {
    /// The GID as an address. A mapped IPv4 address is returned as IPv4.
    pub fn address(&self) -> IpAddr {
        address(self.gid)
    }

    /// What kind of address the GID is.
    pub fn family(&self) -> AddressFamily {
        family(self.gid)
    }

    fn is_empty(&self) -> bool {
        self.gid == [0; 16]
    }
}

fn address(gid: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(gid)).to_canonical()
}

fn family(gid: [u8; 16]) -> AddressFamily {
    match address(gid) {
        IpAddr::V4(_) => AddressFamily::V4,
        IpAddr::V6(ip) if ip.is_unicast_link_local() => AddressFamily::LinkLocal,
        IpAddr::V6(_) => AddressFamily::V6,
    }
}

/// Chooses the GID for a port's queue pairs. If the user asked for an index that exists, that one
/// is taken.
pub fn choose(request: &GidQuery<'_>) -> Result<Choice, GidError> {
    let ranking = rank(request);
    if let Some(asked) = request.index {
        return match ranking.iter().position(|ranked| ranked.entry.index == asked) {
            Some(at) => Ok(take(request, &ranking, at)),
            None if ranking.is_empty() => Err(nothing(request)),
            None => {
                let mut exist: Vec<u32> = ranking.iter().map(|ranked| ranked.entry.index).collect();
                exist.sort_unstable();
                Err(GidError::NoSuchIndex { asked, exist })
            }
        };
    }
    let routed = match (request.peer_prefix, ranking.first()) {
        (Some(theirs), Some(own)) => own.entry.gid[..8] != theirs,
        _ => false,
    };
    if request.link_layer == LinkLayer::InfiniBand && request.lid != 0 && !routed {
        let subnet = if request.peer_prefix.is_some() {
            "the peer is in the same subnet"
        } else {
            "within the subnet"
        };
        return Ok(Choice {
            index: None,
            why: format!("no GID needed: InfiniBand by LID {}, {subnet}", request.lid),
            doubtful: false,
        });
    }
    if ranking.is_empty() {
        return Err(nothing(request));
    }
    Ok(take(request, &ranking, 0))
}

/// All entries that hold a GID, the best first, each with its merits in words.
pub fn rank<'a>(request: &GidQuery<'a>) -> Vec<Ranked<'a>> {
    let mut graded: Vec<_> = request
        .entries
        .iter()
        .filter(|entry| !entry.is_empty())
        .map(|entry| {
            let (grade, why) = match request.link_layer {
                LinkLayer::InfiniBand => {
                    (Grade::InPeersSubnet(AddressFamily::V6), infiniband(entry, request))
                }
                LinkLayer::Ethernet => grade(entry, request),
            };
            ((std::cmp::Reverse(entry.kind as u8), grade, entry.index), Ranked { entry, why })
        })
        .collect();
    graded.sort_by_key(|(key, _)| *key);
    graded.into_iter().map(|(_, ranked)| ranked).collect()
}

/// Checks whether a queue pair at `local` can talk to one at `remote`. It considers only the two
/// GIDs, not routes, firewalls or cables.
pub fn reachable(local: &End, remote: &End) -> Result<(), GidMismatch> {
    if local.link_layer != remote.link_layer {
        return Err(GidMismatch::LinkLayers { local: local.link_layer, remote: remote.link_layer });
    }
    let (Some((ours, our_kind)), Some((theirs, their_kind))) = (local.gid, remote.gid) else {
        return Ok(());
    };
    if our_kind != their_kind {
        return Err(GidMismatch::Versions { local: our_kind, remote: their_kind });
    }
    // RoCE v1 is not IP: there, the GID's address family does not matter.
    let (ours, theirs) = (family(ours), family(theirs));
    if our_kind == GidKind::RoceV2 && (ours == AddressFamily::V4) != (theirs == AddressFamily::V4) {
        return Err(GidMismatch::Families { local: ours, remote: theirs });
    }
    Ok(())
}

/// How well an entry suits. The best comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Grade {
    /// IPv4 before IPv6.
    InPeersSubnet(AddressFamily),
    /// The peer's kind of address, or IPv4 while no peer is known.
    Fitting,
    Other,
    LinkLocal,
}

fn grade(entry: &Entry, request: &GidQuery<'_>) -> (Grade, String) {
    let (own, family) = (entry.address(), entry.family());
    let kind = format!("{}, {family}", entry.kind);
    let Some(peer) = request.peer.map(|peer| peer.to_canonical()) else {
        return match family {
            AddressFamily::V4 => (Grade::Fitting, kind),
            AddressFamily::V6 => (Grade::Other, kind),
            AddressFamily::LinkLocal => (Grade::LinkLocal, kind),
        };
    };
    if own == peer {
        return (Grade::InPeersSubnet(family), format!("{kind}, the peer's own address"));
    }
    if own.is_ipv4() != peer.is_ipv4() {
        let grade = if family == AddressFamily::LinkLocal { Grade::LinkLocal } else { Grade::Other };
        let theirs = if peer.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 };
        return (grade, format!("{kind}, but the peer's address is {theirs}"));
    }
    let prefixes = || request.addresses.iter().filter(|(address, _)| address.to_canonical() == own);
    if prefixes().any(|&(_, bits)| within(own, bits, peer)) {
        return (Grade::InPeersSubnet(family), format!("{kind}, same subnet as the peer"));
    }
    let subnet = match prefixes().next() {
        _ if family == AddressFamily::LinkLocal => "for one segment only",
        Some(_) => "another subnet than the peer's",
        None => "its subnet is not known",
    };
    (
        if family == AddressFamily::LinkLocal { Grade::LinkLocal } else { Grade::Fitting },
        format!("{kind}, {subnet}"),
    )
}

fn infiniband(entry: &Entry, request: &GidQuery<'_>) -> String {
    match request.peer_prefix {
        Some(theirs) if entry.gid[..8] == theirs => "InfiniBand, same subnet as the peer".into(),
        Some(_) => "InfiniBand, another subnet than the peer's: routed".into(),
        None => "InfiniBand".into(),
    }
}

/// The entry at this place of the ranking, as a choice.
fn take(request: &GidQuery<'_>, ranking: &[Ranked<'_>], at: usize) -> Choice {
    let Ranked { entry, why } = &ranking[at];
    let mut why = match request.index {
        Some(asked) => format!("took index {asked}, as asked for: {why}"),
        None => format!("chose index {}: {why}", entry.index),
    };
    let ethernet = request.link_layer == LinkLayer::Ethernet;
    let best = &ranking[0];
    let told = why.len();
    if at > 0 && ethernet && merit(best, request) != merit(&ranking[at], request) {
        why += &format!("; index {} would suit better: {}", best.entry.index, best.why);
    } else if ethernet && entry.kind == GidKind::RoceV1 {
        why += "; warning: the port has RoCE v1 only, which stays within one Ethernet segment and which a peer with RoCE v2 does not understand; use a port with RoCE v2, or v1 on both sides";
    } else if ethernet && ranking.iter().all(|ranked| ranked.entry.family() == AddressFamily::LinkLocal) {
        why += "; warning: the port has link-local addresses only, which reach no further than one segment; give its interface an address";
        if let Some(netdev) = &entry.netdev {
            why += &format!(", as in `ip addr add 192.168.1.2/24 dev {netdev}`");
        }
    } else if !ethernet && request.lid == 0 {
        why += "; warning: the port has no LID, because no subnet manager has configured it; start one, as in `systemctl start opensm`";
    }
    Choice { index: Some(entry.index), doubtful: why.len() > told, why }
}

fn merit(ranked: &Ranked<'_>, request: &GidQuery<'_>) -> (GidKind, Grade) {
    (ranked.entry.kind, grade(ranked.entry, request).0)
}

fn nothing(request: &GidQuery<'_>) -> GidError {
    match request.entries.len() {
        0 => GidError::NoGid,
        places => GidError::OnlyZero { places },
    }
}

/// Whether the first `bits` bits of two addresses of one family are equal.
fn within(own: IpAddr, bits: u8, peer: IpAddr) -> bool {
    let (own, peer, width) = match (own, peer) {
        (IpAddr::V4(own), IpAddr::V4(peer)) => (u32::from(own).into(), u32::from(peer).into(), 32),
        (IpAddr::V6(own), IpAddr::V6(peer)) => (u128::from(own), u128::from(peer), 128),
        _ => return false,
    };
    let differ: u128 = own ^ peer;
    differ.checked_shr(width - u32::from(bits).min(width)).unwrap_or(0) == 0
}

fn list(indexes: &[u32]) -> String {
    indexes.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// The family's name in messages. IPv6 and link-local are the same here.
fn ip(family: &AddressFamily) -> &'static str {
    if *family == AddressFamily::V4 { "IPv4" } else { "IPv6" }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            GidKind::Ib => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        })
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        })
    }
}

impl fmt::Display for AddressFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            AddressFamily::V4 => "IPv4",
            AddressFamily::V6 => "IPv6",
            AddressFamily::LinkLocal => "IPv6 link-local",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use GidKind::{Ib, RoceV1, RoceV2};

    fn entry(index: u32, kind: GidKind, address: &str) -> Entry {
        let gid = match address.parse().unwrap() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        Entry { index, gid, kind, ifindex: 2, netdev: Some("eth0".into()) }
    }

    /// What a typical ConnectX shows: each address twice, IPv6 before IPv4, with holes.
    fn usual() -> Vec<Entry> {
        vec![
            entry(0, RoceV1, "fe80::9a03:9bff:fe00:1"),
            entry(1, RoceV2, "fe80::9a03:9bff:fe00:1"),
            entry(4, RoceV1, "10.0.0.1"),
            entry(5, RoceV2, "10.0.0.1"),
            entry(8, RoceV1, "fd00::1"),
            entry(9, RoceV2, "fd00::1"),
            entry(200, RoceV2, "10.9.0.1"),
        ]
    }

    fn addresses() -> Vec<(IpAddr, u8)> {
        [("10.0.0.1", 24), ("10.9.0.1", 16), ("fd00::1", 64), ("fe80::9a03:9bff:fe00:1", 64)]
            .map(|(ip, bits)| (ip.parse().unwrap(), bits))
            .into()
    }

    fn ethernet<'a>(entries: &'a [Entry], addresses: &'a [(IpAddr, u8)], peer: Option<&str>) -> GidQuery<'a> {
        GidQuery {
            entries,
            link_layer: LinkLayer::Ethernet,
            lid: 0,
            peer: peer.map(|peer| peer.parse().unwrap()),
            peer_prefix: None,
            addresses,
            index: None,
        }
    }

    fn infiniband<'a>(entries: &'a [Entry], lid: u16, peer_prefix: Option<[u8; 8]>) -> GidQuery<'a> {
        GidQuery { link_layer: LinkLayer::InfiniBand, lid, peer_prefix, ..ethernet(entries, &[], None) }
    }

    #[test]
    fn ethernet_choices() {
        let (usual, known) = (usual(), addresses());
        for (peer, ranking, why) in [
            (None, [5, 200, 9, 1, 4, 8, 0], "chose index 5: RoCE v2, IPv4"),
            (
                Some("10.0.0.77"),
                [5, 200, 9, 1, 4, 8, 0],
                "chose index 5: RoCE v2, IPv4, same subnet as the peer",
            ),
            (
                Some("10.9.77.1"),
                [200, 5, 9, 1, 4, 8, 0],
                "chose index 200: RoCE v2, IPv4, same subnet as the peer",
            ),
            // That address, written as IPv6.
            (
                Some("::ffff:10.9.77.1"),
                [200, 5, 9, 1, 4, 8, 0],
                "chose index 200: RoCE v2, IPv4, same subnet as the peer",
            ),
            (
                Some("10.0.0.1"),
                [5, 200, 9, 1, 4, 8, 0],
                "chose index 5: RoCE v2, IPv4, the peer's own address",
            ),
            (
                Some("10.1.0.1"),
                [5, 200, 9, 1, 4, 8, 0],
                "chose index 5: RoCE v2, IPv4, another subnet than the peer's",
            ),
            (
                Some("fd00::2"),
                [9, 5, 200, 1, 8, 4, 0],
                "chose index 9: RoCE v2, IPv6, same subnet as the peer",
            ),
            (
                Some("fd01::2"),
                [9, 5, 200, 1, 8, 4, 0],
                "chose index 9: RoCE v2, IPv6, another subnet than the peer's",
            ),
            (
                Some("fe80::2"),
                [1, 9, 5, 200, 0, 8, 4],
                "chose index 1: RoCE v2, IPv6 link-local, same subnet as the peer",
            ),
        ] {
            let request = ethernet(&usual, &known, peer);
            let found: Vec<_> = rank(&request).iter().map(|ranked| ranked.entry.index).collect();
            assert_eq!(found, ranking, "{peer:?}");
            let choice = choose(&request).unwrap();
            assert_eq!(choice.index, Some(ranking[0]), "{peer:?}");
            assert!(choice.why.starts_with(why), "{peer:?}: {}", choice.why);
            assert!(!choice.doubtful, "{}", choice.why);
        }
        // The order of the table is not the order of its indexes.
        let backwards: Vec<_> = usual.iter().rev().cloned().collect();
        assert_eq!(choose(&ethernet(&backwards, &known, None)).unwrap().index, Some(5));
    }

    /// Without the interfaces' addresses, nothing is said about subnets.
    #[test]
    fn unknown_subnets_are_not_mentioned() {
        let usual = usual();
        let choice = choose(&ethernet(&usual, &[], Some("10.0.0.77"))).unwrap();
        assert_eq!(choice.why, "chose index 5: RoCE v2, IPv4, its subnet is not known");
    }

    #[test]
    fn ranking_gives_reasons() {
        let (usual, known) = (usual(), addresses());
        let whys: Vec<_> =
            rank(&ethernet(&usual, &known, Some("10.0.0.77"))).into_iter().map(|ranked| ranked.why).collect();
        assert_eq!(
            whys,
            [
                "RoCE v2, IPv4, same subnet as the peer",
                "RoCE v2, IPv4, another subnet than the peer's",
                "RoCE v2, IPv6, but the peer's address is IPv4",
                "RoCE v2, IPv6 link-local, but the peer's address is IPv4",
                "RoCE v1, IPv4, same subnet as the peer",
                "RoCE v1, IPv6, but the peer's address is IPv4",
                "RoCE v1, IPv6 link-local, but the peer's address is IPv4",
            ]
        );
    }

    #[test]
    fn index_asked_for() {
        let (usual, known) = (usual(), addresses());
        let ask = |index| GidQuery { index: Some(index), ..ethernet(&usual, &known, Some("10.0.0.77")) };
        assert!(!choose(&ask(5)).unwrap().doubtful);
        assert_eq!(
            choose(&ask(5)).unwrap().why,
            "took index 5, as asked for: RoCE v2, IPv4, same subnet as the peer"
        );
        let worse = choose(&ask(8)).unwrap();
        assert!(worse.doubtful && worse.index == Some(8));
        assert_eq!(
            worse.why,
            "took index 8, as asked for: RoCE v1, IPv6, but the peer's address is IPv4; index 5 would suit better: RoCE v2, IPv4, same subnet as the peer"
        );
        let error = choose(&ask(2)).unwrap_err();
        assert_eq!(error, GidError::NoSuchIndex { asked: 2, exist: vec![0, 1, 4, 5, 8, 9, 200] });
        assert_eq!(
            error.to_string(),
            "the port has no GID at index 2; it has some at 0, 1, 4, 5, 8, 9, 200; ask for one of these, or for none"
        );
        // Entries that differ only in their index are equally good.
        let twice = [entry(3, RoceV2, "10.0.0.1"), entry(7, RoceV2, "10.0.0.2")];
        let why = choose(&GidQuery { index: Some(7), ..ethernet(&twice, &[], None) }).unwrap().why;
        assert_eq!(why, "took index 7, as asked for: RoCE v2, IPv4");
        // An empty table is the error, even if an index was asked for.
        assert_eq!(choose(&GidQuery { index: Some(7), ..ethernet(&[], &[], None) }), Err(GidError::NoGid));
    }

    #[test]
    fn poor_tables() {
        assert_eq!(choose(&ethernet(&[], &[], None)), Err(GidError::NoGid));
        let zeros = [entry(0, RoceV2, "::"), entry(1, RoceV2, "::")];
        assert_eq!(choose(&ethernet(&zeros, &[], None)), Err(GidError::OnlyZero { places: 2 }));
        assert_eq!(
            choose(&GidQuery { index: Some(0), ..ethernet(&zeros, &[], None) }),
            Err(GidError::OnlyZero { places: 2 })
        );
        // An empty entry is no GID, even if it is asked for.
        let one = [entry(0, RoceV2, "::"), entry(6, RoceV2, "10.0.0.1")];
        assert_eq!(choose(&ethernet(&one, &[], None)).unwrap().index, Some(6));
        assert_eq!(
            choose(&GidQuery { index: Some(0), ..ethernet(&one, &[], None) }),
            Err(GidError::NoSuchIndex { asked: 0, exist: vec![6] })
        );

        let v1 = [entry(0, RoceV1, "fe80::1"), entry(2, RoceV1, "10.0.0.1")];
        let choice = choose(&ethernet(&v1, &[], None)).unwrap();
        assert!(choice.doubtful && choice.index == Some(2));
        assert!(choice.why.contains("warning: the port has RoCE v1 only"), "{}", choice.why);

        let local = [entry(0, RoceV1, "fe80::1"), entry(1, RoceV2, "fe80::1")];
        let choice = choose(&ethernet(&local, &[], None)).unwrap();
        assert!(choice.doubtful && choice.index == Some(1));
        assert!(choice.why.contains("warning: the port has link-local addresses only"), "{}", choice.why);
        assert!(choice.why.ends_with("`ip addr add 192.168.1.2/24 dev eth0`"), "{}", choice.why);
    }

    #[test]
    fn infiniband_choices() {
        const OURS: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
        const THEIRS: [u8; 8] = [0xfe, 0xc0, 0, 0, 0, 0, 0, 1];
        let table = [entry(0, Ib, "fe80::2c9:300:1:1"), entry(1, Ib, "fe80::14:5:0:1")];
        let by_lid = |prefix| {
            let choice = choose(&infiniband(&table, 5, prefix)).unwrap();
            assert_eq!(choice.index, None);
            choice.why
        };
        assert_eq!(by_lid(None), "no GID needed: InfiniBand by LID 5, within the subnet");
        assert_eq!(by_lid(Some(OURS)), "no GID needed: InfiniBand by LID 5, the peer is in the same subnet");
        // A LID is enough without any GID.
        assert_eq!(choose(&infiniband(&[], 5, None)).unwrap().index, None);

        let routed = choose(&infiniband(&table, 5, Some(THEIRS))).unwrap();
        assert_eq!(routed.index, Some(0));
        assert_eq!(routed.why, "chose index 0: InfiniBand, another subnet than the peer's: routed");
        // All 8 bytes of the prefix are the subnet's.
        for byte in 0..8 {
            let mut other = OURS;
            other[byte] ^= 1;
            let why = choose(&infiniband(&table, 5, Some(other))).unwrap().why;
            let routed = "chose index 0: InfiniBand, another subnet than the peer's: routed";
            assert_eq!(why, routed, "byte {byte}");
        }
        // The lowest index is taken: what would be a better address on Ethernet means nothing here.
        let global = [entry(0, Ib, "fe80::1"), entry(1, Ib, "fd00::1"), entry(2, Ib, "10.0.0.1")];
        for prefix in [None, Some(THEIRS)] {
            assert_eq!(choose(&infiniband(&global, 0, prefix)).unwrap().index, Some(0), "{prefix:?}");
        }
        let no_lid = choose(&infiniband(&table, 0, None)).unwrap();
        assert_eq!(no_lid.index, Some(0));
        assert!(no_lid.why.contains("no subnet manager"), "{}", no_lid.why);
        assert_eq!(choose(&infiniband(&[], 0, None)), Err(GidError::NoGid));
        let asked = choose(&GidQuery { index: Some(1), ..infiniband(&table, 5, None) }).unwrap();
        assert_eq!((asked.index, asked.why.as_str()), (Some(1), "took index 1, as asked for: InfiniBand"));
    }

    #[test]
    fn unreachable_ends_say_why() {
        let end = |kind, ip: &str| End {
            link_layer: if kind == Ib { LinkLayer::InfiniBand } else { LinkLayer::Ethernet },
            gid: Some((entry(0, kind, ip).gid, kind)),
        };
        let by_lid = End { link_layer: LinkLayer::InfiniBand, gid: None };
        for (local, remote) in [
            (end(RoceV2, "10.0.0.1"), end(RoceV2, "10.9.0.1")),
            (end(RoceV2, "fd00::1"), end(RoceV2, "fe80::1")),
            (end(RoceV1, "10.0.0.1"), end(RoceV1, "fe80::1")),
            (end(Ib, "fe80::1"), by_lid),
            (by_lid, by_lid),
        ] {
            assert_eq!(reachable(&local, &remote), Ok(()), "{local:?} {remote:?}");
        }
        for (local, remote, mismatch, told) in [
            (
                end(RoceV2, "10.0.0.1"),
                end(RoceV1, "10.0.0.2"),
                GidMismatch::Versions { local: RoceV2, remote: RoceV1 },
                ["a GID of RoCE v2, the peer one of RoCE v1", "choose RoCE v2 GIDs on both sides"],
            ),
            (
                end(RoceV2, "fe80::1"),
                end(RoceV2, "10.0.0.2"),
                GidMismatch::Families { local: AddressFamily::LinkLocal, remote: AddressFamily::V4 },
                ["is an IPv6 address, the peer one that is an IPv4 address", "the same kind on both sides"],
            ),
            (
                by_lid,
                end(RoceV2, "10.0.0.2"),
                GidMismatch::LinkLayers { local: LinkLayer::InfiniBand, remote: LinkLayer::Ethernet },
                ["port is InfiniBand, the peer's is Ethernet", "ports of the same network"],
            ),
        ] {
            let error = reachable(&local, &remote).unwrap_err();
            assert_eq!(error, mismatch);
            for part in told {
                assert!(error.to_string().contains(part), "{part:?} is missing in {error}");
            }
            assert!(reachable(&remote, &local).is_err());
        }
    }

    #[test]
    fn prefixes() {
        for (own, bits, peer, same) in [
            ("10.0.0.1", 24, "10.0.0.255", true),
            ("10.0.0.1", 24, "10.0.1.1", false),
            ("10.0.0.1", 31, "10.0.0.0", true),
            ("10.0.0.1", 32, "10.0.0.0", false),
            ("10.0.0.1", 0, "192.168.0.1", true),
            ("10.0.0.1", 255, "10.0.0.1", true),
            ("fd00::1", 64, "fd00::ffff:0:0:1", true),
            ("fd00::1", 64, "fd00:0:0:1::1", false),
            ("fd00::1", 0, "::1", true),
            ("fd00::1", 128, "fd00::2", false),
            ("10.0.0.1", 0, "fd00::1", false),
        ] {
            assert_eq!(
                within(own.parse().unwrap(), bits, peer.parse().unwrap()),
                same,
                "{own}/{bits} {peer}"
            );
        }
    }
}
