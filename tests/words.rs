//! Every error, in the words of each door: the library's, the command's, Python's. A program of its own: it is built
//! quickly.
//!
//! `tests/words.txt` is the table. `ONEREAD_BLESS=1` writes it again.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

#[path = "../src/error/words.rs"]
mod words;

use words::{Door, NAMES, said};

/// What may stand in braces, where that is a part of a name.
const FILLED: [(&str, &[&str]); 3] = [
    ("`ServerConfig::{option}`", &["`ServerConfig::tls`"]),
    ("`Config::{what}_max`", &["`Config::key_max`", "`Config::value_max`"]),
    ("`{make}`", &["`LocationIndex::config`", "`PlacementTable::config`", "`PlacementTable::owners`"]),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The sources below these folders, but for tests, with their paths in the repository.
fn sources(folders: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                left.extend((!matches!(name, "sim" | "tests")).then_some(path));
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                // Unit tests stand at the end.
                let text = text.split("\nmod tests {").next().unwrap().to_owned();
                found.push((path.strip_prefix(root()).unwrap().display().to_string(), text));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no sources in {folders:?}");
    found
}

/// A string that begins at this quote, as it reads, and where it ends.
fn string_at(source: &str, quote: usize) -> (String, usize) {
    let (mut text, mut at) = (String::new(), quote + 1);
    let bytes = source.as_bytes();
    while bytes[at] != b'"' {
        if bytes[at] == b'\\' {
            at += 1;
            match bytes[at] {
                b'\n' => {
                    while bytes[at].is_ascii_whitespace() {
                        at += 1;
                    }
                    continue;
                }
                b'n' => text.push(' '),
                other => text.push(char::from(other)),
            }
            at += 1;
        } else {
            let next = source[at..].chars().next().unwrap();
            text.push(next);
            at += next.len_utf8();
        }
    }
    (text, at + 1)
}

/// All strings of a source, but for what stands in comments and attributes.
fn strings(source: &str) -> Vec<String> {
    let (mut found, mut at) = (Vec::new(), 0);
    let bytes = source.as_bytes();
    while at < bytes.len() {
        match bytes[at] {
            b'/' if source[at..].starts_with("//") => at += source[at..].find('\n').unwrap_or(1),
            b'#' if source[at..].starts_with("#[") && !source[at..].starts_with("#[error") => {
                at += source[at..].find("]\n").unwrap_or(1)
            }
            b'\'' if source[at..].starts_with("'\"'") => at += 3,
            b'"' => {
                let (text, end) = string_at(source, at);
                found.push(text);
                at = end;
            }
            _ => at += 1,
        }
    }
    found
}

/// An error: where it is, its name, its text, and whether another one stands behind it.
struct Told {
    place: String,
    text: String,
    has_cause: bool,
}

/// All errors that have a text of their own.
fn errors() -> Vec<Told> {
    let mut all = Vec::new();
    for (file, source) in sources(&["src", "prefix/src", "cluster/src"]) {
        for (at, _) in source.match_indices("#[error(") {
            let rest = &source[at + "#[error(".len()..];
            let begin = rest.trim_start();
            if !begin.starts_with('"') {
                continue;
            }
            let (text, end) = string_at(rest, rest.len() - begin.len());
            let Some(close) = rest[end..].find(")]\n") else { continue };
            let behind = &rest[end + close + 3..];
            let line = behind.lines().find(|line| !line.trim_start().starts_with(['#', '/'])).unwrap_or("");
            let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
            let line = line.trim();
            let line = ["pub ", "pub(crate) ", "pub(super) "]
                .iter()
                .find_map(|seen| line.strip_prefix(seen))
                .unwrap_or(line);
            let (kind, of) = match line.strip_prefix("struct ").or(line.strip_prefix("enum ")) {
                Some(name) => (name.chars().take_while(is_word).collect::<String>(), String::new()),
                None => {
                    let before = source[..at].rfind("enum ").unwrap() + "enum ".len();
                    let of = source[before..].chars().take_while(is_word).collect::<String>();
                    (line.chars().take_while(is_word).collect(), of + "::")
                }
            };
            if text == "{}" {
                continue;
            }
            let body = behind.split("#[error(").next().unwrap();
            let body = body.split("\n    },").next().unwrap();
            let has_cause = ["source:", "#[source]", "#[from]"].iter().any(|cause| body.contains(cause));
            let mut texts = vec![text];
            for (hole, filled) in FILLED {
                texts = texts
                    .into_iter()
                    .flat_map(|text| match text.contains(hole) {
                        true => filled.iter().map(|name| text.replace(hole, name)).collect(),
                        false => vec![text],
                    })
                    .collect();
            }
            for text in texts {
                all.push(Told { place: format!("{file} {of}{kind}"), text, has_cause });
            }
        }
    }
    assert!(all.len() > 150, "{}", all.len());
    all
}

/// What the library logs.
fn events() -> Vec<Told> {
    let mut all = Vec::new();
    for (file, source) in sources(&["src", "prefix/src", "cluster/src"]) {
        for (at, _) in source.match_indices("tracing::") {
            let rest = &source[at..];
            let Some(end) = rest.find(");") else { continue };
            if rest["tracing::".len()..].chars().take_while(|&c| c != '!').all(char::is_alphabetic) {
                let texts = strings(&rest[..end]).into_iter();
                all.extend(texts.map(|text| Told { place: format!("{file} log"), text, has_cause: true }));
            }
        }
    }
    assert!(all.len() > 50, "{}", all.len());
    all
}

/// What the text says itself, without what is filled in.
fn said_itself(text: &str) -> String {
    text.split('}').map(|part| part.split('{').next().unwrap()).collect()
}

/// A path of Rust in it, as in `Config::life`.
fn path_in(text: &str) -> Option<&str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    text.split(|c| !is_part(c)).find(|word| {
        word.split_once("::").is_some_and(|(of, what)| {
            of.starts_with(char::is_alphabetic) && what.starts_with(char::is_alphabetic)
        })
    })
}

