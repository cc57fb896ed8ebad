"""Options and fixtures of the whole test suite.

`--zoo`, `--update-goldens`, `--all-cases`, the marks `thinned` and `large`, XLA as `oracle` and
`xla_cpu`.
"""

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from hloipu.check import references
from hloipu.xla_cpu.runner import XlaCpu
from tests.support import xla_oracle
from tests.support.comparing import strict

# XLA takes most of its time for code that tests run once; JAX reads this when it first compiles.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

# To rewrite the asserts of all files takes longer than to collect them: keep the bytecode.
sys.dont_write_bytecode = False

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

for _name in ("assert_allclose", "assert_array_equal"):
    setattr(np.testing, _name, strict(getattr(np.testing, _name)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--zoo", metavar="PATH", help="folder of real HLO dumps (or HLOIPU_ZOO)")
    parser.addoption("--update-goldens", action="store_true", help="write the goldens anew")
    parser.addoption("--all-cases", action="store_true", help="run all cases of thinned tests")


def pytest_configure(config: pytest.Config) -> None:
    """Keep what JAX compiles in this process, for the other worker and for later runs.

    Two thirds of the time of a reference in JAX go into compiling it.
    """
    if config.getoption("--update-goldens") and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("--update-goldens writes files: run it in one process, without -n")
    if not config.pluginmanager.hasplugin("cacheprovider"):
        return
    with suppress(OSError):  # a tree that nobody may write to
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("jax")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run one of every n cases of tests marked `thinned(n)`, unless `--all-cases` is given.

    Tests marked `large` take seconds each and run where they are asked for: `-m large`.
    Which of n successive cases runs is drawn by the test's name and the place of the n: a fixed
    place would always meet the same value of a parameter that has n values.
    """
    if config.getoption("--all-cases"):
        return
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    wants_large = "large" in config.getoption("markexpr")
    for item in items:
        if item.get_closest_marker("large") and not wants_large:
            left.append(item)
            continue
        mark = item.get_closest_marker("thinned")
        test = item.nodeid.partition("[")[0]
        cases = mark.args[0] if mark else 1
        group, place = divmod(seen[test], cases)
        seen[test] += 1
        # The first group may be the only one, and shorter than n cases: its first one runs.
        drawn = crc32(f"{test} {group}".encode()) % cases if group else 0
        (kept if place == drawn else left).append(item)
    items[:] = kept
    if left:
        config.hook.pytest_deselected(items=left)


def pytest_collection_finish() -> None:
    """Have the collector of cycles leave alone what stays, and look at the rest less often."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _zoo_files(config: pytest.Config) -> list[Path]:
    folder = config.getoption("--zoo") or os.environ.get("HLOIPU_ZOO")
    return sorted(Path(folder).glob("*.hlo")) if folder else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `zoo_file` once for each dump of the zoo."""
    if "zoo_file" in metafunc.fixturenames:
        files = _zoo_files(metafunc.config)
        absent = pytest.param(None, marks=pytest.mark.skip(reason="no --zoo PATH given"))
        metafunc.parametrize("zoo_file", files or [absent], ids=lambda f: f.stem if f else "absent")


@pytest.fixture(scope="session", autouse=True)
def own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests compile out of the user's compile cache.

    Child processes may keep Python's bytecode: each of a hundred would take a second to make it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session")
def oracle() -> Iterator[xla_oracle.Oracle]:
    """Return XLA in a child process; the test is skipped where jaxlib is not installed."""
    if not xla_oracle.available():
        pytest.skip("jaxlib is not installed (dependency group oracle)")
    with xla_oracle.Oracle() as made:
        yield made


class SharedXla(XlaCpu):
    """XLA:CPU in a child that stays for the next test: to start one takes a second."""

    def close(self) -> None:
        """Keep the child."""

    def end(self) -> None:
        """Kill the child and remove its files."""
        super().close()


@pytest.fixture(scope="session")
def xla_cpu() -> Iterator[XlaCpu]:
    """Return the XLA:CPU that `hloipu check` compares with, in one child for all tests."""
    shared = SharedXla()
    yield shared
    shared.end()


@pytest.fixture
def checks_share_xla(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every `hloipu check` that runs in this process ask the child of `xla_cpu`."""
    monkeypatch.setattr(references, "XlaCpu", lambda: request.getfixturevalue("xla_cpu"))
