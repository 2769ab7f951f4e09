"""Runs the tests of Django, of diskcache's backend for Django and of Flask-Caching against this package's backends (`./test --long`;
needs the network).

The sources are fetched by their hashes, and nothing of them is kept. A test is left out only for a reason that stands here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCES = {
    "django": "django==5.2.19 --hash=sha256:ad03d8abc51dbff95ebf34b27123cf0c26a3b62db7ba0cd520783686362533d1",
    "diskcache": "diskcache==5.6.3 --hash=sha256:2c3a3fa2743d8535d832ec61c2054a1641f41775aa7c556758a109941e33e4fc",
    "flask": "flask-caching==2.5.1 --hash=sha256:f75b451fde3faac0e278da72263818134deca8c4ba6bb07b9b3b238991368dae",
}

COUNT = "entries leave by their bytes, and not by their number"
OTHERS = "of another backend alone"

# By suite: tests, and why they are left out.
LEFT_OUT: dict[str, dict[str, str]] = {
    "django": {"test_cull": COUNT, "test_zero_cull": COUNT},
    "diskcache": {},
    "flask": {
        "test_cache.py::test_cache_unlink": OTHERS,
        "test_cache.py::test_cache_unlink_if_not": OTHERS,
        "test_cache.py::test_cache_delete_many_ignored": OTHERS,
    },
}

SETTINGS = """
SECRET_KEY = "of tests"
INSTALLED_APPS = [{app!r}]
DATABASES = {{name: {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}} for name in ("default", "other")}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
CACHES = {{"default": {{"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}}}
USE_TZ = False
ROOT_URLCONF = []
"""

# As Django's own tests of a backend with a directory.
DJANGO = """
import shutil, tempfile
from django.conf import settings
from django.core.cache import cache, caches
from django.test import TestCase, override_settings
from django.test.signals import setting_changed
from cache import tests as theirs

@override_settings(CACHES=theirs.caches_setting_for_tests(BACKEND="oneread.cache.djangocache.DjangoCache"))
class OnereadTests(theirs.BaseCacheTests, TestCase):
    def setUp(self):
        super().setUp()
        self.dirname = tempfile.mkdtemp()
        for params in settings.CACHES.values():
            params["LOCATION"] = self.dirname
            params.setdefault("OPTIONS", {})["lives"] = 0.1
        setting_changed.send(self.__class__, setting="CACHES", enter=False)

    def tearDown(self):
        super().tearDown()
        for one in caches.all(initialized_only=True):
            one._cache.close()
        shutil.rmtree(self.dirname)
"""

# As Flask-Caching's own tests of a backend, and those of what is above backends.
FLASK = """
import sys, types
sys.modules["xprocess"] = types.SimpleNamespace(ProcessStarter=object)
import flask, pytest
import flask_caching as fsc
from oneread.cache import core

@pytest.fixture
def options():
    return {"lives": 0.1}

@pytest.fixture
def app(request, tmp_path, options):
    app = flask.Flask(request.module.__name__, template_folder=str(request.path.parent))
    app.testing = True
    app.config["CACHE_TYPE"] = "oneread.contrib.flask_caching.OnereadCache"
    app.config["CACHE_DIR"] = str(tmp_path / "cache")
    app.config["CACHE_OPTIONS"] = options
    return app

@pytest.fixture
def cache(app):
    return fsc.Cache(app)

class Clock:
    "What readers go by. The table ends nothing meanwhile: its clock cannot be moved."
    def __init__(self):
        self.now = 1_700_000_000.0

    def time(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds

@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(core, "time", clock)
    monkeypatch.setattr(core, "table_ttl", lambda expire: None)
    return clock

@pytest.fixture(params=fsc.SUPPORTED_HASH_FUNCTIONS, ids=lambda method: method.__name__)
def hash_method(request):
    return request.param
"""
FLASK_BACKEND = """
import pytest
import test_backend_cache as theirs
from oneread.contrib.flask_caching import OnereadCache

class TestOneread(theirs.GenericCacheTests):
    @pytest.fixture
    def make_cache(self, tmp_path):
        made = []
        def make(**options):
            made.append(OnereadCache(str(tmp_path / str(len(made))), lives=0.1, **options))
            return made[-1]
        yield make
        for one in made:
            one._cache.close()
"""
# What is above backends; test_backend_cache.py is of other backends, but for what TestOneread has of it.
FLASK_FILES = ["test_cache.py", "test_memoize.py", "test_view.py", "test_subclassing.py", "test_signals.py", "test_templates.py"]


def fetched(folder: Path, name: str) -> Path:
    """The source of a package, below this folder."""
    wanted = folder / f"{name}.txt"
    wanted.write_text(SOURCES[name] + "\n")
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
    subprocess.run([*fetch, "-d", str(folder / name), "-r", str(wanted)], check=True)
    (source,) = (folder / name).glob("*.tar.gz")
    with tarfile.open(source) as packed:
        packed.extractall(folder / name, filter="data")
    (root,) = (one for one in (folder / name).iterdir() if one.is_dir())
    return root / "tests"


def run_django(left_out: dict[str, str], label: str, cases: list[type]) -> int:
    """Runs these tests by Django's runner."""
    import unittest

    from django.test.runner import DiscoverRunner

    for case in cases:
        for test, why in left_out.items():
            assert hasattr(case, test), f"{label} has no {test}"
            setattr(case, test, unittest.skip(why)(getattr(case, test)))
    runner: Any = DiscoverRunner(verbosity=1, interactive=False)
    runner.setup_test_environment()
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases)
    databases = runner.setup_databases()
    result = runner.run_suite(suite)
    runner.teardown_databases(databases)
    print(f"{label}: {result.testsRun - len(result.skipped)} tests ran, {len(result.skipped)} are left out")
    return runner.suite_result(suite, result)


def django(folder: Path) -> int:
    """Django's `tests/cache`, against the backend."""
    sys.path.insert(0, str(fetched(folder, "django")))
    sys.path.insert(0, str(folder))
    (folder / "suite_settings.py").write_text(SETTINGS.format(app="cache"))
    (folder / "suite_django.py").write_text(DJANGO)
    os.environ["DJANGO_SETTINGS_MODULE"] = "suite_settings"
    import django as framework

    framework.setup()
    import suite_django  # type: ignore[import-not-found, unused-ignore]

    return run_django(LEFT_OUT["django"], "Django", [suite_django.OnereadTests])


def diskcache(folder: Path) -> int:
    """diskcache's `test_djangocache`, against the backend. Its models are those of Django's own tests."""
    tests = fetched(folder, "diskcache")
    (tests / "__init__.py").write_text("")
    shutil.copy(fetched(folder, "django") / "cache" / "models.py", tests / "models.py")
    (tests / "settings.py").write_text(SETTINGS.format(app="tests"))
    sys.path.insert(0, str(tests.parent))
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import oneread.cache

    sys.modules["diskcache"] = oneread.cache
    import django as framework

    framework.setup()
    from tests import test_djangocache  # type: ignore[import-not-found, unused-ignore]

    return run_django(LEFT_OUT["diskcache"], "diskcache's for Django", [test_djangocache.DiskCacheTests])


def flask(folder: Path) -> int:
    """Flask-Caching's tests, against the backend."""
    import pytest

    tests = fetched(folder, "flask")
    (tests / "conftest.py").write_text(FLASK)
    (tests / "test_oneread.py").write_text(FLASK_BACKEND)
    sys.path.insert(0, str(tests))
    left_out = LEFT_OUT["flask"]

    class Selection:
        ran = 0

        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            names = {item.nodeid.rpartition("/")[2].partition("[")[0] for item in items}
            unknown = set(left_out) - names
            assert not unknown, f"no such tests: {unknown}"
            items[:] = [item for item in items if item.nodeid.rpartition("/")[2].partition("[")[0] not in left_out]
            self.ran = len(items)

    selection = Selection()
    files = [str(tests / name) for name in [*FLASK_FILES, "test_oneread.py"]]
    options = ["-q", "-p", "no:cacheprovider", f"--rootdir={tests}", f"--confcutdir={tests}", "-c", os.devnull]
    status = pytest.main([*options, *files], [selection])
    print(f"Flask-Caching's: {selection.ran} tests ran, {len(left_out)} are left out")
    return int(status)


def ended(shm: Path) -> None:
    """Returns when the servers of the caches have ended, which nobody has open any more."""
    end = time.monotonic() + 120
    while list(shm.glob("*/*.sock")) and time.monotonic() < end:
        time.sleep(0.1)
    shutil.rmtree(shm)


SUITES = {"django": django, "diskcache": diskcache, "flask": flask}


def main() -> int:
    if len(sys.argv) == 3:
        return SUITES[sys.argv[1]](Path(sys.argv[2]))
    failed = []
    # Each has settings of its own for all of a process.
    for name in sys.argv[1:] or SUITES:
        with tempfile.TemporaryDirectory(prefix="oneread-suite-") as folder:
            shm = tempfile.mkdtemp(prefix="oneread-suite-", dir="/dev/shm")
            environment = {**os.environ, "ONEREAD_SHM": shm, "TMPDIR": folder}
            run = subprocess.run([sys.executable, __file__, name, folder], env=environment)
            ended(Path(shm))
            if run.returncode != 0:
                failed.append(name)
    for name, tests in LEFT_OUT.items():
        for test, why in tests.items():
            print(f"left out of {name}: {test}: {why}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
