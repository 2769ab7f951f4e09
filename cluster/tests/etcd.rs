//! Calls of a real etcd, and what becomes of them when it is not as it should be.

mod common;

use common::{Etcd, SOON, config, has_etcd, name};
use oneread_cluster::core::etcd::{Entry, EtcdAnswer, EtcdCall, EtcdKey, EtcdValue};
use oneread_cluster::core::state::{Adoption, NodeAbout, NodeId, NodeIds, NodeKey, ShardState};
use oneread_cluster::etcd::{EtcdError, EtcdOptions, EtcdStore, EtcdTls};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(1);
const NODE: NodeId = NodeId(0x1234);

/// An etcd, and a store of it.
struct Has {
    etcd: Etcd,
    store: EtcdStore,
    _folder: TempDir,
}

impl Has {
    /// Without a cluster yet.
    async fn nothing() -> Has {
        let folder = tempfile::tempdir().unwrap();
        let etcd = Etcd::start(folder.path());
        let store = EtcdStore::connect(name(), etcd.options()).await.unwrap();
        Has { etcd, store, _folder: folder }
    }

    /// With a cluster of 4 shards.
    async fn cluster() -> Has {
        let has = Has::nothing().await;
        has.store.init(&config(4, 2, TTL)).await.unwrap();
        has
    }

    async fn read(&self) -> EtcdAnswer {
        self.store.call(1, EtcdCall::Read).await.unwrap()
    }

    /// Puts a shard's state, whatever was there.
    async fn put_shard(&self, state: &ShardState) -> EtcdAnswer {
        let adoption = self.read().await.adoption().unwrap();
        let put = vec![(EtcdKey::Shard(1), EtcdValue::Shard(state.clone()))];
        let answer =
            self.store.call(2, EtcdCall::Transaction { adoption, compare: Vec::new(), put }).await.unwrap();
        assert!(answer.is_done);
        answer
    }

    fn ctl(&self, args: &[&str]) -> String {
        ctl(&self.etcd, &[], args)
    }

    /// Watches on from what was read, and tells what comes.
    fn watch(&self, read: EtcdAnswer) -> (JoinHandle<EtcdError>, mpsc::Receiver<EtcdAnswer>) {
        let (deliver, delivered) = mpsc::channel();
        let store = self.store.clone();
        let watch =
            tokio::spawn(async move { store.watch(&read, |answer| deliver.send(answer).is_ok()).await });
        (watch, delivered)
    }
}

fn ctl(etcd: &Etcd, user: &[&str], args: &[&str]) -> String {
    let endpoint = etcd.endpoint();
    common::ctl(|command| command.args(["--endpoints", &endpoint]).args(user).args(args))
}

fn state(epoch: u64) -> ShardState {
    let (primary, in_sync) = (Some(NODE), NodeIds::of(NODE));
    ShardState { revision: epoch + 10, epoch, primary, in_sync, waits: false }
}

fn node_key(number: u64) -> EtcdValue {
    let about = NodeAbout { name: "n".into(), ..NodeAbout::default() };
    EtcdValue::Node(NodeKey { life: 1, number, alive: true, about })
}

/// The next entry that a watch brings.
async fn next(delivered: &mpsc::Receiver<EtcdAnswer>) -> Entry {
    let mut answer = delivered.recv_timeout(SOON).unwrap();
    assert!(answer.is_watched && answer.is_done && answer.entries.len() == 1, "{answer:?}");
    answer.entries.remove(0)
}

async fn ends(watch: JoinHandle<EtcdError>) -> EtcdError {
    tokio::time::timeout(SOON, watch).await.expect("the watch does not end").unwrap()
}

