//! The shape of the source text: how long its files are, and which of them need each other. What it counts is
//! printed: `cargo test --test house shape -- --nocapture`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The packages, by the folder of their sources.
const PACKAGES: [&str; 8] =
    ["src", "kit/src", "lab/src", "cli/src", "prefix/src", "indexer/src", "cluster/src", "python/src"];

/// The most lines of a file without its tests.
const LINES_MAX: usize = 900;

/// The most circles of files that a package may have.
const CIRCLES_MAX: [(&str, usize); 2] = [("cli/src", 1), ("cluster/src", 1)];

/// One file of product code.
struct Source {
    path: PathBuf,
    /// Where it is in its crate's tree of modules.
    module: Vec<String>,
    /// Its text without tests, and with comments and texts left blank.
    code: String,
    /// Its lines without tests.
    lines: usize,
}

/// The text with comments, and what stands in quotes, left blank. Lines stay where they are.
fn without_words(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    // Where what begins here ends, if it is to be left out.
    let end_of = |rest: &str| -> Option<usize> {
        let quoted =
            |from: usize, end: &str| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
        if rest.starts_with("//") {
            return Some(rest.find('\n').unwrap_or(rest.len()));
        }
        if rest.starts_with("/*") {
            return Some(quoted(2, "*/"));
        }
        let hashes = rest.strip_prefix('r').map(|raw| raw.len() - raw.trim_start_matches('#').len());
        if let Some(hashes) = hashes.filter(|hashes| rest[1 + hashes..].starts_with('"')) {
            return Some(quoted(2 + hashes, &format!("\"{}", "#".repeat(hashes))));
        }
        if rest.starts_with('"') {
            let mut is_escaped = false;
            let end = rest.char_indices().skip(1).find(|(_, c)| {
                let ends = *c == '"' && !is_escaped;
                is_escaped = *c == '\\' && !is_escaped;
                ends
            });
            return Some(end.map_or(rest.len(), |(at, _)| at + 1));
        }
        // A character, and no lifetime.
        let mut letters = rest.strip_prefix('\'')?.chars();
        match (letters.next()?, letters.next()?) {
            ('\\', escaped) => Some(3 + escaped.len_utf8() + rest[2 + escaped.len_utf8()..].find('\'')?),
            (letter, '\'') => Some(2 + letter.len_utf8()),
            _ => None,
        }
    };
    let mut before = ' ';
    while let Some(next) = rest.chars().next() {
        let is_inside = next == 'r' && (before.is_alphanumeric() || before == '_');
        let end = if is_inside { None } else { end_of(rest) };
        let taken = end.unwrap_or(next.len_utf8());
        match end {
            Some(end) => code.extend(rest[..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' })),
            None => code.push(next),
        }
        before = next;
        rest = &rest[taken..];
    }
    code
}

/// Where an item that begins at `from` ends: behind its `;`, or behind the brace that closes it.
fn end_of_item(code: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code[from..].char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '}' if depth <= 1 => return from + at + 1,
            '}' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => return from + at + 1,
            _ => {}
        }
    }
    code.len()
}

/// The parts that are compiled for tests only.
fn tests_in(code: &str) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for mark in ["#[cfg(test)]", "#[cfg(all(test", "#[cfg(loom)]", "#[cfg(all(loom"] {
        for (at, _) in code.match_indices(mark) {
            // Other attributes may follow; each is in brackets.
            let mut item = at;
            while code[item..].trim_start().starts_with("#[") {
                item += code[item..].find('[').unwrap();
                let mut depth = 0_usize;
                let closed = code[item..].char_indices().find(|(_, c)| {
                    depth += usize::from(*c == '[');
                    depth = depth.saturating_sub(usize::from(*c == ']'));
                    depth == 0
                });
                item += closed.map_or(0, |(at, _)| at + 1);
            }
            found.push(at..end_of_item(code, item));
        }
    }
    found
}

