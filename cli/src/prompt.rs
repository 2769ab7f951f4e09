//! The prompt: `oneread` alone, on a terminal.
//!
//! A line is a command as it would stand in a shell, and is run as there: by this program, once more. So its
//! words, options and errors are the same, and Ctrl-C ends it and not the prompt.

use crate::again;
use crate::connect::Server;
use anyhow::{Context as _, Result};
use clap::Parser;
use oneread::Client;
use oneread_kit::{advice, escape, interrupt, show};
use rustix::termios::OptionalActions;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};
use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::{self, IsTerminal};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Lines that are remembered.
const HISTORY_MAX: usize = 1000;
/// Keys that are shown as what a word may become.
const KEYS_MAX: usize = 50;

/// Commands of the prompt alone, and what they do.
const OWN: [(&str, &str); 4] = [
    ("insert", "put a key only if it is absent: `put --insert`"),
    ("remove", "remove keys: `del`"),
    ("history", "what was typed"),
    ("exit", "end, as Ctrl-D does"),
];

/// Commands whose words are keys, and those whose first one is.
const OF_KEYS: [&str; 5] = ["get", "del", "delete", "rm", "remove"];
const OF_A_KEY: [&str; 12] =
    ["put", "set", "insert", "add", "incr", "append", "or", "and-not", "touch", "keys", "ls", "watch"];

/// Whether the command is to open the prompt: nothing else is asked of it, and somebody sits there.
pub fn is_wanted() -> bool {
    again::arguments().is_empty() && io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// How the table is reached, as for any command.
#[derive(Parser)]
struct Reached {
    #[command(flatten)]
    server: Server,
}

/// Reads lines and runs them, until there are no more. `commands` are those of this program.
pub fn run(commands: &clap::Command) -> Result<ExitCode> {
    // Who waits for what a word may become waits no longer.
    let server = Reached::parse_from(["oneread", "--deadline", "1s"]).server;
    let config = Config::builder()
        .max_history_size(HISTORY_MAX)?
        .history_ignore_dups(true)?
        .history_ignore_space(true)
        .completion_type(CompletionType::List)
        .build();
    let mut editor = Editor::<Words<'_>, FileHistory>::with_config(config)?;
    let words = Words { commands, server, client: RefCell::default() };
    greet(&words);
    editor.set_helper(Some(words));
    let history = history_file(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"));
    if let Some(history) = &history
        && let Err(error) = read_history(&mut editor, history)
    {
        show::complain(format_args!("oneread: lines typed before, in {}: {error}", history.display()));
    }
    // A command that runs in the foreground gets them, too, and ends.
    interrupt::leave_keys()?;
    // While a line is typed, the terminal is not as the shell wants it.
    let terminal = rustix::termios::tcgetattr(io::stdin()).context("asking for the terminal's settings")?;
    let _restored = interrupt::hook(move || {
        let restored = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, &terminal);
        // Pasted text is marked no more. The shell's prompt begins a line.
        restored.is_ok() && show::write(b"\x1b[?2004l\r\n").is_ok()
    })?;
    // The beginning of a line could not be read: what follows, up to Enter, is no command of its own.
    let mut is_rest = false;
    loop {
        let line = match editor.readline(if is_rest { "(Enter) " } else { "oneread> " }) {
            Ok(_) | Err(ReadlineError::Interrupted) if is_rest => {
                is_rest = false;
                continue;
            }
            Ok(line) => line,
            Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                show::complain(
                    "\noneread: the line has bytes that are no text in UTF-8, and is not run; Enter ends it (--hex takes any bytes)",
                );
                is_rest = true;
                continue;
            }
            // Ctrl-C: this line is not wanted.
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(error).context("reading a line"),
        };
        if line.trim().is_empty() {
            continue;
        }
        if editor.add_history_entry(&line)?
            && let Some(history) = &history
        {
            // At each line: another prompt may be open, or this one be killed. Where it cannot be, that was said.
            let _ = editor.append_history(history);
        }
        let Some(words) = shlex::split(&line) else {
            show::complain("oneread: a quote, or a backslash at the end, has nothing that follows");
            continue;
        };
        match command_of(words) {
            None => {}
            Some(words) => match &words[..] {
                [word] if word == "exit" => return Ok(ExitCode::SUCCESS),
                [word] if word == "history" => {
                    editor.history().iter().try_for_each(show::say)?;
                }
                words => run_command(words)?,
            },
        }
    }
}

