//! What devices there are, what is chosen, and what they refuse.

use super::*;

stories! {
    devices_that_vanish,
    memory_that_may_not_be_registered,
    tiny_devices,
    devices_that_differ,
    @told choice,
}

/// Serves and connects as the arguments say. Returns what was chosen, or the error.
fn choice(_: &Fake) {
    tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::INFO).init();
    match try_to_serve(&format!("127.0.0.1:0{}", told("ONEREAD_TEST_QUERY").unwrap()), default_preset(), 128)
    {
        Err(ServeError::Verbs(error)) => println!("not served: {}", with_causes(&error)),
        Err(error) => panic!("{error}"),
        Ok(server) => {
            let mut client = connect(&server);
            fill(&mut client, 30);
            check_all(&mut client, 30);
            println!("served");
        }
    }
}

/// The fake's settings, the address's query, and the expected words.
type Case = (&'static [(&'static str, &'static str)], &'static str, &'static [&'static str]);

#[test]
fn what_is_chosen() {
    if is_guest("what_is_chosen") {
        return;
    }
    const NO_GID: (&str, &str) = ("FAKE_GIDS", "");
    const TWO_PORTS: [(&str, &str); 2] = [("FAKE_PORTS", "2"), ("FAKE_PORT_STATE", "down,active")];
    const DOWN: [(&str, &str); 2] = [("FAKE_PORTS", "2"), ("FAKE_PORT_STATE", "down")];
    const INFINIBAND: (&str, &str) = ("FAKE_LINK_LAYER", "infiniband");
    const SPARSE: (&str, &str) =
        ("FAKE_GIDS", "7=v1:192.0.2.1 9=v2:fe80::1 90=v2:2001:db8::1 200=v2:192.0.2.1");
    const V1: (&str, &str) = ("FAKE_GIDS", "3=v1:192.0.2.1 4=v1:fe80::1");
    const LINK_LOCAL: (&str, &str) = ("FAKE_GIDS", "0=v1:fe80::1 5=v2:fe80::1");
    let served: &[Case] = &[
        (&[], "", &["device fake0, port 1: chose index 3: RoCE v2, IPv4, MTU 1024"]),
        (&[SPARSE], "", &["chose index 200: RoCE v2, IPv4, MTU"]),
        (&[SPARSE], "?gid=90", &["took index 90, as asked for: RoCE v2, IPv6; index 200 would suit better"]),
        (&[V1], "", &["chose index 3: RoCE v1, IPv4; warning", "v1 on both sides"]),
        (
            &[LINK_LOCAL],
            "",
            &["chose index 5: RoCE v2, IPv6 link-local; warning", "give its interface an address"],
        ),
        (&TWO_PORTS, "", &["device fake0, port 2: chose index 3"]),
        (&TWO_PORTS, "?port=2", &["device fake0, port 2: chose index 3"]),
        (&[], "?port=1", &["device fake0, port 1: chose index 3"]),
        (&[("FAKE_DEVICES", "2")], "?dev=fake1", &["device fake1, port 1: chose index 3"]),
        (&[INFINIBAND], "", &["no GID needed: InfiniBand by LID 1"]),
        (&[INFINIBAND, NO_GID], "", &["no GID needed: InfiniBand by LID 1"]),
        (&[INFINIBAND], "?gid=0", &["took index 0, as asked for: InfiniBand"]),
        (&[("FAKE_MTU", "256")], "", &["MTU 256"]),
        (&[("FAKE_MTU", "512")], "", &["MTU 512"]),
        (&[("FAKE_MTU", "2048")], "?mtu=2048", &["MTU 2048"]),
        (&[("FAKE_MTU", "4096")], "", &["MTU 4096"]),
        (&[("FAKE_MTU", "4096")], "?mtu=256", &["MTU 256"]),
    ];
    let not_served: &[Case] = &[
        (
            &[NO_GID],
            "",
            &["device fake0, port 1, has no GID to use: the port has no GID", "ip link set eth0 up"],
        ),
        (
            &[("FAKE_GIDS", "2=v2:::")],
            "",
            &["device fake0, port 1, has no GID to use: all 1 GIDs", "ip addr add"],
        ),
        (&[], "?gid=9", &["the port has no GID at index 9; it has some at 0, 1, 2, 3"]),
        (&TWO_PORTS, "?port=1", &["port 1 of device fake0 is down; bring its link up"]),
        (&TWO_PORTS, "?port=3", &["device fake0 has no port 3; it has ports 1 to 2"]),
        (&DOWN, "", &["no port of device fake0 is up; bring its link up", "?dev=DEVICE&port=N"]),
        (&[("FAKE_DEVICES", "2")], "?dev=mlx5_0", &["no RDMA device \"mlx5_0\"; there are: fake0, fake1"]),
        (&[], "?mtu=2048", &["an MTU of 2048 bytes", "device fake0, whose port carries up to 1024"]),
    ];
    for (cases, outcome) in [(served, "\nserved"), (not_served, "not served: ")] {
        for (env, query, expected) in cases {
            let said = tell("choice", &[env, &[("ONEREAD_TEST_QUERY", *query)][..]].concat());
            for expected in expected.iter().chain([&outcome]) {
                assert!(said.contains(expected), "{env:?}, {query:?}: {expected:?} is not in\n{said}");
            }
        }
    }
}