// ---- clusters are made ----

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_made_once() {
    if !has_etcd() {
        return;
    }
    let has = Has::nothing().await;
    let missing = has.store.read_config().await.unwrap_err();
    assert!(matches!(missing, EtcdError::NotThere { .. }), "{missing}");
    assert!(missing.to_string().contains("oneread cluster init test"), "{missing}");
    let refused = has.store.init(&config(2_000, 2, TTL)).await.unwrap_err();
    assert!(matches!(refused, EtcdError::Config(_)), "{refused}");
    assert!(has.read().await.entries.is_empty());

    let made = config(4, 2, TTL);
    let adoption = has.store.init(&made).await.unwrap();
    let (read_config, read) = has.store.read_config().await.unwrap();
    assert_eq!((read_config, adoption), (made.clone(), Adoption { number: 1, etcd: read.etcd }));
    assert_eq!(read.adoption(), Some(adoption));
    assert_eq!(read.entries.len(), 4 + 2);

    has.put_shard(&state(3)).await;
    match has.store.init(&config(8, 3, TTL)).await.unwrap_err() {
        EtcdError::Exists { config, .. } => assert_eq!(*config, made),
        other => panic!("{other}"),
    }
    // It is as it was.
    assert_eq!(has.read().await.shard(1).unwrap().0, &state(3));
    // Another cluster in the same etcd is another one, also if its name begins alike.
    let other = EtcdStore::connect("test2".parse().unwrap(), has.etcd.options()).await.unwrap();
    other.init(&config(1, 1, TTL)).await.unwrap();
    assert_eq!(has.read().await.entries.len(), 4 + 2);
    assert_eq!(other.read_config().await.unwrap().1.entries.len(), 1 + 2);
}

/// Two operators at once: one of them makes it, whole.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_make_it_one_does() {
    if !has_etcd() {
        return;
    }
    let has = Has::nothing().await;
    for round in 0..10 {
        let store =
            EtcdStore::connect(format!("test{round}").parse().unwrap(), has.etcd.options()).await.unwrap();
        let (small, large) = (config(150, 1, TTL), config(1_000, 2, TTL));
        // One begins while the other one is somewhere.
        let late = async {
            tokio::time::sleep(Duration::from_millis(2 * round)).await;
            store.init(&small).await
        };
        let (one, other) = tokio::join!(store.init(&large), late);
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
        let lost = if one.is_ok() { other } else { one };
        assert!(matches!(lost, Err(EtcdError::Exists { .. } | EtcdError::Busy { .. })), "{lost:?}");
        let (config, read) = store.read_config().await.unwrap();
        assert!((0..config.shards).all(|shard| read.shard(shard).is_some()), "it has not all its shards");
        assert!(read.shard(config.shards).is_none(), "it has more");
    }
}

/// It was cut short before its last step: then it is no cluster, and can be made.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_cut_short_is_completed() {
    if !has_etcd() {
        return;
    }
    let has = Has::nothing().await;
    let shard = serde_json_of(&ShardState { revision: 1, ..ShardState::default() });
    for number in 0..100 {
        has.ctl(&["put", &format!("/oneread/test/shards/{number}"), &shard]);
    }
    let missing = has.store.read_config().await.unwrap_err();
    assert!(matches!(missing, EtcdError::NotThere { .. }), "{missing}");
    has.store.init(&config(300, 2, TTL)).await.unwrap();
    let read = has.read().await;
    for number in 0..300 {
        assert_eq!(read.shard(number).unwrap().0, &ShardState { revision: 1, ..ShardState::default() });
    }
}

/// What a shard's state is in etcd.
fn serde_json_of(state: &ShardState) -> String {
    assert_eq!(state, &ShardState { revision: 1, ..ShardState::default() });
    r#"{"revision":1,"epoch":0,"primary":null,"in_sync":[],"waits":false}"#.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_cluster_is_made() {
    if !has_etcd() {
        return;
    }
    let has = Has::nothing().await;
    has.store.init(&config(1_024, 8, TTL)).await.unwrap();
    let read = has.read().await;
    assert_eq!(read.entries.len(), 1_024 + 2);
    assert!(
        (0..1_024).all(|shard| read.shard(shard).is_some_and(|(state, at)| state.revision == 1 && at > 0))
    );
    // What it is in bytes is what people may find, and what later versions read.
    let shard = has.ctl(&["get", "--print-value-only", "/oneread/test/shards/1023"]);
    assert_eq!(shard.trim(), serde_json_of(&ShardState { revision: 1, ..ShardState::default() }));
}