/// Leaves out what is compiled for tests only.
fn without_tests(text: &str) -> (String, String) {
    let code = without_words(text);
    let tests = tests_in(&code);
    // Left blank, whatever a character's length is: lines stay where they are.
    let blank = |whole: &str| -> String {
        let kept = whole
            .char_indices()
            .map(|(at, c)| if c != '\n' && tests.iter().any(|test| test.contains(&at)) { ' ' } else { c });
        kept.collect()
    };
    // Both have the same lines, but not the same bytes: a test's first and last line are found in each.
    let lines_of = |range: &std::ops::Range<usize>| {
        let line = |at: usize| code[..at].matches('\n').count();
        line(range.start)..=line(range.end.saturating_sub(1))
    };
    let left_out: BTreeSet<usize> = tests.iter().flat_map(lines_of).collect();
    let kept = text.lines().enumerate().filter(|(line, _)| !left_out.contains(line));
    (blank(&code), kept.map(|(_, line)| format!("{line}\n")).collect())
}

/// The modules that are compiled for tests only, as far as their file says so.
fn is_of_tests(path: &Path) -> bool {
    path.components().any(|part| {
        let name = part.as_os_str().to_str().unwrap_or_default();
        let name = name.strip_suffix(".rs").unwrap_or(name);
        name == "tests" || name.ends_with("_tests")
    })
}

fn sources(package: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    super::files(package, &mut found);
    found.sort();
    let product = found.into_iter().filter(|path| !is_of_tests(path.strip_prefix(package).unwrap()));
    let source = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let (code, kept) = without_tests(&text);
        let inside = path.strip_prefix(package).unwrap().with_extension("");
        let mut module: Vec<String> =
            inside.components().map(|part| part.as_os_str().to_str().unwrap().to_owned()).collect();
        if module.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
            module.pop();
        }
        Source { path, module, code, lines: kept.lines().count() }
    };
    product.map(source).collect()
}

/// Lines that are neither blank nor comment nor test.
fn lines_of_code(source: &Source) -> usize {
    source.code.lines().filter(|line| !line.trim().is_empty()).count()
}

/// How much there is, by folder.
#[test]
fn lines_are_counted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut whole = 0;
    for package in PACKAGES {
        let sources = sources(&root.join(package));
        let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
        for source in &sources {
            let inside = source.path.strip_prefix(root.join(package)).unwrap();
            let room = if inside.components().count() > 1 { source.module[0].as_str() } else { "(top)" };
            *rooms.entry(room.to_owned()).or_default() += lines_of_code(source);
        }
        let sum: usize = rooms.values().sum();
        println!("{package}: {sum} lines of code, {} files", sources.len());
        rooms.iter().for_each(|(room, lines)| println!("    {room}: {lines}"));
        whole += sum;
    }
    println!("all: {whole}");
    assert!(whole > 50_000, "{whole} lines: the sources are not there");
}

/// No file is longer than one can hold in mind.
#[test]
fn files_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let all: Vec<Source> = PACKAGES.iter().flat_map(|package| sources(&root.join(package))).collect();
    let long: Vec<_> = all
        .iter()
        .filter(|source| source.lines > LINES_MAX)
        .map(|source| format!("{}: {} lines", source.path.display(), source.lines))
        .collect();
    assert!(all.len() > 300, "{} files", all.len());
    assert!(long.is_empty(), "over {LINES_MAX} lines without tests:\n{}", long.join("\n"));
}

/// The paths that a tree of imports names: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand(tree: &str, before: &[String], paths: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    if let Some((head, inside)) = tree.split_once('{') {
        let mut path = before.to_vec();
        path.extend(head.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned));
        let inside = inside.rsplit_once('}').map_or(inside, |(inside, _)| inside);
        let (mut depth, mut from) = (0_usize, 0);
        for (at, c) in inside.char_indices().chain([(inside.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => {
                    let one = inside[from..at].trim();
                    from = (at + 1).min(inside.len());
                    if !one.is_empty() {
                        expand(one, &path, paths);
                    }
                }
                _ => {}
            }
        }
        return;
    }
    let tree = tree.split(" as ").next().unwrap();
    let mut path = before.to_vec();
    path.extend(tree.split("::").map(|part| part.trim().to_owned()).filter(|part| part != "self"));
    paths.push(path);
}

