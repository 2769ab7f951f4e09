//! Rules of the source text: one type for each name, rule ids that exist, links that lead somewhere.
//! A program of its own: it is built quickly.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[path = "house/shape.rs"]
mod shape;

/// Names that several of the library's types have, with the reason.
const SHARED: [(&str, &str); 4] = [
    ("Encryption", "one with the cipher, and one that a build without the feature `encryption` has"),
    ("ClientTls", "one with rustls, and one that a build without the feature `tls` has"),
    ("ServerTls", "one with rustls, and one that a build without the feature `tls` has"),
    ("TlsSession", "one with rustls, and one that a build without the feature `tls` has"),
];

/// The files of a folder in Rust.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    assert!(folder.is_dir(), "{} is no folder", folder.display());
    files_of(folder, &["rs"], found);
}

/// The files of a folder, if there is one, with one of these extensions.
fn files_of(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_of(&path, extensions, found);
        } else if path.extension().is_some_and(|it| extensions.iter().any(|extension| it == *extension)) {
            found.push(path);
        }
    }
}

/// The type that a line declares. What `type` names inside something else belongs to that.
fn declared(line: &str) -> Option<&str> {
    let is_inside = line.starts_with(' ');
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (kind, rest) = line.split_once(' ')?;
    if !matches!(kind, "struct" | "enum" | "union" | "trait") && (kind != "type" || is_inside) {
        return None;
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end])
}

/// No two types of the library have the same name, those of its unit tests included, except for a stated reason.
#[test]
fn types_have_names_of_their_own() {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.len() > 50, "the library is not there");
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in found {
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let Some(name) = declared(line) else { continue };
            places.entry(name.into()).or_default().push(format!("{}:{}", file.display(), number + 1));
        }
    }
    assert!(places.contains_key("Geometry") && places.contains_key("Client"), "nothing is found");
    let shared: BTreeMap<_, _> = places.into_iter().filter(|(_, places)| places.len() > 1).collect();
    let without_reason: Vec<_> =
        shared.iter().filter(|(name, _)| SHARED.iter().all(|(known, _)| known != name)).collect();
    assert!(without_reason.is_empty(), "one name, several types: {without_reason:#?}");
    for (name, why) in SHARED {
        assert!(shared.contains_key(name) && !why.is_empty(), "{name} is shared no longer");
    }
}

/// The rule ids in a text: a letter, or CL of a cluster, and one or two digits, with no letter or digit next to them.
fn ids(text: &str) -> BTreeSet<String> {
    let is_id = |word: &&str| {
        let digits = word.strip_prefix("CL").or_else(|| word.strip_prefix(|c: char| c.is_ascii_uppercase()));
        digits.is_some_and(|digits| {
            (1..=2).contains(&digits.len()) && digits.chars().all(|digit| digit.is_ascii_digit())
        })
    };
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(is_id).map(str::to_owned).collect()
}

