//! A table that grows: chunks and their keys.

use super::*;

stories! {
    chunks_without_a_key,
    entries_of_the_server_before,
}

/// A slot names memory of a chunk whose key the server never tells. The client asks for the key a number of
/// times, then for another connection, and then it gives up.
fn chunks_without_a_key(fake: &Fake) {
    /// The first chunk of the heap.
    const OF_HEAP: u64 = 192;
    /// Times that the slot of a chunk is READ, and connections that are lost.
    const ASKED: i64 = 101;
    const LOST: i64 = 9;
    let size = TableSize::Growing { bytes_max: 8 << 20, segment_slots: Some(1024) };
    let table = config(default_preset(), 0, 16, 300_000, 7).size(size).inline_max(40).heap_bytes(16 << 20);
    let config = ServerConfig::new(at("127.0.0.1:0"), table.grace(CALM)).token(Token::new(TOKEN));
    let server = Server::start(config).unwrap();
    let (index, region) = (server.index(), server.index().region());
    index.put(&key(0, 16), &value(0, 1_000), PutMode::Insert).unwrap();
    let words = index.geometry().shape().bytes() / 8;
    // READs of one connection: the entry and the keys that it needs, and of the heap a window before.
    for (chunk, reads) in [(0, 1 + ASKED), (OF_HEAP, 1 + 1 + 1 + ASKED)] {
        let slot = SlotIx(index.geometry().directory_slots() + chunk);
        let first = index.geometry().slot_offset(slot) as usize / 8;
        let told: Vec<u64> = (first..first + words).map(|word| region.load(word)).collect();
        for options in both_paths(64) {
            let is_shared = options.verbs.pairs.is_some();
            let mut client = Client::connect_with(server.address(), options).unwrap();
            let tell =
                |words: &[u64]| (first..).zip(words).for_each(|(word, bits)| region.store(word, *bits));
            tell(&vec![0; words]);
            let before = fake.count("reads");
            let asked = || fake.count("reads") - before;
            let answer = std::thread::scope(|scope| {
                let gets = scope.spawn(|| client.get(&key(0, 16)));
                wait_for("an answer", || (gets.is_finished() || asked() > 2 * LOST * reads).then_some(()));
                let (is_finished, asked) = (gets.is_finished(), asked());
                tell(&told);
                assert!(is_finished, "chunk {chunk}: asked for {asked} times, and no end");
                gets.join().unwrap()
            });
            let Err(GetError::ServerGone { source: LinkError::Verbs(error), .. }) = answer else {
                panic!("chunk {chunk}: {answer:?}");
            };
            assert!(error.to_string().contains(&format!("chunk {chunk}, which has no key")), "{error}");
            // A connection that others may use, too, stays, and knows the key of the window's chunk.
            let known = if is_shared && chunk == OF_HEAP { LOST - 1 } else { 0 };
            assert_eq!(asked(), LOST * reads - known, "chunk {chunk}");
            assert_eq!(client.get(&key(0, 16)).unwrap(), Some(value(0, 1_000)));
        }
    }
}

/// A client remembers where a table has grown to. The next server of the table has not registered that
/// memory: the table has shrunk. The client forgets what it remembered when it finds that server.
fn entries_of_the_server_before(_: &Fake) {
    /// This number of segments takes more than two chunks.
    const SEGMENTS: u64 = 32;
    const CHUNK: u64 = 16 << 20;
    const KEEP: u32 = 300;
    let folder = tempfile::tempdir().unwrap();
    let size = TableSize::Growing { bytes_max: 256 << 20, segment_slots: Some(1024) };
    let table = config(default_preset(), 0, 16, 1_000, 7).size(size).grace(Duration::from_millis(20));
    let serve = |address: Address| {
        let backing = Backing::File(folder.path().join("region"));
        let config = ServerConfig::new(address, table).backing(backing).start(StartMode::OpenOrCreate);
        Server::start(config.token(Token::new(TOKEN))).unwrap()
    };
    let mut server = serve(at("127.0.0.1:0"));
    let address = server.address().clone();
    for (round, options) in both_paths(64).into_iter().enumerate() {
        let index = server.index();
        let of = |n: u32| value(n.into(), 900);
        let mut last = 0;
        while index.growth().segments < SEGMENTS || index.growth().splitting > 0 {
            index.put(&key(last, 16), &of(last), PutMode::Upsert).unwrap();
            last += 1;
        }
        let bytes = index.geometry().slots() * index.geometry().shape().bytes() as u64;
        assert!(SEGMENTS * bytes > 2 * CHUNK, "{bytes} bytes each");
        let mut client = Client::connect_with(&address, options).unwrap();
        let check = |client: &mut Client| {
            for n in 0..KEEP {
                assert_eq!(client.get(&key(n, 16)).unwrap(), Some(of(n)), "round {round}: {n}");
            }
        };
        check(&mut client);
        (KEEP..last).for_each(|n| assert_eq!(index.remove(&key(n, 16)), Ok(true)));
        wait_for("the table to shrink", || {
            index.shrink();
            index.tidy();
            let growth = index.growth();
            (growth.segments == 1 && growth.merging == 0).then_some(())
        });
        server.stop();
        server = serve(address.clone());
        check(&mut client);
        assert_eq!(client.stats().reattached, 1, "round {round}");
    }
}