// ---- transactions ----

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_made_if_all_is_as_it_says() {
    if !has_etcd() {
        return;
    }
    let has = Has::cluster().await;
    let read = has.read().await;
    let adoption = read.adoption().unwrap();
    let (_, at) = read.shard(1).unwrap();
    let transaction = |compare: Vec<(EtcdKey, i64)>, put| {
        has.store.call(7, EtcdCall::Transaction { adoption, compare, put })
    };
    let put = || vec![(EtcdKey::Shard(1), EtcdValue::Shard(state(1))), (EtcdKey::Node(NODE), node_key(1))];
    // A key that is absent, and one that was changed last just then.
    let compare = vec![(EtcdKey::Node(NODE), 0), (EtcdKey::Shard(1), at)];
    let done = transaction(compare.clone(), put()).await.unwrap();
    assert!(
        done.is_done && done.is_of(7) && done.etcd == read.etcd && done.revision > read.revision,
        "{done:?}"
    );
    // It answers with what is there afterwards, in the order that was asked, the adoption last.
    let keys: Vec<EtcdKey> = done.entries.iter().map(|entry| entry.key).collect();
    assert_eq!(keys, [EtcdKey::Node(NODE), EtcdKey::Shard(1), EtcdKey::Adoption]);
    assert_eq!(done.shard(1).unwrap(), (&state(1), done.revision));
    assert_eq!(done.node(NODE).unwrap().1, done.revision);
    assert_eq!(done.adoption(), Some(adoption));

    // Now neither is so. It answers as before, with what is there.
    let other = vec![(EtcdKey::Shard(1), EtcdValue::Shard(state(2)))];
    let not_done = transaction(compare, other.clone()).await.unwrap();
    assert!(!not_done.is_done && not_done.revision == done.revision, "{not_done:?}");
    assert_eq!(not_done.entries, done.entries);
    // One of the two is enough.
    for compare in
        [vec![(EtcdKey::Shard(1), at)], vec![(EtcdKey::Shard(1), done.revision), (EtcdKey::Node(NODE), 0)]]
    {
        assert!(!transaction(compare, other.clone()).await.unwrap().is_done);
    }
    // A key that is not there.
    let absent = transaction(vec![(EtcdKey::Wishes, 5)], other.clone()).await.unwrap();
    assert!(!absent.is_done);
    assert_eq!(absent.entries[0], Entry { key: EtcdKey::Wishes, value: None, at: 0 });
    assert_eq!(has.read().await.shard(1).unwrap(), (&state(1), done.revision));
    // Nothing but the adoption.
    assert!(transaction(Vec::new(), other).await.unwrap().is_done);
    assert_eq!(has.read().await.shard(1).unwrap().0, &state(2));
}

/// CL17: whatever else it compares, it compares the adoption's value.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_for_another_adoption_is_not_made() {
    if !has_etcd() {
        return;
    }
    let has = Has::cluster().await;
    let read = has.read().await;
    let Adoption { number, etcd } = read.adoption().unwrap();
    let (_, at) = read.shard(1).unwrap();
    for wrong in
        [Adoption { number: number + 1, etcd }, Adoption { number, etcd: etcd ^ 1 }, Adoption::default()]
    {
        let (compare, put) =
            (vec![(EtcdKey::Shard(1), at)], vec![(EtcdKey::Shard(1), EtcdValue::Shard(state(1)))]);
        let answer =
            has.store.call(1, EtcdCall::Transaction { adoption: wrong, compare, put }).await.unwrap();
        assert!(!answer.is_done);
        assert_eq!(answer.adoption(), read.adoption());
    }
    assert_eq!(has.read().await, read);
}