/// docs/PROTOCOL.md owns the rules, docs/CLUSTER.md those of a cluster, `models/heap.rs` those of the heap. Each rule that a
/// comment cites is there, of whatever family, and each rule there is cited by the code. Each switch that breaks a rule is named in that rule's row, and names the
/// rule's id in turn.
#[test]
fn rules_are_cited_by_their_ids() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let protocol = read("docs/PROTOCOL.md") + &read("docs/CLUSTER.md");
    let (hardware, heap) = (read("docs/HARDWARE.md"), read("models/heap.rs"));
    // The rows of the tables of rules: one or more ids, then the rule, and the switch last.
    let rows: Vec<(BTreeSet<String>, &str)> = protocol
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "))
        .map(|(first, rest)| (ids(first), rest.rsplit(" | ").next().unwrap_or_default()))
        .filter(|(ids, _)| !ids.is_empty())
        .collect();
    let mut known: BTreeSet<String> = rows.iter().flat_map(|(ids, _)| ids.clone()).collect();
    assert!(known.len() > 40, "the tables are not found: {known:?}");
    // The steps of a proof have ids, too.
    known.extend(protocol.lines().filter(|line| line.starts_with("* **G")).flat_map(ids));
    known.extend(ids(&heap).into_iter().filter(|id| id.starts_with('Y')));
    let assumptions = ids(&hardware);

    let mut found = Vec::new();
    files(&root.join("src"), &mut found);
    files(&root.join("cluster/src"), &mut found);
    let mut cited = BTreeSet::new();
    for file in found {
        let text = std::fs::read_to_string(&file).unwrap();
        let comments = text.lines().filter_map(|line| line.split_once("//")).map(|(_, comment)| comment);
        for id in comments.flat_map(ids) {
            assert!(known.contains(&id) || assumptions.contains(&id), "{}: no rule {id}", file.display());
            cited.insert(id);
        }
    }
    let silent: Vec<_> = known.difference(&cited).collect();
    assert!(silent.is_empty(), "no code says that it keeps {silent:?}");

    let (mut about, mut switches) = (BTreeSet::new(), 0);
    let faults = read("src/faults.rs");
    let rules = faults.split_once("pub enum Rule {").unwrap().1.split_once("\n}").unwrap().0;
    for line in rules.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("///") {
            about.extend(ids(comment));
            continue;
        }
        let switch = format!("`{}`", line.trim_end_matches(','));
        for id in std::mem::take(&mut about) {
            let names = |(ids, last): &(BTreeSet<String>, &str)| ids.contains(&id) && last.contains(&switch);
            assert!(rows.iter().any(names), "the row of {id} does not name {switch}");
            switches += 1;
        }
    }
    assert!(switches >= 35, "{switches} switches");
}

/// The imports of a file say what it uses. Only tests take all that the module around them has.
#[test]
fn imports_name_what_they_bring() {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    for file in found.iter().filter(|file| !file.to_string_lossy().ends_with("tests.rs")) {
        let text = std::fs::read_to_string(file).unwrap();
        // Unit tests are at the end of a file.
        let product = text.split("#[cfg(test)]\nmod ").next().unwrap();
        let all = product.lines().find(|line| line.starts_with("use super::") && line.ends_with("*;"));
        assert!(all.is_none(), "{}: {all:?}", file.display());
    }
}

/// What begins a first sentence in lower case: names that are written so.
const NAMES: [&str; 9] =
    ["etcd ", "etcd,", "etcd'", "iWARP ", "systemd", "eRPC ", "rapidhash ", "s3-fifo ", "libibverbs,"];

/// The first paragraph of each comment that is a doc, with the line where it begins.
fn first_paragraphs(text: &str) -> Vec<(usize, String)> {
    let doc = |line: &str| -> Option<String> {
        let line = line.trim_start();
        let rest = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
        (!rest.starts_with('/')).then(|| rest.trim().to_owned())
    };
    let docs: Vec<_> = text.lines().map(doc).collect();
    let begins = |at: &usize| docs[*at].is_some() && (*at == 0 || docs[at - 1].is_none());
    let paragraph = |at: usize| {
        let lines = docs[at..].iter().map_while(Option::as_deref).take_while(|line| !line.is_empty());
        (at + 1, lines.collect::<Vec<_>>().join(" "))
    };
    (0..docs.len()).filter(begins).map(paragraph).collect()
}

