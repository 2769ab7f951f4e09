"""An indexer beside libzmq and msgspec, with events of the forms that vLLM publishes.

    pip install pyzmq msgspec
    python indexer/tests/libzmq.py target/checked/oneread

A publisher with PUB and ROUTER, as engines have it, loses batches, hangs up and begins again. All answers are compared
with those of a model.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque

import msgspec
import zmq

BLOCK = 4
DEPTH = 16
PATHS = 12


class ListStored(msgspec.Struct, array_like=True, omit_defaults=True, tag="BlockStored"):
    block_hashes: list
    parent_block_hash: object
    token_ids: list
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None


class ListRemoved(msgspec.Struct, array_like=True, omit_defaults=True, tag="BlockRemoved"):
    block_hashes: list
    medium: str | None = None


class MapStored(msgspec.Struct, omit_defaults=True, tag="BlockStored"):
    block_hashes: list
    parent_block_hash: object
    token_ids: list
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list | None = None
    group_idx: int | None = None


class MapRemoved(msgspec.Struct, omit_defaults=True, tag="BlockRemoved"):
    block_hashes: list
    medium: str | None
    group_idx: int | None = None


class ListBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class MapBatch(msgspec.Struct, omit_defaults=True):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class Engine:
    """A publisher: an older vLLM's lists, or a newer one's maps, with numbers or digests for hashes."""

    def __init__(self, context, number, ports=(0, 0)):
        self.number, self.is_new = number, number % 2 == 1
        self.pub, self.router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        self.ports = [self.bind(self.pub, ports[0]), self.bind(self.router, ports[1])]
        self.kept, self.next, self.has = deque(maxlen=10_000), 0, set()

    @staticmethod
    def bind(socket, port):
        socket.linger = 0
        for _ in range(600):
            try:
                socket.bind(f"tcp://127.0.0.1:{port or '*'}")
                return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])
            except zmq.ZMQError:
                time.sleep(0.1)
        raise SystemExit(f"port {port} does not become free")

    def name(self, path, depth):
        number = hash((self.number, path, depth))
        return number.to_bytes(8, "big", signed=True) * 4 if self.is_new else number

    def tell(self, path, roll):
        length = next((depth for depth in range(DEPTH) if (path, depth) not in self.has), DEPTH)
        if length == DEPTH or (length and roll.random() < 0.3):
            cut = roll.randrange(length)
            names = [self.name(path, depth) for depth in range(cut, length)]
            self.has -= {(path, depth) for depth in range(cut, length)}
            return MapRemoved(names, "GPU") if self.is_new else ListRemoved(names)
        until = min(DEPTH, length + roll.randint(1, 5))
        names = [self.name(path, depth) for depth in range(length, until)]
        parent = self.name(path, length - 1) if length else None
        some = [token for depth in range(length, until) for token in tokens(path, depth)]
        self.has |= {(path, depth) for depth in range(length, until)}
        if self.is_new:
            return MapStored(names, parent, some, BLOCK, None, "GPU", None, group_idx=0)
        return ListStored(names, parent, some, BLOCK)

    def publish(self, events, is_lost=False):
        batch = (MapBatch if self.is_new else ListBatch)(time.time(), events, 0)
        payload = msgspec.msgpack.encode(batch)
        if not is_lost:
            self.pub.send_multipart((b"", self.next.to_bytes(8, "big"), payload))
        self.kept.append((self.next, payload))
        self.next += 1

    def answer(self):
        while self.router.poll(0):
            who, _, start = self.router.recv_multipart()
            for number, payload in self.kept:
                if number >= int.from_bytes(start, "big"):
                    self.router.send_multipart((who, b"", number.to_bytes(8, "big"), payload))
            self.router.send_multipart((who, b"", b"\xff" * 8, b""))

    def close(self):
        self.pub.close(0)
        self.router.close(0)


def tokens(path, depth):
    return [path, depth, path ^ depth, 9]


def ask(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def wrong(url, engines):
    for path in range(PATHS):
        prompt = [token for depth in range(DEPTH) for token in tokens(path, depth)]
        scores = ask(url, "/query", {"model_name": "m", "token_ids": prompt})["scores"]
        told = {int(name): ranks["0"] for name, ranks in scores.items()}
        length = lambda has: next((d for d in range(DEPTH) if (path, d) not in has), DEPTH) * BLOCK
        model = {engine.number: length(engine.has) for engine in engines if length(engine.has)}
        if told != model:
            return f"path {path}: {told}, and the model has {model}"
    return None


def main(program):
    roll, context = random.Random(5), zmq.Context()
    engines = [Engine(context, number) for number in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "kv-indexer", "--listen", "127.0.0.1:0", "--json", "--max-memory", "64MiB"]
        command += ["--table", f"shm:{folder}/kv.sock", "--region", f"{folder}/kv.region"]
        indexer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            url = json.loads(indexer.stdout.readline())["url"]
            for engine in engines:
                worker = {"instance_id": engine.number, "model_name": "m", "block_size": BLOCK}
                worker["endpoint"], worker["replay_endpoint"] = (
                    f"tcp://127.0.0.1:{port}" for port in engine.ports
                )
                ask(url, "/register", worker)
            for turn in range(40):
                for at, engine in enumerate(engines):
                    for _ in range(roll.randint(1, 20)):
                        event = engine.tell(roll.randrange(PATHS), roll)
                        engine.publish([event], is_lost=roll.random() < 0.2)
                    if turn % 10 == 9 and at == turn // 10:
                        engine.close()
                        engines[at] = Engine(context, engine.number, engine.ports)
                until = time.monotonic() + 60
                while told := wrong(url, engines):
                    if time.monotonic() > until:
                        raise SystemExit(f"turn {turn}: {told}\n{ask(url, '/workers')}")
                    for engine in engines:
                        engine.publish([])
                        engine.answer()
                    time.sleep(0.02)
            print("all answers were the model's")
        finally:
            indexer.kill()
            indexer.wait()


if __name__ == "__main__":
    main(sys.argv[1])
