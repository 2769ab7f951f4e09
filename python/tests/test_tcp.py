"""A server beside its socket over TCP: with a token, with TLS, and with what is wrong with either."""

import shutil
import subprocess

import oneread
import pytest

TOKEN = "a token for tests"


@pytest.fixture
def place(tmp_path):
    return f"shm:{tmp_path / 'table'}"


def served(place, **options):
    return oneread.Server(place, keys=1_000, tcp="tcp://127.0.0.1:0", **options)


def test_a_client_over_tcp(place):
    with served(place, token=TOKEN, read_token=b"for readers") as server:
        assert server.tcp_address.startswith("tcp://127.0.0.1:")
        near, far = oneread.Client(place), oneread.Client(server.tcp_address, token=TOKEN.encode())
        assert far.put(b"key", b"value")
        assert near.get(b"key") == far.get(b"key") == b"value"
        keys = [b"%d" % n for n in range(500)]
        far.put_many(keys, keys)
        assert far.get_many([*keys, b"absent"]) == [*keys, None]
        assert sorted(near.scan()) == sorted(far.scan())
        reader = oneread.Client(server.tcp_address, token="for readers")
        assert reader.get(b"key") == b"value"
        with pytest.raises(oneread.Refused):
            reader.put(b"key", b"other")
        for wrong in [None, "another"]:
            with pytest.raises(oneread.Refused, match="token"):
                oneread.Client(server.tcp_address, token=wrong)
    with served(place) as server:
        assert oneread.Client(server.tcp_address).get(b"key") is None
    with oneread.Server(place, keys=100) as server:
        assert server.tcp_address is None


def test_wrong_options_are_named(place, tmp_path):
    for options, named in [
        ({"token": ""}, "token is empty"),
        ({"token": 7}, "token"),
        ({"tcp": "127.0.0.1:7471"}, "tcp://"),
        ({"tls_cert": "c.pem"}, "tls_key"),
        ({"tls_client_ca": "ca.pem"}, "tls_cert"),
        ({"tls_cert": tmp_path / "c.pem", "tls_key": tmp_path / "c.key"}, "c.pem"),
        ({"tcp": "tcp://0.0.0.0:0"}, "token"),
    ]:
        with pytest.raises((oneread.OnereadError, TypeError), match=named):
            oneread.Server(place, **{"keys": 100, "tcp": "tcp://127.0.0.1:0"} | options)
    for options, named in [
        ({"tls_name": "host"}, "tls_ca"),
        ({"tls_cert": "c.pem", "tls_key": "c.key"}, "tls_ca"),
        ({"tls_ca": tmp_path / "ca.pem"}, "ca.pem"),
        ({"tls_ca": 7}, "PathLike"),
    ]:
        with pytest.raises((oneread.OnereadError, TypeError), match=named):
            oneread.Client("tcp://127.0.0.1:1", **options)


def certified(folder):
    """An authority, and a certificate of this host that comes from it."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *key, "-days", "9", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=an authority")
    openssl("req", "-new", *key, "-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=own")
    (folder / "more").write_text("basicConstraints=critical,CA:FALSE\nsubjectAltName=IP:127.0.0.1\n")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "9", "-extfile", "more"]
    openssl("x509", "-req", "-in", "own.csr", *signed, "-out", "own.pem")
    return {"tls_cert": folder / "own.pem", "tls_key": folder / "own.key"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="it makes the certificates")
def test_tls(place, tmp_path):
    own, authority = certified(tmp_path), tmp_path / "ca.pem"
    with served(place, tls_client_ca=authority, **own) as server:
        client = oneread.Client(server.tcp_address, tls_ca=authority, **own)
        assert client.put(b"key", b"value") and client.get(b"key") == b"value"
        with pytest.raises(oneread.Refused, match="speaks TLS"):
            oneread.Client(server.tcp_address)
        with pytest.raises(oneread.Refused):
            oneread.Client(server.tcp_address, tls_ca=authority)
        with pytest.raises(oneread.Refused, match="not valid for name"):
            oneread.Client(server.tcp_address, tls_ca=authority, tls_name="elsewhere", **own)
