//! An open device with its port, GID and MTU.

use super::bootstrap::Network;
use super::device::{Context, ProtectionDomain, Route};
use super::error::SetupError;
use super::gid::{self, End, Entry, GidError, GidKind, GidMismatch, GidQuery, LinkLayer};
use super::{DeviceChoice, is_mtu};
use std::net::IpAddr;
use std::sync::Arc;

/// A device that is ready for queue pairs. `Send + Sync`.
#[derive(Debug)]
pub(crate) struct Station {
    domain: Arc<ProtectionDomain>,
    route: Route,
    network: Network,
    why: String,
}

impl Station {
    /// Opens the device and chooses port, GID and MTU where the user has not. `peer` is the address
    /// to reach, if it is known.
    pub fn open(choice: &DeviceChoice, peer: Option<IpAddr>) -> Result<Arc<Station>, SetupError> {
        let (context, port) = Context::open(choice.device.as_deref(), choice.port.map(|port| port.get()))?;
        let device = || context.name().to_owned();
        let link_layer = if port.is_infiniband { LinkLayer::InfiniBand } else { LinkLayer::Ethernet };
        let entries: Vec<Entry> = context
            .gids()?
            .into_iter()
            .filter(|entry| entry.port_num == u32::from(port.number))
            .map(|entry| Entry {
                index: entry.gid_index,
                gid: raw(entry.gid),
                kind: kind(entry.gid_type),
                ifindex: entry.ndev_ifindex,
                netdev: None,
            })
            .collect();
        // A loopback address says nothing about the device.
        let peer = peer.filter(|peer| !peer.is_loopback());
        let addresses = addresses();
        let no_gid = |source| SetupError::Gid { device: device(), port: port.number, source };
        let chosen = gid::choose(&GidQuery {
            entries: &entries,
            link_layer,
            lid: port.lid,
            peer,
            peer_prefix: None,
            addresses: &addresses,
            index: choice.gid,
        })
        .map_err(no_gid)?;
        let entry = chosen.index.and_then(|index| entries.iter().find(|entry| entry.index == index));
        let gid = match entry {
            None => None,
            Some(entry) => {
                let too_high = |_| no_gid(GidError::IndexTooHigh { index: entry.index });
                let index = u8::try_from(entry.index).map_err(too_high)?;
                Some((index, ibverbs::Gid::from(ibverbs_sys::ibv_gid { raw: entry.gid })))
            }
        };
        let mtu = match choice.mtu {
            None => port.mtu,
            Some(asked) if is_mtu(asked) && asked <= port.mtu => asked,
            Some(asked) => return Err(SetupError::Mtu { device: device(), asked, active: port.mtu }),
        };
        let network = Network { infiniband: port.is_infiniband, kind: entry.map(|entry| number(entry.kind)) };
        let why = format!("device {}, port {}: {}, MTU {mtu}", context.name(), port.number, chosen.why);
        tracing::debug!(%why, "verbs");
        let route = Route { port, gid, mtu };
        Ok(Arc::new(Station { domain: ProtectionDomain::new(context)?, route, network, why }))
    }

    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    pub fn route(&self) -> &Route {
        &self.route
    }

    /// What the other side needs to check whether the two can talk.
    pub fn network(&self) -> Network {
        self.network
    }

    /// What was chosen, and why.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Checks whether queue pairs here can talk to one there. The error says why not.
    pub fn check(&self, to: &ibverbs::QueuePairEndpoint, network: Network) -> Result<(), GidMismatch> {
        let ours = end(self.network, self.route.gid.map(|(_, gid)| gid));
        gid::reachable(&ours, &end(network, to.gid))
    }
}

fn end(network: Network, gid: Option<ibverbs::Gid>) -> End {
    let link_layer = if network.infiniband { LinkLayer::InfiniBand } else { LinkLayer::Ethernet };
    let gid = gid.map(raw).zip(network.kind.map(|number| kind(u32::from(number))));
    End { link_layer, gid }
}

fn raw(gid: ibverbs::Gid) -> [u8; 16] {
    let (prefix, interface) = (gid.subnet_prefix().to_be_bytes(), gid.interface_id().to_be_bytes());
    let mut raw = [0; 16];
    raw[..8].copy_from_slice(&prefix);
    raw[8..].copy_from_slice(&interface);
    raw
}

fn kind(number: u32) -> GidKind {
    match number {
        ibverbs_sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        ibverbs_sys::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
        _ => GidKind::Ib,
    }
}

fn number(kind: GidKind) -> u8 {
    match kind {
        GidKind::Ib => ibverbs_sys::IBV_GID_TYPE_IB as u8,
        GidKind::RoceV1 => ibverbs_sys::IBV_GID_TYPE_ROCE_V1 as u8,
        GidKind::RoceV2 => ibverbs_sys::IBV_GID_TYPE_ROCE_V2 as u8,
    }
}

/// This machine's addresses, with the lengths of their prefixes.
fn addresses() -> Vec<(IpAddr, u8)> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    interfaces
        .into_iter()
        .map(|interface| match interface.addr {
            if_addrs::IfAddr::V4(v4) => (IpAddr::V4(v4.ip), v4.prefixlen),
            if_addrs::IfAddr::V6(v6) => (IpAddr::V6(v6.ip), v6.prefixlen),
        })
        .collect()
}
