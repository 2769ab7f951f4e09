"""The native part: each call, and what it does with bad input."""

from __future__ import annotations

import array
import logging
import mmap
import pickle
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from native import served, until

import oneread
from oneread import Client, Server


@pytest.fixture
def client() -> Iterator[Client]:
    with served(life=True, owners=True, key_max=32, value_max=100_000) as (_, client):
        yield client


def test_one_key(client: Client) -> None:
    assert client.get(b"a") is None and client.get(b"a", 7) == 7 and b"a" not in client
    assert client.put(b"a", b"1") and not client.put(b"a", b"2")
    assert client.get(b"a") == b"2" and client.get(b"a", 7) == b"2" and b"a" in client
    assert not client.insert(b"a", b"3") and client.insert(b"b", b"3")
    assert client.update(b"a", b"4") and not client.update(b"c", b"4")
    assert client.value_len(b"a") == 1 and client.value_len(b"c") is None
    assert len(client) == 2 and client and client.remove(b"a") and not client.remove(b"a")
    assert client.clear() == 1 and len(client) == 0


@pytest.mark.parametrize("length", [0, 1, 2, 7, 8, 9, 31, 64, 78, 79, 100, 1000, 4096, 4097, 65536, 100_000])
def test_values_of_any_length(client: Client, length: int) -> None:
    value = bytes(n % 251 for n in range(length))
    client.put(b"k", value)
    assert client.get(b"k") == value and client.get_many([b"k"]) == [value]
    buffer = bytearray(b"\xff" * (length + 3))
    assert client.get_into(b"k", buffer) == length and buffer == value + b"\xff" * 3
    # One byte, and none, are objects that the interpreter gives out again.
    assert bytes([value[0]]) == value[:1] if value else client.get(b"k") == b""


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, np.array])
def test_any_buffer_is_a_key_and_a_value(client: Client, kind: Callable[[bytes], Any]) -> None:
    def of(value: bytes) -> Any:
        return np.frombuffer(value, np.uint8) if kind is np.array else kind(value)

    assert client.put(of(b"key"), of(b"value")) and client.get(of(b"key")) == b"value" and of(b"key") in client
    assert client.compare_exchange(of(b"key"), of(b"value"), of(b"other")) and client.remove(of(b"key"))
    assert client.put_many([of(b"x"), of(b"y")], [of(b"1"), of(b"2")]) == 2
    assert client.get_many([of(b"y"), of(b"z"), of(b"x")]) == [b"2", None, b"1"]


def test_into_any_writable_buffer(client: Client) -> None:
    client.put(b"k", b"abcdefgh")
    numbers = np.zeros(3, np.uint64)
    assert client.get_into(b"k", numbers) == 8 and numbers.tobytes() == b"abcdefgh" + bytes(16)
    assert client.get_into(b"k", numbers[1:]) == 8 and numbers[1] == numbers[0]
    mapped = mmap.mmap(-1, 4096)
    assert client.get_into(b"k", mapped) == 8 and mapped[:8] == b"abcdefgh"
    assert client.get_into(b"k", array.array("d", [0.0])) == 8
    for wrong in [b"12345678", memoryview(b"12345678"), np.zeros((4, 4), np.uint8)[:, 1]]:
        with pytest.raises(BufferError):
            client.get_into(b"k", wrong)
    frozen = np.zeros(8, np.uint8)
    frozen.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        client.get_into(b"k", frozen)
    short = bytearray(7)
    with pytest.raises(oneread.TooShort, match="8 bytes long, and the buffer has 7") as told:
        client.get_into(b"k", short)
    assert told.value.needed == 8