/// Says where the prompt is, and how to go on.
fn greet(words: &Words<'_>) {
    match words.server.connect() {
        Ok(mut client) => {
            let keys = client.server_stats().map(|stats| format!(", {}", show::counted(stats.keys, "key")));
            show::complain(format_args!(
                "the table at {}{}; `help` lists the commands, Tab completes, Ctrl-D ends",
                client.address(),
                keys.unwrap_or_default()
            ));
            *words.client.borrow_mut() = Some(client);
        }
        Err(error) => {
            show::complain(format_args!("oneread: {}", advice::told(&error)));
            show::complain("`serve --daemonize` starts a server; `help` lists the commands, Ctrl-D ends");
        }
    }
}

/// The words as this program takes them. `None`: there are none.
fn command_of(mut words: Vec<String>) -> Option<Vec<String>> {
    // Who is used to a shell types it.
    if words.len() > 1 && words[0] == "oneread" {
        words.remove(0);
    }
    let more = match words.first()?.as_str() {
        "insert" => vec!["put".into(), "--insert".into()],
        "remove" => vec!["del".into()],
        "quit" => vec!["exit".into()],
        _ => return Some(words),
    };
    words.splice(..1, more);
    Some(words)
}

/// Runs a command to its end. What went wrong it says itself.
fn run_command(words: &[String]) -> Result<()> {
    again::command()?.args(words).status().context("running the command")?;
    if let [word] = words
        && word == "help"
    {
        show::say("Only here:")?;
        OWN.iter().try_for_each(|(name, about)| show::say(format_args!("  {name:<12}{about}")))?;
        show::say("A line that begins with a space is not remembered.")?;
    }
    Ok(())
}

/// Where what was typed is kept: in the user's folder for state, by the conventions of freedesktop.org.
fn history_file(state: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |folder: Option<OsString>| folder.map(PathBuf::from).filter(|folder| folder.is_absolute());
    let state = absolute(state).or_else(|| Some(absolute(home)?.join(".local/state")))?;
    Some(state.join("oneread/history"))
}

/// Reads what was typed before, if there is any, and makes the folder for it, for this user alone.
fn read_history(editor: &mut Editor<Words<'_>, FileHistory>, file: &Path) -> rustyline::Result<()> {
    if let Some(folder) = file.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    match editor.load_history(file) {
        Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        read => read,
    }
}

/// What a word may become.
struct Words<'c> {
    commands: &'c clap::Command,
    server: Server,
    client: RefCell<Option<Client>>,
}

impl Words<'_> {
    fn commands(&self, begin: &str) -> Vec<String> {
        let own = OWN.iter().map(|(name, _)| *name).chain(["help"]);
        let names = self.commands.get_subcommands().filter(|command| !command.is_hide_set());
        let names = names.map(clap::Command::get_name).chain(own);
        names.filter(|name| name.starts_with(begin)).map(str::to_owned).collect()
    }

    fn options(&self, command: &str, begin: &str) -> Vec<String> {
        let Some(command) = self.commands.find_subcommand(command) else { return Vec::new() };
        let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
        let options = shown.filter_map(|argument| Some(format!("--{}", argument.get_long()?)));
        options.filter(|option| option.starts_with(begin)).collect()
    }

    /// Some of the keys that begin with this, as a shell would take them. None where no server answers.
    fn keys(&self, begin: &str) -> Vec<String> {
        let mut client = self.client.borrow_mut();
        if client.is_none() {
            *client = self.server.connect().ok();
        }
        let Some(connected) = client.as_mut() else { return Vec::new() };
        let found: Result<Vec<_>, _> = connected.scan().prefix(begin.as_bytes()).take(KEYS_MAX).collect();
        let Ok(found) = found else {
            // The next word asks the server that is there then.
            *client = None;
            return Vec::new();
        };
        let text = found.into_iter().filter_map(|found| String::from_utf8(found.key).ok());
        let shown = text.filter(|key| !key.chars().any(escape::is_active));
        let mut keys: Vec<_> =
            shown.filter_map(|key| Some(shlex::try_quote(&key).ok()?.into_owned())).collect();
        keys.sort_unstable();
        keys
    }

    /// Where the word begins that ends at the cursor, and what it may become.
    fn complete_word(&self, typed: &str) -> (usize, Vec<String>) {
        let start = typed.rfind(char::is_whitespace).map_or(0, |space| space + 1);
        let (before, begin) = typed.split_at(start);
        let Some(before) = shlex::split(before) else { return (start, Vec::new()) };
        // Who knows no command of this name knows no option of it.
        let words = match before.first().map(String::as_str) {
            None => self.commands(begin),
            Some("help") => self.commands(begin),
            Some(_) if begin.contains(['\'', '"', '\\']) => Vec::new(),
            Some(command) if begin.starts_with('-') => self.options(command, begin),
            Some(command) => {
                let given = before[1..].iter().filter(|word| !word.starts_with('-')).count();
                let is_key = OF_KEYS.contains(&command) || OF_A_KEY.contains(&command) && given == 0;
                if is_key { self.keys(begin) } else { Vec::new() }
            }
        };
        (start, words)
    }
}