/// A client whose device is gone says so, although the server still has its own. When the device is
/// back, the same handle works.
fn devices_that_vanish(fake: &Fake) {
    let server = serve(128);
    let mut client = connect(&server);
    fill(&mut client, 30);
    fake.set("FAKE_DEVICES", 0);
    let error = refused(server.address(), options());
    assert!(matches!(error, SetupError::NoDevice { no_module: false }), "{error}");
    fake.set("FAKE_DEVICES", -38);
    let error = refused(server.address(), options());
    assert!(matches!(error, SetupError::NoDevice { no_module: true }), "{error}");
    fake.set("FAKE_DEVICES", 1);
    fake.set("FAKE_PORT_STATE", 1);
    let error = refused(server.address(), options());
    assert!(matches!(&error, SetupError::PortDown { device, port: None } if device == "fake0"), "{error}");
    let mut hasty = Client::clone(&client);
    client.get(&ours(1).0).expect_err("the port is down");
    hasty.get(&ours(1).0).expect_err("the port is down");
    fake.set("FAKE_PORT_STATE", 4);
    check_all(&mut client, 30);
    check_all(&mut hasty, 30);
}

/// The device does not take the memory. The error names the limit on locked memory and its remedy.
fn memory_that_may_not_be_registered(fake: &Fake) {
    const ENOMEM: i32 = 12;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    let limit = rustix::process::Rlimit { current: Some(49152), ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Memlock, limit).unwrap();
    let mends = |why: &str| why.contains("lock only 49152 bytes") && why.contains("ulimit -l unlimited");
    fake.set("FAKE_REG_ERRNO", ENOMEM.into());
    match try_to_serve("127.0.0.1:0", default_preset(), 128) {
        Err(ServeError::Verbs(error)) => {
            assert!(matches!(error, SetupError::Register { errno: ENOMEM, limit: Some(49152), .. }));
            assert!(mends(&error.to_string()), "{error}");
        }
        other => panic!("{other:?}"),
    }
    fake.set("FAKE_REG_ERRNO", 0);
    let server = serve(128);
    fake.set("FAKE_REG_ERRNO", ENOMEM.into());
    // The server cannot register its memory.
    match refused(server.address(), options()) {
        SetupError::Refused { why, .. } => assert!(mends(&why), "{why}"),
        error => panic!("{error}"),
    }
    fake.set("FAKE_REG_ERRNO", 0);
    // The client cannot. The library is named here because the relay's thread may not borrow the
    // fake.
    let library = told("ONEREAD_TEST_LIBRARY").unwrap();
    let address = relay(&server, move |_| Fake::load(&library).set("FAKE_REG_ERRNO", ENOMEM.into()));
    let error = refused(&address, options());
    assert!(matches!(error, SetupError::Register { errno: ENOMEM, .. }), "{error}");
    assert!(mends(&error.to_string()), "{error}");
    fake.set("FAKE_REG_ERRNO", 0);
    wait_for("the server to notice", || (server.stats().clients == 0).then_some(()));
    let mut client = connect(&server);
    fill(&mut client, 30);
    check_all(&mut client, 30);
}

/// Queues as short as possible. The client's work fits into them, even when all of it fails at
/// once.
fn tiny_devices(fake: &Fake) {
    for (setting, value) in [
        ("FAKE_MAX_RD_ATOMIC", 1),
        ("FAKE_MAX_QP_WR", 17),
        ("FAKE_MAX_QP_WR", 40),
        ("FAKE_MAX_CQE", 33),
        ("FAKE_MAX_CQE", 64),
        ("FAKE_MAX_SRQ_WR", 8),
    ] {
        let normal = [("FAKE_MAX_RD_ATOMIC", 16), ("FAKE_MAX_QP_WR", 16384), ("FAKE_MAX_CQE", 65536)];
        fake.set(setting, value);
        let server = serve(1024);
        let mut client = connect(&server);
        fill(&mut client, 200);
        for (nth, delay) in [(0, 0), (0, 5), (1, 5), (20, 5), (100, 0)] {
            fake.set("FAKE_DELAY_READS", delay);
            fake.set("FAKE_FAIL_NTH_READ", nth);
            check_all(&mut client, 200);
            fill(&mut client, 200);
        }
        for name in ["queue_full", "cq_overflows", "misuse"] {
            assert_eq!(fake.count(name), 0, "{name} with {setting}={value}");
        }
        for (setting, value) in normal.into_iter().chain([("FAKE_MAX_SRQ_WR", 16384)]) {
            fake.set(setting, value);
        }
    }
    // Too short for one READ and the messages.
    for (setting, value, normal) in [("FAKE_MAX_QP_WR", 16, 16384), ("FAKE_MAX_CQE", 32, 65536)] {
        let server = serve(128);
        fake.set(setting, value);
        let error = refused(server.address(), options());
        assert!(matches!(error, SetupError::Call { errno: 22, .. }), "{error}");
        fake.set(setting, normal);
    }
}

/// Each side keeps to what both devices can do: READs in flight, and the length of packets.
fn devices_that_differ(fake: &Fake) {
    let set = |reads: i64, mtu: i64| {
        fake.set("FAKE_MAX_RD_ATOMIC", reads);
        fake.set("FAKE_MTU", mtu);
    };
    for (of_the_server, of_the_client) in [((16, 4096), (1, 1024)), ((1, 1024), (16, 4096))] {
        set(of_the_server.0, of_the_server.1);
        let server = serve(1024);
        set(of_the_client.0, of_the_client.1);
        let mut client = connect(&server);
        fill(&mut client, 200);
        fake.set("FAKE_DELAY_READS", 3);
        check_all(&mut client, 200);
        fake.set("FAKE_DELAY_READS", 0);
        assert_eq!(client.stats().reattached, 0);
    }
}
