//! `shrink`: has the server merge segments that hold few keys.

use crate::connect::Server;
use anyhow::{Context, Result, ensure};
use clap::Args;
use oneread_kit::progress::Progress;
use oneread_kit::show;
use std::process::ExitCode;
use std::time::Duration;

/// Have the server merge segments with few keys, which gives memory back
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread shrink
  oneread shrink --no-wait        return at once; see `oneread stat`

A table that grows also shrinks by itself: a delete merges a segment and its
sibling once both together hold less than 52 to 62 % of what one is meant for.
This command merges as long as both fit into 85 % of that. Clients read and
change the table meanwhile. Memory goes back to the system, but for a little
that is kept for the next splits. What is registered with a device (verbs) stays
with the server.

It is worth it after many deletes, when other programs need the memory. Merged
segments are fuller, so the next inserts split them again.")]
pub struct Shrink {
    /// Do not wait until the merges are done
    #[arg(long)]
    no_wait: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

/// Time between looks at how far the server is.
const LOOK: Duration = Duration::from_millis(10);
/// Each round halves the segments, as long as nobody puts keys back.
const ROUNDS_MAX: u32 = 32;
/// The longest wait for memory to come back. It does so twice the grace time after a merge.
const REST_MAX: Duration = Duration::from_secs(2);

impl Shrink {
    pub fn run(self) -> Result<ExitCode> {
        let mut client = self.server.connect()?;
        let before = client.growth()?;
        ensure!(
            before.segments > 0,
            "the table at {} has one size; a table that grows also shrinks: `oneread serve` without --capacity and --slots",
            client.address()
        );
        let mut now = client.shrink()?;
        let bar = Progress::of_unknown("merging", "segments left");
        // What was merged may be merged again, when nothing is left of the merge for readers.
        let rest = (client.geometry().grace() * 2).min(REST_MAX) + LOOK;
        let (mut rounds, mut is_last) = (0, false);
        while !self.no_wait && rounds < ROUNDS_MAX && !(is_last && now.merging == 0) {
            bar.set_position(now.segments);
            is_last = now.merging == 0;
            rounds += u32::from(is_last);
            std::thread::sleep(if is_last { rest } else { LOOK });
            let next = if is_last { client.shrink() } else { client.growth() };
            now = next.context("the server may still be merging")?;
        }
        bar.finish();
        let told = serde_json::json!({
            "segments_before": before.segments,
            "segments": now.segments,
            "merging": now.merging,
            "bytes_backed_before": before.bytes_backed,
            "bytes_backed": now.bytes_backed,
        });
        show::outcome(self.json, &told, || match self.no_wait {
            true => show::say(format_args!(
                "{} under way; `oneread stat` shows what comes of it",
                show::counted(now.merging, "merge")
            )),
            false => show::say(format_args!(
                "{} now, {} before; {} now, {} before",
                show::counted(now.segments, "segment"),
                show::count(before.segments),
                show::bytes(now.bytes_backed),
                show::bytes(before.bytes_backed)
            )),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
