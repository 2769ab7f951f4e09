//! A server that begins with a log: what it has is made again, and it goes on from there (K).

use super::config::ServerConfig;
use super::error::ServeError;
use super::snapshots::Saver;
use crate::faults::{Rule, broken, kept};
use crate::index::start::{Start, StartStep};
use crate::index::{Index, Recovered};
use crate::log::{Fsync, LogError, LogOnDisk, LogRecord, LoggedTable};
use crate::outcome::PutError;
use crate::region::table_clock::boot_of_host;
use crate::snapshot::{LogPosition, Snapshot, since_1970};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The first record of a log whose table had something before. So a log that begins with record 1 needs no snapshot (K10).
const BEHIND_A_SNAPSHOT: u64 = 2;

/// A log, until its table is ready.
#[derive(Debug)]
pub(super) struct LogStart {
    path: PathBuf,
    fsync: Fsync,
    log: LogOnDisk,
    /// Whether log and snapshot have all that the table has.
    has_all: bool,
    /// How many changes were made again.
    pub replayed: u64,
}

impl LogStart {
    /// Looks at the log that a server is to have.
    pub fn look(config: &ServerConfig) -> Result<Option<LogStart>, ServeError> {
        let Some(log) = &config.log else { return Ok(None) };
        let path = log.path.clone();
        let looked = LogOnDisk::look(&path, log.truncate_at);
        let looked = looked.map_err(|source| ServeError::Log { path: path.clone(), source })?;
        if looked.cut() > 0 {
            tracing::info!(bytes = looked.cut(), path = %path.display(), "the end of the log was not synced, and is cut off");
        }
        Ok(Some(LogStart { path, fsync: log.fsync, log: looked, has_all: true, replayed: 0 }))
    }

    fn failed(&self, source: LogError) -> ServeError {
        ServeError::Log { path: self.path.clone(), source }
    }

    /// Makes what the log has since a snapshot again, in a new table with its keys.
    pub fn after_snapshot(
        &mut self,
        index: &Index,
        snapshot: Option<&Snapshot>,
        start: &Start,
    ) -> Result<(), ServeError> {
        let (records, is_new) = (self.log.records(), self.log.is_new());
        let other = |what: &str| LogError::OtherSnapshot { first: records.start, what: what.to_owned() };
        let position = snapshot.map(|snapshot| snapshot.terms().log);
        let from = match position {
            // K10: the table was empty when it began.
            None if is_new || records.start == 1 => 1,
            None => return Err(self.failed(other("there is no snapshot"))),
            // A first log, or a folder whose files were lost: the snapshot has all that it can say.
            Some(_) if is_new => {
                self.has_all = false;
                BEHIND_A_SNAPSHOT
            }
            Some(None) => return Err(self.failed(other("the snapshot is of a table without a log"))),
            Some(Some(LogPosition { id, .. })) if id != self.log.id() => {
                return Err(self.failed(other("the snapshot is of another log")));
            }
            Some(Some(LogPosition { from, .. })) if from < records.start => {
                return Err(self.failed(other(&format!("the snapshot ends before record {from}"))));
            }
            Some(Some(LogPosition { from, .. })) => from,
        };
        let begun = self.log.begin_at(from);
        begun.map_err(|source| self.failed(source))?;
        self.each(from, start, |_, record, of| index.replay_record(record, of))
    }

    /// Makes changes again that may not have been made in a table that is taken over, whose clients may read it: for each
    /// key the last one only, so that nobody sees an older value (K9). `own` is where the log goes on from the server's own
    /// snapshot.
    pub fn after_takeover(
        &mut self,
        index: &Index,
        recovered: &Recovered,
        own: Option<LogPosition>,
        start: &Start,
    ) -> Result<(), ServeError> {
        let Some(logged) = self.log.table() else {
            self.has_all = false;
            return self.log.begin_at(BEHIND_A_SNAPSHOT).map_err(|source| self.failed(source));
        };
        if logged.boot != boot_of_host() {
            return Err(self.failed(LogError::OtherBoot));
        }
        let was = (index.geometry().generation(), index.incarnation() - 1);
        if (logged.generation, logged.incarnation) != was {
            return Err(self.failed(LogError::OtherTable));
        }
        self.make_last_again(index, start)?;
        let (id, records) = (self.log.id(), self.log.records());
        let own = own.filter(|own| own.id == id).map(|own| own.from);
        // K10
        let has_before = own.unwrap_or(1) >= records.start;
        let may_lack = self.log.may_lack(!recovered.handed_over) && !broken(Rule::LogBehind);
        self.has_all = has_before && !may_lack;
        // K6: those numbers are not given again.
        match own.filter(|from| *from > records.end && !broken(Rule::LogNumber)) {
            Some(from) => self.log.begin_at(from).map_err(|source| self.failed(source)),
            None => Ok(()),
        }
    }

