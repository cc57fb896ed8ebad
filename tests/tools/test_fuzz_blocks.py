"""Drawn blocks: valid, the same each time, of every family; and what their judges find."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hloipu.inputs import flat
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.blocks import Array
from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks import trial
from tools.fuzz_blocks.__main__ import main
from tools.fuzz_blocks.cases import FAMILIES, Case, case
from tools.fuzz_blocks.draws import REAL, SCALES, SMALL
from tools.fuzz_blocks.gradients import gradients
from tools.fuzz_blocks.text import module_text
from tools.fuzz_blocks.values import fault, value_faults


def test_a_case_is_the_same_each_time() -> None:
    assert case(5) == case(5)
    assert case(5).text != case(6).text
    assert case(5).text != case(5, SMALL).text


@pytest.mark.parametrize("scale", SCALES)
def test_cases_are_valid(scale: str) -> None:
    for seed in range(80):
        verify(parse(case(seed, SCALES[scale]).text))


def test_cases_are_of_every_family_and_are_cut_in_some_ways() -> None:
    drawn = [case(seed, SMALL) for seed in range(300)]

    assert {one.family for one in drawn} == {*FAMILIES, "stack"}
    assert {"feed", "shards", "stages", "loop"} <= {k for one in drawn for k in one.options}


def test_real_sizes_are_large() -> None:
    sizes = [array for seed in range(60) for array in parameters(case(seed, REAL))]

    assert max(map(np.prod, sizes)) > 1 << 26
    assert max(max(array, default=0) for array in sizes) >= 50257


def parameters(one: Case) -> list[tuple[int, ...]]:
    entry = parse(one.text).entry
    shapes = [entry.instructions[position].shape for position in entry.parameters]
    return [shape.dimensions for shape in shapes if isinstance(shape, ArrayShape)]


def test_gradients_are_what_changes_of_inputs_cause() -> None:
    x, w = n.parameter("f32", (3, 4)), n.parameter("f32", (4, 2, 5))
    made = n.product(x, "ab", w, "bcd", "dca")
    cost = n.reduce(n.elementwise("tanh", made), (0, 1, 2))
    slopes = gradients(cost, n.constant("f32", 1), [x, w])
    text = module_text("slopes", n.Region((x, w), n.tuple_of([cost, *slopes])))
    random = np.random.default_rng(1)
    values = [random.uniform(-1, 1, shape).astype(np.float32) for shape in (x.sizes, w.sizes)]

    base = np.tanh(np.einsum("ab,bcd->dca", *values))
    of_made = 1 - base**2
    wanted = [
        np.einsum("dca,bcd->ab", of_made, values[1]),
        np.einsum("dca,ab->bcd", of_made, values[0]),
    ]
    for ours, theirs in zip(evaluated(text, values)[1:], wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def evaluated(text: str, values: list[Array]) -> list[Array]:
    return flat(evaluate(parse(text), *values))


def test_the_judge_of_values_finds_one_element_that_is_off() -> None:
    shape = ArrayShape(ELEMENT_TYPES["bf16"], (64,))
    truth = np.linspace(-1, 1, 64)
    rounded = truth.astype(np.float32)
    off = rounded.copy()
    off[7] = off[8] * -1

    assert fault(shape, rounded, rounded, truth) == ""
    assert "off by" in fault(shape, off, rounded, truth)
    assert "not finite" in fault(shape, np.where(off == off[7], np.nan, off), rounded, truth)


def test_outcomes_tell_programs_that_are_wrong_from_those_that_take_long() -> None:
    one = case(3, SMALL)

    assert trial.tried(one, 60).kind == trial.COMPILED
    assert trial.tried(one, 1e-4).kind == trial.LATE
    broken = trial.tried(replace(one, text="HloModule nothing"), 60)
    assert broken.kind == trial.REFUSED
    assert broken.failed
    assert value_faults(one, target="tiny") == []


def test_the_tool_prints_failures_and_keeps_their_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--scale", "small", "--case", "3", "--keep", str(tmp_path)]

    assert main(asked) == 0
    assert "1 cases" in capsys.readouterr().out

    def wrong(one: Case) -> None:
        raise IndexError("no such tile")

    monkeypatch.setattr(trial, "compiled", wrong)
    assert main(asked) == 1
    assert "crashed: 3 " in capsys.readouterr().out
    assert case(3, SMALL).text in (tmp_path / "small_3.hlo").read_text()