def fixed(count: int) -> np.ndarray[Any, Any]:
    """Keys of 16 bytes, one behind the other."""
    keys = np.zeros((count, 16), np.uint8)
    keys.view(np.uint64)[:, 0] = np.arange(count)
    return keys


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 2047, 2048, 20_000])
def test_many_keys_in_any_shape(count: int) -> None:
    with served(keys=30_000, key_max=16, value_max=8) as (_, client):
        keys, values = fixed(count), np.arange(count, dtype=np.uint64)
        there = keys[::2].copy()
        assert client.put_many(there, values[::2].copy()) == len(there)
        expected = [values[n].tobytes() if n % 2 == 0 else None for n in range(count)]
        flat = keys.tobytes()
        as_list = [flat[n : n + 16] for n in range(0, len(flat), 16)]
        shapes: list[tuple[Any, int | None]] = [
            (keys, None),
            (keys.reshape(-1).view("S16"), None),
            (keys.reshape(-1).view("V16"), None),
            (flat, 16),
            (bytearray(flat), 16),
            (memoryview(flat), 16),
            (as_list, None),
            (tuple(as_list), None),
            (dict.fromkeys(as_list), None),
            ((key for key in as_list), None),
        ]
        for shape, width in shapes:
            if not isinstance(shape, Iterator):
                assert client.get_many(shape, width=width) == expected
                found = client.contains_many(shape, width=width)
                assert found.dtype == bool and found.tolist() == [value is not None for value in expected]
            out, found = np.full(count, 99, np.uint64), bytearray(count)
            assert client.get_many_into(shape, out, width=width, found=found) == len(there)
            assert out.tolist() == [n if n % 2 == 0 else 0 for n in range(count)]
            assert list(found) == [n % 2 == 0 for n in range(count)]
        assert client.remove_many(keys) == len(there) and len(client) == 0


def test_rows_are_filled_up(client: Client) -> None:
    client.put_many([b"a", b"b", b"c"], [b"123", b"", b"12345"])
    out = bytearray(b"\xff" * 20)
    assert client.get_many_into([b"a", b"b", b"?", b"c"], out) == 3
    assert out == b"123\0\0" + bytes(10) + b"12345"
    with pytest.raises(oneread.TooShort, match="key 3: the value is 5 bytes long, and a row has 4") as told:
        client.get_many_into([b"a", b"b", b"?", b"c"], bytearray(16))
    assert told.value.position == 3 and told.value.needed == 5


def test_numbers_are_keys(client: Client) -> None:
    ids = np.arange(1000, 2000, dtype=np.int64)
    client.put_many(ids, ids.astype(np.float32))
    out = np.zeros(3, np.float32)
    assert client.get_many_into(np.array([1500, 7, 1501]), out) == 2 and out.tolist() == [1500, 0, 1501]


def test_wrong_keys_are_named(client: Client) -> None:
    client.put(b"a", b"1")
    for call in [client.get, client.remove, client.pin, client.life, client.value_len, lambda key: key in client]:
        for key, kind in [(b"", oneread.KeyTooLong), (b"k" * 33, oneread.KeyTooLong), ("a", TypeError), (7, TypeError)]:
            if call in (client.life, client.remove, client.pin) and isinstance(key, bytes) and not key:
                continue
            with pytest.raises(kind):
                call(key)
    with pytest.raises(TypeError, match="a key is bytes, or another buffer, not str; encode it"):
        client.get("a")  # type: ignore[call-overload]
    keys = [b"k%d" % n for n in range(3000)]
    keys[2500] = b"x" * 33
    for call in [client.get_many, client.contains_many, client.remove_many, lambda keys: client.put_many(keys, keys)]:
        with pytest.raises(oneread.KeyTooLong, match="key 2500: the key is 33 bytes long") as told:
            call(keys)
        assert told.value.position == 2500 and isinstance(told.value, ValueError)
    assert len(client) == 1, "nothing was put"
    keys[2500] = "text"  # type: ignore[call-overload]
    for call in [client.get_many, client.contains_many, client.remove_many, lambda keys: client.put_many(keys, keys)]:
        with pytest.raises(TypeError) as wrong:
            call(keys)
        assert wrong.value.__notes__ == ["key 2500"]
    with pytest.raises(oneread.ValueTooLong, match="value 1: the value is 100001 bytes long") as told:
        client.put_many([b"x", b"y"], [b"", bytes(100_001)])
    assert told.value.position == 1 and len(client) == 1


