"""Forged executables are refused, or load and run; a sample of what `make fuzz-ipux` does."""

from functools import partial
from pathlib import Path

import pytest

from hloipu_runtime.executable import to_frame
from hloipu_runtime.program_io.frame.frame import encode_frame
from tests.support.forging import executables, forged
from tests.support.program_texts import TEXTS
from tools.fuzz_ipux import cases, trial
from tools.fuzz_ipux.judge import MEMORY_BYTES, SECONDS, judged
from tools.fuzzing import pool
from tools.mapping import Where, mapped


def test_forged_files_are_refused_or_run() -> None:
    names = [f"forged {number}" for number in range(300)]
    where = Where(1, seconds=SECONDS, memory_bytes=MEMORY_BYTES)
    results = list(mapped(partial(judged, seed=11), names, pool.lost, where))
    assert len(results) == len(names)
    assert [(r.case, r.outcome) for r in results if r.outcome.failed] == []
    kinds = {r.outcome.kind for r in results}
    assert kinds == {"accepted", "refused"}


def test_a_case_is_the_same_file_each_time() -> None:
    frames = [to_frame(executable) for executable in executables().values()]
    first, second = (cases.Cases(3, frames) for _ in range(2))
    assert [first.data(n) for n in (4, 5, 6)] == [second.data(n) for n in (4, 5, 6)]


def test_small_programs_and_one_in_pieces_are_among_the_cases() -> None:
    assert len(cases.read(0, [Path("no such folder")]).frames) == len(TEXTS) + 1


@pytest.mark.parametrize("name", TEXTS)
def test_what_was_not_changed_runs(name: str) -> None:
    frame = forged(executables()[name], lambda meta, arrays: None)
    # One engine by itself stands for identical replicas, which may not ask who they are.
    expected = "run E2071" if name == "meet" else "run"
    assert trial.try_file(b"".join(encode_frame(frame))).detail == expected


def test_a_traceback_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object, **options: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(trial, "from_frame", broken)
    data = b"".join(encode_frame(to_frame(executables()["double"])))
    outcome = trial.try_file(data)
    assert outcome.failed
    assert outcome.detail.startswith("load KeyError at test_fuzz_ipux.py:")