/// The first paragraph of a doc is one of whole sentences. Help of the command's arguments has no full stop.
#[test]
fn docs_begin_with_a_whole_sentence() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    ["", "kit", "lab", "cli", "prefix", "indexer", "cluster", "python"]
        .into_iter()
        .for_each(|package| files(&root.join(package).join("src"), &mut found));
    let (mut seen, mut wrong) = (0, Vec::new());
    for file in found {
        let text = std::fs::read_to_string(&file).unwrap();
        let is_help = text.contains("clap");
        for (line, paragraph) in first_paragraphs(&text) {
            let begins = paragraph
                .starts_with(|c: char| c.is_uppercase() || c.is_ascii_digit() || "`[(*\"".contains(c))
                || ["...", "|", "{"].iter().chain(&NAMES).any(|name| paragraph.starts_with(name));
            let ends = is_help || paragraph.ends_with(['.', ':', '?', '!', ')', '|', '`']);
            if !begins || !ends {
                wrong.push(format!("{}:{line}: {paragraph}", file.display()));
            }
            seen += 1;
        }
    }
    assert!(seen > 10_000, "{seen} docs");
    assert!(wrong.is_empty(), "no whole sentences:\n{}", wrong.join("\n"));
}

/// No comment begins with *the same*: as what? It says what it is about. Python's docstrings, too.
#[test]
fn comments_say_what_they_are_about() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for package in ["", "kit", "lab", "cli", "prefix", "indexer", "cluster", "python"] {
        for folder in ["src", "tests", "benches", "examples", "oneread", "bench"] {
            files_of(&root.join(package).join(folder), &["rs", "py"], &mut found);
        }
    }
    ["models", "fuzz"].iter().for_each(|folder| files_of(&root.join(folder), &["rs"], &mut found));
    assert!(found.len() > 800, "{} files", found.len());
    let wrong: Vec<_> = found
        .iter()
        .flat_map(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            let same = |line: &str| {
                let line = line.trim_start();
                let comment = ["//", "#", "\"\"\""].iter().find_map(|begin| line.strip_prefix(begin));
                comment.is_some_and(|c| c.trim_start_matches(['/', '!', ' ']).starts_with("The same"))
            };
            let lines = text.lines().enumerate().filter(|(_, line)| same(line)).map(|(at, _)| at + 1);
            lines.map(|at| format!("{}:{at}", file.display())).collect::<Vec<_>>()
        })
        .collect();
    assert!(wrong.is_empty(), "comments that begin with *the same*:\n{}", wrong.join("\n"));
}

/// Definitions of links stand at the end of a page: elsewhere they are text, or end a list.
#[test]
fn definitions_of_links_stand_at_the_end() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let docs = docs.filter(|page| page.extension().is_some_and(|extension| extension == "md"));
    let mut seen = 0;
    for page in docs.chain(["README.md", "CONTRIBUTING.md"].map(|name| root.join(name))) {
        let text = std::fs::read_to_string(&page).unwrap();
        let is_definition = |line: &&str| line.starts_with('[') && line.contains("]: ");
        let mut above = text.lines().rev().skip_while(|line| is_definition(line) || line.is_empty());
        let wrong = above.find(is_definition);
        assert!(wrong.is_none(), "{}: {wrong:?} stands above the end", page.display());
        seen += text.lines().filter(is_definition).count();
    }
    assert!(seen > 50, "{seen} definitions");
}

/// The texts of `docs/` are also pages of the crate's documentation. There `src/docs/links.md` says where their
/// links lead, so it has every label that they define (`src/docs/mod.rs`).
#[test]
fn links_of_the_docs_lead_somewhere_in_the_crates_documentation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let labels = |text: &str| -> BTreeSet<String> {
        let definition = |line: &'_ str| {
            line.strip_prefix('[')?.split_once("]: ").map(|(a, b)| (a.to_owned(), b.to_owned()))
        };
        let here = text.lines().filter_map(definition).filter(|(_, target)| !target.starts_with("https://"));
        here.map(|(label, _)| label).collect()
    };
    let known = labels(&read("src/docs/links.md"));
    let included = read("src/docs/mod.rs");
    let pages = included
        .lines()
        .filter_map(|line| line.strip_prefix("#[doc = include_str!(\"../../")?.strip_suffix("\")]"));
    let pages: Vec<&str> = pages.collect();
    assert!(pages.len() > 10, "{pages:?}");
    for page in pages {
        let text = read(page);
        let unknown: Vec<_> = labels(&text).difference(&known).cloned().collect();
        assert!(unknown.is_empty(), "{page}: src/docs/links.md has no {unknown:?}");
        let inline = text.match_indices("](").map(|(at, _)| &text[at + 2..]);
        for target in inline.map(|rest| rest.split(')').next().unwrap_or_default()) {
            let is_page = target.contains(".md") || target.contains(".rs");
            assert!(
                !is_page || target.starts_with("https://"),
                "{page}: link to {target} by a label instead"
            );
        }
        // Blocks of code that a browser shows whole, beside the list of pages. Lines with `# ` are hidden there.
        let mut is_code = false;
        for line in text.lines() {
            is_code ^= line.starts_with("```");
            let columns = line.chars().count();
            assert!(!is_code || columns <= 95 || line.starts_with("# "), "{page}: {columns} columns: {line}");
        }
    }
}

