//! What people type who know another store: the command or the option that does it here.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What users of Redis type, and what to type instead.
const COMMANDS: [(&[&str], &str); 17] = [
    (&["mget"], "`oneread get` takes several keys"),
    (&["setnx"], "`oneread put --insert KEY VALUE` puts only keys that are absent"),
    (&["mset"], "`oneread load FILE` puts many keys"),
    (
        &["import"],
        "`oneread load FILE` puts many keys; what a cache of diskcache's has, `python -m oneread import diskcache DIRECTORY` \
         takes over: that is in the Python package",
    ),
    (&["list", "export"], "`oneread scan --values` prints all keys and values"),
    (&["exists", "strlen"], "`oneread get KEY` has exit status 1 if the key is absent"),
    (&["dbsize", "status"], "`oneread stat` counts keys and changes, --watch again and again"),
    (&["monitor", "subscribe", "psubscribe"], "`oneread watch` prints changes as they come"),
    (&["shutdown"], "`oneread stop` stops the server"),
    (&["start", "server"], "`oneread serve --daemonize` starts a server in the background"),
    (&["save", "bgsave"], "`oneread snapshot` has the server write all keys into a file"),
    (&["flushall", "flushdb"], "`oneread clear --yes` removes all keys"),
    (&["ttl", "setex"], "`oneread put --ttl 10s` puts a key that ends, in a table of `oneread serve --life`"),
    (
        &["expire", "persist"],
        "`oneread touch KEY --ttl 10s` sets when a key ends, and without --ttl takes that away",
    ),
    (&["incrby", "decr", "decrby"], "`oneread incr KEY -1` takes 1 away, and `oneread incr KEY 5` adds 5"),
    (&["setbit"], "`oneread or KEY BITS` sets bits, and `oneread and-not` clears them"),
    (&["getset", "cas"], "`oneread put --if-value OLD KEY NEW` changes a value if nobody else has"),
];

/// What only a build with a cargo feature has. Clap knows these names there, and asks nobody for advice.
const FEATURES: [(&str, &str); 6] = [
    ("bench", "lab"),
    ("layouts", "lab"),
    ("plan", "lab"),
    ("man", "man"),
    ("--metrics", "metrics"),
    ("kv-indexer", "kv-indexer"),
];

/// The advice on what this build was made without.
fn lacking(given: &str) -> Option<String> {
    let (_, feature) = FEATURES.iter().find(|(name, _)| *name == given)?;
    Some(format!(
        "`{given}` is in a build with the cargo feature `{feature}`, which this one was made without: cargo install \
         --path cli --locked --features {feature}"
    ))
}

const PLACES: [&str; 7] = ["--port", "-p", "--host", "--bind", "--socket", "-s", "--unixsocket"];

/// The advice on what clap did not understand.
pub fn advice(error: &clap::Error) -> Option<String> {
    let of = |kind| match error.get(kind) {
        Some(ContextValue::String(given)) => Some(given.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let given = of(ContextKind::InvalidSubcommand)?.to_lowercase();
            let known = COMMANDS.iter().find(|(names, _)| names.contains(&given.as_str()));
            lacking(&given).or_else(|| known.map(|(_, advice)| (*advice).to_owned()))
        }
        ErrorKind::UnknownArgument => match of(ContextKind::InvalidArg)? {
            given if !given.starts_with('-') => Some("a key or a value with spaces in it needs quotes".into()),
            given if PLACES.contains(&given) => Some(
                "a server is named by --at: shm:PATH, the path of its socket, on this host, where it has no port; \
                 verbs://HOST:PORT over RDMA"
                    .into(),
            ),
            given => lacking(given),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::{CommandFactory, Parser};

    /// What a feature of the build brings is either there, or the advice says which build has it.
    #[test]
    fn what_a_feature_brings_is_there_or_named() {
        for (name, feature) in FEATURES {
            let has_it = match feature {
                "lab" => cfg!(feature = "lab"),
                "man" => cfg!(feature = "man"),
                "kv-indexer" => cfg!(feature = "kv-indexer"),
                _ => cfg!(feature = "metrics"),
            };
            let words = match name.starts_with('-') {
                true => vec!["oneread", "serve", name, "127.0.0.1:0", "--unknown"],
                false => vec!["oneread", name, "--unknown"],
            };
            let error = Cli::try_parse_from(words).unwrap_err();
            let advice = super::advice(&error);
            if has_it {
                assert_eq!((error.kind(), advice), (ErrorKind::UnknownArgument, None), "{name}");
            } else {
                assert!(advice.unwrap().contains(&format!("the cargo feature `{feature}`")), "{name}");
            }
        }
    }

    /// The advice names a command that is there, and none of what is typed is one.
    #[test]
    fn advice_names_commands() {
        let command = Cli::command();
        for (names, advice) in COMMANDS {
            let named = advice.split("`oneread ").nth(1).and_then(|rest| rest.split([' ', '`']).next());
            assert!(command.find_subcommand(named.unwrap()).is_some(), "{advice}");
            for name in names {
                let error = Cli::try_parse_from(["oneread", &name.to_uppercase()]).unwrap_err();
                assert_eq!(super::advice(&error).as_deref(), Some(advice), "{name}");
            }
        }
        for place in PLACES {
            let error = Cli::try_parse_from(["oneread", "get", "k", place, "7471"]).unwrap_err();
            assert!(super::advice(&error).is_some_and(|advice| advice.contains("--at")), "{place}: {error}");
        }
        let error = Cli::try_parse_from(["oneread", "put", "my", "key", "value"]).unwrap_err();
        assert!(super::advice(&error).unwrap().contains("needs quotes"), "{error}");
        for other in [&["oneread", "pot"][..], &["oneread", "get", "--hax"], &["oneread", "get"]] {
            assert_eq!(super::advice(&Cli::try_parse_from(other).unwrap_err()), None);
        }
    }
}