/// The `use` declarations of a text: whether others see the names, and the paths.
fn imports(code: &str) -> Vec<(bool, Vec<Vec<String>>)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].trim_end_matches(' ');
        let line = before.rsplit('\n').next().unwrap().trim();
        if !line.is_empty() && !line.starts_with("pub") {
            continue;
        }
        let Some(end) = code[at..].find(';') else { continue };
        let mut paths = Vec::new();
        expand(&code[at + 4..at + end], &[], &mut paths);
        found.push((line.starts_with("pub"), paths));
    }
    found
}

/// The code without its imports.
fn without_imports(code: &str) -> String {
    let is_import = |part: &&str| {
        let line = part.trim_start().rsplit('\n').next().unwrap();
        let line = part.lines().rfind(|line| line.trim_start().contains("use ")).unwrap_or(line).trim_start();
        line.starts_with("use ") || (line.starts_with("pub") && line.contains(" use "))
    };
    code.split_inclusive(';').filter(|part| !is_import(part)).collect()
}

/// The paths in the code itself that begin with `crate::`, `super::`, or the name of a module.
fn paths_in(code: &str, is_module: impl Fn(&str) -> bool) -> Vec<Vec<String>> {
    // Who may see a name is not what it needs.
    let parts = code.split("pub(in ").enumerate();
    let seen = parts
        .map(|(at, part)| if at == 0 { part } else { part.split_once(')').map_or("", |(_, rest)| rest) });
    let words = seen.flat_map(|part| part.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':'));
    let words = words.filter(|word| word.contains("::"));
    let path = |word: &str| -> Option<Vec<String>> {
        let parts: Vec<String> =
            word.split("::").map(str::to_owned).filter(|part| !part.is_empty()).collect();
        let first = parts.first()?;
        let begins = !word.starts_with("::") && (first == "crate" || first == "super" || is_module(first));
        (parts.len() > 1 && begins).then_some(parts)
    };
    words.filter_map(path).collect()
}

/// Which file needs which, and for what.
struct Needs<'a> {
    sources: &'a [Source],
    by_module: BTreeMap<&'a [String], usize>,
}

impl Needs<'_> {
    /// The path from the crate's top.
    fn absolute(&self, from: &Source, path: &[String]) -> Option<Vec<String>> {
        let mut at = from.module.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (at, rest) = (Vec::new(), &path[1..]),
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            // A module below; another crate otherwise.
            first => {
                at.push(first.to_owned());
                self.by_module.get(at.as_slice())?;
                rest = &path[1..];
            }
        }
        at.extend(rest.iter().cloned());
        Some(at)
    }

    /// The file that declares what a path names. Who only hands a name on is not meant.
    fn declares(&self, path: &[String], depth: usize) -> Option<usize> {
        let inside = (0..=path.len()).rev().find(|end| self.by_module.contains_key(&path[..*end]))?;
        let file = self.by_module[&path[..inside]];
        let Some(name) = path.get(inside) else { return Some(file) };
        if depth == 0 {
            return Some(file);
        }
        let source = &self.sources[file];
        for (is_public, paths) in imports(&source.code) {
            for handed in paths.iter().filter(|_| is_public) {
                let (Some(last), Some(target)) = (handed.last(), self.absolute(source, handed)) else {
                    continue;
                };
                if last == name {
                    let deeper = [target.as_slice(), &path[inside + 1..]].concat();
                    return self.declares(&deeper, depth - 1);
                }
                if last == "*" {
                    let glob = [&target[..target.len() - 1], std::slice::from_ref(name)].concat();
                    let there = self.declares(&glob, depth - 1).filter(|there| *there != file);
                    let has = |there: usize| {
                        let words =
                            ["struct", "enum", "trait", "fn", "const", "type", "static", "macro_rules!"];
                        words.iter().any(|word| {
                            let declared = format!("{word} {name}");
                            let found = self.sources[there].code.match_indices(&declared);
                            let mut ends =
                                found.map(|(at, _)| &self.sources[there].code[at + declared.len()..]);
                            ends.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
                        })
                    };
                    if let Some(there) = there.filter(|there| has(*there)) {
                        return Some(there);
                    }
                }
            }
        }
        Some(file)
    }

    /// Where one file's names come from.
    fn of(&self, from: usize) -> Needed {
        let source = &self.sources[from];
        // What a file only hands on, it does not need.
        let own = imports(&source.code)
            .into_iter()
            .filter(|(is_public, _)| !is_public)
            .flat_map(|(_, paths)| paths);
        let own: Vec<Vec<String>> = own.filter_map(|path| self.absolute(source, &path)).collect();
        // A module that is imported is needed for what its name stands before.
        let (modules, names): (Vec<_>, Vec<_>) =
            own.into_iter().partition(|path| self.by_module.contains_key(path.as_slice()));
        let mut heads: BTreeMap<&str, &[String]> = BTreeMap::new();
        let depth = source.module.len();
        let below = self
            .by_module
            .keys()
            .filter(|module| module.len() == depth + 1 && module.starts_with(&source.module));
        for module in
            below.copied().chain(modules.iter().map(Vec::as_slice)).filter(|module| !module.is_empty())
        {
            heads.insert(module[module.len() - 1].as_str(), module);
        }
        let code = without_imports(&source.code);
        let inside = paths_in(&code, |head| heads.contains_key(head));
        let inside = inside.into_iter().filter_map(|path| match heads.get(path[0].as_str()) {
            Some(module) => Some([*module, &path[1..]].concat()),
            None => self.absolute(source, &path),
        });
        let mut needs = Needed::new();
        for path in names.into_iter().chain(inside) {
            if let Some(there) = self.declares(&path, 8).filter(|there| *there != from) {
                needs.entry(there).or_default().insert(path.last().cloned().unwrap_or_default());
            }
        }
        needs
    }
}

