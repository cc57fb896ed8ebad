"""Sessions of several hosts: data, results and a part of the checkpoint of each."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.errors import HloipuError, StreamError, UsageError
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.transfers import host_transfer
from hloipu_runtime.program.program import Program
from hloipu_runtime.streams.element import ElementSpec, LeafSpec
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.per_host import PerHost
from hloipu_runtime.streams.settings import MAX_LEAD
from tests.runtime.test_replicated_session import elements, program, session

FIRST, SECOND = elements(8), elements(8) + 100


def of_two() -> Program:
    """Return a program of four replicas, which two hosts share."""
    return replace(program(4), hosts=2)


def opened(**keywords: Any) -> Any:
    return session(of_two(), infeeds={"data": PerHost([FIRST, SECOND])}, **keywords)


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_each_host_feeds_its_replicas(mode: str) -> None:
    with opened(mode=mode, outfeeds={"out": "every-2"}) as s:
        s.run(4)
        for replica in range(4):
            mine = (FIRST, SECOND)[replica // 2][replica % 2 :: 2]
            np.testing.assert_array_equal(s.state(replica)["own"], mine.sum(0))
            np.testing.assert_array_equal(s.state(replica)["all"], FIRST.sum(0) + SECOND.sum(0))
        (own,) = s.stream("out", host=1).drain(1)
        np.testing.assert_array_equal(own.element, [SECOND[r:4:2].sum(0) for r in range(2)])
        assert [x.number for x in s.arrived("out")] == [1]  # the other's first waits for nobody
        with pytest.raises(UsageError) as error:
            s.stream("out")
        assert error.value.code == "E3155"


def test_one_source_for_all_hosts_feeds_as_without_hosts() -> None:
    ends = []
    for made in (of_two(), program(4)):
        with session(made, infeeds={"data": elements(16)}) as s:
            s.run(4)
            ends.append([s.state(replica)["own"].tobytes() for replica in range(4)])
            assert s.arrived("out")[-1].element.shape == (4, 6)
    assert ends[0] == ends[1]


def test_elements_of_other_hosts_replicas_are_let_go() -> None:
    count = 4 * (MAX_LEAD + 1)
    numbers = np.arange(count, dtype=np.float32)
    with InfeedQueue("data", ElementSpec((LeafSpec("f32", ()),)), numbers, replicas=4) as queue:
        queue.served = range(2, 4)
        for step in range(count // 4):
            assert [float(queue.take(n)[0]) for n in (2, 3)] == [4 * step + 2, 4 * step + 3]
        assert queue.position == count


def test_each_host_makes_elements_at_its_rate() -> None:
    cycles = []
    for made, data, rate in (
        (of_two(), PerHost([FIRST, SECOND]), 1e5),
        (program(4), elements(16), 2e5),
    ):
        with session(made, infeeds={"data": data}, rates={"data": rate}) as s:
            s.run(4)
            cycles.append((s.cycles, s.idle_cycles))
    assert cycles[0] == cycles[1]
    assert cycles[0][1] > 0


def _one(folder: Path, part: str) -> Path:
    (path,) = folder.glob(f"{part}-of-2.*")
    return path


def _lost(folder: Path) -> None:
    _one(folder, "c.2.host-1").unlink()


def _older(folder: Path) -> None:
    _one(folder, "d.4.host-1").replace(_one(folder, "c.2.host-1"))


def _of_other_run(folder: Path) -> None:
    _one(folder, "e.2.host-1").replace(_one(folder, "c.2.host-1"))


def _cut_off(folder: Path) -> None:
    part = _one(folder, "c.2.host-0")
    part.write_bytes(part.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (None, ""),
        (_lost, "E3160"),
        (_older, "E3161"),
        (_of_other_run, "E3161"),
        (_cut_off, "E4002"),
    ],
)
def test_parts_of_a_checkpoint(
    tmp_path: Path, spoil: Callable[[Path], None] | None, code: str
) -> None:
    with opened() as s:
        s.run(2)
        s.save_state(tmp_path / "c")
        s.run(2)
        s.save_state(tmp_path / "d")
        end = [s.state(replica) for replica in range(4)]
    with session(of_two(), infeeds={"data": PerHost([FIRST, SECOND + 1])}) as s:
        s.run(2)
        s.save_state(tmp_path / "e")
    if spoil is not None:
        spoil(tmp_path)
    with opened() as s:
        if code:
            with pytest.raises(HloipuError) as error:
                s.load_state(tmp_path / "c")
            assert error.value.code == code
            assert s.steps == 0
            return
        s.load_state(tmp_path / "c")
        s.run(2)
        for replica in range(4):
            for name, array in s.state(replica).items():
                np.testing.assert_array_equal(array, end[replica][name])
        s.save_state(tmp_path / "c")
    names = sorted(x.name.rpartition(".")[0] for x in tmp_path.glob("c.*"))
    assert names == ["c.4.host-0-of-2", "c.4.host-1-of-2"]
    parts = [_one(tmp_path, f"{x}.4.host-0").read_bytes() for x in "cd"]
    assert parts[0] == parts[1]


def test_death_before_the_index_leaves_the_checkpoint_of_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with opened() as s:
        s.run(2)
        s.save_state(tmp_path / "c")
        saved = s.state(3)["own"]
    with session(of_two(), infeeds={"data": PerHost([FIRST + 1, SECOND + 1])}) as s:
        s.run(2)
        with monkeypatch.context() as patched:
            patched.setattr("hloipu_runtime.session.session.save_index", dies)
            with pytest.raises(KeyboardInterrupt):
                s.save_state(tmp_path / "c")
        assert len(list(tmp_path.iterdir())) == 5
        s.load_state(tmp_path / "c")
        np.testing.assert_array_equal(s.state(3)["own"], saved)
        s.save_state(tmp_path / "c")
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("each", [[FIRST], "ab", {0: FIRST, 1: SECOND}])
def test_data_for_other_hosts_is_refused(each: Any) -> None:
    with pytest.raises(StreamError) as error:
        session(of_two(), infeeds={"data": PerHost(each)})
    assert error.value.code == "E2074"


def _stalls(number: int) -> Any:
    if number >= 4:
        sleep(30)
    return SECOND[number]


def _dies(number: int) -> Any:
    if number >= 4:
        raise OSError("the disk is gone")
    return SECOND[number]


@pytest.mark.parametrize(("source", "code"), [(_stalls, "E2021"), (_dies, "E2022")])
def test_a_host_that_fails_is_named_and_training_goes_on(
    tmp_path: Path, source: Callable[[int], Any], code: str
) -> None:
    with session(of_two(), infeeds={"data": PerHost([FIRST, source])}, timeout=0.2) as s:
        s.run(2)
        s.save_state(tmp_path / "c")
        with pytest.raises(StreamError) as error:
            s.run(2)
        assert (error.value.code, error.value.queue) == (code, "host 1: data")
        assert s.steps == 2
    with opened() as whole, opened() as s:
        whole.run(4)
        s.load_state(tmp_path / "c")
        s.run(2)
        for replica in range(4):
            for name, array in s.state(replica).items():
                np.testing.assert_array_equal(array, whole.state(replica)[name])


def test_more_ipus_on_a_host_share_its_lines() -> None:
    # 16 IPUs a host; round trip 1000, command 50, 8 bytes a cycle on the line of four IPUs
    tiny = load_machine("tiny")
    for ipus, hosts, line in ((64, 0, 400), (64, 4, 400), (64, 2, 800), (64, 1, 1600), (8, 1, 400)):
        charge = host_transfer(tiny, [800] * ipus, to_device=True, hosts=hosts)
        assert charge.cycles == 1050 + line, (ipus, hosts)
