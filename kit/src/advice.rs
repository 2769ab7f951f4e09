//! What the command adds to the library's errors: the flag or the command that mends them.

#[cfg(feature = "verbs")]
use oneread::error::{GidMismatch, LinkError, SetupError, VerbsError};
use oneread::internals::files;
use oneread::internals::words::{self, Door};
use oneread::{
    Address, AskError, ConnectError, FeedError, GetError, MutateError, RequestPath, ServeError,
    error::{ConfigError, PutError, RecoverError, Refusal, RestoreError, SnapshotError, SuperblockError},
};
use std::error::Error;
use std::fmt::Display;

/// An error, its causes, and the advice on it.
pub fn told(error: &anyhow::Error) -> String {
    let text = in_options(&format_args!("{error:#}"));
    match error.chain().find_map(on) {
        Some(advice) => format!("{text}; {advice}"),
        None => text,
    }
}

/// An error of the library in the command's words.
pub fn in_options(error: &impl Display) -> String {
    words::said(Door::Command, &error.to_string())
}

/// The advice on one error of a chain. An error that stands for another one (`transparent`) hides it
/// from the chain, so the other one is looked up here.
fn on(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(GetError::Connect(error)) = error.downcast_ref() {
        return on_connect(error);
    }
    if let Some(MutateError::Connect(error)) = error.downcast_ref() {
        return on_connect(error);
    }
    if let Some(AskError::Connect(error)) = error.downcast_ref() {
        return on_connect(error);
    }
    if let Some(FeedError::Ask(AskError::Connect(error))) = error.downcast_ref() {
        return on_connect(error);
    }
    if let Some(error) = error.downcast_ref() {
        return on_connect(error);
    }
    if let Some(RecoverError::Superblock(error)) = error.downcast_ref() {
        return on_superblock(error);
    }
    if let Some(error) = error.downcast_ref() {
        return on_superblock(error);
    }
    let restoring = match error.downcast_ref() {
        Some(RestoreError::Snapshot(error)) => Some(error),
        _ => error.downcast_ref(),
    };
    if let Some(SnapshotError::Cut { .. } | SnapshotError::Damaged { .. }) = restoring {
        return Some("`oneread restore --damaged` puts that into a running server".into());
    }
    match error.downcast_ref() {
        Some(RestoreError::TooLong { what, given, .. }) => {
            return Some(format!("as by --{what}-max {given}"));
        }
        Some(RestoreError::Full { source: PutError::HeapFull { .. }, .. }) => {
            return Some("as by --heap, or by --max-memory without --capacity".into());
        }
        Some(RestoreError::Life) => return Some("as by --life".into()),
        Some(RestoreError::Owners) => return Some("as by --owners".into()),
        Some(RestoreError::TooMany { keys, .. } | RestoreError::Full { keys, .. }) => {
            return Some(format!("as by --capacity {keys}"));
        }
        _ => {}
    }
    let config = match error.downcast_ref() {
        Some(ServeError::Config(error)) => Some(error),
        _ => error.downcast_ref(),
    };
    if let Some(ConfigError::TooSmall { need, .. }) = config {
        return Some(format!("as by --max-memory {need}"));
    }
    match error.downcast_ref() {
        Some(ServeError::NotBuilt { .. }) => return Some(BUILD.into()),
        #[cfg(feature = "verbs")]
        Some(ServeError::Verbs(error)) => return on_setup(error),
        _ => {}
    }
    #[cfg(feature = "verbs")]
    if let Some(LinkError::Verbs(VerbsError::Setup(error))) = error.downcast_ref() {
        return on_setup(error);
    }
    None
}

const BUILD: &str = "cargo build --release --features verbs";

fn on_connect(error: &ConnectError) -> Option<String> {
    Some(match error {
        ConnectError::NotThere { address: address @ Address::Tcp(_), .. } => format!(
            "start one on that host with `oneread serve --listen {address}`, beside its other address, or name another one with --at"
        ),
        ConnectError::NotThere { address, .. } => {
            format!(
                "start one with `oneread serve --at {address}`, or name another address with --at; --wait 5s waits for one that is starting"
            )
        }
        ConnectError::TurnedAway { source: Refusal::User { uid: files::UNMAPPED }, .. } => {
            format!("`oneread serve --allow-uid {}` would let all of them in", files::UNMAPPED)
        }
        ConnectError::TurnedAway { source: Refusal::User { uid }, .. } => {
            format!("`oneread serve --allow-uid {uid}` lets that user in")
        }
        ConnectError::Stranger { uid, .. } => format!("as by --server-user {uid}"),
        ConnectError::RequestPath { path: RequestPath::Mailbox, .. } => {
            "`oneread serve --mailbox-max SIZE` gives it room for more mailboxes".into()
        }
        ConnectError::NotBuilt { .. } => BUILD.into(),
        #[cfg(feature = "verbs")]
        ConnectError::Verbs(error) => return on_setup(error),
        _ => return None,
    })
}

