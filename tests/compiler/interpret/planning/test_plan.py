"""Plans: values die after their last reader, and only dead buffers are written over."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.interpret.ops.elementwise import REUSED_ELEMENTS
from hloipu_compiler.interpret.planning.plan import Plan, Step, may_overwrite
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.ops import ELEMENTWISE, OPS
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.verify.verifier import faults_of
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.storage import storage_dtype
from tests.support.arrays import Array, f32
from tests.support.cases import each

N = REUSED_ELEMENTS


def module_of(lines: str, root: str) -> str:
    return f"HloModule m\nENTRY e {{\n{lines}  ROOT {root}\n}}\n"


def owned(*arrays: Array) -> list[Array]:
    """Copies that only the list holds."""
    return [x.copy() for x in arrays]


def step(action: Callable[[list[Array]], Any], inputs: str, outputs: str, frees: str) -> Step:
    read, written, freed = (tuple(map(int, text)) for text in (inputs, outputs, frees))
    instruction = Instruction("x", "negate", ArrayShape(ELEMENT_TYPES["f32"]))
    return Step(action, read, written, freed, instruction)


def test_a_value_dies_before_the_step_after_its_last_reader_runs() -> None:
    born: list[weakref.ref[Array]] = []
    alive: list[list[bool]] = []

    def action(x: list[Array]) -> tuple[Array]:
        alive.append([ref() is not None for ref in born])
        made = x[0] + 1
        born.append(weakref.ref(made))
        return (made,)

    steps = (
        step(action, "0", "1", "0"),
        step(action, "1", "2", "1"),
        step(action, "2", "3", "2"),
        step(action, "3", "4", "3"),
    )
    plan = Plan("p", 5, 1, (), (), steps, (4,), ())
    (result,) = plan.run([np.zeros(3)])
    # The operand of the running step lives; those of earlier steps do not.
    assert alive == [[], [True], [False, True], [False, False, True]]
    assert result.tolist() == [4, 4, 4]


def test_an_argument_dies_after_its_last_reader() -> None:
    argument = np.zeros(3)
    ref = weakref.ref(argument)
    seen: list[bool] = []

    def first(x: list[Array]) -> tuple[Array]:
        return (x[0] + 1,)

    def second(x: list[Array]) -> tuple[Array]:
        seen.append(ref() is not None)
        return (x[0] + 1,)

    plan = Plan(
        "p", 3, 1, (), (), (step(first, "0", "1", "0"), step(second, "1", "2", "1")), (2,), ()
    )
    leaves = [argument]
    del argument
    plan.run(leaves)
    assert seen == [False]
    assert not leaves


def test_unused_arguments_die_at_once() -> None:
    text = module_of(
        "  a = f32[4] parameter(0)\n  b = f32[4] parameter(1)\n", "r = f32[4] negate(b)"
    )
    argument = np.zeros(4, np.float32)
    ref = weakref.ref(argument)
    leaves = [argument, np.ones(4, np.float32)]
    del argument
    seen: list[bool] = []
    Evaluator(parse(text)).run_stored(leaves, lambda *_: seen.append(ref() is not None))
    assert seen == [False]


def test_every_large_step_of_a_chain_takes_the_buffer_of_the_one_before() -> None:
    chain = f"  a = f32[{N}] parameter(0)\n  b = f32[{N}] negate(a)\n  c = f32[{N}] tanh(b)\n"
    text = module_of(f"{chain}  d = f32[{N}] add(c, c)\n", f"r = f32[{N}] exponential(d)")
    addresses: dict[str, int] = {}

    def watch(x: Instruction, leaves: Any) -> None:
        addresses[x.name] = leaves[0].ctypes.data

    Evaluator(parse(text)).run_stored(owned(np.ones(N, np.float32)), watch)
    assert addresses["b"] == addresses["c"]
    assert addresses["d"] != addresses["c"]  # c stands there twice: not dead while it is added
    assert addresses["r"] == addresses["d"]


def test_may_overwrite_only_a_lone_writeable_owner() -> None:
    assert may_overwrite([np.ones(3)], 0)
    kept = np.ones(3)
    assert not may_overwrite([kept], 0)
    assert not may_overwrite([np.ones(4).reshape(2, 2)], 0)
    whole = [np.ones(4)]
    view = whole[0][:2]
    assert not may_overwrite(whole, 0)
    del view
    assert may_overwrite(whole, 0)
    twice = [np.ones(3)] * 2
    assert not may_overwrite(twice, 0)
    read_only = [np.ones(3)]
    read_only[0].flags.writeable = False
    assert not may_overwrite(read_only, 0)
    held = [np.ones(3)]
    other = np.asarray(held[0])
    assert not may_overwrite(held, 0)
    assert other is held[0]


TYPES = ("f32", "bf16", "s32", "u8", "pred", "c64", "s4")


def of_one_type(opcode: str, element_type: str) -> str:
    """The program of one elementwise op on parameters, each of which could take the result."""
    count, shape = OPS[opcode].most_operands or 1, f"{element_type}[{N}]"
    lines = "".join(f"  p{i} = {shape} parameter({i})\n" for i in range(count))
    names = ", ".join(f"p{i}" for i in range(count))
    return module_of(lines, f"r = {shape} {opcode}({names})")


# XLA's verifier lets these through, to be refused by whoever computes them.
INTEGERS_ONLY = ("mulhi", "shift-left", "shift-right-arithmetic", "shift-right-logical")
ORDERED_ONLY = ("clamp", "maximum", "minimum", "remainder")
WITHOUT_MEANING = {
    *((opcode, t) for opcode in INTEGERS_ONLY for t in ("f32", "bf16", "c64", "pred")),
    *((opcode, "c64") for opcode in ORDERED_ONLY),
}

CASES = [
    (opcode, element_type)
    for opcode in sorted(ELEMENTWISE)
    if not OPS[opcode].required
    for element_type in TYPES
    if (opcode, element_type) not in WITHOUT_MEANING
    and not faults_of(parse(of_one_type(opcode, element_type)))
]


def test_there_are_cases() -> None:
    assert len(CASES) > 150


@each(("opcode", "element_type"), CASES)
def test_writing_over_an_operand_changes_no_value(opcode: str, element_type: str) -> None:
    """The result in a dead operand's buffer, either one, is the result in a fresh buffer."""
    evaluator = Evaluator(parse(of_one_type(opcode, element_type)))
    rng = np.random.default_rng(1)
    most = 2 if element_type == "pred" else 7
    arrays = [
        rng.integers(0, most, N).astype(storage_dtype(element_type))
        for _ in evaluator.parameter_shapes
    ]
    (fresh,) = evaluator.run_stored(list(arrays))
    for dead in range(len(arrays)):
        leaves = [x.copy() if i == dead else x for i, x in enumerate(arrays)]
        (reused,) = evaluator.run_stored(leaves)
        np.testing.assert_array_equal(reused, fresh)
        assert reused.dtype == fresh.dtype


