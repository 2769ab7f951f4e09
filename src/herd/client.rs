//! The client's end: lanes, each with at most one unanswered request.

#![allow(unsafe_code)]

use super::sealed::{lay_out, seal};
use super::{GRH, HerdJoin, HerdOffer, HerdWelcome, VERSION, WINDOW, WriteTransport, cell_bytes, refused};
use crate::layout::geometry::Geometry;
use crate::layout::hash::reduce;
use crate::mailbox::CellMark;
use crate::verbs::bootstrap::Descriptor;
use crate::verbs::device::{
    Access, Buffer, CompletionQueue, Depth, QueuePair, Transport, Work, WorkKind, id, succeeded,
};
use crate::verbs::error::{SetupError, VerbsError};
use crate::verbs::ffi::Completion;
use crate::verbs::station::Station;
use crate::wire::{self, Reply, Request};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Receives posted: a repeated request may be answered twice.
const RECEIVES: usize = 2 * WINDOW;
/// The most completions that may come at once.
pub(crate) const COMPLETIONS: usize = WINDOW + RECEIVES;
/// A request without a reply is repeated after this time, then after twice as long each time. This
/// is several times the grace period (2 ms) that a PUT may wait for, and longer than a busy
/// machine's time slice.
const REPEAT_FIRST: Duration = Duration::from_millis(10);
const REPEAT_MAX: Duration = Duration::from_millis(200);
/// Marks the work requests of HERD that are receives.
const RECEIVE: u64 = 1 << 32;

/// The client's queue pairs before the server's welcome.
pub(crate) struct HerdDraft {
    carrier: WriteTransport,
    requests: QueuePair,
    replies: QueuePair,
}

impl HerdDraft {
    /// Makes queue pairs for a server with this offer. Their completions go to `queue`.
    pub fn new(
        station: &Station,
        queue: &Arc<CompletionQueue>,
        offer: Option<HerdOffer>,
    ) -> Result<HerdDraft, SetupError> {
        let Some(offer) = offer else {
            return Err(refused("the server was started without `ServerConfig::herd`"));
        };
        if offer.version != VERSION {
            let why = format!(
                "the server speaks its version {}, this program version {VERSION}; use the same version of oneread on both sides",
                offer.version
            );
            return Err(refused(why));
        }
        let pair = |transport, depth| {
            let (domain, route) = (station.domain().clone(), station.route().clone());
            QueuePair::new(domain, queue.clone(), None, transport, depth, route)
        };
        let depth = Depth { sends: WINDOW as u32, receives: 1 };
        let (carrier, requests) = match pair(offer.carrier.transport(), depth) {
            Err(SetupError::Call { errno, .. }) if offer.carrier == WriteTransport::Uc => {
                tracing::info!(errno, "the device has no UC: WRITEs go over RC");
                (WriteTransport::Rc, pair(Transport::Rc, depth)?)
            }
            made => (offer.carrier, made?),
        };
        let mut replies = pair(Transport::Ud, Depth { sends: 1, receives: RECEIVES as u32 })?;
        replies.open_for_datagrams()?;
        Ok(HerdDraft { carrier, requests, replies })
    }

    /// What the server must know to admit this client.
    pub fn join(&self) -> HerdJoin {
        HerdJoin {
            carrier: self.carrier,
            requests: self.requests.endpoint(),
            replies: self.replies.endpoint(),
        }
    }

    /// Connects to the area that the server has given.
    pub fn complete(
        self,
        station: &Station,
        seated: Option<HerdWelcome>,
        geometry: &Geometry,
    ) -> Result<HerdClient, SetupError> {
        let Some(HerdWelcome { requests: to, area, cell_bytes: stride, workers }) = seated else {
            return Err(refused("the server gave this client no place for its requests"));
        };
        let stride = stride as usize;
        let cells = workers.len() as u64 * WINDOW as u64;
        if workers.is_empty() || stride < cell_bytes(geometry) || cells * stride as u64 > area.bytes {
            return Err(refused("the server gave this client too small a place for its requests"));
        }
        if !crate::verbs::is_mtu(to.mtu) {
            return Err(refused("the server's path MTU is none"));
        }
        let reply_bytes = wire::reply_bytes_max(geometry);
        if reply_bytes > station.route().mtu as usize {
            return Err(refused("a reply may be longer than this side's MTU; name a larger one with ?mtu="));
        }
        let HerdDraft { mut requests, mut replies, .. } = self;
        requests.connect(&to, Access::Local)?;
        let domain = station.domain();
        let outgoing = Buffer::new(domain.clone(), WINDOW, cell_bytes(geometry), Access::Local)?;
        let incoming = Buffer::new(domain.clone(), RECEIVES, GRH + reply_bytes, Access::Local)?;
        for cell in 0..RECEIVES {
            let element = incoming.element(cell, incoming.cell_bytes());
            // SAFETY: the cell is new, and posted nowhere else; the buffer outlives the queue pair.
            unsafe { replies.post_receive(id::HERD | RECEIVE | cell as u64, element) }
                .map_err(|e| SetupError::Call { call: "ibv_post_recv", errno: e.errno() })?;
        }
        Ok(HerdClient {
            requests,
            replies,
            outgoing,
            incoming,
            area,
            stride,
            workers,
            lanes: Default::default(),
            arrived: VecDeque::new(),
            sequence: 0,
            repeats: 0,
        })
    }
}