@pytest.mark.parametrize(
    "keys, width",
    [
        (np.zeros((4, 32), np.uint8)[:, ::2], None),
        (np.zeros((4, 32), np.uint8).T, None),
        (np.asfortranarray(np.zeros((4, 16), np.uint8)), None),
        (np.zeros(8, np.uint8)[::2], 1),
        (b"12345", 2),
        (b"12345", None),
        (b"12345", 0),
        (np.zeros(4, "S16"), 8),
        (np.array(["a", "b"]), None),
        ("ab", None),
        ("ab", 1),
        (7, None),
        ([7], None),
        ([None], None),
        (np.zeros(2, object), None),
        (np.zeros(2, [("a", object), ("Of", "u8")]), None),
    ],
)
def test_wrong_shapes(client: Client, keys: Any, width: int | None) -> None:
    out = bytearray(64)
    for call in [client.get_many, client.contains_many, client.remove_many, lambda k, width: client.get_many_into(k, out, width=width)]:
        with pytest.raises((TypeError, ValueError, BufferError)):
            call(keys, width=width)
    with pytest.raises((TypeError, ValueError, BufferError)):
        client.put_many(keys, keys, width=width)
    assert len(client) == 0 and out == bytes(64)


def test_lengths_that_differ(client: Client) -> None:
    with pytest.raises(ValueError, match="2 keys, and 1 values"):
        client.put_many([b"a", b"b"], [b"1"])
    with pytest.raises(ValueError, match="no 3 rows"):
        client.get_many_into([b"a", b"b", b"c"], bytearray(8))
    with pytest.raises(ValueError, match="give one for each"):
        client.get_many_into([b"a", b"b"], bytearray(8), found=bytearray(3))
    with pytest.raises(ValueError, match="give one for each"):
        client.contains_many([b"a", b"b"], out=bytearray(3))
    with pytest.raises(BufferError):
        client.contains_many([b"a", b"b"], out=b"12")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give one for each"):
        client.revalidate([b"a"], [1, 2])


def test_an_object_that_raises(client: Client) -> None:
    class Raises:
        def __buffer__(self, flags: int) -> memoryview:
            raise RuntimeError("no")

    class RaisesLater:
        def __iter__(self) -> Iterator[bytes]:
            yield b"a"
            raise RuntimeError("no")

    # `__buffer__` is asked from Python 3.12 on.
    for call in [client.get, client.remove, lambda key: client.put(b"a", key), client.get_many]:
        with pytest.raises((RuntimeError, TypeError)):
            call(Raises())
    with pytest.raises(RuntimeError):
        client.get_many(RaisesLater())
    with pytest.raises((RuntimeError, TypeError)):
        client.put_many([b"a", b"b"], [b"1", Raises()])
    assert len(client) == 0


def test_a_list_that_shrinks_meanwhile(client: Client) -> None:
    """What an object does while its bytes are asked for is its own affair, and ends in an error or an answer."""
    keys: list[Any] = [b"%d" % n for n in range(2000)]

    class Shrinks:
        def __buffer__(self, flags: int) -> memoryview:
            keys.clear()
            return memoryview(b"x")

    keys[10] = Shrinks()
    with pytest.raises((IndexError, TypeError)):
        client.get_many(keys)
        raise IndexError  # 3.11 does not ask


