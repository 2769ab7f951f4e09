//! The client's end: lanes, each with at most one unanswered request.

#![allow(unsafe_code)]

use super::conversation::{
    GRH, HerdJoin, HerdOffer, HerdWelcome, VERSION, WINDOW, WriteTransport, cell_bytes, known, refused, told,
};
use super::device::{open_for_datagrams, write};
use super::sealed::{lay_out, seal};
use crate::client::verbs::extension::{Deadline, ExtensionDraft, ExtensionRequests};
use crate::client::verbs::waiting::{Completes, WaitPlace};
use crate::layout::geometry::Geometry;
use crate::layout::hash::reduce;
use crate::mailbox::CellMark;
use crate::verbs::bootstrap::Descriptor;
use crate::verbs::device::{Access, Buffer, CompletionQueue, Depth, QueuePair, Work, succeeded};
use crate::verbs::error::{SetupError, VerbsError};
use crate::verbs::ffi::Completion;
use crate::verbs::station::Station;
use crate::verbs::{QueueCounts, Wait};
use crate::wire::{self, Reply, Request};
use ibverbs_sys::ibv_qp_type;
use serde_json::Value;
use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most completions taken by one poll.
const POLLED: usize = 32;
/// Receives posted: a repeated request may be answered twice.
const RECEIVES: usize = 2 * WINDOW;
/// The most completions that may come at once.
const COMPLETIONS: usize = WINDOW + RECEIVES;
/// A request without a reply is repeated after this time, then after twice as long each time. This
/// is several times the grace period (2 ms) that a PUT may wait for, and longer than a busy
/// machine's time slice.
const REPEAT_FIRST: Duration = Duration::from_millis(10);
const REPEAT_MAX: Duration = Duration::from_millis(200);
/// Marks the work requests that are receives.
const RECEIVE: u64 = 1 << 32;

/// The client's queue pairs before the server's welcome.
struct HerdDraft {
    carrier: WriteTransport,
    requests: QueuePair,
    replies: QueuePair,
    queue: Arc<CompletionQueue>,
}

/// Makes the client's end for a server with this offer.
pub(super) fn draft(station: &Station, offer: Option<&Value>) -> Result<Box<dyn ExtensionDraft>, SetupError> {
    Ok(Box::new(HerdDraft::new(station, offer.map(known).transpose()?)?))
}

impl HerdDraft {
    fn new(station: &Station, offer: Option<HerdOffer>) -> Result<HerdDraft, SetupError> {
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
        let queue = CompletionQueue::new(station.domain().context().clone(), COMPLETIONS as u32)?;
        let pair = |transport, depth| {
            let (domain, route) = (station.domain().clone(), station.route().clone());
            QueuePair::new(domain, queue.clone(), None, transport, depth, route)
        };
        let depth = Depth { sends: WINDOW as u32, receives: 1 };
        let (carrier, requests) = match pair(offer.carrier.pair_type(), depth) {
            Err(SetupError::Call { errno, .. }) if offer.carrier == WriteTransport::Uc => {
                tracing::info!(errno, "the device has no UC: WRITEs go over RC");
                (WriteTransport::Rc, pair(ibv_qp_type::IBV_QPT_RC, depth)?)
            }
            made => (offer.carrier, made?),
        };
        let mut replies = pair(ibv_qp_type::IBV_QPT_UD, Depth { sends: 1, receives: RECEIVES as u32 })?;
        open_for_datagrams(&mut replies, station)?;
        Ok(HerdDraft { carrier, requests, replies, queue })
    }
}

impl ExtensionDraft for HerdDraft {
    fn join(&self) -> Value {
        told(&HerdJoin {
            carrier: self.carrier,
            requests: self.requests.endpoint(),
            replies: self.replies.endpoint(),
        })
    }

