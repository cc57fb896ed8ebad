"""`hloipu check`: order of what it says, time limits, interrupts, children that stall or die."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

from hloipu.check.references import Against
from hloipu.check.time_limit import TimeUpError, time_limit
from hloipu.cli import check_job
from hloipu.xla_cpu import runner
from hloipu_compiler.hlo.parse import parse
from hloipu_runtime.errors import UnsupportedError
from tests.support.check_texts import BROADCAST_AMONG_TWO
from tests.support.command_line import Outcome, run
from tests.support.tile_texts import DOT
from tests.support.xla_oracle import available

needs_xla = pytest.mark.skipif(not available(), reason="no jaxlib")

STALLS = (sys.executable, "-c", "import sys, time; open(sys.argv[1] + '/pid', 'w').write("
          "str(__import__('os').getpid())); time.sleep(600)")  # fmt: skip
DIES = (sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit('out of luck')")

TWO = """HloModule two
ENTRY e {
  a = f32[8] parameter(0)
  b = f32[8] exponential(a)
  c = f32[8] negate(b)
  ROOT r = (f32[8], f32[8]) tuple(b, c)
}
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "two.hlo"
    path.write_text(TWO)
    return str(path)


@pytest.fixture
def wrong(path: str, tmp_path: Path) -> str:
    """Known results, the second of which is off: no single op is to blame."""
    stored = tmp_path / "wrong.npz"
    assert run("eval", path, "--random", "0", "-o", str(stored)).code == 0
    with np.load(stored) as given:
        arrays = {name: given[name].copy() for name in given.files}
    arrays["out_1"][3] += 1
    np.savez(stored, **arrays)
    return str(stored)


def assert_verdict(outcome: Outcome, code: int) -> None:
    assert outcome.code == code, outcome
    assert [line[:10] for line in outcome.out.splitlines()] == ["ok   out_0", "DIFF out_1"]
    assert "1 of 2 results differ" in outcome.err


@pytest.mark.usefixtures("checks_share_xla")
@needs_xla
def test_what_was_tried_is_said_where_no_op_is_to_blame(path: str, wrong: str) -> None:
    outcome = run("check", path, "--against", wrong)
    assert_verdict(outcome, 6)
    verdict, tried = outcome.err.index("1 of 2 results"), outcome.err.index("2 ops judged alone")
    assert verdict < tried < outcome.err.index("error[E6003]")
    assert "no single op breaks its budget" in outcome.err


@pytest.mark.usefixtures("checks_share_xla")
@needs_xla
def test_its_hints_can_be_followed(path: str, wrong: str, tmp_path: Path) -> None:
    hint = run("check", path, "--against", wrong).err.partition("hint: ")[2]
    assert run("check", path, *option(hint, "--against")).code == 0
    assert run("check", path, "--random", "1").code == 0
    command = re.search(r"hloipu reduce FILE --test '(.*?)'", hint)
    assert command is not None
    hloipu = f"{sys.executable} -m hloipu"
    test = command[1].replace("OPTIONS", f"--against {wrong}").replace("hloipu", hloipu)
    small = tmp_path / "small.hlo"
    found = run("reduce", path, "--test", test, "-o", str(small), "--most-tests", "2")
    assert found.code == 0, found
    assert run("check", str(small), "--against", wrong).code == 6