def test_counters_and_bits(client: Client) -> None:
    assert client.add(b"n") is None and client.add(b"n", 2, initial=40) == 42 and client.add(b"n", -2) == 40
    assert client.get(b"n") == (40).to_bytes(8, "little")
    with pytest.raises(oneread.Invalid, match="the counter is 40"):
        client.add(b"n", -41)
    assert client.or_(b"bits", b"\x05") and not client.or_(b"bits", b"\x01") and client.and_not(b"bits", b"\x04")
    assert client.get(b"bits") == b"\x01" and not client.and_not(b"none", b"\x01")
    assert client.append(b"log", b"ab") and client.append(b"log", b"cd") and client.get(b"log") == b"abcd"
    with pytest.raises(oneread.Invalid, match="bound of this append is 5"):
        client.append(b"log", b"ef", len_max=5)


def test_compare_exchange(client: Client) -> None:
    assert client.compare_exchange(b"k", None, b"1") and not client.compare_exchange(b"k", None, b"2")
    assert not client.compare_exchange(b"k", b"2", b"3") and client.compare_exchange(b"k", b"1", b"2")
    assert client.compare_exchange(b"k", b"2", None) and client.compare_exchange(b"k", None, None)


def test_lives_owners_and_puts_in_two_steps(client: Client) -> None:
    client.put(b"a", b"1")
    life = client.life(b"a")
    assert life is not None and life.owner == 0 and life.ends_in is None and client.life(b"b") is None
    assert client.revalidate([b"a", b"b"], [life.number, 1]) == [True, False]
    client.put(b"a", b"2", ttl=1000)
    after = client.life(b"a")
    assert after is not None and after.ends_in is not None and 990 < after.ends_in < 1001
    assert client.revalidate(b"a", [life.number], width=1) == [False]
    for wrong in [-1, float("nan"), float("inf"), 0, 1e19, 1e300]:
        with pytest.raises(oneread.Invalid):
            client.put(b"a", b"3", ttl=wrong)
    with client.owner(7) as owner:
        owner.put(b"own", b"1")
        assert client.life(b"own").owner == 7 and client.remove_owner(7)  # type: ignore[union-attr]
        assert b"own" not in client
        with pytest.raises(oneread.Refused) as gone:
            owner.put(b"own", b"2")
        assert isinstance(gone.value, PermissionError)
    ticket = client.put_start(b"two", 3)
    assert ticket.key == b"two" and b"two" not in client
    with pytest.raises(oneread.Busy):
        client.put_start(b"two", 3)
    assert client.put_commit(ticket, b"abc") and client.get(b"two") == b"abc"
    for again in [lambda: client.put_commit(ticket, b"abc"), lambda: client.put_abort(ticket)]:
        with pytest.raises(oneread.Invalid, match="no such put"):
            again()
    assert client.put_abort(client.put_start(b"two", 3))


def test_pins_and_eviction() -> None:
    with served(slots=64, key_max=8, value_max=8, evict="s3-fifo") as (_, client):
        client.put(b"kept", b"1")
        assert client.pin(b"kept") and not client.pin(b"none")
        client.put_many([b"%d" % n for n in range(500)], [b""] * 500)
        assert client.get(b"kept") == b"1" and len(client) <= 64 and client.unpin(b"kept")


def test_a_full_table_names_what_it_has_not_taken() -> None:
    with served(slots=64, key_max=8, value_max=8) as (_, client):
        keys = [b"%d" % n for n in range(200)]
        with pytest.raises(oneread.Full, match="of 200 changes were made") as full:
            client.put_many(keys, keys)
        rejected = full.value.rejected
        assert rejected and full.value.position == rejected[0] and len(client) == 200 - len(rejected)
        there = client.contains_many(keys)
        assert [n for n in range(200) if not there[n]] == rejected