    fn complete(
        self: Box<Self>,
        welcome: Option<&Value>,
        station: &Station,
        geometry: &Arc<Geometry>,
        stream: &Arc<TcpStream>,
        wait: Wait,
    ) -> Result<Box<dyn ExtensionRequests>, SetupError> {
        let seated = welcome.map(known::<HerdWelcome>).transpose()?;
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
        // Declared before the queue pairs, and so dropped after them, also when this returns an error.
        let (outgoing, incoming);
        let HerdDraft { mut requests, mut replies, queue, .. } = *self;
        requests.connect(&to, Access::LOCAL)?;
        let domain = station.domain();
        outgoing = Buffer::new(domain.clone(), WINDOW, cell_bytes(geometry), Access::LOCAL)?;
        incoming = Buffer::new(domain.clone(), RECEIVES, GRH + reply_bytes, Access::LOCAL)?;
        for cell in 0..RECEIVES {
            let element = incoming.element(cell, incoming.cell_bytes());
            // SAFETY: the cell is new, and posted nowhere else; the buffer outlives the queue pair.
            unsafe { replies.post_receive(RECEIVE | cell as u64, element) }
                .map_err(|e| SetupError::Call { call: "ibv_post_recv", errno: e.errno() })?;
        }
        Ok(Box::new(HerdClient {
            requests,
            replies,
            queue,
            geometry: geometry.clone(),
            stream: stream.clone(),
            wait,
            polled: [Completion::default(); POLLED],
            outgoing,
            incoming,
            area,
            stride,
            workers,
            lanes: Default::default(),
            arrived: VecDeque::new(),
            sequence: 0,
            counts: QueueCounts::default(),
        }))
    }
}

/// A client's connection to HERD's workers.
#[derive(Debug)]
struct HerdClient {
    // Queue pairs are dropped before the buffers that their work requests name.
    requests: QueuePair,
    replies: QueuePair,
    queue: Arc<CompletionQueue>,
    geometry: Arc<Geometry>,
    stream: Arc<TcpStream>,
    wait: Wait,
    /// The completions of the last poll.
    polled: [Completion; POLLED],
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
    counts: QueueCounts,
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
        | Request::UploadBegin { key, .. }
        | Request::UploadPut { key, .. }
        | Request::UploadSwap { key, .. }
        | Request::Remove { key }
        | Request::RemoveIf { key, .. }
        | Request::Part { key, .. }
        | Request::Touch { key, .. }
        | Request::PutStart { key, .. }
        | Request::PutPiece { key, .. }
        | Request::PutCommit { key, .. }
        | Request::PutAbort { key, .. }
        | Request::Get { key } => Some(key),
        Request::Hello { .. }
        | Request::Stat
        | Request::Snapshot { .. }
        | Request::Growth { .. }
        | Request::GrowFor { .. }
        | Request::Clear { .. }
        | Request::Owner { .. }
        | Request::RemoveOwner { .. }
        | Request::Pin { .. }
        | Request::Unpin { .. }
        | Request::Heap
        | Request::Times
        | Request::Notes
        | Request::Evictions
        | Request::Held
        | Request::GetCounts
        | Request::Log
        | Request::Feed(_)
        | Request::UploadPiece { .. }
        | Request::UploadDrop
        | Request::Mailbox { .. }
        | Request::Join { .. }
        | Request::Gets(_)
        | Request::Wake => None,
    }
}

impl ExtensionRequests for HerdClient {
    fn call(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
    ) -> Result<(), VerbsError> {
        let mut answers = vec![None; requests.len()];
        let called = self.call_all(requests, deadline, &mut answers);
        replies.extend(answers.into_iter().map_while(|reply| reply));
        if called.is_err() {
            // All unanswered requests are abandoned (Q4).
            self.lanes.iter_mut().for_each(|lane| lane.waiting = None);
        }
        called
    }

    fn take_counts(&mut self) -> QueueCounts {
        std::mem::take(&mut self.counts)
    }
}

impl Completes for HerdClient {
    #[inline]
    fn take_completions(&mut self) -> Result<bool, VerbsError> {
        let n = self.queue.poll(&mut self.polled)?;
        self.counts.completions += n as u64;
        for i in 0..n {
            self.take(self.polled[i])?;
        }
        Ok(n > 0)
    }

    fn waiting(&self) -> WaitPlace<'_> {
        WaitPlace { queue: &self.queue, stream: &self.stream, wait: self.wait }
    }
}

