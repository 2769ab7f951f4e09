//! A region to look into: a server's, or a file.

use crate::connect::{At, Waiting};
use crate::region_file::region_file;
use anyhow::{Context, Result, bail};
use clap::Args;
use oneread::internals::files;
use oneread::internals::inspect::Inspector;
use oneread::internals::layout::geometry::Geometry;
use oneread::internals::region::Region;
use oneread::{Client, ClientOptions, ConnectError};
use oneread_kit::show;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The source of a region: a server or a file.
#[derive(Debug, Args)]
pub struct Source {
    #[command(flatten)]
    at: At,
    #[command(flatten)]
    waiting: Waiting,
    /// Take the region from this file and ask no server; overrides --at
    #[arg(long, value_name = "FILE")]
    region: Option<PathBuf>,
}

/// An open region.
pub enum Opened {
    Served(Box<Client>),
    File { region: Region, geometry: Box<Geometry>, name: String },
}

impl Source {
    /// Opens the region: from the file if one is named, else from the server. If no server answers,
    /// opens the file that a server at this address would have left.
    pub fn open(&self) -> Result<Opened> {
        if let Some(path) = &self.region {
            return open_file(path);
        }
        /// A running server hands its region over in much less time.
        const DEADLINE: Duration = Duration::from_secs(1);
        let address = self.at.address();
        let options = ClientOptions::new().deadline(DEADLINE);
        let error = match self.waiting.connect(|| Client::connect_with(&address, options.clone())) {
            Ok(client) if client.region().is_some() => return Ok(Opened::Served(Box::new(client))),
            Ok(_) => bail!(
                "the region of {address} is in the server's memory, which over verbs is not mapped here; look into it on the server's host, with --region FILE"
            ),
            Err(error) => error,
        };
        let left = region_file(&address);
        match error.downcast_ref() {
            Some(ConnectError::NotThere { .. } | ConnectError::Link { .. }) if left.exists() => {
                show::complain(format_args!(
                    "oneread: no server answers at {address}; reading the file {}",
                    left.display()
                ));
                open_file(&left)
            }
            _ => Err(error),
        }
    }
}

pub fn open_file(path: &Path) -> Result<Opened> {
    let name = path.display().to_string();
    let file = files::open_to_read(path)?;
    anyhow::ensure!(file.metadata()?.len() > 0, "{name} is empty; name a file that `oneread serve` made");
    let region = Region::map_file(path, file)?;
    let (geometry, _) = Inspector::superblock(&region).with_context(|| name.clone())?;
    Ok(Opened::File { region, geometry: Box::new(geometry), name })
}

impl Opened {
    pub fn region(&self) -> &Region {
        match self {
            Opened::Served(client) => client.region().expect("checked when it was opened"),
            Opened::File { region, .. } => region,
        }
    }

    pub fn geometry(&self) -> &Geometry {
        match self {
            Opened::Served(client) => client.geometry(),
            Opened::File { geometry, .. } => geometry,
        }
    }

    pub fn inspector(&self) -> Inspector<'_> {
        Inspector::new(self.region(), self.geometry())
    }

    pub fn name(&self) -> String {
        match self {
            Opened::Served(client) => client.address().to_string(),
            Opened::File { name, .. } => name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        source: Source,
    }

    /// A region file that was named and is not there is an error, and no server is asked instead.
    #[test]
    fn a_named_file_is_opened_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let at = format!("shm:{}", dir.path().join("socket").display());
        let missing = dir.path().join("region").display().to_string();
        let source = Arguments::parse_from(["oneread", "--at", &at, "--region", &missing]).source;
        let error = source.open().err().unwrap();
        assert_eq!(error.to_string(), format!("opening {missing}"));
        // A pipe has nobody wait for its other end.
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (told, hears) = std::sync::mpsc::channel();
        std::thread::spawn({
            let pipe = pipe.clone();
            move || told.send(open_file(&pipe).err().map(|error| error.to_string()))
        });
        let error = hears.recv_timeout(Duration::from_secs(60)).expect("it waits for nobody");
        assert_eq!(error.unwrap(), format!("{} is no file; name another path", pipe.display()));
    }
}