def test_scans(client: Client) -> None:
    keys = {b"key:%d" % n: bytes([n % 256]) * (n % 300) for n in range(500)}
    client.put_many(list(keys), list(keys.values()))
    client.put(b"other", b"")
    assert sorted(client.scan(prefix=b"key:")) == sorted(keys)
    assert dict(client.scan(prefix=b"key:", values=True)) == keys
    scan = client.scan()
    first = next(scan)
    while scan.cursor is None:
        next(scan)
    rest = list(client.scan(cursor=scan.cursor))
    assert first not in rest and len(set(rest)) == len(rest) < 501
    for wrong in [b"", b"nonsense", b"x" * 1000]:
        with pytest.raises(oneread.Invalid):
            next(client.scan(cursor=wrong))
    assert list(client.scan(prefix=b"?")) == []


def test_changes(client: Client) -> None:
    client.put(b"a", b"1")
    with client.changes(start="keys", values=True) as changes:
        assert next(changes) == oneread.Change("key", b"a", b"1") and next(changes).kind == "joined"
        client.put(b"b", b"2")
        client.put(b"b", b"3")
        client.remove(b"b")
        heard = [next(changes) for _ in range(3)]
        assert [(item.kind, item.key, item.value) for item in heard] == [
            ("came", b"b", b"2"),
            ("replaced", b"b", b"3"),
            ("left", b"b", None),
        ]
        assert heard[2].cause == "removed" and heard[1].number == heard[0].number + 1
        assert changes.poll() is None and changes.poll(0.01) is None
        position = changes.position
        client.put(b"c", b"")
        # Another one goes on where this one is.
        with client.changes(start=position, prefix=b"c") as other:
            assert next(other).key == b"c"
    with pytest.raises(oneread.Closed):
        next(changes)
    for wrong in ["then", 7, (1, 2)]:
        with pytest.raises((oneread.Invalid, TypeError, ValueError)):
            client.changes(start=wrong)  # type: ignore[arg-type]
    with pytest.raises(oneread.OnereadError):
        client.changes(start=(1, 2, 3))


def test_a_descriptor_says_when_there_are_changes(client: Client) -> None:
    with client.changes() as changes:
        fd = changes.fileno()
        assert fd == changes.fileno() and select.select([fd], [], [], 0.02)[0] == []
        for _ in range(3):
            client.put(b"a", b"")
            assert select.select([fd], [], [], 60)[0] == [fd]
            assert select.select([fd], [], [], 0)[0] == [fd], "until it is taken"
            assert changes.poll().key == b"a"  # type: ignore[union-attr]
            assert changes.poll() is None and select.select([fd], [], [], 0.02)[0] == []
        position = changes.position
        client.put(b"b", b"")
        changes.resync()
        heard = [next(changes) for _ in range(3)]
        assert {item.key for item in heard[:2]} == {b"a", b"b"} and heard[2].kind == "joined"
        assert changes.position != position
        # As many as never wait all at once.
        keys = [b"%d" % n for n in range(10_000)]
        with served(keys=20_000) as (_, large), large.changes() as many:
            many.fileno()
            large.put_many(keys, keys)
            assert [next(many).key for _ in keys] == keys


def test_options_are_checked() -> None:
    for wrong, kind in [
        ({"nope": 1}, TypeError),
        ({"keys": 0}, oneread.Invalid),
        ({"keys": -1}, OverflowError),
        ({"keys": "many"}, TypeError),
        ({"keys": 10, "slots": 10}, oneread.Invalid),
        ({"segment_slots": 10}, oneread.Invalid),
        ({"layout": "nope"}, oneread.Invalid),
        ({"evict": "nope"}, oneread.Invalid),
        ({"start": "nope"}, oneread.Invalid),
        ({"key_max": 256}, oneread.Invalid),
        ({"grace": -1}, oneread.Invalid),
        ({"owners": True}, oneread.Invalid),
        ({"snapshots_every": 1}, oneread.Invalid),
        ({"start": "open"}, oneread.Invalid),
    ]:
        with pytest.raises(kind):
            Server("/tmp/or-never", **wrong)  # type: ignore[arg-type]
    for wrong, kind in [
        ({"nope": 1}, TypeError),
        ({"timeout": -1}, oneread.Invalid),
        ({"requests": "nope"}, oneread.Invalid),
        ({"encryption_key": b"short"}, oneread.Invalid),
        ({"lease": "long"}, TypeError),
    ]:
        with pytest.raises(kind):
            Client("/tmp/or-never", **wrong)  # type: ignore[arg-type]
    for address in ["nowhere", "shm:", "/" + "x" * 200, 7]:
        with pytest.raises((oneread.Invalid, TypeError)):
            Client(address)  # type: ignore[arg-type]
    with pytest.raises(oneread.Disconnected, match="no server at shm:/tmp/or-never") as nobody:
        Client("shm:/tmp/or-never")
    assert isinstance(nobody.value, ConnectionError)


