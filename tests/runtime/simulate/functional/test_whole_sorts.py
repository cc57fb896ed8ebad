"""Sorts over tiles as one sort on whole tensors: only what sorts whatever the data is taken so."""

from dataclasses import replace

import pytest

import hloipu
from hloipu_runtime.codelets.ops.sort import Sort
from hloipu_runtime.program.program import Program
from hloipu_runtime.simulate.functional.logical_form import _block, collapse
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.whole_sorts import WholeSort, with_whole_sorts

TEXT = """HloModule sorts
  by { a = f32[] parameter(0) b = f32[] parameter(1)
       ROOT r = pred[] compare(a, b), direction=LT }
  ENTRY e { x = f32[3,50000] parameter(0)
            ROOT s = f32[3,50000] sort(x), dimensions={1}, to_apply=by }"""


@pytest.fixture(scope="module")
def program() -> Program:
    return hloipu.compile(TEXT, target="gc200", cache=False).program


def _steps(program: Program, monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    """Return the logical form with the steps of the sort."""
    path = "hloipu_runtime.simulate.functional.logical_form.with_whole_sorts"
    with monkeypatch.context() as patched:
        patched.setattr(path, lambda nodes, table, results: nodes)
        return list(_block(program, program.body, "body", frozenset(), frozenset()).nodes)


def _joined(nodes: list[Node], program: Program) -> list[Node]:
    return with_whole_sorts(nodes, program.values, frozenset())


def test_all_steps_become_one(program: Program) -> None:
    sorts = [x.what for x in collapse(program).nodes if isinstance(x.what, Sort | WholeSort)]
    assert [type(x) for x in sorts] == [WholeSort]


def test_other_steps_are_left_as_they_are(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = _steps(program, monkeypatch)
    assert any(isinstance(x.what, WholeSort) for x in _joined(nodes, program))
    for n, node in enumerate(nodes):
        if not isinstance(node.what, Sort):
            continue
        (key, *_) = node.what.keys
        others = [
            replace(node.what, alternating=0 if node.what.alternating < 0 else -1),
            replace(node.what, keys=(replace(key, descending=True),)),
            replace(node.what, dimension=0),
        ]
        for other in others:
            wrong = [*nodes[:n], replace(node, what=other), *nodes[n + 1 :]]
            assert not any(isinstance(x.what, WholeSort) for x in _joined(wrong, program)), n
        missing = [*nodes[:n], *nodes[n + 1 :]]
        assert not any(isinstance(x.what, WholeSort) for x in _joined(missing, program)), n