impl HerdClient {
    /// Asks the workers, [`WINDOW`] requests at a time.
    fn call_all(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut [Option<Reply>],
    ) -> Result<(), VerbsError> {
        let (mut begun, mut answered) = (0, 0);
        while answered < requests.len() {
            while let Some(request) = requests.get(begun)
                && let Some(lane) = self.lane_for(requests, begun)
            {
                self.begin(lane, begun, request)?;
                begun += 1;
            }
            let now = Instant::now();
            let until = self.repeat_due(now)?.min(deadline.at);
            let waited = self.wait_until(until.saturating_duration_since(now), |this| {
                !this.arrived.is_empty() || begun < requests.len() && this.lane_for(requests, begun).is_some()
            });
            match waited {
                Ok(()) => {}
                Err(VerbsError::Late { .. }) if Instant::now() < deadline.at => {}
                Err(error) => return Err(error),
            }
            while let Some((request, reply)) = self.next_reply()? {
                replies[request] = Some(reply);
                answered += 1;
                deadline.renew();
            }
        }
        Ok(())
    }

    /// A free lane for this request. `None` also while another request for its key waits (Q4).
    fn lane_for(&self, requests: &[Request<'_>], number: usize) -> Option<usize> {
        let key = key_of(&requests[number]);
        let mut waiting = self.lanes.iter().filter_map(|lane| lane.waiting);
        if key.is_some() && waiting.any(|other| key_of(&requests[other.request]) == key) {
            return None;
        }
        self.lanes.iter().position(|lane| lane.waiting.is_none() && !lane.is_writing)
    }

    /// WRITEs a request for the first time.
    fn begin(&mut self, lane: usize, number: usize, request: &Request<'_>) -> Result<(), VerbsError> {
        self.sequence += 1;
        let worker = key_of(request)
            .map_or(0, |key| reduce(self.geometry.seeds().shard(key), self.workers.len() as u64) as usize);
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
    fn repeat_due(&mut self, now: Instant) -> Result<Instant, VerbsError> {
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
                    self.counts.repeats += 1;
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
            id: number as u64,
            element: self.outgoing.element(number, bytes),
            kind: write(self.area.address.wrapping_add(offset as u64), self.area.key),
            signalled: true,
        };
        lane.is_writing = true;
        // SAFETY: the cell is not filled again before the WRITE has completed; the buffer outlives
        // the queue pair.
        unsafe { self.requests.post([work]) }
    }

    /// Takes a completion.
    fn take(&mut self, completion: Completion) -> Result<(), VerbsError> {
        let number = completion.wr_id();
        if number & RECEIVE == 0 {
            succeeded(&completion, "WRITE")?;
            self.lanes[number as usize].is_writing = false;
            return Ok(());
        }
        succeeded(&completion, "RECV")?;
        let cell = (number & !RECEIVE) as usize;
        // A stray datagram is no reply (Q5). Its length is taken as 0, which is no reply's.
        let is_ours = self.workers.contains(&completion.src_qp);
        let length = if is_ours { completion.len().min(self.incoming.cell_bytes()) } else { 0 };
        self.arrived.push_back((cell, length));
        Ok(())
    }

    /// The next reply to a request that waits, and that request's index.
    fn next_reply(&mut self) -> Result<Option<(usize, Reply)>, VerbsError> {
        while let Some((cell, length)) = self.arrived.pop_front() {
            // SAFETY: the receive has completed, and is posted again only below.
            let datagram = unsafe { self.incoming.bytes(cell, length) };
            let answer = datagram.get(GRH..).map(|bytes| answer(&mut self.lanes, bytes)).transpose();
            let element = self.incoming.element(cell, self.incoming.cell_bytes());
            // SAFETY: its receive has completed, and nobody borrows from it any more.
            unsafe { self.replies.post_receive(RECEIVE | cell as u64, element) }?;
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
            Request::Put { options: mode.into(), key, value },
            Request::Swap { key, expected: value, value },
            Request::SwapExtent { key, expected, value },
            Request::UploadBegin { key, len: 7 },
            Request::UploadPut { options: mode.into(), key },
            Request::UploadSwap { key, expected: Expected::Extent(expected) },
            Request::Remove { key },
            Request::Get { key },
        ] {
            assert_eq!(key_of(&request), Some(key), "{request:?}");
        }
        for request in
            [Request::Stat, Request::Heap, Request::UploadPiece { bytes: key }, Request::UploadDrop]
        {
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
