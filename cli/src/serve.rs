//! `serve`: creates or takes over a table, and serves it until a signal.

use super::{At, TokenArgs, show};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use oneread::inspect::Inspector;
use oneread::region::{Backing, Region};
use oneread::server::RegisterProgress;
use oneread::verbs::Wait;
use oneread::{Address, Config, Geometry, Layout, Server, ServerConfig, StartMode, TableSize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

/// Serve a table until SIGINT or SIGTERM
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread serve                                          a million keys, at this user's address
  oneread serve --capacity 50000000 --value-max 32       more keys, shorter values
  oneread serve --layout windowed:16 --at shm:/tmp/a.sock
  oneread serve --anonymous                              memory that is freed with the server
  oneread serve --fresh                                  forget the table that was there
  ONEREAD_TOKEN=secret oneread serve --at verbs://0.0.0.0:7471    over RDMA (built with --features verbs)

The table is in a file in memory (/dev/shm). It survives a restart of the server, but not a reboot.
With --region on a disk it also survives a clean reboot. After a crash of the machine, start with
--fresh: the file then mixes old and new pages, and nothing detects that.

Connected clients on this host go on reading while the server is away, until their lease ends (10 s
by default). Over verbs they cannot.

`oneread layouts --list` names the layouts.")]
pub struct Serve {
    #[command(flatten)]
    at: At,
    /// How keys are placed, as in windowed:8, pilaf, hopscotch:farm [default: windowed:8]
    #[arg(long, value_name = "NAME")]
    layout: Option<Layout>,
    /// Number of keys that the table has room for [default: 1000000]
    #[arg(long, value_name = "KEYS", conflicts_with = "slots")]
    capacity: Option<u64>,
    /// Number of main slots, instead of a capacity in keys
    #[arg(long, value_name = "N")]
    slots: Option<u64>,
    /// Longest key in bytes, up to 255 [default: 32]
    #[arg(long, value_name = "BYTES")]
    key_max: Option<usize>,
    /// Longest value in bytes [default: 78, which with key-max 32 makes slots of 128 bytes]
    #[arg(long, value_name = "BYTES")]
    value_max: Option<usize>,
    /// Grace time in microseconds: how long a GET over a network may take [default: 2000]
    #[arg(long, value_name = "US")]
    grace_us: Option<u64>,
    /// The file that holds the table [default: /dev/shm/oneread-UID-HASH.region, by the address]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["anonymous", "huge_pages"])]
    region: Option<PathBuf>,
    /// Hold the table in memory without a file; it is gone with the server
    #[arg(long, conflicts_with = "huge_pages")]
    anonymous: bool,
    /// The same in pages of 2 MiB, which the administrator must have reserved
    #[arg(long)]
    huge_pages: bool,
    /// Remove the region file first
    #[arg(long, conflicts_with_all = ["anonymous", "huge_pages"])]
    fresh: bool,
    /// Number of threads that make changes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// Another user who may connect and change the table (repeatable)
    #[arg(long, value_name = "UID")]
    allow_uid: Vec<u32>,
    #[command(flatten)]
    token: TokenArgs,
    /// Let in everybody who reaches the port, without a token (verbs only)
    #[arg(long, conflicts_with = "token_file")]
    no_token: bool,
    /// Wait for messages without sleeping: faster changes, but busy cores (verbs only)
    #[arg(long)]
    poll: bool,
    /// Also take requests through mailboxes, without system calls (shm only)
    #[arg(long)]
    mailbox: bool,
    /// Also take requests HERD's way, for comparison; keeps cores busy (verbs only)
    #[cfg(feature = "herd")]
    #[arg(long)]
    herd: bool,
    /// Print the line that reports readiness as JSON
    #[arg(long)]
    json: bool,
    /// Die with the process that started this one
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// The default region file of a server at this address. Clients need not know it, since the server
/// hands them the region. It serves to inspect a table whose server is gone.
pub fn region_file(address: &Address) -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    let place = match address {
        Address::Shm(socket) => {
            std::path::absolute(socket).unwrap_or_else(|_| socket.clone()).into_os_string()
        }
        // The port alone: the device and the host's name do not matter.
        Address::Verbs(at) => format!("verbs:{}", at.port()).into(),
        other => other.to_string().into(),
    };
    let hash = seahash::hash(place.as_encoded_bytes());
    PathBuf::from(format!("/dev/shm/oneread-{uid}-{hash:016x}.region"))
}

impl Serve {
    pub fn run(self) -> Result<ExitCode> {
        if self.die_with_parent {
            // This signal also ends a stopped process.
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        }
        let token = self.token.token()?;
        ensure!(
            matches!(self.at.address(), Address::Shm(_)) || self.no_token || !token.is_empty(),
            "over verbs whoever reaches the port can read and change the table: give server and clients a token (ONEREAD_TOKEN, or --token-file FILE), or add --no-token to let everybody in"
        );
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let address = self.at.address();
        let config = self.config(Config::default());
        let backing = if self.anonymous {
            Backing::Anonymous
        } else if self.huge_pages {
            Backing::HugePages
        } else {
            Backing::File(self.prepare_file(&address, &config)?)
        };
        let start = match backing {
            Backing::File(_) => StartMode::OpenOrCreate(config),
            _ => StartMode::Create(config),
        };
        let how = ServerConfig::new(address, config)
            .backing(backing.clone())
            .start(start)
            .workers(self.workers.into())
            .allow_uids(self.allow_uid.clone())
            .token(token)
            .wait(if self.poll { Wait::Poll } else { Wait::Block })
            .mailbox(self.mailbox)
            .progress(show_registration);
        #[cfg(feature = "herd")]
        let how = how.herd(self.herd);
        let server = Server::start(how)?;
        self.announce(&server, &backing)?;
        signals.forever().next();
        server.stop();
        Ok(ExitCode::SUCCESS)
    }

    /// `base` with the options that the user gave.
    fn config(&self, base: Config) -> Config {
        Config::new()
            .layout(self.layout.unwrap_or(base.layout))
            .size(match (self.slots, self.capacity) {
                (Some(n), _) => TableSize::Slots(n),
                (_, Some(n)) => TableSize::Keys(n),
                _ => base.size,
            })
            .key_max(self.key_max.unwrap_or(base.key_max))
            .value_max(self.value_max.unwrap_or(base.value_max))
            .grace(self.grace_us.map_or(base.grace, Duration::from_micros))
    }

    /// The region file. Afterwards it holds a table as requested, or it does not exist.
    fn prepare_file(&self, address: &Address, config: &Config) -> Result<PathBuf> {
        let path = match &self.region {
            Some(path) => path.clone(),
            None => {
                ensure!(
                    Path::new("/dev/shm").is_dir(),
                    "there is no /dev/shm here; name a region file with --region, or serve --anonymous"
                );
                region_file(address)
            }
        };
        let name = path.display();
        match std::fs::symlink_metadata(&path) {
            Ok(about) if about.len() > 0 || !about.is_file() => {
                // Anybody may write to /dev/shm and create a file of this name.
                ensure!(
                    self.region.is_some()
                        || about.is_file() && about.uid() == rustix::process::getuid().as_raw(),
                    "{name} is not this user's file; name another one with --region"
                );
                let has = existing(&path)?;
                if self.fresh {
                    remove(&path)?;
                } else {
                    self.check(&path, &has)?;
                    return Ok(path);
                }
            }
            _ => {}
        }
        check_space(&path, config.geometry()?.region_bytes())?;
        Ok(path)
    }

    /// Checks that the table in the file is what the user asked for.
    fn check(&self, path: &Path, has: &Geometry) -> Result<()> {
        let asked = self.config(
            Config::new()
                .layout(has.layout())
                .size(TableSize::Slots(has.main_slots()))
                .key_max(has.key_max())
                .value_max(has.value_max())
                .grace(has.grace()),
        );
        let asked_slots = asked.geometry()?.main_slots();
        let mut differ = Vec::new();
        let mut compare = |what: &str, has: String, asked: String| {
            if has != asked {
                differ.push(format!("{what} {has}, asked for was {asked}"));
            }
        };
        compare("layout", has.layout().to_string(), asked.layout.to_string());
        if self.slots.is_some() || self.capacity.is_some() {
            compare("main slots", has.main_slots().to_string(), asked_slots.to_string());
        }
        compare("key-max", has.key_max().to_string(), asked.key_max.to_string());
        compare("value-max", has.value_max().to_string(), asked.value_max.to_string());
        compare("grace-us", has.grace().as_micros().to_string(), asked.grace.as_micros().to_string());
        ensure!(
            differ.is_empty(),
            "{} holds another table than the one asked for: it has {}; drop these options to serve what is there, or add --fresh to remove it and make a new one",
            path.display(),
            differ.join("; it has ")
        );
        Ok(())
    }

    fn announce(&self, server: &Server, backing: &Backing) -> Result<()> {
        let index = server.index();
        let geometry = index.geometry();
        let where_to = backing.to_string();
        if self.json {
            let recovered = server.recovered().map(|found| {
                serde_json::json!({ "keys": found.keys, "torn": found.torn, "doubled": found.doubled })
            });
            return Ok(show::say(serde_json::json!({
                "event": "ready",
                "address": server.address().to_string(),
                "layout": geometry.layout().to_string(),
                "main_slots": geometry.main_slots(),
                "slots": geometry.slots(),
                "slot_bytes": geometry.shape().bytes(),
                "region_bytes": geometry.region_bytes(),
                "region": where_to,
                "key_max": geometry.key_max(),
                "value_max": geometry.value_max(),
                "grace_us": geometry.grace().as_micros() as u64,
                "recovered": recovered,
                "pid": std::process::id(),
            }))?);
        }
        let found = match server.recovered() {
            None => "new".into(),
            Some(found) => {
                let mut text = format!("taken over with {} keys", show::count(found.keys));
                if found.torn > 0 {
                    text += &format!(", {} half-written slots freed", found.torn);
                }
                if found.doubled > 0 {
                    text += &format!(", {} unfinished moves undone", found.doubled);
                }
                text
            }
        };
        Ok(show::say(format_args!(
            "serving {} at {}: {} slots of {} bytes, {} in {where_to}, {found}",
            geometry.layout(),
            server.address(),
            show::count(geometry.slots()),
            geometry.shape().bytes(),
            show::bytes(geometry.region_bytes()),
        ))?)
    }
}

/// Shows the progress of the registration, if it takes long enough to be seen.
fn show_registration(at: RegisterProgress) {
    static BAR: OnceLock<indicatif::ProgressBar> = OnceLock::new();
    let bar = BAR.get_or_init(|| show::byte_bar(at.total, "registering"));
    bar.set_position(at.ready);
    if at.done {
        bar.finish_and_clear();
        if bar.elapsed() > Duration::from_secs(1) {
            show::complain(format_args!(
                "registered {} in {:.1} s",
                show::bytes(at.total),
                bar.elapsed().as_secs_f64()
            ));
        }
    }
}

/// The geometry of a region file. Any other file is an error and is left alone.
fn existing(path: &Path) -> Result<Geometry> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("opening {name}"))?;
    ensure!(file.metadata()?.is_file(), "{name} is no file; name another one with --region");
    let region = Region::map_shared(file.into())?;
    let (geometry, _) = Inspector::superblock(&region).with_context(|| name.to_string())?;
    Ok(geometry)
}

/// Removes a region file, unless a server uses it.
fn remove(path: &Path) -> Result<()> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("opening {name}"))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => std::fs::remove_file(path).with_context(|| format!("removing {name}")),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            bail!("{name} is in use by another server; stop that one first")
        }
        Err(e) => Err(e).with_context(|| format!("locking {name}")),
    }
}

/// tmpfs allocates pages late. Without this check, a table that does not fit would kill the server
/// in the middle of its work.
fn check_space(path: &Path, need: u64) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let about = rustix::fs::statvfs(folder).with_context(|| format!("looking at {}", folder.display()))?;
    let free = about.f_bavail.saturating_mul(about.f_frsize);
    ensure!(
        need <= free,
        "the table needs {}, but {} has only {} free; ask for a smaller table (--capacity), another file (--region), or --anonymous memory",
        show::bytes(need),
        folder.display(),
        show::bytes(free)
    );
    Ok(())
}
