//! What the demo puts: the names of all characters.

/// A key and its value.
pub type Named = (Vec<u8>, String);

/// `U+0041` and `LATIN CAPITAL LETTER A`, for every character that has a name of its own.
/// Ideographs and Hangul syllables are left out: their names are made from their numbers by rule.
pub fn character_names() -> Vec<Named> {
    ('\0'..=char::MAX)
        .filter_map(|c| Some((c, unicode_names2::name(c)?.to_string())))
        .filter(|(c, name)| {
            let by_rule =
                name.starts_with("HANGUL SYLLABLE ") || name.ends_with(&format!("-{:04X}", *c as u32));
            !by_rule
        })
        .map(|(c, name)| (format!("U+{:04X}", c as u32).into_bytes(), name))
        .collect()
}
