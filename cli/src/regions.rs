//! `regions`: region files in the default places, whose they are, and which of them nobody serves.

use crate::columns::{Column, Columns};
use crate::{region_file, users};
use anyhow::{Context, Result, ensure};
use clap::Args;
use oneread::internals::files::{self, LockFile};
use oneread::internals::inspect::Inspector;
use oneread::internals::region::{Region, RegionError};
use oneread_kit::folder::bytes_taken;
use oneread_kit::{show, status};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// List the region files that servers left or hold, and remove those that nobody serves
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread regions                this user's files; root sees everybody's, and
                                 opens no other user's
  oneread regions --remove FILE  remove this one, if nobody serves it
  oneread regions --remove --all remove all of this user's that nobody serves

Exit status 1 if a file that was named is none, or was to go and stays.")]
pub struct Regions {
    /// Remove these files, if nobody serves them
    #[arg(long)]
    remove: bool,
    /// Remove all that nobody serves, also tables whose server is only being started again
    #[arg(long, requires = "remove", conflicts_with = "files")]
    all: bool,
    /// Print one JSON object for each file
    #[arg(long)]
    json: bool,
    /// Region files [default: those in /dev/shm/oneread-UID]
    files: Vec<PathBuf>,
}

/// What is known about a region file. Another user's is not opened.
struct Found {
    path: PathBuf,
    bytes: u64,
    owner: u32,
    /// Whether a server holds it, and its keys. None in a table that was never finished.
    inside: Result<(bool, Option<u64>)>,
}

impl Regions {
    pub fn run(self) -> Result<ExitCode> {
        let paths = if self.files.is_empty() { in_default_places() } else { self.files.clone() };
        let mut found = Vec::new();
        for path in &paths {
            match look(path) {
                Ok(file) => found.push(file),
                // Others may put what they like into their folders.
                Err(why) if self.files.is_empty() => show::complain(format_args!("skipped: {why:#}")),
                Err(why) => return Err(why),
            }
        }
        if self.remove {
            ensure!(
                self.all || !self.files.is_empty(),
                "name the files to remove, of those that `oneread regions` shows; --all removes each that nobody serves now"
            );
            return self.remove(&found);
        }
        if self.json {
            for file in &found {
                let (served, keys) = file.inside.as_ref().ok().copied().unzip();
                let keys = keys.flatten();
                show::say(serde_json::json!({
                    "path": file.path.to_string_lossy(), "bytes": file.bytes, "owner": file.owner, "served": served,
                    "keys": keys,
                }))?;
            }
        } else if found.is_empty() {
            show::say(format_args!("there are no region files in {}", show::path(&files::regions())))?;
        } else {
            show::lay_out(table(&found).text())?;
            for file in &found {
                if let Err(error) = &file.inside {
                    let why = show::name(format_args!("{error:#}"));
                    show::say(format_args!("{}: {why}", show::path(&file.path)))?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn remove(&self, found: &[Found]) -> Result<ExitCode> {
        let (mut freed, mut all_well) = (0, true);
        let own = rustix::process::geteuid().as_raw();
        // All are those of this user, whatever root may read.
        for file in found.iter().filter(|file| !self.all || file.owner == own) {
            let path = show::path(&file.path);
            // One of another version, or a damaged one, is a table, too.
            let stays = match &file.inside {
                Err(error) if !region_file::is_of_region(error) => Some(format!("{error:#}")),
                _ => match region_file::remove(&file.path) {
                    Ok(true) => None,
                    Ok(false) => Some("a server uses it".into()),
                    Err(error) => Some(format!("{error:#}")),
                },
            };
            if let Some(why) = stays {
                all_well &= self.files.is_empty();
                let why = oneread_kit::advice::in_options(&why);
                show::complain(format_args!("{path} stays: {}", show::name(why)));
                continue;
            }
            freed += file.bytes;
            show::say(format_args!("removed {path} ({})", show::bytes(file.bytes)))?;
        }
        show::complain(format_args!("freed {}", show::bytes(freed)));
        Ok(status(all_well))
    }
}

/// Whose each file is, what it holds, and whether a server has it.
fn table(found: &[Found]) -> Columns<5> {
    let mut table = Columns::new([
        Column::text("owner").least(4),
        Column::number("size"),
        Column::number("keys"),
        Column::text("served"),
        Column::whole("file"),
    ]);
    for file in found {
        let (keys, served) = match &file.inside {
            Ok((served, keys)) => {
                (keys.map_or("unfinished".into(), show::count), if *served { "yes" } else { "no" })
            }
            Err(_) => ("?".into(), "?"),
        };
        let path = file.path.to_string_lossy().into_owned();
        table.row([users::name(file.owner), show::bytes(file.bytes), keys, served.into(), path]);
    }
    table
}

/// The files in this user's default folder, and in those of other users that this one may read.
fn in_default_places() -> Vec<PathBuf> {
    let entries = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let own = files::regions();
    let folders = own.parent().map(entries).unwrap_or_default().into_iter().filter(|path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"oneread-"))
            && path.symlink_metadata().is_ok_and(|about| about.is_dir())
    });
    let files = folders.flat_map(|folder| entries(&folder));
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "region")).collect();
    files.sort();
    files
}

fn look(path: &Path) -> Result<Found> {
    let name = show::path(path);
    let about = path.symlink_metadata().with_context(|| format!("looking at {name}"))?;
    ensure!(about.is_file(), "{name} is no file; name a file that `oneread serve` made");
    Ok(Found { path: path.into(), bytes: bytes_taken(&about), owner: about.uid(), inside: look_inside(path) })
}

fn look_inside(path: &Path) -> Result<(bool, Option<u64>)> {
    let keys = match Region::open_to_read(path) {
        Ok(region) => {
            let (geometry, _) = Inspector::superblock(&region)?;
            let occupancy = Inspector::new(&region, &geometry).occupancy(|_| ());
            Some(occupancy.live_main + occupancy.live_overflow)
        }
        Err(RegionError::Unfinished { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    Ok((LockFile::is_taken(path)?, keys))
}
