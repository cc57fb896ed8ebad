"""`ipus` alone: hloipu chooses how they are used, says so, and changes nothing of an update."""

from pathlib import Path

import pytest

import hloipu
from hloipu.api import has_to_choose
from hloipu.options.resolve import resolve
from tests.support.command_line import run

SAMPLES = Path(__file__).parents[2] / "hlo_samples"


def test_the_command_says_what_it_chose_with_the_flags_that_repeat_it() -> None:
    path = str(SAMPLES / "mnist_train_step.hlo")
    said = run("estimate", path, "--ipus", "4", "--no-cache")
    (line,) = (x for x in said.err.splitlines() if x.startswith("best of"))
    assert said.code == 0
    flags = line.partition("): ")[2].split()
    assert flags[flags.index("--micro-batches") + 1] == "1"
    again = run("estimate", path, *flags, "--no-cache")
    assert again.out == said.out


@pytest.mark.parametrize(
    ("options", "chooses"),
    [
        ({"ipus": 4}, True), ({"ipus": 4, "plan": "none"}, False), ({"plan": "auto"}, True),
        ({"ipus": 4, "stages": 2}, False), ({"ipus": 4, "replicas": 4}, False), ({}, False),
        ({"ipus": 4, "micro_batches": 8}, True), ({"ipus": 4, "ipu_ids": [1]}, False),
    ],
)  # fmt: skip
def test_what_says_how_ipus_are_used_is_left_as_it_is(
    options: dict[str, object], chooses: bool
) -> None:
    module = hloipu.parse(SAMPLES / "mnist_train_step.hlo")
    assert has_to_choose(module, resolve("compile", options).options) == chooses


def test_a_module_with_marks_or_collectives_is_left_as_it_is() -> None:
    options = resolve("compile", {"ipus": 4}).options
    text = """HloModule m, num_partitions=1, replica_count=4
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] all-reduce(p), to_apply=add }
"""
    assert not has_to_choose(hloipu.parse(text), options)
    text = """HloModule m
ENTRY e {
  p = f32[4] parameter(0)
  ROOT r = f32[4] negate(p), frontend_attributes={ipu_stage="0"}
}
"""
    assert not has_to_choose(hloipu.parse(text), options)
