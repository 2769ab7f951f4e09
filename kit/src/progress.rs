//! Progress of what takes long: one line on the terminal, gone when it is done.
//!
//! Nothing is drawn in the first 300 ms, nothing where stderr is no terminal, and nothing while this process
//! is in the background of its terminal (`oneread serve &`). A signal that ends the command says how far it came.

use crate::{interrupt, show};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};
use rustix::{process, termios};
use std::fmt::Write;
use std::io::{self, IsTerminal, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What takes no longer shows no progress.
const QUIET: Duration = Duration::from_millis(300);
/// Most drawings a second.
const HERTZ: u8 = 15;

/// The progress of one command. Clones show the same.
#[derive(Clone, Debug)]
pub struct Progress {
    bar: ProgressBar,
    at_signal: Arc<Mutex<Option<interrupt::Hooked>>>,
}

impl Progress {
    /// Of `length` things, which `unit` names.
    pub fn of(length: u64, what: &'static str, unit: &'static str) -> Progress {
        let template =
            format!("{{prefix}} {{wide_bar:.cyan/blue}} {{human_pos}}/{{human_len}} {unit}  {{rest}} left");
        let bar = styled(Some(length), what, &template);
        let told = bar.clone();
        bar_that_tells(bar, what, move || {
            let all = told.length().unwrap_or(0);
            format!("{} of {}", show::count(told.position()), show::counted_as(all, unit))
        })
    }

    /// Of the bytes of a file.
    pub fn of_bytes(length: u64, what: &'static str) -> Progress {
        let template = "{prefix} {wide_bar:.cyan/blue} {at} of {all}  {msg}  {rest} left";
        let bar = styled(Some(length), what, template);
        let told = bar.clone();
        bar_that_tells(bar, what, move || {
            format!("{} of {}", show::bytes(told.position()), show::bytes(told.length().unwrap_or(0)))
        })
    }

    /// Of work of which nobody knows how long it is.
    pub fn of_unknown(what: &'static str, unit: &'static str) -> Progress {
        let bar = styled(None, what, &format!("{{prefix}} {{spinner}} {{human_pos}} {unit}  {{msg}}"));
        let told = bar.clone();
        bar_that_tells(bar, what, move || show::counted_as(told.position(), unit))
    }

    /// Of nothing: it is not drawn.
    pub fn hidden() -> Progress {
        Progress { bar: ProgressBar::hidden(), at_signal: Arc::default() }
    }

    /// Has a signal do this instead, after the line is gone. It returns whether it has told how far the command
    /// came.
    pub fn on_signal(self, what: impl FnOnce() -> bool + Send + 'static) -> Progress {
        let bar = self.bar.clone();
        let hooked = interrupt::hook(move || {
            bar.finish_and_clear();
            what()
        });
        self.at_a_signal(hooked.ok());
        self
    }

    fn at_a_signal(&self, hooked: Option<interrupt::Hooked>) {
        let before =
            std::mem::replace(&mut *self.at_signal.lock().unwrap_or_else(PoisonError::into_inner), hooked);
        drop(before);
    }

    /// That much more is done.
    pub fn inc(&self, by: u64) {
        self.bar.inc(by);
    }

    /// That much is done.
    pub fn set_position(&self, at: u64) {
        self.bar.set_position(at);
    }

    /// What stands beside the figures.
    pub fn set_message(&self, message: impl Into<std::borrow::Cow<'static, str>>) {
        self.bar.set_message(message);
    }

    /// Prints something while the line is away.
    pub fn suspend(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    /// The time since it began.
    pub fn elapsed(&self) -> Duration {
        self.bar.elapsed()
    }

    /// Takes the line away. A signal has nothing more to tell.
    pub fn finish(&self) {
        self.at_a_signal(None);
        self.bar.finish_and_clear();
    }
}

fn bar_that_tells(bar: ProgressBar, what: &str, far: impl Fn() -> String + Send + 'static) -> Progress {
    let what = what.trim().to_owned();
    let progress = Progress { bar: bar.clone(), at_signal: Arc::default() };
    let hooked = interrupt::hook(move || {
        // Before the bar is finished: then it is at its end.
        let far = far();
        bar.finish_and_clear();
        show::complain(format_args!("oneread: interrupted; {what}: {far}"));
        true
    });
    progress.at_a_signal(hooked.ok());
    progress
}

fn styled(length: Option<u64>, what: &'static str, template: &str) -> ProgressBar {
    let is_shown = io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    let target = if is_shown {
        ProgressDrawTarget::term_like_with_hz(Box::new(Line::new()), HERTZ)
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let seconds = |time: Duration| match time.as_secs() {
        0 => "less than 1 s".into(),
        seconds => show::time(Duration::from_secs(seconds)),
    };
    let style = style
        .with_key("at", |state: &ProgressState, out: &mut dyn Write| told(out, show::bytes(state.pos())))
        .with_key("all", |state: &ProgressState, out: &mut dyn Write| {
            told(out, show::bytes(state.len().unwrap_or(0)))
        })
        .with_key("rest", move |state: &ProgressState, out: &mut dyn Write| told(out, seconds(state.eta())));
    ProgressBar::with_draw_target(length, target).with_style(style.progress_chars("━╸─")).with_prefix(what)
}

fn told(out: &mut dyn Write, text: String) {
    // A text of the style takes everything.
    let _ = out.write_str(&text);
}

/// The line on stderr.
#[derive(Debug)]
struct Line {
    begun: Instant,
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    text: String,
    has_words: bool,
    is_drawn: bool,
}

impl Line {
    fn new() -> Line {
        Line { begun: Instant::now(), pending: Mutex::default() }
    }

    fn push(&self, text: &str, is_word: bool) -> io::Result<()> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.text += text;
        pending.has_words |= is_word && !text.trim().is_empty();
        Ok(())
    }

    fn moved(&self, n: usize, to: char) -> io::Result<()> {
        if n > 0 { self.push(&format!("\x1b[{n}{to}"), false) } else { Ok(()) }
    }
}

/// Whether this process may write to its terminal: it is not in the background there.
fn is_in_foreground() -> bool {
    // A terminal that is not the controlling one has no background.
    termios::tcgetpgrp(io::stderr()).map_or(true, |group| group == process::getpgrp())
}

impl TermLike for Line {
    fn width(&self) -> u16 {
        termios::tcgetwinsize(io::stderr())
            .ok()
            .map(|size| size.ws_col)
            .filter(|&width| width > 0)
            .unwrap_or(80)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.push(text, true)?;
        self.push("\n", false)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.push(text, true)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.push("\r\x1b[2K", false)
    }

    fn flush(&self) -> io::Result<()> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let Pending { text, has_words, is_drawn } = std::mem::take(&mut *pending);
        pending.is_drawn = is_drawn;
        // There is nothing to clear before the first line.
        if self.begun.elapsed() < QUIET || !(has_words || is_drawn) || !is_in_foreground() {
            return Ok(());
        }
        pending.is_drawn = has_words;
        let mut out = io::stderr().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}
