"""Little data spread over tiles by what is computed on it, not by its bytes alone."""

import pytest

from hloipu_compiler.planners.placing import default_placement
from hloipu_compiler.planners.spreading import finer
from hloipu_runtime.codelets.core.codelet import Tensor
from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.machine.load import load_machine

MACHINE = load_machine("gc200")


def codelet(op: str) -> Elementwise:
    return Elementwise(Expression(("f32",), (Node(op, (0,), "f32"),), (1,)), ((0,),), 1)


@pytest.mark.parametrize(("op", "spreads"), [("erf", True), ("sine", True), ("negate", False)])
def test_dear_ops_go_to_more_tiles(op: str, spreads: bool) -> None:
    tensors = (Tensor("f32", (4096,)),)
    default = default_placement((4096,), 4096, 32, MACHINE.chip.tiles_per_ipu)
    assert default.tiles.count == 128
    found = finer(MACHINE, codelet(op), tensors, tensors, (4096,), default)
    assert bool(found) is spreads
    assert all(x.tiles.count >= 4 * 128 for x in found)


def test_what_is_on_most_tiles_already_is_left() -> None:
    tensors = (Tensor("f32", (1 << 20,)),)
    default = default_placement((1 << 20,), 1 << 20, 32, MACHINE.chip.tiles_per_ipu)
    assert finer(MACHINE, codelet("erf"), tensors, tensors, (1 << 20,), default) == ()
