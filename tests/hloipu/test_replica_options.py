"""`--replicas` and `--ipus`: how many copies of a step a system runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.program.program import Program, Role
from tests.support.command_line import run
from tests.support.training_steps import STEPS

STEP = STEPS["square_mlp_momentum"]
FIRST = STEP.state_count
WRAPPED = {"loop": 2, "feed": {"data": (FIRST, FIRST + 1)}, "outfeed": [f"loss={FIRST}"]}


def compiled(**options: Any) -> CompiledProgram:
    given = {"target": "tiny", "over_memory": "allow", "cache": False, **WRAPPED, **options}
    return hloipu.compile(STEP.text, **given)


def counts(program: Program) -> tuple[int, int]:
    return program.replicas, program.ipus


def test_replicas_are_copies_of_one_ipu_each() -> None:
    assert counts(compiled(replicas=3).program) == (3, 1)


def test_a_system_is_filled_with_copies() -> None:
    assert counts(compiled(ipus=4).program) == (4, 1)
    assert counts(compiled(ipus=6, stages=2).program) == (3, 2)
    assert counts(compiled(ipus=6, stages=2, replicas=3).program) == (3, 2)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"ipus": 7, "stages": 2}, "E0475"),
        ({"ipus": 4, "replicas": 2}, "E0475"),
        ({"replicas": 300}, "E3210"),
        ({"ipus": 300}, "E3210"),
        ({"micro_batches": 2, "accumulator": [f"{FIRST}=f16"]}, "E0514"),
        ({"replicas": 2, "io_tiles": 4}, "E2044"),
    ],
)
def test_systems_that_cannot_be(options: dict[str, Any], code: str) -> None:
    with pytest.raises(HloipuError) as error:
        compiled(**options)
    assert error.value.code == code


def test_a_function_without_state_runs_everywhere_alike() -> None:
    text = "HloModule m\n\nENTRY e {\n  p = f32[3] parameter(0)\n  ROOT r = f32[3] negate(p)\n}\n"
    program = hloipu.compile(text, replicas=2, cache=False)
    result = program.run(np.array([1, 2, 3], np.float32))
    assert [list(x[0]) for x in result.everyone] == [[-1.0, -2.0, -3.0]] * 2


def remote(program: CompiledProgram) -> int:
    return sum(use.remote_bytes for use in program.memory.ipus)


@pytest.mark.large
def test_what_only_the_update_reads_is_offloaded() -> None:
    large = STEPS["transformer_adam"]
    first = large.state_count
    given: dict[str, Any] = {
        "target": "tiny", "over_memory": "allow", "cache": False, "loop": 1,
        "feed": {"data": (first, first + 1)}, "outfeed": [f"loss={first}"],
    }  # fmt: skip
    kinds: tuple[tuple[Any, bool], ...] = (
        ({}, False),
        ({"micro_batches": 2}, True),
        ({"micro_batches": 2, "offload": "off"}, False),
        ({"offload": "on"}, True),
    )
    for options, is_offloaded in kinds:
        program = hloipu.compile(large.text, **given, **options)
        assert bool(remote(program)) == is_offloaded, options
        roles = {x.role for x in program.program.variables}
        assert (Role.REMOTE in roles) == is_offloaded
    with pytest.raises(HloipuError) as error:
        hloipu.compile(large.text, **{**given, "target": "gc2"}, offload="on")
    assert error.value.code == "E0511"


def test_the_verdict_names_replicas(tmp_path: Path) -> None:
    path = tmp_path / "step.hlo"
    path.write_text(STEP.text)
    feed = f"data={FIRST},{FIRST + 1}"
    said = run(
        "estimate", str(path), "--loop", "2", "--feed", feed, "--outfeed", f"loss={FIRST}",
        "--replicas", "4", "--stages", "2", "--no-cache",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "4 replicas of 2 IPUs" in said.out
