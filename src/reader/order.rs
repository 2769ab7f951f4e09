//! Batches whose answers come in the order of their keys.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// The keys that are looked for before the answers of those before are all given. No more answers are held
/// back. More than a fabric has READs in flight.
const AHEAD_KEYS: usize = 128;

/// The outcome of one key, with the error of a key that has none.
type Answer<'a, X> = Result<Option<&'a [u8]>, X>;

/// Asks for keys by `batch`, which answers in any order, and hands the answers to `each` in the order of the
/// keys, until it breaks off. Then so does the batch.
pub(crate) fn in_order<K, X, E>(
    keys: &[K],
    mut each: impl FnMut(usize, Answer<'_, X>) -> ControlFlow<()>,
    mut batch: impl FnMut(&[K], &mut dyn FnMut(usize, Answer<'_, X>) -> ControlFlow<()>) -> Result<(), E>,
) -> Result<ControlFlow<()>, E> {
    // Answers that came before their turn.
    let mut early = BTreeMap::new();
    let (mut next, mut flow) = (0, ControlFlow::Continue(()));
    for some in keys.chunks(AHEAD_KEYS) {
        let first = next;
        batch(some, &mut |number, answer| {
            if first + number != next {
                early.insert(first + number, answer.map(|value| value.map(<[u8]>::to_vec)));
                return ControlFlow::Continue(());
            }
            flow = each(next, answer);
            next += 1;
            while flow.is_continue() && !early.is_empty() {
                flow = match early.remove(&next) {
                    None => break,
                    Some(Ok(value)) => each(next, Ok(value.as_deref())),
                    Some(Err(error)) => each(next, Err(error)),
                };
                next += 1;
            }
            flow
        })?;
        if flow.is_break() {
            break;
        }
    }
    Ok(flow)
}
