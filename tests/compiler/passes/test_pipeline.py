"""Pipelines: their text, their options, what passes require."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import PIPELINES, Group, Pass, built, read_pipeline
from hloipu_compiler.passes.algebra.fold_constants import FoldConstants
from hloipu_compiler.passes.algebra.simplify_algebra import SimplifyAlgebra
from hloipu_compiler.passes.framework.pass_base import FLAT_CALLS, TRIP_COUNTS
from hloipu_compiler.passes.inline_calls import InlineCalls
from hloipu_compiler.passes.loops.simplify_loops import RecogniseLoops
from hloipu_compiler.passes.pipelines import before_cut
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.errors import UsageError


@dataclass(frozen=True)
class Needy(Pass):
    """Needs flat calls and spoils trip counts."""

    name: ClassVar[str] = "needy"
    requires: ClassVar[frozenset[str]] = frozenset({FLAT_CALLS})
    breaks: ClassVar[frozenset[str]] = frozenset({FLAT_CALLS, TRIP_COUNTS})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        return module, plan


def test_text_to_steps_and_back() -> None:
    text = "inline-calls,(simplify-algebra,fold-constants{max-elements=64})*3,recognise-loops"
    pipeline = read_pipeline(f" {text.replace(',', ' , ')} ", {})
    group = Group((SimplifyAlgebra(), FoldConstants(max_elements=64)), 3)
    assert pipeline.steps == (InlineCalls(), group, RecogniseLoops())
    assert str(pipeline) == text
    assert read_pipeline(str(pipeline), {}) == pipeline


def test_a_name_stands_for_its_steps() -> None:
    pipeline = read_pipeline("front,inline-calls", PIPELINES)
    assert pipeline.steps == (*PIPELINES["front"].steps, InlineCalls())
    assert read_pipeline(str(PIPELINES["front"]), {}) == PIPELINES["front"]


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", "E3133", "the end where a pass"),
        ("inline-calls,", "E3133", "the end where"),
        ("inline-calls,,front", "E3133", "inline-calls,>>>,front"),
        ("inline-calls fold-constants", "E3133", "'?fold-constants"),
        ("(inline-calls", "E3133", "the end where"),
        ("(inline-calls)", "E3133", "the end where"),
        ("(inline-calls)*0", "E3133", "0' rounds"),
        ("(inline-calls)*999999999999999999999", "E3133", "rounds"),
        ("((inline-calls)*2)*2", "E3133", "a group in a group"),
        ("(front)*2", "E3133", "a group in a group"),
        ("inline-calls{", "E3133", "where"),
        ("inline-calls;x", "E3133", "something else"),
        ("inline_call", "E3131", "no pass 'inline_call'"),
        ("fold-constants{max-element=3}", "E3134", "no option 'max-element'"),
        ("fold-constants{max-elements=many}", "E3134", "takes a whole number, not 'many'"),
        ("front{x=1}", "E3134", "takes no options"),
    ],
)
def test_what_is_no_pipeline(text: str, code: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        read_pipeline(text, PIPELINES)
    assert error.value.code == code


def test_requirements_are_checked_when_built() -> None:
    assert built([InlineCalls(), Needy()]).establishes.isdisjoint({FLAT_CALLS})
    with pytest.raises(UsageError, match="needy requires 'flat-calls'") as error:
        built([Needy()])
    assert error.value.code == "E3132"
    built([Needy()], known=frozenset({FLAT_CALLS}))


def test_a_group_must_hold_for_its_second_round_too() -> None:
    with pytest.raises(UsageError, match="needy requires"):
        built([InlineCalls(), Group((Needy(),), 2)])
    built([Group((InlineCalls(), Needy()), 2)])


def test_front_establishes_what_lowering_relies_on() -> None:
    wanted = {"flat-calls", "no-bitcasts", "no-barriers", "no-dead-code", "trip-counts"}
    assert PIPELINES["front"].establishes == wanted


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("default", "front"),
        ("lean", "front"),
        ("inline-calls", "front"),
        ("narrow-floats, default", "narrow-floats,front"),
        ("front,fold-constants,narrow-floats,lean", "front,fold-constants,narrow-floats,front"),
        ("default,narrow-floats", "front"),
    ],
)  # fmt: skip
def test_what_comes_before_default_comes_before_a_cut(text: str, before: str) -> None:
    assert before_cut(text) == before
    assert before_cut(PIPELINES["default"]) == "front"
