//! The table that a server begins with: a new one, one with the keys of a snapshot, or the one in the
//! region file.

use super::config::{ServerConfig, StartMode};
use super::error::ServeError;
use super::replay::LogStart;
use crate::base::clock::Clock;
use crate::index::start::{Start, StartStep};
use crate::index::{Index, Recovered, Restored};
use crate::layout::geometry::Geometry;
use crate::region::{Backing, Region, RegionError};
use crate::snapshot::{Saved, Snapshot};
use std::path::PathBuf;

/// A table that is ready to be served, and where its keys are from.
pub(super) struct Prepared {
    pub index: Index,
    pub recovered: Option<Recovered>,
    pub restored: Option<Restored>,
    /// The snapshot with exactly these keys, if its path is that of this server's own snapshots.
    pub as_saved: Option<Saved>,
    /// The log that the table goes on with.
    pub log: Option<LogStart>,
}

/// Makes or opens the table, as the configuration says.
pub(super) fn index_for(config: &ServerConfig) -> Result<Prepared, ServeError> {
    let start = Start {
        tell: config.progress,
        cancel: config.cancel.clone(),
        evict: config.evict,
        ..Start::default()
    };
    let log = LogStart::look(config)?;
    let own = config.snapshots.as_ref().map(|snapshots| &snapshots.path);
    let source = config.restore.as_ref().or_else(|| own.filter(|path| path.symlink_metadata().is_ok()));
    let create = |mut log: Option<LogStart>| -> Result<Prepared, ServeError> {
        let failed = |path: &PathBuf, source| ServeError::Restore { path: path.clone(), source };
        // A file that is no snapshot is noticed before any memory is taken.
        let open = if config.restore.is_some() { Snapshot::open } else { Snapshot::open_own };
        let snapshot = source.map(|path| open(path).map_err(|e| failed(path, e.into()))).transpose()?;
        let geometry = config.table.geometry()?;
        let region =
            Region::create_sparse(&config.backing, geometry.region_bytes(), geometry.bytes_at_first())
                .map_err(|error| match error {
                    // The memory that is left now may not be left at the next start.
                    RegionError::NoRoom { need, left, .. } => {
                        let at_once = need == geometry.bytes_at_first();
                        let of = if at_once { Geometry::bytes_at_first } else { Geometry::region_bytes };
                        match config.table.fitting(left / 10 * 9, of) {
                            Some(fits) => ServeError::NoRoom { source: error, fits },
                            None => error.into(),
                        }
                    }
                    error => error.into(),
                })?;
        if config.small_pages {
            region.leave_small();
        }
        let mut restored = None;
        let made = Index::create_filled(
            region,
            geometry,
            Clock::System,
            &start,
            |index| -> Result<(), ServeError> {
                let log = log.as_mut();
                let Some(snapshot) = &snapshot else {
                    return log.map_or(Ok(()), |log| log.after_snapshot(index, None, &start));
                };
                let work = |done: &mut dyn FnMut(u64)| {
                    index.restore_from_by(snapshot, start.cores, &mut |at, _| {
                        done(at);
                        !start.is_cancelled()
                    })
                };
                let answer = start.step(StartStep::Restore, 2 * snapshot.bytes(), work);
                restored = Some(answer.map_err(|source| failed(&snapshot.path().into(), source))?);
                log.map_or(Ok(()), |log| log.after_snapshot(index, Some(snapshot), &start))
            },
        );
        let is_own = config.restore.is_none();
        let index = made?;
        let is_as_saved = is_own && log.as_ref().is_none_or(|log| log.replayed == 0);
        let as_saved = snapshot.as_ref().filter(|_| is_as_saved).map(Snapshot::as_saved);
        Ok(Prepared { index, recovered: None, restored, as_saved, log })
    };
    let open = |path: &PathBuf, mut log: Option<LogStart>| -> Result<Prepared, ServeError> {
        let own = own.filter(|path| path.symlink_metadata().is_ok()).map(|own| {
            // It will be replaced. Only a snapshot may be.
            Snapshot::open_own_head(own)
                .map_err(|e| ServeError::Restore { path: own.clone(), source: e.into() })
        });
        let own = own.transpose()?.and_then(|own| own.terms().log);
        let region = Region::open(path)?;
        if config.small_pages {
            region.leave_small();
        }
        let (index, recovered) = Index::open_by(region, Clock::System, &start)
            .map_err(|source| ServeError::Recover { what: path.display().to_string(), source })?;
        let index = match config.evict {
            Some(policy) => index.with_eviction(policy)?,
            None => index,
        };
        if let Some(log) = &mut log {
            log.after_takeover(&index, &recovered, own, &start)?;
        }
        Ok(Prepared { index, recovered: Some(recovered), restored: None, as_saved: None, log })
    };
    match (config.start, &config.backing) {
        (StartMode::Create, _) => create(log),
        (StartMode::Open, Backing::File(path)) => open(path, log),
        (StartMode::Open, _) => Err(ServeError::NothingToOpen),
        (StartMode::OpenOrCreate, Backing::File(path))
            if std::fs::metadata(path).is_ok_and(|file| file.len() > 0) =>
        {
            match open(path, log) {
                // No client was ever served from it.
                Err(ServeError::Region(RegionError::Unfinished { .. })) => create(LogStart::look(config)?),
                opened => opened,
            }
        }
        (StartMode::OpenOrCreate, _) => create(log),
    }
}