fn on_superblock(error: &SuperblockError) -> Option<String> {
    Some(match error {
        SuperblockError::Magic { .. } => "`oneread serve` makes such files".into(),
        SuperblockError::Version { .. } => {
            "`oneread dump` with that release, and `oneread load` with this one, keep its keys; `oneread serve --fresh`, or `oneread regions --remove FILE`, removes it".into()
        }
        _ => return None,
    })
}

#[cfg(feature = "verbs")]
fn on_setup(error: &SetupError) -> Option<String> {
    const EACCES: i32 = rustix::io::Errno::ACCESS.raw_os_error();
    const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
    Some(match error {
        SetupError::NoDevice { .. } | SetupError::Call { errno: EACCES | EPERM, .. } => {
            "`oneread doctor` tells more".into()
        }
        SetupError::NotThere { address, .. } => {
            format!("start one there with `oneread serve --at verbs://{address}`")
        }
        SetupError::Token { .. } => "as ONEREAD_TOKEN, or with --token-file".into(),
        SetupError::Mismatch { source: GidMismatch::Families { .. }, .. } => {
            "`oneread doctor --peer ADDRESS` ranks the GIDs".into()
        }
        SetupError::Mismatch { .. } => "`oneread doctor` lists ports and GIDs".into(),
        // The server's reason is a mismatch, too.
        SetupError::Refused { why, .. } if why.contains("this side") => {
            "`oneread doctor` lists ports and GIDs".into()
        }
        #[cfg(feature = "herd")]
        SetupError::Extension { .. } => "`oneread serve --herd` starts a server that takes them".into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use oneread::Address;
    use std::io;

    fn not_there() -> ConnectError {
        let address: Address = "shm:/a".parse().unwrap();
        ConnectError::NotThere { address, source: io::ErrorKind::NotFound.into() }
    }

    /// The advice is found wherever the error stands in the chain. No text is told twice.
    #[test]
    fn advice_is_found_in_the_chain() {
        let expected = "no server at shm:/a: entity not found; start one with `oneread serve --at shm:/a`, \
                        or name another address with --at; --wait 5s waits for one that is starting";
        assert_eq!(told(&not_there().into()), expected);
        assert_eq!(told(&GetError::Connect(not_there()).into()), expected);
        let context = anyhow::Error::from(MutateError::Connect(not_there())).context("loading");
        assert_eq!(told(&context), format!("loading: {expected}"));

        let (found, what) = (7, "/a".to_owned());
        let source = RecoverError::Superblock(SuperblockError::Version { found });
        let told = told(&ServeError::Recover { what, source }.into());
        assert!(told.starts_with("/a cannot be taken over: region format version 7"), "{told}");
        assert!(
            told.contains("; `oneread dump` with that release, ") && told.ends_with(" removes it"),
            "{told}"
        );
        assert_eq!(super::told(&anyhow::anyhow!("plain")), "plain");
    }

    /// The flag or command that mends an error is told with it, wherever there is one.
    #[test]
    fn advice_names_what_mends() {
        let address: Address = "shm:/a".parse().unwrap();
        let path = std::path::PathBuf::from("/a");
        let damaged = || SnapshotError::Damaged { path: path.clone(), byte: 7, what: "all".into() };
        let cut = SnapshotError::Cut { path: path.clone(), bytes: 7, within: "a block" };
        let restoring = |source| anyhow::Error::from(ServeError::Restore { path: path.clone(), source });
        let too_long = |what, given| RestoreError::TooLong { what, given, max: 3 };
        for (error, mend) in [
            (ConnectError::Stranger { address: address.clone(), uid: 7 }.into(), "as by --server-user 7"),
            (
                ConnectError::TurnedAway { address: address.clone(), source: Refusal::User { uid: 7 } }
                    .into(),
                "`oneread serve --allow-uid 7` lets that user in",
            ),
            (
                ConnectError::TurnedAway { address: address.clone(), source: Refusal::User { uid: 65534 } }
                    .into(),
                "`oneread serve --allow-uid 65534` would let all of them in",
            ),
            (
                ConnectError::NotBuilt { address: address.clone() }.into(),
                "cargo build --release --features verbs",
            ),
            (damaged().into(), "`oneread restore --damaged` puts that into a running server"),
            (cut.into(), "`oneread restore --damaged` puts that into a running server"),
            (
                restoring(RestoreError::Snapshot(damaged())),
                "`oneread restore --damaged` puts that into a running server",
            ),
            (restoring(too_long("value", 40)), "as by --value-max 40"),
            (restoring(too_long("key", 40)), "as by --key-max 40"),
            (restoring(RestoreError::Life), "as by --life"),
            (restoring(RestoreError::Owners), "as by --owners"),
            (restoring(RestoreError::TooMany { keys: 50, slots: 9 }), "as by --capacity 50"),
            (
                restoring(RestoreError::Full {
                    restored: 4,
                    keys: 60,
                    source: PutError::Full { keys: 4, slots: 9, bytes_max: 0, heap_bytes: 0 },
                }),
                "as by --capacity 60",
            ),
            (
                ServeError::NotBuilt { address: address.clone() }.into(),
                "cargo build --release --features verbs",
            ),
            (
                ConnectError::RequestPath {
                    path: RequestPath::Mailbox,
                    address: address.clone(),
                    why: "it has none".into(),
                }
                .into(),
                "`oneread serve --mailbox-max SIZE` gives it room for more mailboxes",
            ),
        ] {
            assert!(told(&error).ends_with(&format!("; {mend}")), "{}", told(&error));
        }
        let found = SnapshotError::Foreign { path: path.clone() };
        assert!(told(&found.into()).ends_with("name another file"), "no advice on what is no snapshot");
        // The room for mailboxes mends no other path.
        let (path, why) = (RequestPath::Message, "it has none".into());
        let other = ConnectError::RequestPath { path, address, why };
        assert!(!told(&other.into()).contains("--mailbox-max"));
    }

    /// Over verbs advice is found as well, where errors of the setup stand in others.
    #[cfg(feature = "verbs")]
    #[test]
    fn advice_on_verbs_is_found() {
        let peer = "127.0.0.1:7471".parse().unwrap();
        let token = || SetupError::Token { peer };
        for error in [
            anyhow::Error::from(ConnectError::Verbs(token())),
            GetError::Connect(ConnectError::Verbs(token())).into(),
            LinkError::Verbs(VerbsError::Setup(token())).into(),
            ServeError::Verbs(token()).into(),
        ] {
            assert!(told(&error).ends_with("; as ONEREAD_TOKEN, or with --token-file"), "{error:#}");
        }
        use oneread::internals::verbs::gid::{AddressFamily, LinkLayer};
        let refused = |why: &str| SetupError::Refused { peer, why: why.into() };
        let families = GidMismatch::Families { local: AddressFamily::V4, remote: AddressFamily::V6 };
        let layers = GidMismatch::LinkLayers { local: LinkLayer::InfiniBand, remote: LinkLayer::Ethernet };
        let source = std::sync::Arc::new(io::ErrorKind::ConnectionRefused.into());
        let call = |errno| SetupError::Call { call: "ibv_open_device", errno };
        for (error, mend) in [
            (SetupError::NoDevice { no_module: true }, "; `oneread doctor` tells more"),
            (call(13), "; `oneread doctor` tells more"),
            (call(1), "; `oneread doctor` tells more"),
            (
                SetupError::NotThere { address: "a:7".into(), source },
                "; start one there with `oneread serve --at verbs://a:7`",
            ),
            (
                SetupError::Mismatch { peer, source: families },
                "; `oneread doctor --peer ADDRESS` ranks the GIDs",
            ),
            (SetupError::Mismatch { peer, source: layers }, "; `oneread doctor` lists ports and GIDs"),
            (refused("this side is another"), "; `oneread doctor` lists ports and GIDs"),
            #[cfg(feature = "herd")]
            (
                SetupError::Extension { name: "HERD", why: "none".into(), source: None },
                "; `oneread serve --herd` starts a server that takes them",
            ),
        ] {
            let error = ConnectError::Verbs(error).into();
            assert!(told(&error).ends_with(mend), "{}", told(&error));
        }
        for error in [refused("another reason"), call(5)] {
            let error = ConnectError::Verbs(error).into();
            assert!(!told(&error).contains('`'), "{}", told(&error));
        }
    }
}