/// A client's connection to HERD's workers.
#[derive(Debug)]
pub(crate) struct HerdClient {
    // Queue pairs are dropped before the buffers that their work requests name.
    requests: QueuePair,
    replies: QueuePair,
    outgoing: Buffer,
    incoming: Buffer,
    area: Descriptor,
    /// Bytes from one cell of the area to the next.
    stride: usize,
    workers: Vec<u32>,
    lanes: [RequestCell; WINDOW],
    /// Cells and lengths of datagrams that have arrived.
    arrived: VecDeque<(usize, usize)>,
    /// The number of the last request.
    sequence: u64,
    /// Requests written again since the last time they were counted.
    pub repeats: u64,
}

#[derive(Debug, Default)]
struct RequestCell {
    /// The request that waits for a reply.
    waiting: Option<Waiting>,
    /// Whether a WRITE from its cell is in flight.
    is_writing: bool,
    /// The request as it goes into the cell: head and frame.
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Its index among the call's requests.
    request: usize,
    worker: usize,
    mark: CellMark,
    repeat_at: Instant,
    pause: Duration,
}

fn key_of<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    match request {
        Request::Put { key, .. }
        | Request::Swap { key, .. }
        | Request::SwapExtent { key, .. }
        | Request::LongBegin { key, .. }
        | Request::LongPut { key, .. }
        | Request::LongSwap { key, .. }
        | Request::Remove { key }
        | Request::Get { key } => Some(key),
        Request::Hello { .. }
        | Request::Stat
        | Request::Snapshot { .. }
        | Request::Growth { .. }
        | Request::Heap
        | Request::LongPiece { .. }
        | Request::LongDrop
        | Request::Mailbox { .. }
        | Request::Wake => None,
    }
}

