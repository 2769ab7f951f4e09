//! Reads a log: which records it has, and that none is missing.
//!
//! A power cut leaves some of what was not synced: any part of it, in any order. So behind the last record that is whole
//! anything may stand, also whole records, and it is cut off. But a record that some later one says was on the disk (K5) had
//! been acknowledged: if that is damaged, the log is. So it is if a file's head is, and records are behind it (K4).

use super::disk::Disk;
use super::frame::{
    BODY_HEAD, FILE_HEAD_BYTES, FileHead, HeadError, LogRecord, LoggedHead, LoggedTable, RECORD_HEAD_BYTES,
    Visible, is_whole, read_record, unchecked_record,
};
use crate::faults::{Rule, broken};
use crate::files::FileError;
use std::io;
use std::path::PathBuf;

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A system call failed.
    #[error("{what} {name}, in the folder of the log: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The file.
        name: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Another server has the log.
    #[error("another server has the log in {}; stop it, or name another folder", path.display())]
    Locked {
        /// The log's folder.
        path: PathBuf,
    },
    /// The lock of the log cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is of a later version.
    #[error(
        "{name} is a log of version {version}, and this program reads version 1; start the version that wrote it"
    )]
    Version {
        /// The file.
        name: String,
        /// Its version.
        version: u32,
    },
    /// A file is not of this log.
    #[error("{name} is of another log; each log has a folder of its own: move the files of one of them away")]
    OtherLog {
        /// The file.
        name: String,
    },
    /// Acknowledged records are damaged.
    #[error(
        "the log is damaged in {name} at byte {at}: record {number} was on the disk, and is not whole; put back a good \
         copy of the file, or go on without that record and all later ones (`LogConfig::truncate_at`, {number})"
    )]
    Damaged {
        /// The file.
        name: String,
        /// Where in it.
        at: u64,
        /// The record's number.
        number: u64,
    },
    /// Files are missing.
    #[error(
        "the log has no record {number}: a file is missing before {name}; put it back, or go on without all later records \
         (`LogConfig::truncate_at`, {number})"
    )]
    Hole {
        /// The first record that is missing.
        number: u64,
        /// The file behind the hole.
        name: String,
    },
    /// The snapshot is not the one that the log goes on from.
    #[error(
        "its first record is {first}, and {what}; start with the snapshot that belongs to it, or move the log's files away and begin another one"
    )]
    OtherSnapshot {
        /// The first record that the log has.
        first: u64,
        /// What is there instead.
        what: String,
    },
    /// The region file has changes that the log has not.
    #[error(
        "the table in the region file was served without this log since; move the log's files away, and the server begins another one"
    )]
    OtherTable,
    /// The machine was started again since: the region file may lack changes.
    #[error(
        "the machine was started again since the log's last server, so that the region file may be half written; remove the region file: \
         the log and its snapshot have all"
    )]
    OtherBoot,
    /// A record is of a kind that this version does not know.
    #[error("record {number} is of a kind that this version does not know; start the version that wrote it")]
    Kind {
        /// The record's number.
        number: u64,
    },
}

fn failed(what: &'static str, name: &str) -> impl FnOnce(io::Error) -> LogError {
    move |source| LogError::Os { what, name: name.to_owned(), source }
}

/// A file of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogFile {
    pub name: String,
    pub first: u64,
    /// The number behind its last record.
    pub end: u64,
    pub bytes: u64,
    pub table: LoggedTable,
    pub visible: Visible,
}

/// What a log has. Empty, if it has no files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FoundLog {
    pub id: u64,
    /// In order, without gaps.
    pub files: Vec<LogFile>,
    /// All records below this one were visible when the last one was written.
    pub applied: u64,
    /// Bytes that were cut off the end.
    pub cut: u64,
    /// Whether records were removed because that was asked for.
    pub is_shortened: bool,
}

impl FoundLog {
    /// The number of the first record.
    pub fn first(&self) -> u64 {
        self.files.first().map_or(1, |file| file.first)
    }

    /// The number behind the last record.
    pub fn end(&self) -> u64 {
        self.files.last().map_or(1, |file| file.end)
    }

    /// The table that the last records are of.
    pub fn table(&self) -> Option<LoggedTable> {
        self.files.last().map(|file| file.table)
    }
}

/// How a file is called.
pub(super) fn name_of(first: u64) -> String {
    format!("{first:020}.log")
}

/// The number of the first record in a file that is called so.
fn first_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log").filter(|digits| digits.len() == 20)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// A file's bytes.
fn whole(disk: &dyn Disk, name: &str) -> Result<Vec<u8>, LogError> {
    let len = disk.len(name).map_err(failed("reading", name))?;
    let mut bytes = vec![0; len as usize];
    let read = disk.read(name, 0, &mut bytes).map_err(failed("reading", name))?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Whole records from one byte on, and where the last one ends.
struct WholeRecords<'b> {
    bytes: &'b [u8],
    id: u64,
    at: usize,
    number: u64,
}

impl<'b> WholeRecords<'b> {
    /// The next record with the next number: its body, and what its head says.
    fn next(&mut self) -> Option<(LoggedHead, &'b [u8])> {
        let (head, body) = read_record(self.bytes.get(self.at..)?, self.id)?;
        if head.number != self.number {
            return None;
        }
        self.at += RECORD_HEAD_BYTES + body.len();
        self.number += 1;
        Some((head, body))
    }
}