/// Operators' changes do not undo each other.
#[tokio::test(flavor = "multi_thread")]
async fn wishes_add_up() {
    if !has_etcd() {
        return;
    }
    let has = Has::cluster().await;
    let stores: Vec<EtcdStore> = (0..4).map(|_| has.store.clone()).collect();
    let changes = stores.into_iter().enumerate().map(|(number, store)| {
        tokio::spawn(async move {
            store
                .change_wishes(|wishes| {
                    wishes.pinned.insert(number as u16, NodeId(number as u64));
                })
                .await
        })
    });
    for change in changes.collect::<Vec<_>>() {
        change.await.unwrap().unwrap();
    }
    let wishes = has.store.change_wishes(|_| {}).await.unwrap();
    assert_eq!(wishes.pinned.len(), 4);
}

// ---- watches ----

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_brings_what_comes_after_a_read() {
    if !has_etcd() {
        return;
    }
    let has = Has::cluster().await;
    let read = has.read().await;
    // A change between the read and the watch.
    let first = has.put_shard(&state(1)).await;
    let (watch, delivered) = has.watch(read.clone());
    let entry = next(&delivered).await;
    assert_eq!(
        entry,
        Entry { key: EtcdKey::Shard(1), value: Some(EtcdValue::Shard(state(1))), at: first.revision }
    );
    // One while it watches, keys of a later version, those of others, and one that goes.
    let put = vec![(EtcdKey::Node(NODE), node_key(1))];
    let adoption = read.adoption().unwrap();
    has.store.call(2, EtcdCall::Transaction { adoption, compare: Vec::new(), put }).await.unwrap();
    assert!(matches!(next(&delivered).await, Entry { key: EtcdKey::Node(NODE), value: Some(_), .. }));
    for key in [
        "/oneread/test/later",
        "/oneread/test/nodes/later",
        "/oneread/test/shards/+1",
        "/oneread/test2/config",
        "/other",
    ] {
        has.ctl(&["put", key, "no matter what"]);
    }
    has.ctl(&["del", &format!("/oneread/test/nodes/{NODE}")]);
    let gone = next(&delivered).await;
    assert_eq!((gone.key, gone.value), (EtcdKey::Node(NODE), None));
    // Several keys in one transaction come together.
    let put = (0..3).map(|shard| (EtcdKey::Shard(shard), EtcdValue::Shard(state(5)))).collect();
    has.store.call(2, EtcdCall::Transaction { adoption, compare: Vec::new(), put }).await.unwrap();
    let together = delivered.recv_timeout(SOON).unwrap();
    assert_eq!((together.entries.len(), together.call, together.etcd), (3, read.call, read.etcd));

    // From a later read on another watch brings only what is new.
    let later = has.read().await;
    assert!(later.entries.iter().all(|entry| !matches!(entry.key, EtcdKey::Node(_))));
    let (again, delivered_again) = has.watch(later);
    has.put_shard(&state(6)).await;
    for delivered in [&delivered, &delivered_again] {
        assert_eq!(next(delivered).await.value, Some(EtcdValue::Shard(state(6))));
    }
    // Who takes nothing any more ends it.
    drop((delivered, delivered_again));
    has.put_shard(&state(7)).await;
    for watch in [watch, again] {
        let ended = ends(watch).await;
        assert!(matches!(ended, EtcdError::Watch(_)), "{ended}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_before_a_compaction_is_refused() {
    if !has_etcd() {
        return;
    }
    let has = Has::cluster().await;
    let read = has.read().await;
    has.put_shard(&state(1)).await;
    let last = has.put_shard(&state(2)).await;
    has.ctl(&["compact", &last.revision.to_string()]);
    let (watch, _delivered) = has.watch(read);
    let ended = ends(watch).await;
    assert!(matches!(ended, EtcdError::Compacted), "{ended}");
    // From what is read now it goes on.
    let (_watch, delivered) = has.watch(has.read().await);
    has.put_shard(&state(3)).await;
    assert_eq!(next(&delivered).await.value, Some(EtcdValue::Shard(state(3))));
}

/// Nothing changes for a long time: etcd has no reason to hang up, and nobody has one to begin anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_watch_goes_on() {
    if !has_etcd() {
        return;
    }
    let has = Has::cluster().await;
    let read = has.read().await;
    let idle = EtcdStore::connect(name(), has.etcd.options()).await.unwrap();
    idle.call(1, EtcdCall::Read).await.unwrap();
    let (watch, delivered) = has.watch(read);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!watch.is_finished(), "{}", ends(watch).await);
    idle.call(1, EtcdCall::Read).await.unwrap();
    has.put_shard(&state(1)).await;
    assert_eq!(next(&delivered).await.value, Some(EtcdValue::Shard(state(1))));
}

