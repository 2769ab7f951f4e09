//! A run of `bench grow`: it changes one table at a time, and tells the readers what is there.

use super::outcome::Outcome;
use super::processes::{READERS, Readers};
use super::reader::{Page, Told};
use super::seen::{Course, Loads, Side, Which};
use crate::measure::{key, value};
use anyhow::{Context, Result, ensure};
use oneread::{PutMode, PutOutcome, Server, embedded::Index};
use oneread_kit::progress::Progress;
use oneread_kit::show;
use oneread_kit::threads::cpu_time;
use std::ops::Range;
use std::time::Instant;

/// Times in each part that the load is looked at.
pub const LOOKS: u64 = 16;

/// Changes after which the readers are told whether a split or merge is under way.
pub const TELL_EVERY: u64 = 512;

/// A run under way.
pub struct Run {
    pub page: Page,
    pub tables: [Server; 2],
    pub readers: Option<Readers>,
    pub step: u64,
    pub bar: Progress,
}

impl Run {
    /// Puts or removes these keys, one after the other.
    pub fn change(
        &self,
        course: Course,
        which: Which,
        numbers: Range<u64>,
        side: &mut Side,
        mut loads: Option<&mut Loads>,
    ) -> Result<()> {
        let index = self.tables[which as usize].index();
        let apart = ((numbers.end - numbers.start) / LOOKS).max(1);
        let mut cpu_ns = cpu_now_ns();
        for (done, number) in numbers.enumerate() {
            if self.look(done as u64, apart, index, loads.as_deref_mut()) {
                cpu_ns = cpu_now_ns();
            }
            if course == Course::Emptying {
                self.page.tell(Told::Low, number + 1);
            }
            let (key, value) = (key(number), value(number));
            let begun = Instant::now();
            let is_right = match course {
                Course::Filling => index
                    .put(&key, &value, PutMode::Insert)
                    .map(|outcome| outcome == PutOutcome::Inserted)
                    .with_context(|| format!("inserting key number {number}")),
                Course::Emptying => {
                    index.remove(&key).with_context(|| format!("removing key number {number}"))
                }
            };
            let took = begun.elapsed().as_nanos() as u64;
            let before_ns = std::mem::replace(&mut cpu_ns, cpu_now_ns());
            side.changes[course as usize].saturating_record(took);
            side.cpu.took(cpu_ns - before_ns);
            ensure!(
                is_right?,
                "key number {number} was there before it was put, or was not there to be removed: this is an error of the table; please report it with the command that you ran"
            );
            let told = if course == Course::Filling { Told::High } else { Told::Removed };
            self.page.tell(told, number + 1);
        }
        Ok(())
    }

    /// Now and then, tells the readers what is under way, and looks at the load. Returns whether it did.
    pub fn look(&self, done: u64, apart: u64, index: &Index, loads: Option<&mut Loads>) -> bool {
        let (tells, looks) = (done.is_multiple_of(TELL_EVERY), done.is_multiple_of(apart));
        if tells {
            let growth = index.growth();
            self.page.tell(Told::Busy, growth.splitting + growth.merging);
            self.bar.inc(TELL_EVERY.min(done));
        }
        if let Some(loads) = loads.filter(|_| looks) {
            loads.look(index);
        }
        tells || looks
    }

    /// Lets the readers read a table.
    pub fn begin(&mut self, which: Which) -> Result<()> {
        self.step += 1;
        self.page.tell(Told::Table, which as u64);
        self.page.tell(Told::Step, self.step);
        Ok(())
    }

    /// Ends the readers' step.
    pub fn end(
        &mut self,
        course: Course,
        side: &mut Side,
        outcome: &mut Outcome,
        growing: bool,
    ) -> Result<()> {
        self.page.tell(Told::Ended, self.step);
        let readers = self.readers.as_mut().context("nobody reads")?;
        for _ in 0..READERS {
            let report = readers.report()?;
            ensure!(
                report.step == self.step,
                "a reading process is at step {} in place of {}: it was stopped, or answered late; run the bench again",
                report.step,
                self.step
            );
            if let Some(error) = &report.error {
                show::complain(format_args!("oneread: a GET has failed: {error}"));
            }
            outcome.gets += if growing { report.counts.gets } else { 0 };
            outcome.failed += report.failed;
            outcome.wrong += report.wrong;
            outcome.missed += report.missed;
            side.seen[course as usize].add_report(&report)?;
        }
        Ok(())
    }
}

/// The CPU time of this thread, in nanoseconds. It is asked for around each change, also around those that are soon over:
/// when one takes long, it is too late to ask for the time at its beginning.
fn cpu_now_ns() -> u64 {
    cpu_time().as_nanos() as u64
}
