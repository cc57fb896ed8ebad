"""`hloipu feed-bench`: the keys of the benchmark, and the rate that an executable needs."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import hloipu
from tests.support.command_line import run
from tests.support.tile_texts import DOT


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "d.npz"
    np.savez(path, x=np.zeros((60, 5), np.float32), y=np.zeros(60, np.int32))
    return str(path)


def test_the_json_has_the_keys_of_dataset_benchmark(data: str) -> None:
    outcome = run("feed-bench", data, "--epochs", "3", "--batch", "8", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    record = json.loads(outcome.out)
    assert record["schema"] == "hloipu.feed_bench/1"
    assert len(record["epochs"]) == 3
    for epoch in record["epochs"]:
        # 7 whole batches of 8 rows of 5 floats and a label.
        assert epoch["elements_processed"] == 7
        assert epoch["total_bytes_processed"] == 7 * 8 * (20 + 4)
        seconds = epoch["time_elapsed"]
        assert epoch["elements_per_second"] == pytest.approx(7 / seconds)
        assert epoch["bandwidth"] == pytest.approx(7 * 192 / seconds / 1e9)


def test_more_elements_than_rows_begin_again(data: str) -> None:
    arguments = ("--elements", "500", "--arrays", "y", "--no-thread", "--no-copy", "--shuffle", "3")
    record = json.loads(run("feed-bench", data, *arguments, "--json").out)
    assert record["epochs"][0]["elements_processed"] == 500
    assert record["epochs"][0]["total_bytes_processed"] == 2000


def test_the_rate_that_an_executable_needs(data: str, tmp_path: Path) -> None:
    program = hloipu.compile(DOT, target="tiny")
    path = tmp_path / "dot.ipux"
    program.save(path)
    outcome = run("feed-bench", data, "--executable", str(path), "--json")
    need = json.loads(outcome.out)["required"]
    cycles = program.estimate().total_cycles
    assert need["cycles_per_run"] == cycles
    assert need["elements_per_run"] == 1
    rate = program.machine.chip.clock_hz / need["cycles_per_run"]
    assert need["elements_per_second"] == pytest.approx(rate)
    assert need["bandwidth"] == pytest.approx(rate * 24 / 1e9)
    text = run("feed-bench", data, "--executable", str(path)).out
    assert "elements/s" in text.splitlines()[0]
    assert ("suffices" in text) or ("starve" in text)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--batch", "61"), 7),
        (("--arrays", "z"), 7),
        (("--epochs", "0"), 2),
        (("--executable", "none.ipux"), 2),
    ],
)
def test_what_cannot_be_measured(data: str, arguments: tuple[str, ...], code: int) -> None:
    assert run("feed-bench", data, *arguments).code == code


def test_a_file_that_is_none(tmp_path: Path) -> None:
    outcome = run("feed-bench", str(tmp_path / "none.npz"), "--json")
    assert outcome.code == 7
    assert json.loads(outcome.out)["code"] == "E2032"


@pytest.fixture
def batched_rows(tmp_path: Path) -> str:
    """An executable whose feed takes two rows of two numbers."""
    text = """
HloModule s, input_output_alias={ {0}: (0, {}, must-alias) }
ENTRY e {
  s = bf16[2,2] parameter(0)
  x = bf16[2,2] parameter(1)
  more = bf16[2,2] add(s, x)
  ROOT r = (bf16[2,2]) tuple(more)
}
"""
    program = hloipu.compile(text, target="tiny", cache=False, loop=2, feed={"data": (1,)})
    program.save(tmp_path / "s.ipux")
    return str(tmp_path / "s.ipux")


def test_rows_are_put_together_as_the_executable_takes_them(
    batched_rows: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.ones((9, 2), ml_dtypes.bfloat16))
    found = run("feed-bench", str(tmp_path / "x.npy"), "--executable", batched_rows, "--json")
    assert found.code == 0, found.err
    record = json.loads(found.out)
    assert record["epochs"][0]["elements_processed"] == 4
    assert record["epochs"][0]["total_bytes_processed"] == 4 * 8
    rate = record["required"]["elements_per_second"]
    assert record["required"]["bandwidth"] == pytest.approx(rate * 8 / 1e9)


def test_elements_that_the_executable_does_not_take(batched_rows: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((9, 3), np.float32))
    found = run("feed-bench", str(tmp_path / "x.npy"), "--executable", batched_rows)
    assert found.code == 2
    assert "E2064" in found.err
    assert "bf16[2,2]" in found.err