/// etcd is killed, and then one that hangs: both end the watch. The store goes on without another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_with_etcd() {
    if !has_etcd() {
        return;
    }
    let mut has = Has::cluster().await;
    for hangs in [false, true] {
        let (watch, delivered) = has.watch(has.read().await);
        has.put_shard(&state(1)).await;
        next(&delivered).await;
        let pid = has.etcd.pid().to_string();
        let signal =
            |signal: &str| assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        if hangs {
            signal("-STOP")
        } else {
            has.etcd.kill()
        }
        let begun = std::time::Instant::now();
        let ended = ends(watch).await;
        assert!(matches!(ended, EtcdError::Watch(_)), "{ended}");
        assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
        let failed = has.store.call(1, EtcdCall::Read).await.unwrap_err();
        assert!(matches!(failed, EtcdError::Late { .. } | EtcdError::Call { .. }), "{failed}");
        assert!(failed.to_string().contains(&has.etcd.endpoint()), "{failed}");
        if hangs {
            signal("-CONT")
        } else {
            has.etcd.run()
        }
        let store = has.store.clone();
        let again = async {
            while store.call(1, EtcdCall::Read).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(SOON, again).await.expect("the store does not go on");
    }
    let (_watch, delivered) = has.watch(has.read().await);
    has.put_shard(&state(2)).await;
    assert_eq!(next(&delivered).await.value, Some(EtcdValue::Shard(state(2))));
}

// ---- what is wrong is told ----

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_else_has_put_there_is_named() {
    if !has_etcd() {
        return;
    }
    let has = Has::cluster().await;
    let read = has.read().await;
    let (watch, _delivered) = has.watch(read);
    let keys = ["config", "adoption", "wishes", "shards/2", &format!("nodes/{NODE}")];
    for key in keys.map(|key| format!("/oneread/test/{key}")) {
        let before = has.ctl(&["get", "--print-value-only", &key]);
        for rubbish in ["rubbish", "{}", "[1", "\u{fffd}"] {
            // No wishes are wishes.
            if (rubbish, key.ends_with("wishes")) == ("{}", true) {
                continue;
            }
            has.ctl(&["put", &key, rubbish]);
            let read = has.store.call(1, EtcdCall::Read).await;
            if key.contains("/nodes/") {
                // One bad node must not keep all others from knowing of each other.
                assert_eq!(read.unwrap().entries.len(), 4 + 2);
                continue;
            }
            let failed = read.unwrap_err();
            let is_named = match &failed {
                // Without a form it is of the first one.
                EtcdError::Form { form, .. } => (rubbish, key.ends_with("config"), *form) == ("{}", true, 0),
                EtcdError::Value { key: named, .. } => *named == key && failed.to_string().contains(&key),
                _ => false,
            };
            assert!(is_named, "{key} {rubbish}: {failed}");
        }
        match before.trim() {
            "" => has.ctl(&["del", &key]),
            before => has.ctl(&["put", &key, before]),
        };
        has.read().await;
    }
    let ended = ends(watch).await;
    assert!(matches!(ended, EtcdError::Value { .. }), "{ended}");
}

