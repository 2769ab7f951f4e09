//! Sending requests: a request that the table does not take is not sent, and one that fits no frame goes in pieces.

use crate::layout::extent::Expected;
use crate::layout::geometry::Geometry;
use crate::outcome::PutError;
use crate::wire::{self, Reply, Request};

/// Most requests sent ahead of their replies. The replies to this many requests fit into a socket's
/// buffer, so neither side waits for the other to read.
pub(super) const BATCH: usize = 512;

/// Bytes of values that are sent ahead of their replies.
const AHEAD_MAX: usize = 1 << 20;

/// The longest pieces of an upload on a path to the server. `None`: values that fit no frame cannot take this path.
pub(super) type PieceMax = Option<usize>;

/// The value that a request puts.
fn value_of<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    match request {
        Request::Put { value, .. } | Request::Swap { value, .. } | Request::SwapExtent { value, .. } => {
            Some(value)
        }
        _ => None,
    }
}

/// Sends the requests that a table of this geometry takes, and inserts the rejections of the others among the replies,
/// each in its place. After an error, there are as many replies as were there by then. A rejected request is not sent,
/// because no frame or slot could hold it. Geometry and level must be those of the server that `send` reaches. Another
/// server may take what this one does not, so a rejection counts only if the server answers something: if none of the
/// requests is sent, it is asked for its counters. Values that fit no frame are uploaded, in pieces of at most
/// `piece_max`. `has_sent` tells whether any of the requests was sent.
pub(super) fn send_fitting<E>(
    requests: &[Request<'_>],
    (geometry, level): (&Geometry, u16),
    piece_max: PieceMax,
    replies: &mut Vec<Reply>,
    has_sent: &mut bool,
    mut send: impl FnMut(&[Request<'_>], &mut Vec<Reply>) -> Result<(), E>,
) -> Result<(), E> {
    let frame_max = wire::frame_value_max(geometry);
    let is_frame = |request: &Request<'_>| {
        value_of(request).is_none_or(|value| value.len() <= frame_max)
            && check(request, (geometry, level), piece_max).is_ok()
    };
    // The usual case: each request is a frame, and its answer is the reply.
    if requests.iter().all(is_frame) {
        *has_sent = true;
        return send(requests, replies);
    }
    let rejection =
        |request| check(request, (geometry, level), piece_max).err().map(|why| Reply::Put(Err(why)));
    let answers: Vec<_> = requests.iter().map(rejection).collect();
    if answers.iter().all(Option::is_some) {
        send(&[Request::Stat], &mut Vec::with_capacity(1))?;
        replies.extend(answers.into_iter().flatten());
        return Ok(());
    }
    *has_sent = true;
    let mut sending = Sending { send, answers, frames: Vec::new(), bytes: 0 };
    let result = sending.send_all(requests, frame_max, piece_max.unwrap_or(frame_max));
    // A request without a reply: the server does not speak the protocol, and the caller sees that. An upload that was
    // cut off was not answered.
    let is_answer = |reply: &Reply| result.is_ok() || *reply != Reply::Taken;
    replies.extend(sending.answers.into_iter().map_while(|reply| reply.filter(is_answer)));
    result
}

/// Whether a server of this level, with a table of this geometry, takes all of these requests.
pub(super) fn fit(requests: &[Request<'_>], server: (&Geometry, u16), piece_max: PieceMax) -> bool {
    requests.iter().all(|request| check(request, server, piece_max).is_ok())
}

fn check(
    request: &Request<'_>,
    (geometry, level): (&Geometry, u16),
    piece_max: PieceMax,
) -> Result<(), PutError> {
    if request.level() > level {
        return Err(PutError::OldServer);
    }
    let (key_max, frame_max) = (geometry.key_max(), wire::frame_value_max(geometry));
    let value_max = piece_max.map_or(frame_max, |_| geometry.value_max());
    match request {
        Request::Put { key, .. }
        | Request::Swap { key, .. }
        | Request::SwapExtent { key, .. }
        | Request::Remove { key }
        | Request::RemoveIf { key, .. }
        | Request::Part { key, .. }
        | Request::Touch { key, .. }
        | Request::Pin { key }
        | Request::Unpin { key }
        | Request::Get { key }
            if key.is_empty() || key.len() > key_max =>
        {
            Err(PutError::KeyLength { given: key.len(), max: key_max })
        }
        // A longer value is expected by its extent.
        Request::Swap { expected, .. } if expected.len() > frame_max => {
            Err(PutError::ValueLength { given: expected.len(), max: frame_max })
        }
        Request::RemoveIf { expected, .. } if expected.bytes().len() > frame_max => {
            Err(PutError::ValueLength { given: expected.bytes().len(), max: frame_max })
        }
        // It goes in one piece.
        Request::Part { part, .. } => {
            let (given, max) =
                (part.len_after(None), piece_max.unwrap_or(frame_max).min(geometry.value_max()));
            if given > max { Err(PutError::ValueLength { given, max }) } else { Ok(()) }
        }
        request => match value_of(request) {
            Some(value) if value.len() > value_max => {
                Err(PutError::ValueLength { given: value.len(), max: value_max })
            }
            _ => Ok(()),
        },
    }
}

/// Frames under way, and the answers so far.
struct Sending<'a, S> {
    send: S,
    /// The answer to each request: its rejection, or the first reply to one of its frames that is not [`Reply::Taken`];
    /// or [`Reply::Taken`], so far.
    answers: Vec<Option<Reply>>,
    /// Frames to be sent, each with the number of its request.
    frames: Vec<(usize, Request<'a>)>,
    /// Bytes of values in these frames.
    bytes: usize,
}

impl<'a, E, S: FnMut(&[Request<'_>], &mut Vec<Reply>) -> Result<(), E>> Sending<'a, S> {
    /// Sends all requests that have no answer yet, in order, and in pieces if a value fits no frame.
    fn send_all(&mut self, requests: &[Request<'a>], frame_max: usize, piece_max: usize) -> Result<(), E> {
        for (nth, request) in requests.iter().enumerate() {
            // The table does not take it.
            if self.answers[nth].is_some() {
                continue;
            }
            let (key, value, last) = match *request {
                Request::Put { options, key, value } if value.len() > frame_max => {
                    (key, value, Request::UploadPut { options, key })
                }
                Request::Swap { key, expected, value } if value.len() > frame_max => {
                    (key, value, Request::UploadSwap { key, expected: Expected::Value(expected) })
                }
                Request::SwapExtent { key, expected, value } if value.len() > frame_max => {
                    (key, value, Request::UploadSwap { key, expected: Expected::Extent(expected) })
                }
                short => {
                    self.push(nth, short)?;
                    continue;
                }
            };
            self.push(nth, Request::UploadBegin { key, len: value.len() as u32 })?;
            for bytes in value.chunks(piece_max) {
                if self.is_refused(nth) {
                    break;
                }
                self.push(nth, Request::UploadPiece { bytes })?;
            }
            if !self.is_refused(nth) {
                self.push(nth, last)?;
            }
        }
        self.flush()
    }

    fn push(&mut self, nth: usize, frame: Request<'a>) -> Result<(), E> {
        self.bytes += match frame {
            Request::UploadPiece { bytes } => bytes.len(),
            _ => value_of(&frame).map_or(0, <[u8]>::len),
        };
        self.frames.push((nth, frame));
        if self.bytes >= AHEAD_MAX || self.frames.len() >= BATCH { self.flush() } else { Ok(()) }
    }

    /// Whether the server has refused the upload of this request.
    fn is_refused(&self, nth: usize) -> bool {
        self.answers[nth].as_ref().is_some_and(|reply| *reply != Reply::Taken)
    }

    fn flush(&mut self) -> Result<(), E> {
        let frames = std::mem::take(&mut self.frames);
        self.bytes = 0;
        if frames.is_empty() {
            return Ok(());
        }
        let requests: Vec<_> = frames.iter().map(|(_, request)| *request).collect();
        let mut replies = Vec::with_capacity(requests.len());
        let result = (self.send)(&requests, &mut replies);
        // More replies than requests: nobody knows which belong together.
        if replies.len() > frames.len() {
            return result;
        }
        for ((nth, _), reply) in frames.into_iter().zip(replies) {
            let so_far = &mut self.answers[nth];
            if so_far.as_ref().is_none_or(|so_far| *so_far == Reply::Taken) {
                *so_far = Some(reply);
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::error::LinkError;
    use crate::config::{Config, TableSize};
    use crate::outcome::PutMode;
    use crate::part::{PartChange, Tell};
    use crate::wire::LEVEL;

    /// A request that does not fit is not sent, and its rejection takes the place of its reply.
    /// Missing replies are not made up.
    #[test]
    fn rejections_are_in_their_places() {
        let config = Config { size: TableSize::Keys(10), key_max: 4, value_max: 4, ..Config::default() };
        let geometry = config.geometry().unwrap();
        let put = |key, value| Request::Put { options: PutMode::Upsert.into(), key, value };
        let swap = |key, expected, value| Request::Swap { key, expected, value };
        let long = [1; 5];
        let key_length = |given| Reply::Put(Err(PutError::KeyLength { given, max: 4 }));
        let value_length = Reply::Put(Err(PutError::ValueLength { given: 5, max: 4 }));
        let part = |key, part| Request::Part { key, part, tell: Tell::Nothing };
        // No value of this table is a counter.
        let counter_length = Reply::Put(Err(PutError::ValueLength { given: 8, max: 4 }));
        // Each request, and its rejection if any.
        let all = [
            (put(b"k", b"v"), None),
            (put(b"", b"v"), Some(key_length(0))),
            (put(b"four", b"four"), None),
            (put(&long, b""), Some(key_length(5))),
            (put(&long, &long), Some(key_length(5))),
            (put(b"k", &long), Some(value_length.clone())),
            (swap(b"k", b"four", b"four"), None),
            (swap(&long, b"", b""), Some(key_length(5))),
            (swap(b"k", &long, b""), Some(value_length.clone())),
            (swap(b"k", b"", &long), Some(value_length.clone())),
            (Request::Remove { key: b"four" }, None),
            (Request::Remove { key: &long }, Some(key_length(5))),
            (Request::RemoveIf { key: b"four", expected: Expected::Value(b"four") }, None),
            (Request::RemoveIf { key: b"", expected: Expected::Value(b"") }, Some(key_length(0))),
            (Request::RemoveIf { key: b"k", expected: Expected::Value(&long) }, Some(value_length.clone())),
            (part(b"four", PartChange::Or { bits: b"four" }), None),
            (part(&long, PartChange::Or { bits: b"" }), Some(key_length(5))),
            (part(b"k", PartChange::Append { bytes: &long, len_max: 9 }), Some(value_length.clone())),
            (part(b"k", PartChange::Add { delta: 1, initial: None }), Some(counter_length)),
            (Request::Touch { key: b"k", ttl: None }, None),
            (Request::Touch { key: &long, ttl: None }, Some(key_length(5))),
            (Request::Get { key: b"k" }, None),
            (Request::Get { key: b"" }, Some(key_length(0))),
            (Request::Stat, None),
        ];
        for first in 0..all.len() {
            for last in first..=all.len() {
                let (asked, wrong): (Vec<_>, Vec<_>) = all[first..last].iter().cloned().unzip();
                let mut sent = Vec::new();
                let send = |requests: &[Request<'_>], replies: &mut Vec<Reply>| {
                    sent.extend(requests.iter().map(|request| format!("{request:?}")));
                    // Each has a reply of its own.
                    replies.extend((0..requests.len()).map(|n| Reply::Value(Some(vec![n as u8]))));
                    Ok::<_, LinkError>(())
                };
                let (mut replies, mut has_sent) = (Vec::new(), false);
                send_fitting(&asked, (&geometry, LEVEL), Some(4), &mut replies, &mut has_sent, send).unwrap();
                let mut fitting = 0;
                let expected = wrong.iter().map(|wrong| {
                    wrong.clone().unwrap_or_else(|| {
                        fitting += 1;
                        Reply::Value(Some(vec![fitting - 1]))
                    })
                });
                assert_eq!(replies, expected.collect::<Vec<_>>());
                let those = asked.iter().zip(&wrong).filter(|(_, wrong)| wrong.is_none());
                let those: Vec<_> = those.map(|(request, _)| format!("{request:?}")).collect();
                assert_eq!(has_sent, asked.is_empty() || !those.is_empty());
                // Where none is sent, the server is asked whether it is there.
                assert_eq!(sent, if has_sent { those } else { vec!["Stat".to_string()] });
            }
        }
        let asked: Vec<_> = all.iter().map(|(request, _)| *request).collect();
        let ask = |asked: &[_], piece_max, come: usize, result: Result<(), LinkError>| {
            let (mut replies, mut result) = (Vec::new(), Some(result));
            let send = |_: &[Request<'_>], replies: &mut Vec<Reply>| {
                replies.extend(vec![Reply::Value(None); come]);
                result.take().unwrap()
            };
            let result = send_fitting(asked, (&geometry, LEVEL), piece_max, &mut replies, &mut false, send);
            (replies.len(), result.is_ok())
        };
        assert_eq!(ask(&asked, None, 1, Ok(())), (2, true));
        // What came before an error is there, and no rejection that nobody confirmed.
        assert_eq!(ask(&asked, Some(4), 2, Err(LinkError::HungUp)), (6, false));
        assert_eq!(ask(&asked[1..2], Some(4), 0, Err(LinkError::HungUp)), (0, false));
    }
}
