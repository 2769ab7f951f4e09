//! `man`: pages made from the command's own definitions.

use anyhow::{Context, Result};
use clap::Args;
use oneread_kit::show;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Print the manual page, or write those of all commands into a folder
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread man | man -l -
  oneread man ~/.local/share/man/man1     then: man oneread-put")]
pub struct Man {
    /// The folder for the pages of all commands; it is made if need be
    folder: Option<PathBuf>,
}

impl Man {
    pub fn run(self, mut command: clap::Command) -> Result<ExitCode> {
        command.build();
        match &self.folder {
            None => show::write(&page(&command)?)?,
            Some(folder) => {
                let name = folder.display();
                std::fs::create_dir_all(folder).with_context(|| format!("making the folder {name}"))?;
                write_pages(&command, folder)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn page(command: &clap::Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}

/// The pages of a command and of those below it.
fn write_pages(command: &clap::Command, folder: &Path) -> Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = folder.join(format!("{name}.1"));
    std::fs::write(&path, page(command)?).with_context(|| format!("writing {}", path.display()))?;
    let shown =
        command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help");
    shown.into_iter().try_for_each(|command| write_pages(command, folder))
}