/// A cluster whose keys this version would look for in other shards: whoever connects is told what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_another_form_is_refused() {
    if !has_etcd() {
        return;
    }
    let has = Has::cluster().await;
    let (key, wanted) = ("/oneread/test/config", config(4, 2, TTL));
    let config = has.ctl(&["get", "--print-value-only", key]);
    assert!(config.contains(r#""form":1,"#), "{config}");
    let before =
        r#"{"shards":4,"replicas":2,"seeds":[1,2,3,4],"key_max":64,"value_max":4096,"timing":{"ttl":1}}"#;
    let later = config.replace(r#""form":1,"#, r#""form":2,"#);
    for (other, number) in [(before, 0), (later.trim(), 2)] {
        has.ctl(&["put", key, other]);
        let refused =
            [has.store.read_config().await.unwrap_err(), has.store.init(&wanted).await.unwrap_err()];
        for refused in refused {
            assert!(matches!(refused, EtcdError::Form { form, .. } if form == number), "{refused}");
            let says = refused.to_string();
            assert!(says.contains("oneread cluster init test") && says.contains("--fresh"), "{says}");
        }
    }
    has.ctl(&["put", key, config.trim()]);
    has.store.read_config().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_let_in_by_their_password() {
    if !has_etcd() {
        return;
    }
    let mut has = Has::nothing().await;
    let with = |etcd: &Etcd, user: Option<(&str, &str)>| {
        let mut options = etcd.options();
        options.user = user.map(|(user, password)| (user.to_owned(), password.to_owned().into()));
        EtcdStore::connect(name(), options)
    };
    let denied = |error: EtcdError, etcd: &Etcd| {
        assert!(matches!(error, EtcdError::Denied { .. }), "{error:?}");
        assert!(error.to_string().contains(&etcd.endpoint()), "{error}");
    };
    // A user where none is asked for.
    denied(with(&has.etcd, Some(("one", "right"))).await.unwrap_err(), &has.etcd);
    has.ctl(&["user", "add", "root:top"]);
    has.ctl(&["user", "grant-role", "root", "root"]);
    has.ctl(&["role", "add", "ours"]);
    has.ctl(&["role", "grant-permission", "ours", "readwrite", "--prefix=true", "/oneread/"]);
    has.ctl(&["role", "add", "theirs"]);
    has.ctl(&["role", "grant-permission", "theirs", "readwrite", "--prefix=true", "/theirs/"]);
    for (user, role) in [("one:right", "ours"), ("other:right", "theirs")] {
        has.ctl(&["user", "add", user]);
        has.ctl(&["user", "grant-role", user.split(':').next().unwrap(), role]);
    }
    has.ctl(&["auth", "enable"]);
    // None, a wrong password, nobody, and one who may do something else.
    let none = with(&has.etcd, None).await.unwrap();
    denied(none.init(&config(4, 1, TTL)).await.unwrap_err(), &has.etcd);
    denied(with(&has.etcd, Some(("one", "wrong"))).await.unwrap_err(), &has.etcd);
    denied(with(&has.etcd, Some(("nobody", "right"))).await.unwrap_err(), &has.etcd);
    let other = with(&has.etcd, Some(("other", "right"))).await.unwrap();
    denied(other.init(&config(4, 1, TTL)).await.unwrap_err(), &has.etcd);
    denied(other.read_config().await.unwrap_err(), &has.etcd);

    has.store = with(&has.etcd, Some(("one", "right"))).await.unwrap();
    has.store.init(&config(4, 1, TTL)).await.unwrap();
    let (_watch, delivered) = has.watch(has.read().await);
    has.put_shard(&state(1)).await;
    assert_eq!(next(&delivered).await.value, Some(EtcdValue::Shard(state(1))));
    // Tokens are gone with the process that gave them.
    has.etcd.kill();
    has.etcd.run();
    let again = async {
        while has.store.call(1, EtcdCall::Read).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, again).await.expect("the store does not go on");
    let (_watch, delivered) = has.watch(has.read().await);
    has.put_shard(&state(2)).await;
    assert_eq!(next(&delivered).await.value, Some(EtcdValue::Shard(state(2))));
    assert!(!format!("{:?}", has.store).contains("right"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_reached_is_named() {
    let connect = |options: EtcdOptions| EtcdStore::connect(name(), options);
    let none = connect(EtcdOptions::new(Vec::<String>::new())).await.unwrap_err();
    assert!(matches!(none, EtcdError::NoEndpoint), "{none}");
    for wrong in [
        "",
        "127.0.0.1:2379",
        "http://",
        "http://127.0.0.1:99999",
        "http://a b:2379",
        "https://127.0.0.1:2379",
    ] {
        let refused = connect(EtcdOptions::new(["http://127.0.0.1:2379", wrong])).await.unwrap_err();
        assert!(matches!(&refused, EtcdError::Endpoint { endpoint, .. } if endpoint == wrong), "{refused}");
    }
    // Nobody listens at one, and nobody answers at the other, which is named too.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let endpoints = ["http://127.0.0.1:1".to_owned(), silent.clone()];
    for options in [EtcdOptions::new([&endpoints[0]]), EtcdOptions::new(&endpoints)] {
        let named = options.endpoints.clone();
        let begun = std::time::Instant::now();
        let store = connect(options).await.unwrap();
        let failed = store.read_config().await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(10));
        let text = failed.to_string();
        assert!(matches!(failed, EtcdError::Late { .. } | EtcdError::Call { .. }), "{text}");
        assert!(named.iter().all(|endpoint| text.contains(endpoint)), "{text}");
    }
    // One that answers is enough, for each call.
    if has_etcd() {
        let has = Has::cluster().await;
        let dead = ["http://127.0.0.1:1".to_owned(), "http://127.0.0.1:2".to_owned()];
        let store = connect(EtcdOptions::new(dead.into_iter().chain([has.etcd.endpoint()]))).await.unwrap();
        for number in 0..100 {
            store.read_config().await.unwrap_or_else(|error| panic!("call {number}: {error}"));
        }
        let reads = (0..20).map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.read_config().await.map(drop) })
        });
        for read in reads.collect::<Vec<_>>() {
            read.await.unwrap().unwrap();
        }
        let (_, read) = store.read_config().await.unwrap();
        let (deliver, delivered) = mpsc::channel();
        tokio::spawn(async move { store.watch(&read, |answer| deliver.send(answer).is_ok()).await });
        has.put_shard(&state(1)).await;
        assert_eq!(next(&delivered).await.value, Some(EtcdValue::Shard(state(1))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_for_tls_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (missing, wrong) = (folder.path().join("missing.pem"), folder.path().join("wrong.pem"));
    std::fs::write(&wrong, "no certificate").unwrap();
    std::fs::set_permissions(&wrong, std::fs::Permissions::from_mode(0o600)).unwrap();
    let connect = |ca, certificate| {
        let mut options = EtcdOptions::new(["https://127.0.0.1:1"]);
        options.tls = Some(EtcdTls { ca, certificate });
        EtcdStore::connect(name(), options)
    };
    for (ca, certificate) in
        [(missing.clone(), None), (wrong.clone(), Some((wrong.clone(), missing.clone())))]
    {
        let refused = connect(ca, certificate).await.unwrap_err();
        assert!(matches!(&refused, EtcdError::File { .. }), "{refused}");
        assert!(refused.to_string().contains("missing.pem"), "{refused}");
    }
    // Files that hold something else are noticed at once, or by the first call.
    for certificate in [None, Some((wrong.clone(), wrong.clone()))] {
        let refused = match connect(wrong.clone(), certificate).await {
            Ok(store) => store.read_config().await.map(drop).unwrap_err(),
            Err(refused) => refused,
        };
        assert!(refused.to_string().contains("https://127.0.0.1:1"), "{refused}");
    }
}