/// What a file needs: other files, each with the names that come from there.
type Needed = BTreeMap<usize, BTreeSet<String>>;

/// Groups of files of which each needs, over some steps, each other; and what each file needs.
fn circles(sources: &[Source]) -> (Vec<Vec<usize>>, Vec<Needed>) {
    let by_module = sources.iter().enumerate().map(|(at, source)| (source.module.as_slice(), at)).collect();
    let needs = Needs { sources, by_module };
    let edges: Vec<Needed> = (0..sources.len()).map(|from| needs.of(from)).collect();
    let reach = |from: usize| -> BTreeSet<usize> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            open.extend(edges[at].keys().filter(|next| seen.insert(**next)));
        }
        seen
    };
    let reached: Vec<BTreeSet<usize>> = (0..sources.len()).map(reach).collect();
    let mut found: Vec<Vec<usize>> = Vec::new();
    for from in 0..sources.len() {
        if reached[from].contains(&from) && !found.iter().any(|circle| circle.contains(&from)) {
            found.push(reached[from].iter().copied().filter(|at| reached[*at].contains(&from)).collect());
        }
    }
    (found, edges)
}

/// No two files need each other, not even over others, but in as many circles as are known.
#[test]
fn files_do_not_go_in_circles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut arrows, mut too_many) = (0, Vec::new());
    for package in PACKAGES {
        let sources = sources(&root.join(package));
        let (found, edges) = circles(&sources);
        arrows += edges.iter().map(BTreeMap::len).sum::<usize>();
        let most = CIRCLES_MAX.iter().find(|(known, _)| *known == package).map_or(0, |(_, most)| *most);
        too_many.extend((found.len() > most).then_some(package));
        for circle in found {
            println!("{package}: a circle of {} files", circle.len());
            let inside = |from: usize| edges[from].iter().filter(|(there, _)| circle.contains(there));
            for (from, (there, names)) in
                circle.iter().flat_map(|from| inside(*from).map(move |it| (*from, it)))
            {
                let [from, there] =
                    [from, *there].map(|at| sources[at].path.strip_prefix(root).unwrap().display());
                println!("    {from} -> {there}: {names:?}");
            }
        }
    }
    println!("{arrows} arrows");
    assert!(arrows > 1_000, "{arrows} arrows: the imports are not read");
    assert!(too_many.is_empty(), "more circles than before: {too_many:?}");
}