/// A flag that is no part of a whole command, as in `--life`, but not in `oneread serve --life`.
fn flag_in(text: &str) -> Option<&str> {
    text.split('`').enumerate().find_map(|(nth, part)| {
        let is_command = nth % 2 == 1 && part.starts_with(char::is_alphabetic) && !part.starts_with("serve ");
        let mut words = part.split(|c: char| c.is_whitespace() || "(,;".contains(c));
        words.find(|word| word.starts_with("--") && word.len() > 2 && !is_command)
    })
}

/// No door says another's words: no paths of Rust to users of the command or of Python, no flags to users of the library
/// or of Python.
#[test]
fn no_door_says_anothers_words() {
    for Told { place, text, .. } in errors().iter().chain(&events()) {
        let library = said_itself(text);
        assert_eq!(flag_in(&library), None, "{place}: {text}");
        let command = said_itself(&said(Door::Command, text));
        assert_eq!(path_in(&command), None, "{place}: {text}");
        let python = said_itself(&said(Door::Python, text));
        assert_eq!((path_in(&python), flag_in(&python)), (None, None), "{place}: {text}");
        // Names of parameters, as in `key_max`, are no options of the command.
        let mut words = command.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let of_the_system = ["rdma_rxe", "nr_hugepages"];
        let name = words.find(|word| {
            word.trim_matches('_').contains('_')
                && word.to_uppercase() != *word
                && !of_the_system.contains(word)
        });
        assert_eq!(name, None, "{place}: {text}");
    }
}

