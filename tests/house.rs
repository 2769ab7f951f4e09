//! What a reader relies on who finds their way by names: one type for each name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Names that several types of the library have, and why.
const SHARED: [(&str, &str); 0] = [];

/// The library's files: not the command's.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("cli") {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// The type that a line at the top level of a file, or of a module in it, declares.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (kind, rest) = line.split_once(' ')?;
    if !matches!(kind, "struct" | "enum" | "union" | "trait" | "type") {
        return None;
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end])
}

/// No two types of the library have one name, but those with a reason.
#[test]
fn types_have_names_of_their_own() {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.len() > 50, "the library is not there");
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in found {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut trait_or_impl = false;
        // Unit tests stand last in a file.
        for (number, line) in text.lines().take_while(|line| *line != "mod tests {").enumerate() {
            // Types of a trait or of its implementation belong to the trait.
            if !line.starts_with([' ', '}']) && !line.is_empty() {
                let words = || line.split([' ', '<', '(']);
                trait_or_impl = words().any(|word| word == "impl" || word == "trait");
            }
            let Some(name) = declared(line) else { continue };
            if trait_or_impl && line.starts_with(' ') {
                continue;
            }
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
