//! Loops that are timed. Each checks that its operations did what they should.

use crate::measure::{KEY_BYTES, VALUE_BYTES, key};
use anyhow::{Result, ensure};
use oneread::internals::layout::hash::{mix, reduce};
use oneread::{Client, Values};
use oneread_kit::threads::at_once;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Instant;

/// The time of `n` operations in nanoseconds. Each operation must succeed.
pub fn timed(n: u64, mut op: impl FnMut(u64) -> Result<bool>) -> Result<u64> {
    counted(n, || {
        let mut well = 0;
        for i in 0..n {
            well += u64::from(op(i)?);
        }
        Ok(well)
    })
}

/// The time of `n` operations in nanoseconds, all of which must be counted as well done.
fn counted(n: u64, operations: impl FnOnce() -> Result<u64>) -> Result<u64> {
    let begun = Instant::now();
    let well = operations()?;
    let spent = begun.elapsed();
    ensure!(
        well == n,
        "{} of {n} keys that were put were not found, or had another value: this is an error of oneread; please report the command that you ran",
        n - well
    );
    Ok(spent.as_nanos() as u64)
}

/// The time in nanoseconds of GETs of `n` keys in batches of 256, each value passed to a callback. Each must be found.
pub fn get_many(client: &mut Client, n: u64, pick: impl Fn(u64) -> u64) -> Result<u64> {
    in_batches(n, pick, |keys| {
        let mut found = 0;
        let _ = client.get_many_with(keys, |_, value| {
            found += u64::from(matches!(value, Ok(Some(value)) if value.len() == VALUE_BYTES));
            ControlFlow::<()>::Continue(())
        })?;
        Ok(found)
    })
}

/// GETs in batches, with the values of a batch one behind the other in one buffer.
pub fn get_many_into(client: &mut Client, n: u64, pick: impl Fn(u64) -> u64) -> Result<u64> {
    let mut values = Values::default();
    in_batches(n, pick, |keys| {
        client.get_many_into(keys, &mut values)?;
        Ok(values.iter().filter(|value| value.is_some_and(|value| value.len() == VALUE_BYTES)).count() as u64)
    })
}

/// The time of `n` keys in batches of 256. `get` says how many of a batch were found: all must be.
fn in_batches(
    n: u64,
    pick: impl Fn(u64) -> u64,
    mut get: impl FnMut(&[[u8; KEY_BYTES]]) -> Result<u64>,
) -> Result<u64> {
    counted(n, || {
        let (mut found, mut keys) = (0, Vec::with_capacity(256));
        for first in (0..n).step_by(256) {
            keys.clear();
            keys.extend((first..(first + 256).min(n)).map(|i| key(pick(i))));
            found += get(&keys)?;
        }
        Ok(found)
    })
}

/// Reads `n` random lines. In a chain, each address depends on the bytes of the line before.
pub fn bare(memory: &[[u64; 8]], n: u64, round: u32, chain: bool) -> u64 {
    let lines = memory.len() as u64;
    let begun = Instant::now();
    let mut sum = 0u64;
    for i in 0..n {
        let from = if chain { sum } else { 0 };
        let line = reduce(mix(i ^ u64::from(round) << 40 ^ from), lines);
        let read = memory[line as usize].iter().fold(0, |all, word| all ^ word.rotate_left(7));
        sum = sum.wrapping_add(read);
    }
    black_box(sum);
    begun.elapsed().as_nanos() as u64
}

/// The time in nanoseconds that `threads` threads need for `n` operations together.
pub fn spread(n: u64, threads: u32, op: impl Fn(u64) -> Result<()> + Sync) -> Result<u64> {
    let begun = Instant::now();
    at_once(0..u64::from(threads), |number| (number..n).step_by(threads as usize).try_for_each(&op))?;
    Ok(begun.elapsed().as_nanos() as u64)
}