impl HerdClient {
    /// Whether a datagram has arrived that nobody has looked at.
    pub fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Abandons all unanswered requests (Q4).
    pub fn give_up(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.waiting = None);
    }

    /// A free lane for this request. `None` also while another request for its key waits (Q4).
    pub fn lane_for(&self, requests: &[Request<'_>], number: usize) -> Option<usize> {
        let key = key_of(&requests[number]);
        let mut waiting = self.lanes.iter().filter_map(|lane| lane.waiting);
        if key.is_some() && waiting.any(|other| key_of(&requests[other.request]) == key) {
            return None;
        }
        self.lanes.iter().position(|lane| lane.waiting.is_none() && !lane.is_writing)
    }

    /// WRITEs a request for the first time.
    pub fn begin(
        &mut self,
        lane: usize,
        number: usize,
        request: &Request<'_>,
        geometry: &Geometry,
    ) -> Result<(), VerbsError> {
        self.sequence += 1;
        let worker = key_of(request)
            .map_or(0, |key| reduce(geometry.seeds().shard(key), self.workers.len() as u64) as usize);
        lay_out(&mut self.lanes[lane].bytes, |out| request.encode(self.sequence, out));
        self.lanes[lane].waiting = Some(Waiting {
            request: number,
            worker,
            mark: CellMark { sequence: self.sequence, attempt: 0 },
            repeat_at: Instant::now() + REPEAT_FIRST,
            pause: REPEAT_FIRST,
        });
        self.write(lane)
    }

    /// WRITEs again what has waited too long (Q2). Returns when the next one is due.
    pub fn repeat_due(&mut self, now: Instant) -> Result<Instant, VerbsError> {
        let mut next = now + REPEAT_MAX;
        for lane in 0..WINDOW {
            let RequestCell { waiting: Some(waiting), is_writing, .. } = &mut self.lanes[lane] else {
                continue;
            };
            if waiting.repeat_at <= now {
                waiting.pause = (2 * waiting.pause).min(REPEAT_MAX);
                waiting.repeat_at = now + waiting.pause;
                // While the WRITE itself is under way (RC sends it again by itself), another one
                // would not help.
                if !*is_writing {
                    waiting.mark.attempt += 1;
                    self.repeats += 1;
                    self.write(lane)?;
                }
            }
            next = next.min(self.lanes[lane].waiting.map_or(next, |waiting| waiting.repeat_at));
        }
        Ok(next)
    }

    fn write(&mut self, number: usize) -> Result<(), VerbsError> {
        let lane = &mut self.lanes[number];
        let Some(Waiting { worker, mark, .. }) = lane.waiting else { return Ok(()) };
        seal(&mut lane.bytes, mark);
        // SAFETY: no WRITE from the lane's cell is in flight.
        let bytes = unsafe { self.outgoing.fill(number, &[&lane.bytes]) };
        let offset = (worker * WINDOW + number) * self.stride;
        let work = Work {
            id: id::HERD | number as u64,
            element: self.outgoing.element(number, bytes),
            kind: WorkKind::Write {
                address: self.area.address.wrapping_add(offset as u64),
                key: self.area.key,
            },
            signalled: true,
        };
        lane.is_writing = true;
        // SAFETY: the cell is not filled again before the WRITE has completed; the buffer outlives
        // the queue pair.
        unsafe { self.requests.post([work]) }
    }

    /// Takes one of this client's completions.
    pub fn take(&mut self, completion: &Completion) -> Result<(), VerbsError> {
        let number = completion.wr_id() & !id::KIND;
        if number & RECEIVE == 0 {
            succeeded(completion, "WRITE")?;
            self.lanes[number as usize].is_writing = false;
            return Ok(());
        }
        succeeded(completion, "RECV")?;
        let cell = (number & !RECEIVE) as usize;
        // A stray datagram is no reply (Q5). Its length is taken as 0, which is no reply's.
        let is_ours = self.workers.contains(&completion.src_qp);
        let length = if is_ours { completion.len().min(self.incoming.cell_bytes()) } else { 0 };
        self.arrived.push_back((cell, length));
        Ok(())
    }

    /// The next reply to a request that waits, and that request's index.
    pub fn next_reply(&mut self) -> Result<Option<(usize, Reply)>, VerbsError> {
        while let Some((cell, length)) = self.arrived.pop_front() {
            // SAFETY: the receive has completed, and is posted again only below.
            let datagram = unsafe { self.incoming.bytes(cell, length) };
            let answer = datagram.get(GRH..).map(|bytes| answer(&mut self.lanes, bytes)).transpose();
            let element = self.incoming.element(cell, self.incoming.cell_bytes());
            // SAFETY: its receive has completed, and nobody borrows from it any more.
            unsafe { self.replies.post_receive(id::HERD | RECEIVE | cell as u64, element) }?;
            if let Some(answer) = answer?.flatten() {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }
}

/// The reply in a datagram, and the index of the request that it answers. `None` if that request no
/// longer waits (Q5).
fn answer(lanes: &mut [RequestCell], datagram: &[u8]) -> Result<Option<(usize, Reply)>, VerbsError> {
    let Some(frame) = wire::decode(datagram)? else { return Ok(None) };
    let waits =
        |lane: &&mut RequestCell| lane.waiting.is_some_and(|waiting| waiting.mark.sequence == frame.id);
    let Some(waiting) = lanes.iter_mut().find(waits).and_then(|lane| lane.waiting.take()) else {
        return Ok(None);
    };
    Ok(Some((waiting.request, Reply::decode(&frame)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::extent::{Expected, Reference};
    use crate::outcome::PutMode;

    fn datagram(id: u64, there: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        Reply::Removed(Ok(there)).encode(id, &mut bytes);
        bytes
    }

    /// Q4: every request that is about a key has that key, by which it waits for others and finds its worker.
    #[test]
    fn requests_have_their_keys() {
        let key = &b"a key"[..];
        let (value, expected) = (&b"value"[..], Reference { number: 1, offset: 64, len: 7, crc: 3 });
        let mode = PutMode::Upsert;
        for request in [
            Request::Put { mode, key, value },
            Request::Swap { key, expected: value, value },
            Request::SwapExtent { key, expected, value },
            Request::LongBegin { key, len: 7 },
            Request::LongPut { mode, key },
            Request::LongSwap { key, expected: Expected::Extent(expected) },
            Request::Remove { key },
            Request::Get { key },
        ] {
            assert_eq!(key_of(&request), Some(key), "{request:?}");
        }
        for request in [Request::Stat, Request::Heap, Request::LongPiece { bytes: key }, Request::LongDrop] {
            assert_eq!(key_of(&request), None, "{request:?}");
        }
    }

    /// Q5: a reply belongs to the request that waits under its number, and only once. Any other is
    /// dropped.
    #[test]
    fn replies_find_their_requests() {
        let mut lanes: [RequestCell; WINDOW] = Default::default();
        for (lane, request, sequence) in [(2, 5, 11), (0, 6, 12), (3, 7, 13)] {
            lanes[lane].waiting = Some(Waiting {
                request,
                worker: 0,
                mark: CellMark { sequence, attempt: 1 },
                repeat_at: Instant::now(),
                pause: REPEAT_FIRST,
            });
        }
        let waiting = |lanes: &[RequestCell]| lanes.iter().filter(|lane| lane.waiting.is_some()).count();
        for stray in [datagram(10, true), datagram(14, true), datagram(0, true), Vec::new(), vec![0; 7]] {
            assert_eq!(answer(&mut lanes, &stray).unwrap(), None, "{stray:?}");
            assert_eq!(waiting(&lanes), 3, "{stray:?}");
        }
        for (left, (id, request, there)) in
            [(12, 6, false), (13, 7, true), (11, 5, false)].into_iter().enumerate()
        {
            let expected = Some((request, Reply::Removed(Ok(there))));
            assert_eq!(answer(&mut lanes, &datagram(id, there)).unwrap(), expected);
            assert_eq!(answer(&mut lanes, &datagram(id, !there)).unwrap(), None, "twice");
            assert_eq!(waiting(&lanes), 2 - left);
        }
    }
}
