//! A handle's connection for changes: messages over the socket, or a mailbox.

use super::link::{HandedMemory, MEMORY_ID, SocketLink, is_hung_up, link_failed};
use super::mailbox::ClientMailbox;
use crate::address::Address;
use crate::client::error::{ConnectError, LinkError};
use crate::client::handle::Deadline;
use crate::client::options::RequestPath;
use crate::client::owning::{OwnOwner, OwnerRefusal};
use crate::client::send::{fit, send_fitting};
use crate::client::stats::RequestCounts;
use crate::layout::geometry::Geometry;
use crate::mailbox::memory::{self, Mailbox};
use crate::outcome::PutError;
use crate::wire::{Reply, Request, SOCKET_PIECE_MAX};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which a handle asks again for a mailbox that the server had no room for.
const MAILBOX_AGAIN: Duration = Duration::from_secs(1);

/// A handle's connection for changes.
#[derive(Debug)]
pub(super) struct ShmConnection {
    link: SocketLink,
    /// The geometry of the server at the other end.
    geometry: Arc<Geometry>,
    mailbox: MailboxState,
    owner: OwnerAnswer,
    /// Number of the next message.
    next_id: u64,
    /// The deadline of the last requests.
    asked_until: Instant,
}

/// The server's answer to whether the connection is a session of the client's owner.
#[derive(Debug)]
enum OwnerAnswer {
    /// It was not asked.
    Unasked,
    /// It was asked, by the request with this number.
    Awaited(u64),
    /// It has accepted.
    Taken,
}

/// Whether the connection has a mailbox.
#[derive(Debug)]
enum MailboxState {
    /// It has not asked for a mailbox.
    Unasked,
    /// The server refused a mailbox. Requests go over the stream.
    Refused {
        at: Instant,
    },
    There(Box<ClientMailbox>),
}

impl MailboxState {
    fn is_to_be_asked_for(&self) -> bool {
        match self {
            MailboxState::Unasked => true,
            MailboxState::Refused { at } => at.elapsed() >= MAILBOX_AGAIN,
            MailboxState::There(_) => false,
        }
    }
}

impl ShmConnection {
    /// A connection on which only the hello was exchanged.
    pub fn new(link: SocketLink, geometry: Arc<Geometry>, asked_until: Instant) -> ShmConnection {
        let (mailbox, owner) = (MailboxState::Unasked, OwnerAnswer::Unasked);
        ShmConnection { link, geometry, mailbox, owner, next_id: 0, asked_until }
    }

    /// As `new`, for a connection that continues the session of an owner that has begun (I5). Does not wait for the
    /// answer.
    pub fn staying(mut self, owner: Option<&OwnOwner>) -> ShmConnection {
        if let Some(owner) = owner.filter(|owner| owner.has_begun()) {
            self.ask_for_owner(owner);
        }
        self
    }

    /// Asks the server to make the connection a session of the owner. Returns the number of the request.
    fn ask_for_owner(&mut self, owner: &OwnOwner) -> u64 {
        let (id, mut bytes) = (self.next_id, Vec::new());
        owner.request().encode(id, &mut bytes);
        // The socket has room for it. If the server has hung up, reading will tell.
        let _ = self.link.send(&bytes, Instant::now());
        (self.owner, self.next_id) = (OwnerAnswer::Awaited(id), id + 1);
        id
    }

    /// Waits for the server's answer to whether the connection is a session of the client's owner.
    ///
    /// # Errors
    /// If the server refuses, or the link failed.
    pub fn check_owner(
        &mut self,
        owner: Option<&OwnOwner>,
        address: &Address,
        deadline: Instant,
    ) -> Result<(), ConnectError> {
        let Some(owner) = owner else { return Ok(()) };
        let refused = |why: OwnerRefusal| Err(why.at(address, owner.number()));
        let id = match self.owner {
            OwnerAnswer::Taken => return Ok(()),
            OwnerAnswer::Awaited(id) => id,
            OwnerAnswer::Unasked if self.link.level() < owner.request().level() => {
                return refused(OwnerRefusal::Rejected(PutError::OldServer));
            }
            OwnerAnswer::Unasked => self.ask_for_owner(owner),
        };
        let (mut replies, mut deadline) = (Vec::new(), Deadline::until(deadline, Duration::ZERO));
        let received = self.link.receive_replies(id..id + 1, &mut deadline, &mut replies);
        match received.map(|()| owner.hear(replies.pop())) {
            Ok(Some(Ok(()))) => {
                self.owner = OwnerAnswer::Taken;
                Ok(())
            }
            Ok(Some(Err(why))) => refused(why),
            Ok(None) => Err(link_failed(address, LinkError::Unexpected)),
            Err(error) => Err(link_failed(address, error)),
        }
    }

    /// The connection, for the next handle that uses it. Its errors name the time allowed.
    pub fn passed_on(self, allowed: Duration, deadline: Instant) -> ShmConnection {
        ShmConnection { link: self.link.allowing(allowed), asked_until: deadline, ..self }
    }

    /// The connection, as if the server had just refused a mailbox.
    #[cfg(test)]
    pub fn without_mailbox(self) -> ShmConnection {
        ShmConnection { mailbox: MailboxState::Refused { at: Instant::now() }, ..self }
    }

    /// The deadline of the last requests.
    #[cfg(test)]
    pub fn asked_until(&self) -> Instant {
        self.asked_until
    }

    /// The whole time allowed.
    #[cfg(test)]
    pub fn allowed(&self) -> Duration {
        self.link.allowed()
    }

    pub fn stream(&self) -> &Arc<UnixStream> {
        self.link.stream()
    }

