//! Calls of a real etcd, and what becomes of them when it is not as it should be.

mod common;

use common::{Etcd, SOON, config, has_etcd, name};
use oneread_cluster::client::{ClusterClient, ClusterOptions};
use oneread_cluster::core::etcd::{Entry, EtcdAnswer, EtcdCall, EtcdKey, EtcdValue};
use oneread_cluster::core::state::{Adoption, NodeAbout, NodeId, NodeIds, NodeKey, ShardState};
use oneread_cluster::etcd::{EtcdError, EtcdOptions, EtcdStore, EtcdTls, KEPT};
use oneread_cluster::node::ClusterNode;
use std::os::unix::fs::PermissionsExt;
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
        if hangs {
            has.etcd.signal("-STOP")
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
            has.etcd.signal("-CONT")
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
    for nothing in [&[][..], &["", " "]] {
        let none = connect(EtcdOptions::new(nothing.iter().copied())).await.unwrap_err();
        assert!(matches!(none, EtcdError::NoEndpoint), "{none}");
    }
    for wrong in
        ["127.0.0.1:2379", "http://", "http://127.0.0.1:99999", "http://a b:2379", "https://127.0.0.1:2379"]
    {
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

// ---- several members ----

/// Three members of one etcd, on addresses of this host.
fn three_members(folder: &TempDir) -> Vec<Etcd> {
    let id = std::process::id();
    let hosts: Vec<String> =
        (1..=3).map(|last| format!("127.{}.{}.{last}", 64 + (id >> 8) % 64, id % 256)).collect();
    let start = |number| Etcd::start_member(folder.path(), &hosts, number, vec!["etcd".into()], &[]);
    (0..3).map(start).collect()
}

/// Endpoints as people write them, this one first.
fn from(members: &[String], first: usize) -> EtcdOptions {
    let turned = members.iter().cycle().skip(first).take(members.len());
    let mut list: Vec<String> = turned.map(|member| format!(" {member}")).collect();
    list.push(String::new());
    EtcdOptions::new(list)
}

/// A member that hangs, and an address that swallows all that is sent to it, refuse nothing. No call fails for them, and no
/// start, whoever is asked first.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_member_fails_no_call() {
    if !has_etcd() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let members = three_members(&folder);
    let leads = || members.iter().position(|member| member.leads() == Some(true));
    common::until("a member leads", || leads().is_some());
    let endpoints: Vec<String> = members.iter().map(Etcd::endpoint).collect();
    let before = EtcdStore::connect(name(), from(&endpoints, 0)).await.unwrap();
    let made = async { while before.init(&config(4, 2, TTL)).await.is_err() {} };
    tokio::time::timeout(SOON, made).await.expect("no cluster can be made");

    let silent = (leads().unwrap() + 1) % 3;
    members[silent].signal("-STOP");
    let swallows = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let swallows = format!("http://{}", swallows.local_addr().unwrap());
    let with_it: Vec<String> = [&swallows].into_iter().chain(&endpoints).cloned().collect();
    for number in 0..12 {
        for list in [&endpoints, &with_it] {
            let store = EtcdStore::connect(name(), from(list, number)).await.unwrap();
            store.read_config().await.unwrap_or_else(|error| panic!("start {number} of {list:?}: {error}"));
            let node = NodeId(number as u64);
            let change = store.change_wishes(|wishes| {
                wishes.pinned.insert(0, node);
            });
            assert_eq!(change.await.unwrap().pinned[&0], node, "change {number} of {list:?}");
        }
        // One that was connected when the member fell silent.
        before.read_config().await.unwrap_or_else(|error| panic!("call {number}: {error}"));
    }
    members[silent].signal("-CONT");
}

/// While members choose another leader, a call waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_is_waited_for() {
    if !has_etcd() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut members = three_members(&folder);
    let leads = |members: &[Etcd]| members.iter().position(|member| member.leads() == Some(true));
    common::until("a member leads", || leads(&members).is_some());
    let endpoints: Vec<String> = members.iter().map(Etcd::endpoint).collect();
    let mut options = from(&endpoints, 0);
    options.timeout = SOON;
    let store = EtcdStore::connect(name(), options).await.unwrap();
    store.init(&config(4, 2, TTL)).await.unwrap();
    for _ in 0..2 {
        let leader = leads(&members).unwrap();
        members[leader].kill();
        store.read_config().await.unwrap();
        members[leader].run();
        common::until("a member leads again", || leads(&members).is_some());
        store.read_config().await.unwrap();
    }
}

