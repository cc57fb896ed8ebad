"""Hosts in processes of their own: the values of one process, and faults that name the host."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu.hosts import HostsSession, open_session
from hloipu.hosts.parcels import FolderInMemory, Packer, unpacked
from hloipu.hosts.places import ProcessesHere
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError, HostError, StreamError, UsageError
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.streams.per_host import PerHost
from tests.runtime.test_replicated_session import elements, program

FIRST, SECOND = elements(8), elements(8) + 100
ZEROS = [np.zeros(6, np.float32)] * 2


def compiled() -> CompiledProgram:
    """Return a program of four replicas on two hosts."""
    return CompiledProgram(replace(program(4), hosts=2), load_machine("tiny"))


def compiled_in_parts(hosts: int) -> CompiledProgram:
    """Return the same, with a part of one array of the state on each replica."""
    made = program(4)
    own, all_ = made.state
    state = (replace(own, whole=(3, 8)), all_)
    return CompiledProgram(replace(made, hosts=hosts, state=state), load_machine("tiny"))


def opened(**keywords: Any) -> HostsSession:
    data = PerHost([FIRST, SECOND])
    return open_session(compiled(), **{"state": ZEROS, "infeeds": {"data": data}, **keywords})


def signalled(session: HostsSession, host: int, number: int) -> None:
    assert isinstance(session.places, ProcessesHere)
    os.kill(session.places.pids[host], number)


BEGUN = [np.arange(24, dtype=np.float32).reshape(3, 8), np.ones(6, np.float32)]
APART: dict[str, tuple[CompiledProgram, int | None, list[Any]]] = {
    "two hosts": (compiled(), None, ZEROS),
    "two hosts, state in parts": (compiled_in_parts(2), None, BEGUN),
    "two processes, state in parts": (compiled_in_parts(0), 2, BEGUN),
}


@pytest.mark.parametrize("name", APART)
@pytest.mark.thinned(3)
def test_processes_compute_what_one_process_does(name: str, tmp_path: Path) -> None:
    made, processes, state = APART[name]
    data: Any = elements(16) if processes else PerHost([FIRST, SECOND])
    given: dict[str, Any] = {"state": state, "infeeds": {"data": data}}
    with (
        made.session(**given) as alone,
        open_session(made, processes=processes, **given) as session,
    ):
        for place, each in (("alone", alone), ("apart", session)):
            each.run(2)
            (tmp_path / place).mkdir()
            each.save_state(tmp_path / place / "c")
            each.run(2)
        for replica in range(4):
            for name, array in alone.state(replica).items():
                np.testing.assert_array_equal(session.state(replica)[name], array)
        assert (session.steps, session.cycles) == (alone.steps, alone.cycles)
        assert session.queues().keys() == alone.queues().keys()
        for mine, theirs in zip(session.arrived("out"), alone.arrived("out"), strict=True):
            assert mine[:2] == theirs[:2]
            np.testing.assert_array_equal(mine.element, theirs.element)
        wanted = {name: row for name, row in alone.profile().record().items() if name != "queues"}
        found = session.profile().record()
        assert {name: found[name] for name in wanted} == wanted
        with pytest.raises(UsageError) as error:
            session.state(4)
        assert error.value.code == "E2072"
    files = sorted(x.name for x in (tmp_path / "alone").iterdir())
    for name in files:
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "apart" / name).read_bytes()
    assert files == sorted(x.name for x in (tmp_path / "apart").iterdir())


def test_one_source_for_all_hosts_and_its_end() -> None:
    data = elements(16)
    with opened(infeeds={"data": data}) as session:
        session.run(4)
        for replica in range(4):
            np.testing.assert_array_equal(session.state(replica)["own"], data[replica::4].sum(0))
        with pytest.raises(StreamError) as error:
            session.run(2)
        assert (error.value.code, error.value.queue) == ("E2020", "data")


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, "E2081"),
        pytest.param(signal.SIGSTOP, "E2080", marks=pytest.mark.large),
    ],
)
def test_a_lost_host_is_named_and_training_goes_on(tmp_path: Path, number: int, code: str) -> None:
    with opened(timeout=0.5) as session:
        session.run(2)
        session.save_state(tmp_path / "c")
        signalled(session, 1, number)
        with pytest.raises(HostError) as error:
            session.run(2)
        assert (error.value.code, error.value.hosts) == (code, (1,))
        with pytest.raises(HostError):  # nothing goes on without it
            session.run(2)
        if number == signal.SIGSTOP:
            signalled(session, 1, signal.SIGCONT)
    with opened() as session:
        session.load_state(tmp_path / "c")
        session.run(2)
        for replica in range(4):
            mine = (FIRST, SECOND)[replica // 2][replica % 2 :: 2]
            np.testing.assert_array_equal(session.state(replica)["own"], mine.sum(0))


@pytest.mark.large
def test_workers_of_dask_are_hosts() -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0"
    ) as cluster:
        address = cluster.scheduler_address
        data = PerHost(lambda host: (FIRST, SECOND)[host])
        for _ in range(2):  # workers are free again after the first
            with opened(scheduler=address, infeeds={"data": data}) as session:
                session.run(4)
                for replica in range(4):
                    mine = (FIRST, SECOND)[replica // 2][replica % 2 :: 2]
                    np.testing.assert_array_equal(session.state(replica)["own"], mine.sum(0))
        with opened(scheduler=address, timeout=1.0) as session:
            session.run(2)
            os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
            with pytest.raises(HostError) as error:
                session.run(2)
            assert error.value.code == "E2081"


def _raising(host: int) -> Any:
    raise KeyError(host)


def _not_for_hosts() -> HostsSession:
    return open_session(CompiledProgram(program(4), load_machine("tiny")), state=ZEROS)


@pytest.mark.parametrize(
    ("open_it", "code"),
    [
        (_not_for_hosts, "E2075"),
        (lambda: opened(processes=4), "E2075"),
        (lambda: open_session(compiled_in_parts(0), processes=3), "E2075"),
        (lambda: opened(identical=True), "E2075"),
        (lambda: opened(infeeds={"data": PerHost([FIRST])}), "E2074"),
        (lambda: opened(infeeds={"data": (x for x in FIRST)}), "E2076"),
        (lambda: opened(infeeds={}), "E3155"),
        (lambda: opened(infeeds={"data": PerHost(_raising)}), "E2022"),
        (lambda: opened(scheduler="tcp://"), "E3193" if find_spec("distributed") else "E3192"),
    ],
)
def test_refusals(
    open_it: Callable[[], HostsSession],
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hloipu.hosts.parcels, "_IN_MEMORY", str(tmp_path))
    with pytest.raises(HloipuError) as error, open_it() as session:
        session.run(2)
    assert error.value.code == code
    assert not list(tmp_path.iterdir())


def test_another_hloipu_and_another_host_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as session, pytest.raises(UsageError) as error:
        session.arrived("out", host=2)
    assert error.value.code == "E3155"
    monkeypatch.setattr(hloipu.hosts.session, "fingerprint", lambda: "another")
    with pytest.raises(UsageError) as error:
        opened()
    assert error.value.code == "E3193"


def test_arrays_go_by_files_where_there_is_a_folder_and_by_messages_where_not(
    tmp_path: Path,
) -> None:
    arrays = [np.arange(30_000, dtype=np.float32), np.zeros((0, 3)), np.array(2.0), np.eye(300).T]
    for folder in (tmp_path, tmp_path / "none", ""):
        parcel = Packer(str(folder), 0).packed({1: arrays}, [1, 2])
        assert bool(parcel.file) == (folder == tmp_path)
        assert len(list(tmp_path.iterdir())) == 2 * (folder == tmp_path)
        for reader in (1, 2):
            for mine, theirs in zip(arrays, unpacked(parcel, reader)[1], strict=True):
                np.testing.assert_array_equal(mine, theirs)
    assert not list(tmp_path.iterdir())


def test_what_killed_sessions_left_in_memory_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hloipu.hosts.parcels, "_IN_MEMORY", str(tmp_path))
    at_work, killed, new = FolderInMemory(), FolderInMemory(), FolderInMemory()
    os.close(killed._locked)
    os.close(new._locked)
    for one in (at_work, killed):
        (Path(one.path) / "0-0-1").write_bytes(b"data")
        os.utime(one.path, (0, 0))
    other = FolderInMemory()
    assert {str(path) for path in tmp_path.iterdir()} == {at_work.path, new.path, other.path}
    at_work.remove()
    assert not Path(at_work.path).exists()


@pytest.mark.parametrize(("hosts", "name"), [(0, "process"), (2, "host")])
def test_errors_of_processes_say_what_a_process_is(
    hosts: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hloipu.hosts.session, "fingerprint", lambda: "another")
    given = CompiledProgram(replace(program(4), hosts=hosts), load_machine("tiny"))
    with pytest.raises(UsageError, match=rf"{name} \d has another hloipu"):
        open_session(given, processes=2, state=ZEROS, infeeds={"data": FIRST})


def test_hosts_is_part_of_hloipu() -> None:
    assert hloipu.hosts.open_session is open_session