    fn make_last_again(&mut self, index: &Index, start: &Start) -> Result<(), ServeError> {
        let from = self.log.applied();
        let mut last = BTreeMap::new();
        let mut owners = BTreeMap::new();
        self.each(from, start, |number, record, _| {
            match record {
                LogRecord::Put { key, owner, .. } => {
                    owners.remove(&owner);
                    last.insert(key.to_vec(), number);
                }
                LogRecord::Remove { key } => drop(last.insert(key.to_vec(), number)),
                LogRecord::OwnerGone { owner } => drop(owners.insert(owner, number)),
            }
            Ok(())
        })?;
        self.each(from, start, |number, record, of| match record {
            LogRecord::Put { key, .. } | LogRecord::Remove { key }
                if kept(Rule::LogLast, || last.get(key) == Some(&number)) =>
            {
                index.replay_record(record, of)
            }
            LogRecord::OwnerGone { owner } if owners.get(&owner) == Some(&number) => {
                index.remove_owner(owner).map(drop)
            }
            _ => Ok(()),
        })
    }

    /// Shows all records from this one on, until one is refused.
    fn each(
        &mut self,
        from: u64,
        start: &Start,
        mut show: impl FnMut(u64, LogRecord<'_>, &LoggedTable) -> Result<(), PutError>,
    ) -> Result<(), ServeError> {
        /// Records between two looks whether the start goes on.
        const LOOK_EVERY: u64 = 1_024;
        let records = from..self.log.records().end.max(from);
        if records.is_empty() {
            return Ok(());
        }
        let (log, mut bytes, mut refused) = (&self.log, 0, None);
        let total = log.bytes_from(from);
        let shown = start.step(StartStep::Replay, total, |done| {
            log.replay(from, |number, record, of| {
                bytes += record.bytes();
                if number.is_multiple_of(LOOK_EVERY) {
                    done(bytes.min(total));
                    if start.is_cancelled() {
                        return false;
                    }
                }
                show(number, record, of).map_err(|source| refused = Some((number, source))).is_ok()
            })
        });
        shown.map_err(|source| self.failed(source))?;
        self.replayed = records.end - records.start;
        match refused {
            Some((number, source)) => Err(ServeError::Replay { path: self.path.clone(), number, source }),
            None if start.is_cancelled() => Err(ServeError::Cancelled),
            None => Ok(()),
        }
    }

    /// The table, whose changes the log has from now on. What neither the log nor its snapshot has, `saver` makes a snapshot
    /// of before (K10).
    pub fn go_on(
        mut self,
        index: Index,
        saver: Option<&Saver>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Index, ServeError> {
        let first = match saver.filter(|_| !self.has_all) {
            Some(saver) => {
                let position = self.log.position().map_err(|source| self.failed(source))?;
                let saved = saver.save_first(&index, position, is_cancelled)?;
                if is_cancelled() {
                    return Err(ServeError::Cancelled);
                }
                Some(saved)
            }
            None => None,
        };
        let table = LoggedTable {
            generation: index.geometry().generation(),
            incarnation: index.incarnation(),
            made_ns: index.made().map_or(0, since_1970),
            boot: boot_of_host(),
        };
        let path = self.path.clone();
        let log = self.log.go_on(table, self.fsync).map_err(|source| ServeError::Log { path, source })?;
        let index = index.with_log(log);
        first.iter().for_each(|saved| index.forget_log_below(saved));
        Ok(index)
    }
}

/// Makes again what a log has, in a table that is taken over.
#[cfg(all(test, feature = "sim", not(loom)))]
pub(crate) fn made_again_of_test(log: LogOnDisk, index: &Index) {
    let (path, fsync) = (PathBuf::new(), Fsync::Always);
    let mut start = LogStart { path, fsync, log, has_all: true, replayed: 0 };
    start.make_last_again(index, &Start::default()).unwrap();
}
