"""Annotations are their operands to every analysis, wherever in a step they stand."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import hloipu
from hloipu_compiler.hlo.parse import parse as parse_source
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.ir.annotations import IDENTITY_TARGETS, PER_MICRO_BATCH
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.remove_annotations import annotations_removed
from hloipu_compiler.source import Source
from hloipu_runtime.errors import UnsupportedError
from tests.support.passes import entry, opcodes, parsed

SAMPLES = Path(__file__).parents[3] / "hlo_samples"
TARGETS = sorted(IDENTITY_TARGETS - {PER_MICRO_BATCH})


def annotated(module: Module, opcode: str, attributes: Attributes) -> Module:
    """Return a module with an op after each array that a step's entry or a loop's body makes."""
    bodies = {x.attributes.text("body") for x in module.entry.instructions if x.opcode == "while"}
    changed = {module.entry.name, *bodies}
    return replace(
        module,
        computations=tuple(
            _annotated(c, opcode, attributes) if c.name in changed else c
            for c in module.computations
        ),
    ).without_places()


def _annotated(old: Computation, opcode: str, attributes: Attributes) -> Computation:
    made: list[Instruction] = []
    place: list[int] = []
    for x in old.instructions:
        made.append(x._replace(operands=tuple(place[i] for i in x.operands)))
        if isinstance(x.shape, ArrayShape):
            last = (len(made) - 1,)
            made.append(Instruction(f"{x.name}.seen", opcode, x.shape, last, attributes))
        place.append(len(made) - 1)
    return replace(old, instructions=tuple(made), root=place[old.root])


@lru_cache
def sample(name: str) -> Module:
    return parse_source(Source((SAMPLES / f"{name}.hlo").read_text()))


def calling(target: str) -> Attributes:
    return Attributes({"custom_call_target": target, "custom_call_has_side_effect": True})


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_left_of_annotations_that_state_no_ipu(target: str) -> None:
    plain = sample("scanned_blocks_train_step")
    planted = annotated(plain, "custom-call", calling(target))
    assert target in print_module(planted)
    assert print_module(annotations_removed(planted)) == print_module(plain.without_places())


@pytest.mark.parametrize("opcode", ["custom-call", "opt-barrier", "copy"])
@pytest.mark.parametrize("name", ["mnist_adam_step", "scanned_blocks_train_step"])
@pytest.mark.thinned(6)
def test_a_step_with_identities_everywhere_is_cut_as_without(name: str, opcode: str) -> None:
    attributes = calling("xla.sdy.FuncResultSharding") if opcode == "custom-call" else NO_ATTRIBUTES
    texts = [print_module(x) for x in (sample(name), annotated(sample(name), opcode, attributes))]
    plain, planted = (
        hloipu.compile(x, target="gc200", micro_batches=2, stages=2, cache=False) for x in texts
    )
    assert planted.options["cut"] == plain.options["cut"]
    assert plain.options["cut"][0].startswith("trains: ")


def test_an_annotation_that_states_an_ipu_is_kept_as_a_copy() -> None:
    text = entry(
        "  p = f32[2] parameter(0)\n"
        '  a = f32[2] custom-call(p), custom_call_target="Sharding", sharding={maximal device=1}\n'
        "  ROOT r = f32[2] negate(a)"
    )
    (copy, _) = annotations_removed(parsed(text)).entry.instructions[1:]
    assert (copy.opcode, copy.attributes.text("sharding")) == ("copy", "{maximal device=1}")


def test_a_group_of_shardings_has_no_value() -> None:
    text = entry(
        "  p = f32[2] parameter(0)\n"
        '  g = () custom-call(p), custom_call_target="xla.sdy.ShardingGroup", '
        "custom_call_has_side_effect=true\n"
        "  ROOT r = f32[2] negate(p)"
    )
    assert opcodes(annotations_removed(parsed(text))) == ["tuple", "negate"]
    assert hloipu.compile(text, target="tiny", cache=False).fits


def test_a_custom_partitioned_call_is_the_computation_that_it_calls() -> None:
    text = """HloModule m

doubled {
  a = f32[2] parameter(0)
  ROOT b = f32[2] add(a, a)
}

ENTRY e {
  p = f32[2] parameter(0)
  ROOT r = f32[2] custom-call(p), custom_call_target="CustomSPMDPartitioning", called_computations={doubled}, backend_config="94126"
}
"""  # noqa: E501
    plain = annotations_removed(parsed(text))
    assert opcodes(plain) == ["call"]
    (doubled,) = (
        hloipu.compile(text, target="tiny", cache=False).run(np.array([1, 2], np.float32)).outputs
    )
    np.testing.assert_array_equal(doubled, [2, 4])


def test_an_annotation_that_changes_a_shape_is_refused() -> None:
    text = entry(
        "  p = f32[2] parameter(0)\n"
        '  ROOT r = f32[3] custom-call(p), custom_call_target="MoveToHost"'
    )
    with pytest.raises(UnsupportedError, match="MoveToHost hands its one operand on") as caught:
        hloipu.compile(text, target="tiny", cache=False)
    assert caught.value.code == "E0470"
