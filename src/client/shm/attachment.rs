//! A region mapped for reading. It is a server's, or in a file that a server left.

use super::link::{HandedMemory, SocketLink, hello, link_failed, open_socket, process_of};
use crate::address::Address;
use crate::client::error::{ConnectError, LinkError};
use crate::client::options::ClientOptions;
use crate::files::FileError;
use crate::layout::control::{Phase, STATE_WORD, State};
use crate::layout::geometry::Geometry;
use crate::layout::superblock::Superblock;
use crate::region::{GetCountMap, Region, RegionError, TouchMap};
use crate::wire::{Refusal, Reply};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A mapped region and the contents of its superblock.
#[derive(Debug)]
pub(super) struct Attachment {
    region: Region,
    geometry: Arc<Geometry>,
    /// Device and inode of the region's memory, and the incarnation of the server that shared it.
    identity: (u64, u64, u64),
    /// 0 until it is published.
    version: u64,
    is_file: bool,
    /// The map in which GETs note the keys that they find, if the server wants that.
    touches: Option<TouchMap>,
    /// What GETs are counted in, if the server has that.
    get_counts: Option<GetCountMap>,
}

impl Attachment {
    /// Maps the region that came with the answer to a hello.
    pub fn new(
        address: &Address,
        trusted: &[u32],
        reply: Reply,
        handed: HandedMemory,
    ) -> Result<Attachment, ConnectError> {
        let failed = |source| link_failed(address, source);
        let HandedMemory { first, others } = handed;
        let fd = match (reply, first) {
            (Reply::Welcome { .. }, Some(fd)) => fd,
            (Reply::Refused { version: theirs }, _) => {
                return Err(ConnectError::Refused { address: address.clone(), theirs });
            }
            (Reply::TurnedAway(source), _) => {
                return Err(ConnectError::TurnedAway { address: address.clone(), source });
            }
            _ => return Err(failed(LinkError::Unexpected)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed(LinkError::Os(e.into())))?;
        let region = Region::map_handed(fd, trusted)?;
        let (geometry, _) = Superblock::open(region.bytes(), |word| region.load(word))
            .map_err(|source| ConnectError::Superblock { address: address.clone(), source })?;
        let incarnation = State::from_word(region.load(STATE_WORD)).incarnation;
        let identity = (stat.st_dev, stat.st_ino, incarnation);
        // Notes and counts help the server. Without them, GETs are as correct.
        let (mut touches, mut get_counts) = (None, None);
        for fd in others {
            match Region::map_exchange(fd) {
                Ok(memory) if GetCountMap::are_in(&memory) => {
                    get_counts = Some(GetCountMap::in_memory(memory));
                }
                Ok(memory) => touches = Some(TouchMap::in_memory(memory)),
                Err(why) => tracing::warn!(%why, "reads are not noted, or not counted"),
            }
        }
        let geometry = Arc::new(geometry);
        Ok(Attachment { region, geometry, identity, version: 0, is_file: false, touches, get_counts })
    }

    #[inline]
    pub fn region(&self) -> &Region {
        &self.region
    }

    #[inline]
    pub fn geometry(&self) -> &Arc<Geometry> {
        &self.geometry
    }

    /// The map in which GETs note the keys that they find, if the server wants that.
    #[inline(always)]
    pub fn touches(&self) -> Option<&TouchMap> {
        self.touches.as_ref()
    }

    /// What GETs are counted in, if the server has that.
    pub fn get_counts(&self) -> Option<&GetCountMap> {
        self.get_counts.as_ref()
    }

    /// Notes that a GET has found this key.
    #[inline]
    pub fn note(&self, key: &[u8]) {
        if let Some(touches) = &self.touches {
            touches.note(self.geometry.hashed(key).first());
        }
    }

    /// A value that differs between regions, and between servers.
    pub fn identity(&self) -> (u64, u64, u64) {
        self.identity
    }

    /// The number of regions that the client had before this one.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// This attachment, published as this version.
    pub fn published(self, version: u64) -> Attachment {
        Attachment { version, ..self }
    }

    /// Whether the client opened the region's file itself. Such a region has no lease.
    pub fn is_file(&self) -> bool {
        self.is_file
    }
}

/// Connects, says hello, and maps the region. Returns the server's process, too, if it can be watched.
pub(super) fn attach(
    address: &Address,
    socket: &Path,
    trusted: &[u32],
    within: Duration,
) -> Result<(SocketLink, Option<OwnedFd>, Attachment), ConnectError> {
    let deadline = Instant::now() + within;
    let stream = Arc::new(open_socket(address, socket, trusted, within, deadline)?);
    let server = process_of(&stream);
    let mut link = SocketLink::new(stream, within);
    let (reply, handed) = link.ask_for_memory(&hello(), deadline).map_err(|e| link_failed(address, e))?;
    let attachment = Attachment::new(address, trusted, reply, handed)?;
    Ok((link, server, attachment))
}

/// Maps the region file that the options name, for a client that found no server, or one that is silent.
pub(super) fn open_file(
    address: &Address,
    options: &ClientOptions,
    no_server: ConnectError,
) -> Result<Attachment, ConnectError> {
    let is_stopping = |source: &Refusal| matches!(source, Refusal::Stopping);
    let is_gone = match &no_server {
        ConnectError::NotThere { .. } => true,
        ConnectError::Link { source: LinkError::HungUp | LinkError::Deadline(_), .. } => true,
        ConnectError::TurnedAway { source, .. } => is_stopping(source),
        _ => false,
    };
    let Some(path) = options.region.as_ref().filter(|_| is_gone) else { return Err(no_server) };
    let region = match Region::open_to_read(path) {
        Ok(region) => region,
        // Then the error is that no server is there.
        Err(RegionError::File(FileError::Os { source, .. })) if source.kind() == io::ErrorKind::NotFound => {
            return Err(no_server);
        }
        Err(RegionError::Unfinished { path }) => {
            return Err(ConnectError::NoTable { address: address.clone(), path });
        }
        Err(error) => return Err(error.into()),
    };
    let (geometry, _) = Superblock::open(region.bytes(), |word| region.load(word))
        .map_err(|source| ConnectError::Superblock { address: address.clone(), source })?;
    if matches!(State::from_word(region.load(STATE_WORD)).phase, Phase::Starting | Phase::Retired) {
        return Err(ConnectError::NoTable { address: address.clone(), path: path.clone() });
    }
    tracing::warn!(%address, path = %path.display(), "no server answers; reading its region file");
    // No server has this identity: every server's incarnation is at least 1.
    let (geometry, identity) = (Arc::new(geometry), (0, 0, 0));
    Ok(Attachment { region, geometry, identity, version: 0, is_file: true, touches: None, get_counts: None })
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::region::Backing;

    pub(in crate::client::shm) fn attachment(inode: u64) -> Attachment {
        attachment_of((1, inode, 1))
    }

    /// A small region with this identity.
    pub(in crate::client::shm) fn attachment_of(identity: (u64, u64, u64)) -> Attachment {
        let geometry = Config { size: TableSize::Slots(8), ..Config::short() }.geometry().unwrap();
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
        let geometry = Arc::new(geometry);
        let (touches, get_counts) = (None, None);
        Attachment { region, geometry, identity, version: 0, is_file: false, touches, get_counts }
    }
}