// ---- space ----

/// What a node says of itself, as long as it is usually.
fn usual_key(number: u64) -> EtcdValue {
    let about = NodeAbout {
        name: "host-1.example.org".into(),
        table: vec!["tcp://host-1.example.org:7471".into()],
        requests: vec!["host-1.example.org:7480".into()],
        slots: "128 B, keys to 86, all to 110".into(),
        ..NodeAbout::default()
    };
    EtcdValue::Node(NodeKey { life: 1, number, alive: true, about })
}

/// Beats as `nodes` that go on without a pause, until there were so many. Their watch goes on, so each says how far it is.
async fn beat(store: &EtcdStore, nodes: u64, beats: u64) {
    let (_, read) = store.read_config().await.unwrap();
    let adoption = read.adoption().unwrap();
    let watching = store.clone();
    let watch = tokio::spawn(async move {
        loop {
            let (_, read) = watching.read_config().await.unwrap();
            watching.watch(&read, |_| true).await;
        }
    });
    let all = (1..=nodes).map(|node| {
        let (store, node) = (store.clone(), EtcdKey::Node(NodeId(node)));
        tokio::spawn(async move {
            let mut at = 0;
            for number in 0..beats / nodes {
                let (compare, put) = (vec![(node, at)], vec![(node, usual_key(number))]);
                let beat = store.call(1, EtcdCall::Transaction { adoption, compare, put }).await.unwrap();
                assert!(beat.is_done, "{beat:?}");
                at = beat.at(node);
            }
        })
    });
    for task in all.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    watch.abort();
}

/// What a node says of itself is written when it changes, and not with each beat. Who reads, watches or is answered has both.
#[tokio::test(flavor = "multi_thread")]
async fn a_beat_is_short() {
    if !has_etcd() {
        return;
    }
    let has = Has::cluster().await;
    let adoption = has.read().await.adoption().unwrap();
    let (_watch, delivered) = has.watch(has.read().await);
    let key = EtcdKey::Node(NODE);
    let mut at = 0;
    for number in 0..3 {
        let (compare, put) = (vec![(key, at)], vec![(key, usual_key(number))]);
        let beat = has.store.call(1, EtcdCall::Transaction { adoption, compare, put }).await.unwrap();
        at = beat.at(key);
        assert_eq!(beat.entries[0].value, Some(usual_key(number)));
        assert_eq!(next(&delivered).await, Entry { key, value: Some(usual_key(number)), at });
    }
    assert_eq!(
        has.read().await.entries.iter().find(|entry| entry.key == key).unwrap().value,
        Some(usual_key(2))
    );
    let beat = has.ctl(&["get", "--print-value-only", &format!("/oneread/test/nodes/{NODE}")]);
    assert!(beat.trim().len() < 80 && !beat.contains("7471"), "{beat}");
    let written = |key: &str| {
        let told = has.ctl(&["get", "--write-out=json", key]);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        told["kvs"][0]["version"].as_u64().unwrap()
    };
    assert_eq!(["nodes", "abouts"].map(|part| written(&format!("/oneread/test/{part}/{NODE}"))), [3, 1]);
    // Another store knows nothing yet, and writes nothing that is there once it has read.
    let other = EtcdStore::connect(name(), has.etcd.options()).await.unwrap();
    other.read_config().await.unwrap();
    let EtcdValue::Node(dead) = usual_key(3) else { panic!("it is a node's") };
    let dead = EtcdValue::Node(NodeKey { alive: false, ..dead });
    let put = vec![(key, dead.clone())];
    other.call(1, EtcdCall::Transaction { adoption, compare: vec![(key, at)], put }).await.unwrap();
    assert_eq!(next(&delivered).await.value, Some(dead));
    assert_eq!(written(&format!("/oneread/test/abouts/{NODE}")), 1);
    // A node that is forgotten is forgotten whole.
    has.store.forget(NODE).await.unwrap();
    assert_eq!(has.ctl(&["get", "--prefix", "/oneread/test/abouts/"]), "");
}