impl Completer for Words<'_> {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (start, words) = self.complete_word(&line[..at]);
        // There is nothing to choose from: the next word follows.
        let end = if words.len() == 1 { " " } else { "" };
        let pair = |word: String| Pair { replacement: format!("{word}{end}"), display: word };
        Ok((start, words.into_iter().map(pair).collect()))
    }
}

impl Hinter for Words<'_> {
    type Hint = String;
}

impl Highlighter for Words<'_> {}
impl Validator for Words<'_> {}
impl Helper for Words<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use oneread::{Address, Config as Table, ServerConfig, TableSize};

    fn words_of(line: &str) -> Option<Vec<String>> {
        command_of(shlex::split(line).unwrap())
    }

    /// A line is what a shell would make of it, and the prompt's own commands are others' short forms.
    #[test]
    fn lines_are_commands() {
        for (line, words) in [
            ("get 'a b' c", &["get", "a b", "c"][..]),
            ("oneread get a", &["get", "a"]),
            ("insert a b --hex", &["put", "--insert", "a", "b", "--hex"]),
            ("remove a", &["del", "a"]),
            ("quit", &["exit"]),
            ("oneread", &["oneread"]),
        ] {
            assert_eq!(words_of(line).unwrap(), words, "{line}");
        }
        assert_eq!(words_of("  # nothing"), None);
    }

    /// The history is in the user's folder for state, and nowhere if no folder is known.
    #[test]
    fn history_has_its_place() {
        let file = |state: &str, home: &str| {
            let given = |text: &str| (!text.is_empty()).then(|| OsString::from(text));
            history_file(given(state), given(home)).map(|path| path.display().to_string())
        };
        assert_eq!(file("/state", "/home/a").as_deref(), Some("/state/oneread/history"));
        for state in ["", "relative"] {
            assert_eq!(file(state, "/home/a").as_deref(), Some("/home/a/.local/state/oneread/history"));
        }
        assert_eq!(file("", ""), None);
    }

    /// Commands, options and keys are completed where they may stand, and nothing else.
    #[test]
    fn words_are_completed() {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Shm(dir.path().join("sock"));
        let table = Table::new().size(TableSize::Keys(1_000));
        let server = oneread::Server::start(ServerConfig::new(address.clone(), table)).unwrap();
        for key in ["user:1", "user:2", "user 3", "other", "with'quote"] {
            server.index().put(key.as_bytes(), b"value", oneread::PutMode::Insert).unwrap();
        }
        server.index().put(b"user\xff", b"not text", oneread::PutMode::Insert).unwrap();
        let commands = <crate::Cli as clap::CommandFactory>::command();
        let at = ["oneread", "--at", &address.to_string()].map(str::to_owned);
        let server = Reached::parse_from(at).server;
        let words = Words { commands: &commands, server, client: RefCell::default() };
        let completed = |typed: &str| words.complete_word(typed);
        let some = |start, words: &[&str]| (start, words.iter().map(|word| word.to_string()).collect());
        assert_eq!(completed("ge"), some(0, &["get"]));
        assert_eq!(completed("his"), some(0, &["history"]));
        assert_eq!(completed("help ge"), some(5, &["get"]));
        assert_eq!(completed("get user:"), some(4, &["user:1", "user:2"]));
        assert_eq!(completed("get user:1 o"), some(11, &["other"]));
        assert_eq!(completed("del us"), some(4, &["'user 3'", "user:1", "user:2"]));
        assert_eq!(completed("put --hex o"), some(10, &["other"]));
        assert_eq!(completed("put other o"), some(10, &[]));
        assert_eq!(completed("stat o"), some(5, &[]));
        assert_eq!(completed("get 'user"), some(4, &[]));
        assert_eq!(completed("put --ins"), some(4, &["--insert"]));
        assert!(completed("").1.len() > 20);
        assert_eq!(completed("get with"), (4, vec!["\"with'quote\"".to_owned()]));
    }
}