def test_times_that_no_clock_has_are_refused(client: Client) -> None:
    for wrong in [1e19, 1.8e19, 1e300]:
        for call in [
            lambda: Client(client.address, timeout=wrong),
            lambda: Client(client.address, lease=wrong),
            lambda: client.put_start(b"a", 1, within=wrong),
            lambda: client.owner(7, absent_for=wrong),
            lambda: client.changes().poll(wrong),
        ]:
            with pytest.raises(oneread.Invalid, match="give seconds"):
                call()


def test_encryption() -> None:
    with served(value_max=200) as (server, plain), Client(server.address, encryption_key=b"k" * 32) as client:
        client.put(b"a", b"secret")
        assert client.get(b"a") == b"secret" and client.value_len(b"a") == 6 and b"a" in client
        assert b"secret" not in (plain.get(b"a") or b"")
        buffer = bytearray(6)
        assert client.get_into(b"a", buffer) == 6 and buffer == b"secret"
        assert client.get_many([b"a", b"b"]) == [b"secret", None]
        plain.put(b"b", b"plain")
        with pytest.raises(oneread.Undecrypted):
            client.get(b"b")
        with pytest.raises(oneread.Undecrypted, match="key 1:") as told:
            client.get_many([b"a", b"b"])
        assert told.value.position == 1


def test_what_was_closed_says_so() -> None:
    with served() as (server, client):
        client.put(b"a", b"1")
        other = Client(server.address)
        with other:
            pass
        other.close()
        for call in [
            lambda: other.get(b"a"),
            lambda: other.put(b"a", b""),
            lambda: len(other),
            lambda: other.get_many([b"a"]),
            lambda: other.pin(b"a"),
            lambda: other.changes(),
            lambda: next(other.scan()),
        ]:
            with pytest.raises(oneread.Closed):
                call()
        assert client.get(b"a") == b"1" and len(server) == 1 and server.stats()["keys"] == 1
        server.stop()
        server.stop()
        with pytest.raises(oneread.Closed):
            len(server)
        with pytest.raises(oneread.Disconnected):
            client.get(b"a")
        with pytest.raises(oneread.Disconnected):
            client.put(b"a", b"")