/// What the command and the Python package say by themselves has no words of others either.
#[test]
fn each_door_says_its_own_words_by_itself() {
    for (file, source) in sources(&["cli/src", "kit/src", "lab/src"]) {
        for text in strings(&source) {
            assert_eq!(path_in(&said_itself(&text)), None, "{file}: {text}");
        }
    }
    for (file, source) in sources(&["python/src"]) {
        for text in strings(&source) {
            let text = said_itself(&text);
            assert_eq!((path_in(&text), flag_in(&text)), (None, None), "{file}: {text}");
        }
    }
    let folder = root().join("python/oneread");
    for folder in [folder.clone(), folder.join("adapters")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "py") {
                let source = std::fs::read_to_string(&path).unwrap();
                assert_eq!(path_in(&source), None, "{}", path.display());
                for line in source.lines().filter(|line| line.contains("raise ") || line.contains("f\"")) {
                    assert_eq!(flag_in(line), None, "{}: {line}", path.display());
                }
            }
        }
    }
}

/// Each name that a text has is in the table, and each row of the table is in a text.
#[test]
fn the_table_has_each_name_once() {
    let mut named = BTreeSet::new();
    let mut note = |text: &str| {
        named.extend(
            text.split('`').skip(1).step_by(2).filter(|part| path_in(part).is_some()).map(String::from),
        )
    };
    errors().iter().chain(&events()).for_each(|told| note(&told.text));
    // Parts of errors that are made where they happen.
    for (file, source) in sources(&["src", "prefix/src", "cluster/src"]) {
        if file != "src/error/words.rs" {
            strings(&source)
                .iter()
                .filter(|text| !text.contains('{') || text.contains("; "))
                .for_each(|text| note(text));
        }
    }
    named.retain(|name| !name.contains('{'));
    let rows: Vec<_> = NAMES.iter().map(|row| row.library.trim_matches('`').to_owned()).collect();
    let without_row: Vec<_> = named.iter().filter(|name| !rows.contains(name)).collect();
    assert!(without_row.is_empty(), "no row in src/error/words.rs: {without_row:?}");
    let unused: Vec<_> = rows.iter().filter(|row| !named.contains(*row)).collect();
    assert!(unused.is_empty(), "rows of src/error/words.rs that nothing says: {unused:?}");
    assert_eq!(rows.iter().collect::<BTreeSet<_>>().len(), rows.len());
}

/// Each error names what mends it, but for those that only join others.
#[test]
fn every_error_names_its_mend() {
    // Inside other errors, or seen by nobody but the tests of the heap.
    let inside = [
        "operation {op} with",
        "half a frame",
        "the start was cancelled",
        "restoring was cancelled",
        "blocks of {",
        "extents of {",
        "a heap of {",
        "{extent_bytes} bytes at",
        "the extent of {",
    ];
    for Told { place, text, has_cause } in errors().iter().filter(|told| told.place.starts_with("src/")) {
        let has_mend = text.contains([';', '(', '?']) || text.ends_with('}');
        let is_inside = inside.iter().any(|begin| text.starts_with(begin));
        assert!(has_mend || *has_cause || is_inside, "no mend: {place}: {text}");
    }
}

/// The table of all errors and doors is as the sources say.
#[test]
fn the_table_of_errors_is_whole() {
    let mut table =
        String::from("# Every error, in the words of each door. `ONEREAD_BLESS=1` writes this file again.\n");
    for Told { place, text, .. } in errors() {
        let (command, python) = (said(Door::Command, &text), said(Door::Python, &text));
        let _ = writeln!(table, "\n{place}");
        if command == text && python == text {
            let _ = writeln!(table, "    all: {text}");
        } else {
            let _ = writeln!(table, "    library: {text}\n    command: {command}\n    python: {python}");
        }
    }
    let path = Path::new(&root()).join("tests/words.txt");
    if std::env::var_os("ONEREAD_BLESS").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs =
        table.lines().zip(kept.lines().chain(std::iter::repeat(""))).find(|(now, kept)| now != kept);
    assert_eq!(
        differs,
        None,
        "set ONEREAD_BLESS=1 to write {}, and look at what has changed",
        path.display()
    );
    assert_eq!(kept.len(), table.len(), "{} has more", path.display());
}
