//! Request traces as Mooncake publishes them: a line of JSON for each request.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

/// A request of a trace. Equal numbers of blocks are equal prompts up to that block.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TracedRequest {
    pub hash_ids: Vec<u64>,
}

/// The requests of a trace, at least one. `.gz`: by `gzip`.
pub fn read(path: &Path) -> Result<Vec<TracedRequest>> {
    let reading = || format!("reading the trace {}", path.display());
    let mut text = String::new();
    if path.extension().is_some_and(|extension| extension == "gz") {
        // Before it is looked at: of a damaged file, gzip tells what is wrong.
        ensure!(path.exists(), "{}: there is no such file", reading());
        let mut gzip = Command::new("gzip")
            .arg("-dc")
            .arg(path)
            .stdout(Stdio::piped())
            .spawn()
            .context("starting gzip; unpack the trace, and give its plain file")?;
        let read = gzip.stdout.take().context("gzip's output")?.read_to_string(&mut text);
        ensure!(gzip.wait()?.success(), "gzip could not unpack {}; is it whole?", path.display());
        read.with_context(reading)?;
    } else {
        File::open(path).and_then(|mut file| file.read_to_string(&mut text)).with_context(reading)?;
    }
    let requests = of_text(&text).with_context(reading)?;
    ensure!(
        requests.iter().any(|request| !request.hash_ids.is_empty()),
        "{} names no block; it should have lines with `hash_ids`",
        path.display()
    );
    Ok(requests)
}

fn of_text(text: &str) -> Result<Vec<TracedRequest>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(number, line)| {
            serde_json::from_str(line).with_context(|| {
                format!("line {} is no request with `hash_ids`; is the file cut, or not a trace?", number + 1)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is damaged is named by its line, with the cause.
    #[test]
    fn damage_is_named() {
        let line = |ids: &str| {
            format!("{{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 5, \"hash_ids\": {ids}}}\n")
        };
        let whole = line("[1, 2]") + "\n" + &line("[]");
        assert_eq!(of_text(&whole).unwrap().iter().map(|of| of.hash_ids.len()).collect::<Vec<_>>(), [2, 0]);
        for (damaged, cause) in [
            ("[1, 2", "expected `,` or `]`"),
            ("[-1]", "invalid value: integer `-1`"),
            ("\"1\"", "invalid type: string"),
            ("null", "invalid type: null"),
        ] {
            let error = format!("{:#}", of_text(&(line("[1]") + &line(damaged))).unwrap_err());
            assert!(error.starts_with("line 2 is no request") && error.contains(cause), "{error}");
        }
        let error = format!("{:#}", of_text("\n{\"timestamp\": 3}").unwrap_err());
        assert!(error.starts_with("line 2 ") && error.contains("missing field `hash_ids`"), "{error}");
    }
}