PROGRAMS = {
    "dus of a parameter": """  a = f32[8] parameter(0)
  u = f32[2] constant({7, 8})
  i = s32[] constant(3)
  ROOT r = f32[8] dynamic-update-slice(a, u, i)
""",
    "dus of a constant": """  a = f32[8] parameter(0)
  c = f32[8] constant({1, 2, 3, 4, 5, 6, 7, 8})
  u = f32[2] slice(a), slice={[0:2]}
  i = s32[] constant(3)
  ROOT r = f32[8] dynamic-update-slice(c, u, i)
""",
    "dus of what is read again": """  a = f32[8] parameter(0)
  b = f32[8] negate(a)
  u = f32[2] constant({7, 8})
  i = s32[] constant(3)
  d = f32[8] dynamic-update-slice(b, u, i)
  ROOT r = f32[8] add(b, d)
""",
    "dus into what a view shows": """  a = f32[8] parameter(0)
  b = f32[8] negate(a)
  v = f32[8] reverse(b), dimensions={0}
  u = f32[2] constant({7, 8})
  i = s32[] constant(3)
  d = f32[8] dynamic-update-slice(b, u, i)
  ROOT r = f32[8] add(v, d)
""",
    "dus into a view of a parameter": """  a = f32[8] parameter(0)
  v = f32[2,4] reshape(a)
  w = f32[8] reshape(v)
  u = f32[2] constant({7, 8})
  i = s32[] constant(3)
  ROOT d = f32[8] dynamic-update-slice(w, u, i)
""",
    "scatter into a parameter": """  a = f32[8] parameter(0)
  i = s32[2,1] constant({{1}, {2}})
  u = f32[2] constant({7, 8})
  ROOT s = f32[8] scatter(a, i, u), update_window_dims={}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum
""",
    "loop that writes its state": """  a = f32[8] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[8], f32[8]) tuple(z, a, a)
  ROOT w = (s32[], f32[8], f32[8]) while(t), condition=more, body=write
""",
    "large chain": f"""  a0 = f32[8] parameter(0)
  a = f32[{N // 8},8] broadcast(a0), dimensions={{1}}
  b = f32[{N // 8},8] negate(a)
  c = f32[{N // 8},8] add(b, a)
  d = f32[{N // 8},8] exponential(c)
  e = f32[{N // 8},8] multiply(d, c)
  ROOT r = f32[{N // 8},8] subtract(e, b)
""",
}
COMPUTATIONS = """HloModule m
sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = f32[] add(x, y)
}
more {
  s = (s32[], f32[8], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(8)
  ROOT r = pred[] compare(i, n), direction=LT
}
write {
  s = (s32[], f32[8], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[8] get-tuple-element(s), index=1
  y = f32[8] get-tuple-element(s), index=2
  one = s32[] constant(1)
  v = f32[1] constant({5})
  d = f32[8] dynamic-update-slice(x, v, i)
  j = s32[] add(i, one)
  ROOT r = (s32[], f32[8], f32[8]) tuple(j, d, y)
}
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_evaluating_changes_nothing_that_others_hold(name: str) -> None:
    """The caller's array keeps its values, and a second evaluation gives the first one's bits."""
    evaluator = Evaluator(parse(f"{COMPUTATIONS}ENTRY e {{\n{PROGRAMS[name]}}}\n"))
    given = f32([1, -2, 3, -4, 5, -6, 7, -8])
    before = given.copy()
    first = [x.copy() for x in evaluator(given)]
    assert given.tobytes() == before.tobytes()
    second = evaluator(given)
    assert [x.tobytes() for x in first] == [x.tobytes() for x in second]
    # An argument that nobody holds may be written over: the values are still the same.
    third = evaluator.run_stored(owned(given))
    assert [x.tobytes() for x in first] == [x.tobytes() for x in third]


def test_a_loop_that_writes_slices_copies_its_array_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear, not quadratic: after the first trip every update is made in place."""
    from hloipu_runtime.kernels.core import movement

    made: list[bool] = []
    original = movement.dynamic_update_slice

    def counted(x: Array, update: Array, starts: Any, out: Array | None = None) -> Array:
        made.append(out is None)
        return original(x, update, starts, out)

    monkeypatch.setattr(movement, "dynamic_update_slice", counted)
    evaluator = Evaluator(
        parse(f"{COMPUTATIONS}ENTRY e {{\n{PROGRAMS['loop that writes its state']}}}\n")
    )
    _, written, kept = evaluator(f32(range(8)))
    assert written.tolist() == [5] * 8
    assert kept.tolist() == list(range(8))
    assert made == [True] + [False] * 7
