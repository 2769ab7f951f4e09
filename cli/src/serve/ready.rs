//! The last steps of a start, when clients can connect already: what is told of it, and to whom. If one of them fails, the
//! start has failed, and nothing of it stays.

use super::daemon::{self, is_said};
use super::serving::Watched;
use super::told::{recovered_json, size_now, taken_over};
use super::undo::Ready;
use super::{Serve, systemd, watchdog};
use anyhow::{Context, Result};
use oneread::internals::region::Backing;
use oneread::{Address, Server, embedded::MemoryShare};
use oneread_kit::show;
use std::path::Path;
use std::sync::PoisonError;

impl Serve {
    /// Takes the last steps of a start.
    pub fn get_ready(&self, watched: &Watched, ready: Ready<'_>) -> Result<()> {
        let log = match self.detached {
            true => Some(daemon::log_file(&self.at.address(), self.log_file.as_deref())?),
            false => None,
        };
        #[cfg(feature = "metrics")]
        let scraped_at = ready.scrapes.as_ref().map(super::scraped::Listener::url);
        #[cfg(not(feature = "metrics"))]
        let scraped_at = None;
        if let Some(pid_file) = &mut *ready.pid_file.lock().unwrap_or_else(PoisonError::into_inner) {
            pid_file.write()?;
        }
        let (text, is_good) = {
            let serving = watched.lock().unwrap_or_else(PoisonError::into_inner);
            let serving = serving.as_ref().context("the server")?;
            let server = serving.server();
            self.warn_of_users(server.address());
            let text = self.readiness(server, ready.backing, ready.share, log.as_deref(), scraped_at);
            (text, serving.is_good())
        };
        #[cfg(feature = "metrics")]
        if let Some(scrapes) = ready.scrapes {
            scrapes.answer(watched.clone()).context("starting the thread that answers scrapes")?;
        }
        self.announce(&text, is_good)?;
        systemd::notify(systemd::Said::Ready);
        watchdog::begin(watched.clone()).context("starting the thread that tells systemd's watchdog")
    }

    /// Reports readiness, from the background as the last that is seen of it.
    fn announce(&self, text: &str, is_good: bool) -> Result<()> {
        if self.detached {
            daemon::leave_terminal()?;
        }
        is_said(show::say(text))?;
        if self.detached { daemon::is_told(is_good) } else { Ok(()) }
    }

    fn readiness(
        &self,
        server: &Server,
        backing: &Backing,
        share: Option<MemoryShare>,
        log: Option<&Path>,
        metrics: Option<String>,
    ) -> String {
        let index = server.index();
        let geometry = index.geometry();
        let growth = index.growth();
        let where_to = backing.to_string();
        if self.json {
            let restored = server
                .restored()
                .map(|from| serde_json::json!({ "keys": from.keys, "seconds": from.took.as_secs_f64() }));
            let recovered = server.recovered().map(recovered_json);
            return serde_json::json!({
                "event": "ready",
                "address": server.address().to_string(),
                "tcp": server.tcp_address().map(|at| Address::Tcp(at.clone()).to_string()),
                "layout": geometry.layout().to_string(),
                "main_slots": geometry.main_slots(),
                "slots": geometry.slots(),
                "slot_bytes": geometry.shape().bytes(),
                "region_bytes": geometry.region_bytes(),
                "segments_max": geometry.segments_max(),
                "bytes_backed": index.region().backed_bytes(),
                "max_memory_is": share.as_ref().map(|share| &share.part),
                "region": where_to,
                "key_max": geometry.key_max(),
                "value_max": geometry.value_max(),
                "heap_bytes": geometry.heap().bytes,
                "life": geometry.has_life(),
                "owners": geometry.has_owners(),
                "grace_us": geometry.grace().as_micros() as u64,
                "recovered": recovered,
                "restored": restored,
                "pid": std::process::id(),
                "log": log,
                "metrics": metrics,
            })
            .to_string();
        }
        let found = match (server.recovered(), server.restored()) {
            (Some(found), _) => taken_over(found),
            (None, Some(from)) => format!(
                "new, with {} of {}, in {}",
                show::counted(from.keys, "key"),
                self.source().map_or("a snapshot".into(), |path| show::path(&path)),
                show::time(from.took)
            ),
            (None, None) if server.log().is_some() && !index.is_empty() => {
                format!("new, with {} of its log", show::counted(index.len(), "key"))
            }
            (None, None) => "new".into(),
        };
        let size = size_now(geometry, growth.bytes_backed, share.as_ref().map(|share| &share.part[..]));
        let log = log.map_or(String::new(), |log| {
            format!("\nin the background, process {}; its log is {}", std::process::id(), show::path(log))
        });
        let metrics = metrics.map_or(String::new(), |url| format!("\nmetrics at {url}"));
        let too = server.tcp_address().filter(|_| !matches!(server.address(), Address::Tcp(_)));
        let too = too.map_or(String::new(), |at| format!(" and at {}", show::name(Address::Tcp(at.clone()))));
        format!(
            "serving {} at {}{too}: {size}, slots of {} bytes, in {}, {found}{metrics}{log}",
            geometry.layout(),
            show::name(server.address()),
            geometry.shape().bytes(),
            show::name(where_to),
        )
    }
}