/// Beats that fill an etcd's quota several times over go through it, where nodes compact it: a node does that by itself, and
/// goes no further than each says that it has seen. A watch from before is told, and goes on with what is read then.
#[test]
fn beats_fill_no_quota() {
    if !has_etcd() {
        return;
    }
    const QUOTA: u64 = 16 << 20;
    let beats: u64 = if std::env::var_os("ONEREAD_LONG").is_some() { 1_000_000 } else { 250_000 };
    let folder = tempfile::tempdir().unwrap();
    let etcd = Etcd::start_with(folder.path(), &[&format!("--quota-backend-bytes={QUOTA}")]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let store = runtime.block_on(EtcdStore::connect(name(), etcd.options())).unwrap();
    let before = runtime.block_on(async {
        store.init(&config(4, 1, TTL)).await.unwrap();
        store.let_nodes_compact(true).await.unwrap();
        store.read_config().await.unwrap().1
    });
    let node = ClusterNode::start(common::node(folder.path(), 0, etcd.options())).unwrap();
    runtime.block_on(beat(&store, 16, beats));
    let space = runtime.block_on(store.space()).unwrap();
    // Of a beat etcd keeps its key and its value, and more than this.
    let each = "/oneread/test/nodes/0000000000001234{}".len() as u64 + 60 + 40;
    assert!(beats * each > 19 * QUOTA / 10, "they would have filled it");
    assert!(space.alarms.is_empty() && space.file_bytes < QUOTA, "{space:?}");
    assert_eq!(space.quota_bytes, Some(QUOTA));
    assert!(space.revision as u64 > beats && space.oldest > 1, "{space:?}");
    assert_eq!(space.compaction.unwrap().by, Some(node.id()));
    common::until("the node is good", || node.status().is_some_and(|status| status.is_good()));
    // Who was away is told, and reads everything again.
    let (deliver, delivered) = mpsc::channel();
    let told = runtime.block_on(store.watch(&before, |answer| deliver.send(answer).is_ok()));
    assert!(matches!(told, EtcdError::Compacted) && delivered.try_recv().is_err(), "{told}");
}

/// One node that has seen nothing for long keeps etcd from forgetting what it has not seen, for as long as it beats.
#[test]
fn nothing_is_forgotten_that_a_node_has_not_seen() {
    if !has_etcd() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(folder.path());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let store = runtime.block_on(EtcdStore::connect(name(), etcd.options())).unwrap();
    runtime.block_on(async {
        store.init(&config(4, 1, TTL)).await.unwrap();
        store.let_nodes_compact(true).await.unwrap();
    });
    let _node = ClusterNode::start(common::node(folder.path(), 0, etcd.options())).unwrap();
    // It has no watch, so its beats say that it has seen nothing.
    let blind = runtime.block_on(EtcdStore::connect(name(), etcd.options())).unwrap();
    let adoption = runtime.block_on(blind.read_config()).unwrap().1.adoption().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let beats_on = runtime.spawn(async move {
        let key = EtcdKey::Node(NodeId(99));
        let (mut at, mut number) = (0, 0);
        let mut stopped = stopped;
        while stopped.try_recv().is_err() {
            let (compare, put) = (vec![(key, at)], vec![(key, usual_key(number))]);
            if let Ok(beat) = blind.call(1, EtcdCall::Transaction { adoption, compare, put }).await {
                at = beat.at(key);
            }
            number += 1;
            tokio::time::sleep(TTL / 10).await;
        }
    });
    runtime.block_on(beat(&store, 16, 3 * KEPT as u64));
    // It is this node's job, and it had the time of several looks.
    common::until("a node compacts", || {
        let read = runtime.block_on(store.compaction()).unwrap().unwrap();
        read.compaction.by.is_some()
    });
    std::thread::sleep(4 * TTL);
    assert_eq!(runtime.block_on(store.space()).unwrap().oldest, 1);
    stop.send(()).unwrap();
    runtime.block_on(beats_on).unwrap();
    // It beats no more. Others go on.
    common::until("etcd is compacted", || runtime.block_on(store.space()).unwrap().oldest > 1);
}

/// An etcd whose quota is reached takes no beat: so no node is good, whoever asks is told why, and a GET, too. The alarm is
/// the operator's. Once it is off, all goes on.
#[test]
fn a_full_etcd_is_told_of() {
    if !has_etcd() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let etcd = Etcd::start_with(folder.path(), &["--quota-backend-bytes=16777216"]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let store = runtime.block_on(EtcdStore::connect(name(), etcd.options())).unwrap();
    runtime.block_on(store.init(&config(4, 1, TTL))).unwrap();
    let node = ClusterNode::start(common::node(folder.path(), 0, etcd.options())).unwrap();
    let mut options = ClusterOptions::default();
    options.deadline = SOON;
    let mut client = ClusterClient::connect(name(), etcd.options(), options.clone()).unwrap();
    client.put(b"key", b"value").unwrap();
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    common::until("the node is good", || node.status().is_some_and(|status| status.is_good()));

    let junk = folder.path().join("junk");
    std::fs::write(&junk, vec![b'j'; 1 << 20]).unwrap();
    let full = |number| {
        let mut put = std::process::Command::new("etcdctl");
        put.env("ETCDCTL_API", "3").args([
            "--endpoints",
            &etcd.endpoint(),
            "put",
            &format!("/junk/{number}"),
        ]);
        put.stdin(std::fs::File::open(&junk).unwrap()).output().unwrap().status.success()
    };
    assert!((0..64).any(|number| !full(number)), "it has no quota");
    common::until("the node is not good", || {
        node.status().is_some_and(|status| !status.is_good() && status.standing.contains("no space"))
    });
    let health = node.status().unwrap().health.0.unwrap();
    assert!(health.etcd == "no space" && health.beat_age.is_some(), "{health:?}");
    let space = runtime.block_on(store.space()).unwrap();
    assert!(space.alarms.iter().any(|alarm| alarm.contains("NOSPACE")), "{space:?}");
    assert!(space.advice(4.0)[0].contains("disarm"), "{:?}", space.advice(4.0));
    let refused = runtime.block_on(store.change_wishes(|_| {})).unwrap_err();
    assert!(matches!(refused, EtcdError::NoSpace { .. }), "{refused}");
    // As a client sees it that has not waited for long yet.
    options.deadline = Duration::from_secs(5);
    let mut client = ClusterClient::connect(name(), etcd.options(), options).unwrap();
    let refused = client.get(b"key").unwrap_err().to_string();
    assert!(refused.contains("no lease") && refused.contains("no space"), "{refused}");

    // Nobody but the operator has made it go away.
    let space = runtime.block_on(store.space()).unwrap();
    assert!(!space.alarms.is_empty());
    for words in [
        vec!["del", "--prefix", "/junk/"],
        vec!["compact", &(space.revision + 1).to_string()],
        vec!["defrag"],
        vec!["alarm", "disarm"],
    ] {
        ctl(&etcd, &[], &words);
    }
    common::until("the node is good again", || node.status().is_some_and(|status| status.is_good()));
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert!(runtime.block_on(store.space()).unwrap().alarms.is_empty());
}
