//! `completions`: made from the command's own definitions.

use anyhow::{Context, Result};
use clap::Args;
use clap_complete::Shell;
use oneread_kit::show;
use std::process::ExitCode;

/// Print the completions of a shell
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  source <(oneread completions bash)
  oneread completions zsh > ~/.zfunc/_oneread
  oneread completions fish > ~/.config/fish/completions/oneread.fish")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Bash breaks words at colons, which are parts of names and addresses here. So this puts the words
/// together before they are completed, and takes off of the answers what bash takes for words before.
const BASH_COLONS: &str = r#"
_oneread_whole() {
    local word begun= whole=()
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ ${#whole[@]} -gt 0 && ( $word == :* || ${whole[-1]} == *: ) ]]; then
            whole[-1]+=$word
        else
            whole+=("$word")
        fi
    done
    local COMP_WORDS=("${whole[@]}") COMP_CWORD=$((${#whole[@]} - 1))
    _oneread "$1" "${whole[-1]}" "${whole[-2]}"
    if [[ $COMP_WORDBREAKS == *:* ]]; then
        begun=${whole[-1]%"${whole[-1]##*:}"}
    fi
    COMPREPLY=("${COMPREPLY[@]#"$begun"}")
}
"#;

impl Completions {
    pub fn run(self, mut command: clap::Command) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "oneread", &mut script);
        if self.shell == Shell::Bash {
            let generated = String::from_utf8(script).context("completions are text")?;
            script = generated.replace("complete -F _oneread ", "complete -F _oneread_whole ").into_bytes();
            script.extend_from_slice(BASH_COLONS.as_bytes());
        }
        show::write(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use crate::Cli;
    use clap::CommandFactory;

    fn all(command: &clap::Command) -> Vec<clap::Command> {
        let below = command.get_subcommands().flat_map(all);
        std::iter::once(command.clone()).chain(below).collect()
    }

    /// Examples and prose that stand below the options are no wider than 80 columns: the terminal
    /// would break them anywhere.
    #[test]
    fn help_fits_the_terminal() {
        let commands = all(&Cli::command());
        assert!(commands.len() > 14);
        let mut long = Vec::new();
        for command in commands {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines = text.lines().filter(|line| line.chars().count() > 80);
            long.extend(lines.map(|line| format!("{}: {line}", command.get_name())));
        }
        assert!(long.is_empty(), "{long:#?}");
    }

    /// The definitions have no contradictions.
    #[test]
    fn definitions_are_sound() {
        Cli::command().debug_assert();
    }
}