/// The oldest Rust that builds it is the same wherever it is named.
#[test]
fn the_oldest_rust_is_named() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for path in ["src/lib.rs", "docs/OPERATIONS.md"] {
        let text = std::fs::read_to_string(root.join(path)).unwrap();
        let named = concat!(env!("CARGO_PKG_RUST_VERSION"), " or newer");
        assert!(text.contains(named), "{path}: no \"{named}\"");
    }
}

/// A program of several files has all that lie beside its `main.rs`: cargo does not look for them.
#[test]
fn every_file_of_tests_is_built() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for tests in ["tests", "cli/tests", "prefix/tests", "cluster/tests"] {
        let mut found = Vec::new();
        files(&root.join(tests), &mut found);
        for main in found.iter().filter(|file| file.ends_with("main.rs")) {
            let text = std::fs::read_to_string(main).unwrap();
            for file in found.iter().filter(|file| file.parent() == main.parent() && *file != main) {
                let stem = file.file_stem().unwrap().to_str().unwrap();
                let is_named =
                    text.contains(&format!("mod {stem};")) || text.contains(&format!("/{stem}.rs\""));
                assert!(is_named, "{} is in no program: name it in {}", file.display(), main.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "{seen} files");
}

/// `./test` names all programs of tests: those that run beside the others, and those.
#[test]
fn no_test_is_left_out() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = std::fs::read_to_string(root.join("test")).unwrap();
    let words = |name: &str| -> Vec<&str> {
        let lists = [format!("{name}=("), format!("{name}+=(")]
            .map(|begin| script.split(&begin).skip(1).collect::<Vec<_>>());
        lists.concat().iter().flat_map(|list| list.split(')').next().unwrap().split_whitespace()).collect()
    };
    let named = [words("computing"), words("waiting"), words("clusters")].concat();
    let named: Vec<&str> = named.into_iter().filter(|word| !word.starts_with('"')).collect();
    let mut programs = BTreeSet::new();
    for package in ["", "cli", "prefix", "indexer", "cluster", "kit", "lab"] {
        let package = root.join(package);
        // What cargo finds by itself: a file, or a folder with its `main.rs`.
        let tests =
            std::fs::read_dir(package.join("tests")).into_iter().flatten().map(|entry| entry.unwrap().path());
        let is_program = |path: &PathBuf| {
            path.join("main.rs").exists() || path.extension().is_some_and(|extension| extension == "rs")
        };
        programs.extend(
            tests.filter(is_program).map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()),
        );
        let manifest = std::fs::read_to_string(package.join("Cargo.toml")).unwrap();
        let stated = manifest.split("\n[[test]]\nname = \"").skip(1);
        programs.extend(stated.map(|rest| rest.split('"').next().unwrap().to_owned()));
    }
    assert!(programs.len() > 15, "{programs:?}");
    assert_eq!(programs, named.iter().map(|name| name.to_string()).collect(), "what ./test runs");
    assert_eq!(programs.len(), named.len(), "each is run once");
}