    /// The geometry of the server at the other end.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether the server has not closed it. If requests go through a mailbox, and nobody has seen the server end, this
    /// makes no system call right after the last conversation: the client finds out while it waits for the reply. A
    /// request that its table does not take is not sent, so for such a request the socket is always checked, as before
    /// a message.
    pub fn is_linked(&mut self, requests: &[Request<'_>], may_trust: bool, deadline: Instant) -> bool {
        /// The longest time between the starts of two such conversations, measured between their deadlines.
        const RECENT: Duration = Duration::from_millis(1);
        let last = std::mem::replace(&mut self.asked_until, deadline);
        let is_recent = deadline.saturating_duration_since(last) < RECENT;
        let has_mailbox = matches!(self.mailbox, MailboxState::There(_));
        may_trust
            && has_mailbox
            && is_recent
            && fit(requests, (&self.geometry, self.link.level()), Some(SOCKET_PIECE_MAX))
            || !is_hung_up(self.stream())
    }

    /// Whether a reply may come that nobody waits for: then it is good for nothing else.
    pub fn is_posted(&self) -> bool {
        self.link.is_posted
    }

    /// Which requests the server knows.
    pub fn level(&self) -> u16 {
        self.link.level()
    }

    /// Sends a request as a message, and does not wait for its reply.
    pub fn post(&mut self, request: &Request<'_>, deadline: Instant) -> Result<(), LinkError> {
        let (id, mut out) = (self.next_id, Vec::new());
        request.encode(id, &mut out);
        (self.next_id, self.link.is_posted) = (id + 1, true);
        self.link.send(&out, deadline)
    }

    /// The reply to that message, if it comes until then.
    pub fn late_reply(&mut self, until: Instant) -> Result<Option<Reply>, LinkError> {
        // It is the last one.
        let reply = self.link.late_reply(self.next_id.wrapping_sub(1), until)?;
        self.link.is_posted &= reply.is_none();
        Ok(reply)
    }

    /// Has the server answer it at once (Q11).
    pub fn hurry(&mut self, deadline: Instant) -> Result<(), LinkError> {
        self.link.wake(deadline)
    }

    /// Asks for a mailbox, if there is none and it is time to. If the server refuses, requests go as messages.
    ///
    /// # Errors
    /// If the link failed, or if the server refuses and requests may take no other path.
    pub fn ask_for_mailbox(
        &mut self,
        address: &Address,
        path: RequestPath,
        deadline: Instant,
    ) -> Result<(), ConnectError> {
        if !self.mailbox.is_to_be_asked_for() {
            return Ok(());
        }
        self.mailbox = match take_mailbox(&mut self.link, address, &self.geometry, deadline) {
            Ok(mailbox) => MailboxState::There(mailbox),
            Err(error @ ConnectError::Link { .. }) => return Err(error),
            Err(error) if path == RequestPath::Mailbox => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "requests go by message");
                MailboxState::Refused { at: Instant::now() }
            }
        };
        Ok(())
    }

    /// Sends the requests that the server's table takes, through the mailbox if it is wanted and
    /// there. Returns when all are answered, so no request overtakes one that went the other way.
    pub fn converse(
        &mut self,
        requests: &[Request<'_>],
        wants_mailbox: bool,
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
        has_sent: &mut bool,
        counts: &mut RequestCounts,
    ) -> Result<(), LinkError> {
        let ShmConnection { link, geometry, mailbox, next_id, .. } = self;
        let server = (&**geometry, link.level());
        send_fitting(requests, server, Some(SOCKET_PIECE_MAX), replies, has_sent, |requests, replies| {
            let sent = requests.len() as u64;
            match mailbox {
                MailboxState::There(mailbox) if wants_mailbox => {
                    counts.mailbox += sent;
                    mailbox.converse(link, requests, deadline, replies)
                }
                _ => {
                    counts.message += sent;
                    let first_id = *next_id;
                    *next_id += sent;
                    link.converse(requests, first_id, deadline, replies)
                }
            }
        })
    }
}

/// Asks the server for a mailbox for further requests.
fn take_mailbox(
    link: &mut SocketLink,
    address: &Address,
    geometry: &Geometry,
    deadline: Instant,
) -> Result<Box<ClientMailbox>, ConnectError> {
    let refused =
        |why: String| ConnectError::RequestPath { path: RequestPath::Mailbox, address: address.clone(), why };
    let mut request = Vec::new();
    Request::Mailbox { version: memory::VERSION }.encode(MEMORY_ID, &mut request);
    let fd = match link.ask_for_memory(&request, deadline) {
        Ok((Reply::Mailbox { version: memory::VERSION }, HandedMemory { first: Some(fd), .. })) => fd,
        Ok((Reply::Refused { version: 0 }, _)) => {
            return Err(refused(
                "it has none; give it more of `ServerConfig::mailbox_bytes_max`, or use `RequestPath::Auto`"
                    .into(),
            ));
        }
        Ok((Reply::Refused { version: memory::VERSION }, _)) => {
            return Err(refused("it has no room for another one; give it more of `ServerConfig::mailbox_bytes_max`, or use `RequestPath::Auto`".into()));
        }
        Ok((Reply::Refused { version } | Reply::Mailbox { version }, _)) if version != memory::VERSION => {
            return Err(refused(format!(
                "it has version {version} of them, this program version {}; use the same version of oneread on both sides",
                memory::VERSION
            )));
        }
        other => {
            let source = other.err().unwrap_or(LinkError::Unexpected);
            return Err(ConnectError::Link { address: address.clone(), source });
        }
    };
    Ok(Box::new(ClientMailbox::new(Mailbox::map(fd, geometry)?)))
}
