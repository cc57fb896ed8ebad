"""The cycle collector is held off while records are made, and memory is given back after long."""

import gc
import sys
from pathlib import Path

import pytest

from hloipu_runtime import collection
from hloipu_runtime.collection import give_memory_back, without_collection


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def test_the_collector_is_put_back_as_it_was() -> None:
    assert gc.isenabled()
    with without_collection():
        assert not gc.isenabled()
        with without_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize(("long_seconds", "times"), [(0.0, 1), (1e9, 0)])
def test_the_outermost_block_gives_memory_back_if_it_was_long(
    long_seconds: float, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bool] = []
    monkeypatch.setattr(collection, "LONG_SECONDS", long_seconds)
    monkeypatch.setattr(collection, "give_memory_back", lambda: given.append(gc.isenabled()))
    with without_collection(), without_collection():
        assert not given
    assert given == [True] * times


@pytest.mark.skipif(sys.platform != "linux", reason="the C library may keep it")
def test_what_lies_between_kept_memory_is_given_back() -> None:
    pieces = [bytes(4000) for _ in range(1 << 14)]
    kept = pieces[::64]
    del pieces
    before = _resident_bytes()
    give_memory_back()
    assert before - _resident_bytes() > 30 << 20
    assert kept[-1] == bytes(4000)