def option(hint: str, name: str) -> list[str]:
    """Return an option of a hint with its value."""
    words = shlex.split(hint.replace("'", ""))
    at = words.index(name)
    return [words[at], words[at + 1].rstrip(",;")]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the judgement of ops stall after a few."""

    def search(_module: Any, _leaves: Any, _reference: Any, tally: Any) -> None:
        tally.begun, tally.judged = 7, 4
        sleep(600)

    monkeypatch.setattr(check_job, "first_divergence", search)


@pytest.mark.usefixtures("slow")
def test_a_time_limit_ends_the_search_and_leaves_the_verdict(path: str, wrong: str) -> None:
    begun = monotonic()
    outcome = run("check", path, "--against", wrong, "--time-limit", "0.7")
    assert_verdict(outcome, 6)
    assert "the search ended early: the time of 0.7 s is up" in outcome.err
    assert "4 ops judged alone" in outcome.err
    assert "3 were not reached" in outcome.err
    assert "E6003" in outcome.err
    assert monotonic() - begun < 20


@pytest.mark.usefixtures("slow")
def test_results_that_agree_are_not_all_that_isolate_asks_for(path: str) -> None:
    given = ("--against", "evaluator-f64", "--isolate", "--time-limit", "1")
    outcome = run("check", path, *given)
    assert outcome.code == 8, outcome
    assert outcome.out.count("ok ") == 2
    assert "E5017" in outcome.err
    assert "the results agree, and not every op was judged" in outcome.err


def test_an_interrupt_leaves_what_is_known(
    path: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(_module: Any, _leaves: Any, _reference: Any, tally: Any) -> None:
        tally.begun, tally.judged = 7, 4
        raise KeyboardInterrupt

    monkeypatch.setattr(check_job, "first_divergence", search)
    outcome = run("check", path, "--against", wrong)
    assert_verdict(outcome, 130)
    assert "4 ops judged alone" in outcome.err
    assert outcome.err.endswith("interrupted\n")


@needs_xla
def test_a_child_that_stalls_is_ended_at_the_limit(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CHILD", STALLS)
    folders: list[str] = []
    started = runner.XlaCpu._started

    def noted(self: runner.XlaCpu, devices: int) -> Any:
        folders.append(self._folder.name)
        return started(self, devices)

    monkeypatch.setattr(runner.XlaCpu, "_started", noted)
    pids: list[int] = []
    end = runner.XlaCpu._end

    def ended(self: runner.XlaCpu) -> None:
        if self._child is not None:
            pids.append(self._child.pid)
        end(self)

    monkeypatch.setattr(runner.XlaCpu, "_end", ended)
    outcome = run("check", path, "--time-limit", "1")
    assert outcome.code == 8, outcome
    assert outcome.out == ""
    assert "E5017" in outcome.err
    assert "while xla-cpu computes the module: no verdict" in outcome.err
    assert pids
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    assert not os.path.exists(folders[0])


@needs_xla
def test_a_child_that_stalls_without_a_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHILD", STALLS)
    with runner.XlaCpu(0.3) as xla, pytest.raises(UnsupportedError) as caught:
        xla([(parse(TWO), [np.zeros(8, np.float32)])])
    assert caught.value.code == "E0465"


@needs_xla
def test_a_child_that_dies_is_an_error_with_its_last_words(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CHILD", DIES)
    outcome = run("check", path)
    assert outcome.code == 4, outcome
    assert "E0461" in outcome.err
    assert "ended with code 1 while it worked on this module: out of luck" in outcome.err


@needs_xla
def test_a_child_is_started_again_after_it_died() -> None:
    module, ones = parse(TWO), np.ones(8, np.float32)
    with runner.XlaCpu() as xla:
        assert not isinstance(xla([(module, [ones])])[0], str)
        assert xla._child is not None
        xla._child.kill()
        xla._child.wait()
        (answer,) = xla([(module, [ones])])
    assert not isinstance(answer, str)
    np.testing.assert_allclose(answer[0], np.exp(ones), rtol=1e-6)


@pytest.mark.usefixtures("checks_share_xla")
@needs_xla
def test_what_xla_refuses_is_compared_as_the_hint_says(tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(BROADCAST_AMONG_TWO)
    outcome = run("check", str(path))
    assert outcome.code == 4, outcome
    assert "E0461" in outcome.err
    hint = outcome.err.partition("hint: ")[2]
    assert run("check", str(path), *option(hint, "--against")).code == 0
    assert run("eval", str(path), "--random", "0", "-o", str(tmp_path / "known.npz")).code == 0
    assert run("check", str(path), "--against", str(tmp_path / "known.npz")).code == 0


def test_a_hint_names_only_what_computes_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: Against, work: Sequence[Any]) -> list[str]:
        return ["no"] * len(work)

    monkeypatch.setattr(Against, "__call__", refuses)
    for name in ("xla-cpu", "evaluator-f64"):
        with Against(name) as reference, pytest.raises(UnsupportedError) as caught:
            reference.needed(parse(DOT), [])
        assert caught.value.code == "E0461"
        assert caught.value.hint.startswith("give known results: --against FILE.npz")


def test_a_time_limit_comes_again_where_it_was_swallowed() -> None:
    def work() -> None:
        with time_limit(0.1):
            try:
                sleep(600)
            except TimeUpError:
                sleep(600)

    with pytest.raises(TimeUpError):
        work()
    with time_limit(0.1):
        pass
    sleep(0.2)