def test_counts(client: Client) -> None:
    client.put(b"a", b"")
    client.get(b"a"), client.get(b"b")
    threads = [threading.Thread(target=client.get_many, args=([b"a"] * 1000,)) for _ in range(20)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    stats = client.stats()
    assert stats["get"]["gets"] == 20_002 and stats["get"]["hits"] == 20_001 and stats["changes"]["puts"] == 1
    assert client.server_stats()["keys"] == 1


def test_a_table_that_stays(tmp_path: Any) -> None:
    with served(backing=tmp_path / "region", start="open_or_create") as (_, client):
        client.put(b"a", b"1")
    with served(backing=str(tmp_path / "region"), start="open") as (_, client):
        assert client.get(b"a") == b"1"
    with pytest.raises(oneread.OnereadError), served(backing=tmp_path / "region"):
        pass


def test_an_index_of_its_own() -> None:
    index = oneread.Index(bytes_max=64 << 20, key_max=16, value_max=1000, ttl=1000)
    keys = [b"%d" % n for n in range(5000)]
    assert index.put_many(keys, keys) == 5000 and len(index) == 5000 and index.get_many(keys + [b"?"]) == [*keys, None]
    assert index.get(b"7") == b"7" and index.get(b"?", 1) == 1 and b"8" in index and b"?" not in index
    assert not index.put(b"7", b"x" * 999) and index.get(b"7") == b"x" * 999 and not index.insert(b"7", b"")
    assert index.compare_and_swap(b"8", b"8", b"9") and not index.compare_and_swap(b"8", b"8", b"9")
    assert index.update(b"8", b"a", ttl=5) and not index.update(b"?", b"") and index.remove(b"8")
    with pytest.raises(oneread.KeyTooLong) as told:
        index.put_many([b"a", b"k" * 17], [b"", b""])
    assert told.value.position == 1 and b"a" not in index
    with pytest.raises(oneread.ValueTooLong, match="those before it were put") as told:
        index.put_many([b"a", b"b"], [b"", bytes(1001)])
    assert told.value.position == 1 and b"a" in index and b"b" not in index
    assert index.clear() == 5000 and len(index) == 0 and index
    with pytest.raises(oneread.Invalid):
        oneread.Index(keys=0)
    with pytest.raises(TypeError):
        oneread.Index(workers=3)


def test_errors_are_pickled() -> None:
    for error in [oneread.Full("full"), oneread.KeyTooLong("long"), oneread.Timeout("late")]:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
    assert issubclass(oneread.Timeout, TimeoutError) and issubclass(oneread.Full, oneread.OnereadError)


def test_the_log_is_pythons(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "oneread")
    oneread.log_level(logging.INFO)
    try:
        with served() as (server, _):
            until(lambda: any("serving" in record.message and "address=shm:" in record.message for record in caplog.records))
        assert {record.levelname for record in caplog.records} <= {"INFO", "WARNING"}
    finally:
        oneread.log_level(logging.WARNING)


def test_errors_are_in_pythons_words(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """No path of Rust, no flag of the command."""
    at = client.address + ".other"
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: Server(at, keys=10, key_max=300), "`key_max=` is 300 bytes"),
        (lambda: Server(at, keys=10, value_max=1 << 40), "`value_max=` is"),
        (lambda: Server(at, keys=10, value_max=1 << 20, heap_bytes=7), "`heap_bytes=` is 7"),
        (lambda: Server(at, bytes_max=4096), "lower `value_max=`"),
        (lambda: Server(at, keys=10, owners=True), "`owners=True` needs `life=True`"),
        (lambda: Server(at, keys=10, grace=1e6), "`grace=` is"),
        (lambda: Server(at, keys=10, workers=10_000), "`workers=` is 10000"),
        (lambda: Server(at, keys=10, read_token="r"), "set `token=`, too"),
        (lambda: Server(at, keys=10, tcp="tcp://0.0.0.0:0"), "set a token (`token=`)"),
        (lambda: oneread.Index(keys=10, key_max=300), "`key_max=` is 300 bytes"),
        (lambda: oneread.Index(keys=10).put(b"a", b"", ttl=1), "make it with `life=True`"),
        (lambda: oneread.LocationIndex(client).put([b"12345"], [(1, 1, 1, 1)]), "take texts (`str`)"),
        (lambda: Client(client.address, requests="message").pin(b"none" * 100), ""),
    ]
    for call, words in calls:
        with pytest.raises(oneread.OnereadError) as told:
            call()
        text = str(told.value)
        assert words in text and "::" not in text and " --" not in text, text
    with served() as (_, plain):
        for index, words in [
            (oneread.LocationIndex, "make one with `LocationIndex.table()`"),
            (oneread.PlacementIndex, "make one with `PlacementIndex.table()`"),
        ]:
            with pytest.raises(oneread.Incompatible) as told:
                index(plain)
            assert words in str(told.value)
