//! Who has which bit: a reader's copy of the records, and the names.

use crate::error::PrefixError;
use crate::faults::{Rule, broken};
use crate::holders::{self, Holder};
use crate::names::{NameId, name_of};
use crate::presence::{self, LOOK_EVERY};
use crate::records::{Keeps, Record, records};
use crate::sets::HolderSet;
use oneread::Client;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The records of all bits, with the epoch that was READ before them. `crate::holders` says what the epoch proves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    epoch: Option<[u8; 8]>,
    records: Vec<Option<Record>>,
    /// Bits of those that keep no block without those before it.
    closed: HolderSet,
    /// Whether some go by themselves.
    may_go: bool,
    /// Bits of those that are gone.
    absent: HolderSet,
    /// When it was looked for these last.
    looked: Option<Instant>,
    /// An id has one name, for ever.
    names: HashMap<NameId, Arc<str>>,
}

impl Directory {
    /// READs the records where there is no copy that can be trusted.
    pub fn prepare(&mut self, client: &mut Client, holders: usize) -> Result<(), PrefixError> {
        match self.epoch {
            Some(_) => Ok(()),
            None => self.read(client, holders),
        }
    }

    fn read(&mut self, client: &mut Client, holders: usize) -> Result<(), PrefixError> {
        // Nothing is known if one of the READs fails.
        self.epoch = None;
        let epoch = holders::epoch(client)?;
        self.records = records(client, holders)?;
        self.closed = self.bits(|record| record.is_named() && record.keeps == Keeps::PrefixClosed);
        self.may_go = self.records.iter().flatten().any(|record| record.owner != 0);
        (self.absent, self.looked) = (HolderSet::default(), None);
        self.epoch = epoch;
        let records = &self.records;
        self.names.retain(|id, _| records.iter().flatten().any(|record| record.id == *id));
        Ok(())
    }

    /// Those of the live holders that are present. 2 READs for 64 bits, and 2 for each that goes by itself, where that was
    /// not looked at lately.
    pub fn present(
        &mut self,
        client: &mut Client,
        holders: usize,
        live: HolderSet,
    ) -> Result<HolderSet, PrefixError> {
        if !self.may_go || broken(Rule::AbsentGoes) {
            return Ok(live);
        }
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            // Records as they are now: one that was claimed may be live (H6).
            let now = records(client, holders)?;
            let gone = presence::absent(client, &now)?;
            let is_known =
                |(bit, record): &(u16, Record)| self.record(*bit).is_some_and(|known| known.is_same(record));
            self.absent = gone.into_iter().filter(is_known).map(|(bit, _)| bit).collect();
            self.looked = Some(Instant::now());
        }
        Ok(if self.absent.is_empty() { live } else { live.and_not(&self.absent) })
    }

    /// Whether no bit was given to another holder since the records were READ. 1 READ.
    fn is_current(&self, client: &mut Client) -> Result<bool, PrefixError> {
        Ok(self.epoch.is_some() && holders::epoch(client)? == self.epoch)
    }

    /// The bits that one holder each had since the records were READ. `None`: all of them. 1 READ; where a bit was
    /// given meanwhile, the records are READ again.
    pub fn kept(&mut self, client: &mut Client, holders: usize) -> Result<Option<HolderSet>, PrefixError> {
        if self.is_current(client)? {
            return Ok(None);
        }
        let before = std::mem::take(&mut self.records);
        self.read(client, holders)?;
        let is_same = |(before, now): (&Option<Record>, &Option<Record>)| match (before, now) {
            (Some(before), Some(now)) => before.is_same(now),
            (None, _) | (_, None) => false,
        };
        let kept = (0..).zip(before.iter().zip(&self.records)).filter(|(_, both)| is_same(*both));
        Ok(Some(kept.map(|(bit, _)| bit).collect()))
    }

    fn bits(&self, is_one: impl Fn(&Record) -> bool) -> HolderSet {
        let found =
            (0..).zip(&self.records).filter(|(_, record)| record.is_some_and(|record| is_one(&record)));
        found.map(|(bit, _)| bit).collect()
    }

    /// Bits that have a name.
    pub fn named(&self) -> HolderSet {
        self.bits(Record::is_named)
    }

    /// Bits of holders that keep no block without those before it.
    pub fn closed(&self) -> &HolderSet {
        &self.closed
    }

    /// What is known of a bit.
    pub fn record(&self, bit: u16) -> Option<Record> {
        self.records.get(usize::from(bit)).copied().flatten()
    }

    /// The holder that has a bit. `None` if no record or no name is there any more. READs a name that it does not have
    /// yet.
    pub fn holder(&mut self, client: &mut Client, bit: u16) -> Result<Option<Holder>, PrefixError> {
        let Some(record) = self.record(bit).filter(Record::is_named) else { return Ok(None) };
        let name = match self.names.get(&record.id) {
            Some(name) => name.clone(),
            None => {
                let Some(name) = name_of(client, &record.id)? else { return Ok(None) };
                self.names.entry(record.id).or_insert(name.into()).clone()
            }
        };
        Ok(Some(Holder::new(bit, record, name)))
    }
}