/// What may be a record that says that record `end` was on the disk. It may begin at any byte: where the one before it ends, may be
/// lost. So what others have put into values is told by the numbers that such a record can have: they have many lengths.
pub(super) fn may_say_more(bytes: &[u8], end: u64) -> impl Iterator<Item = (LoggedHead, &[u8])> {
    let most = end + (bytes.len() / (RECORD_HEAD_BYTES + BODY_HEAD)) as u64;
    let records = (0..bytes.len()).filter_map(|at| unchecked_record(&bytes[at..]));
    records.filter(move |(head, _)| {
        (end..=most).contains(&head.number)
            && (end + 1..=head.number).contains(&head.durable)
            && head.applied <= head.number
    })
}

/// Whether some whole record says that record `end` was on the disk.
pub(super) fn says_more(bytes: &[u8], id: u64, end: u64) -> bool {
    may_say_more(bytes, end).any(|(head, body)| is_whole(&head, body, id))
}

/// Whether one of these files has this record whole.
fn has_whole(disk: &dyn Disk, names: &[String], number: u64) -> Result<bool, LogError> {
    let first_is_before = |name: &&String| first_of(name).is_some_and(|first| first <= number);
    let Some(name) = names.iter().rev().find(first_is_before) else { return Ok(false) };
    let bytes = whole(disk, name)?;
    let Ok(head) = FileHead::read(&bytes) else { return Ok(false) };
    let mut records = WholeRecords { bytes: &bytes, id: head.id, at: FILE_HEAD_BYTES, number: head.first };
    while records.number < number && records.next().is_some() {}
    Ok(records.number == number && records.next().is_some())
}

/// Looks at all files. Cuts off what was not synced, and removes a last file that has no record.
///
/// `cut_at`: removes this record and all later ones, if it is not whole. Else nothing is cut: who leaves it in a configuration loses
/// nothing at the next start.
///
/// # Errors
/// [`LogError`]; nothing has changed.
pub(super) fn look(disk: &dyn Disk, cut_at: Option<u64>) -> Result<FoundLog, LogError> {
    let mut names = disk.names().map_err(failed("listing", ""))?;
    names.retain(|name| first_of(name).is_some());
    names.sort();
    let cut_at = match cut_at {
        Some(number) if has_whole(disk, &names, number)? => {
            tracing::warn!(
                number,
                "the log has this record, and is not cut there: the request to do so can go"
            );
            u64::MAX
        }
        cut_at => cut_at.unwrap_or(u64::MAX),
    };
    let mut found = FoundLog { applied: 1, ..FoundLog::default() };
    // Of the last file: how long it is to be.
    let mut last_len = None;
    let mut removed = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let is_last = n + 1 == names.len();
        let first = first_of(name).unwrap_or(0);
        if first >= cut_at {
            removed.push(name.clone());
            found.is_shortened = true;
            continue;
        }
        let bytes = whole(disk, name)?;
        let expected = if found.files.is_empty() { first } else { found.end() };
        let head = match FileHead::read(&bytes) {
            Ok(head) => head,
            Err(HeadError::Version(version)) => {
                return Err(LogError::Version { name: name.clone(), version });
            }
            // K4: the file was just being made, and had no record.
            Err(_) if is_last && (bytes.len() <= FILE_HEAD_BYTES || broken(Rule::LogTail)) => {
                removed.push(name.clone());
                continue;
            }
            Err(_) => return Err(LogError::Damaged { name: name.clone(), at: 0, number: expected }),
        };
        if found.files.is_empty() {
            found.id = head.id;
        }
        if head.id != found.id {
            return Err(LogError::OtherLog { name: name.clone() });
        }
        if head.first != first || first != expected {
            return Err(LogError::Hole { number: expected, name: name.clone() });
        }
        let mut records = WholeRecords { bytes: &bytes, id: head.id, at: FILE_HEAD_BYTES, number: first };
        let mut applied = found.applied;
        while records.number < cut_at
            && let Some((head, _)) = records.next()
        {
            applied = head.applied;
        }
        let (at, end) = (records.at, records.number);
        found.is_shortened |= end >= cut_at && at < bytes.len();
        if end < cut_at && at < bytes.len() {
            let is_damage = !is_last || says_more(&bytes[at..], head.id, end);
            if is_damage && !broken(Rule::LogTail) {
                return Err(LogError::Damaged { name: name.clone(), at: at as u64, number: end });
            }
        }
        found.applied = applied;
        found.cut += (bytes.len() - at) as u64;
        last_len = (at < bytes.len()).then_some(at as u64);
        let bytes = at as u64;
        let (table, visible) = (head.table(), head.visible());
        found.files.push(LogFile { name: name.clone(), first, end, bytes, table, visible });
    }
    for name in removed {
        disk.remove(&name).map_err(failed("removing", &name))?;
    }
    if let Some((file, len)) = found.files.last().zip(last_len) {
        disk.truncate(&file.name, len).map_err(failed("cutting", &file.name))?;
    }
    Ok(found)
}

/// Shows all records from this one on, in order. `show` gets the number, the record, and the table that it was of, and
/// ends it by returning `false`. Returns whether it has not.
///
/// # Errors
/// [`LogError`].
pub(super) fn replay(
    disk: &dyn Disk,
    found: &FoundLog,
    from: u64,
    show: &mut dyn FnMut(u64, LogRecord<'_>, &LoggedTable) -> bool,
) -> Result<bool, LogError> {
    for file in found.files.iter().filter(|file| file.end > from) {
        let bytes = whole(disk, &file.name)?;
        let mut records =
            WholeRecords { bytes: &bytes, id: found.id, at: FILE_HEAD_BYTES, number: file.first };
        while records.number < file.end {
            let (number, at) = (records.number, records.at as u64);
            // It was whole a moment ago.
            let Some((_, body)) = records.next() else {
                return Err(LogError::Damaged { name: file.name.clone(), at, number });
            };
            if number < from {
                continue;
            }
            let record = LogRecord::read(body).ok_or(LogError::Kind { number })?;
            if !show(number, record, &file.table) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
