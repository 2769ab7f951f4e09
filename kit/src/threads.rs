//! Threads that work at the same time, and end together; and the CPU time of one.

use anyhow::{Result, anyhow};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The CPU time of this thread. Time in which others had the CPU does not count.
pub fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// What the threads of all items came to, which work at the same time. The first that failed or panicked is an error.
pub fn at_once<T: Send, R: Send>(
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    Ok(at_once_beside(items, work, || ())?.1)
}

/// As [`at_once`], while this thread does something else.
pub fn at_once_beside<T: Send, R: Send, B>(
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> Result<R> + Sync,
    beside: impl FnOnce() -> B,
) -> Result<(B, Vec<R>)> {
    let work = &work;
    let panicked = |_| {
        Err(anyhow!("a thread panicked: this is an error of oneread; please report what it printed above"))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        let beside = beside();
        // All have ended before the first error is told.
        let ended: Vec<_> =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect();
        Ok((beside, ended.into_iter().collect::<Result<_>>()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a thread that failed or panicked should have brought is not just missing: that is an error.
    #[test]
    fn a_thread_without_an_outcome_is_an_error() {
        let told = |last: fn() -> Result<u64>| {
            let work = |n: u64| if n == 2 { last() } else { Ok(n + 10) };
            at_once_beside(0..3, work, || "beside").map_err(|error| error.to_string())
        };
        assert_eq!(told(|| Ok(7)), Ok(("beside", vec![10, 11, 7])));
        assert_eq!(told(|| anyhow::bail!("no room")), Err("no room".into()));
        let panicked = told(|| panic!("as this test wants")).unwrap_err();
        assert!(panicked.starts_with("a thread panicked: "), "{panicked}");
    }
}
