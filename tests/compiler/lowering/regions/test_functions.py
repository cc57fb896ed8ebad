"""Functions: what is called several times is lowered once, and gives what the text says."""

from cProfile import Profile

import numpy as np
import pytest

import hloipu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.lowering.core.lowering import lower
from hloipu_compiler.lowering.pipelines.draft import order_by_results
from hloipu_compiler.passes import run_passes
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import verify
from hloipu_runtime.program.steps import Call, ComputeSet, Exchange
from hloipu_runtime.program.uses import steps_within
from tests.support.layered_texts import SIZE, layered_text, looped_text
from tests.support.on_tiles import results_of

_OUTLINE = "outline-blocks{least-code=0,least-block=100,least-saved=1}"
_REST = (
    "absorb-views,eliminate-dead-code,fuse-elementwise,eliminate-dead-code,fuse-rows,"
    "eliminate-dead-code,order-for-memory"
)


def compiled(text: str, passes: str, machine: str = "tiny") -> Program:
    module, plan = run_passes(parse(text), Plan(), f"front,{passes},{_REST}")
    modelled = load_machine(machine, {})
    program = lower(module, plan, modelled)
    verify(program, modelled.chip.tiles_per_ipu)
    return program


def arguments(text: str, seed: int) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    count = len(parse(text).entry.parameters)
    return [draw.integers(-2, 3, (SIZE, SIZE), dtype=np.int32) for _ in range(count)]


def assert_calls_give_what_is_said(text: str, given: list[np.ndarray]) -> None:
    """Compare both modes of a program with functions with the interpreter."""
    program = compiled(text, _OUTLINE)
    assert program.functions
    expected = evaluate_everywhere(parse(text), *given)
    for results in results_of(program, *given):
        for got, want in zip(results, expected, strict=True):
            np.testing.assert_array_equal(got, np.asarray(want), strict=True)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 4, 7, 8, 9, 10])
def test_layers_give_what_the_text_says(seed: int, backward: bool) -> None:
    text = layered_text(seed, 4, backward=backward, shared=seed % 2 == 0, between=seed % 3 == 0)
    given = arguments(text, seed)
    assert_calls_give_what_is_said(text, given)


def test_code_is_there_once() -> None:
    text = layered_text(3, 12)
    once, each = compiled(text, _OUTLINE), compiled(text, "absorb-views")
    computing = [
        sum(isinstance(x, ComputeSet) for x in steps_within(program.body, program))
        for program in (once, each)
    ]
    assert 3 * computing[0] <= computing[1]
    calls = [x for x in steps_within(once.body, once) if isinstance(x, Call)]
    assert len(calls) >= 11


def test_what_all_calls_pass_is_not_copied() -> None:
    text = layered_text(0, 6, shared=True)
    program = compiled(text, _OUTLINE)
    mask = next(n for n, x in enumerate(program.variables) if x.name.startswith("mask"))
    calls = [x for x in program.body.steps if isinstance(x, Call)]
    assert calls
    assert all(mask in {item.variable for item in call.arguments} for call in calls)
    copied = [t for x in program.body.steps if isinstance(x, Exchange) for t in x.transfers]
    assert mask not in {transfer.source for transfer in copied}


@pytest.mark.parametrize("seed", [1, 3, 10])
def test_a_loop_calls_functions(seed: int) -> None:
    text = looped_text(seed, 4, trips=3)
    given = arguments(text, seed)
    assert_calls_give_what_is_said(text, given)


def test_results_that_are_tuples_go_from_layer_to_layer() -> None:
    """Elements of a sort's result are read in the layer behind it, and at the end."""
    shape = f"s32[{SIZE},{SIZE}]"
    order = """order {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  ROOT p = pred[] compare(a, b), direction=LT
}
"""
    lines = [f"  x = {shape} parameter(0)", f"  m0 = {shape} parameter(1)"]
    lines += [f"  w{n} = {shape} parameter({n + 2})" for n in range(4)]
    value = "x"
    for n in range(4):
        lines.append(
            f"  d{n} = {shape} dot({value}, w{n}), lhs_contracting_dims={{1}}, "
            "rhs_contracting_dims={0}"
        )
        lines.append(
            f"  t{n} = ({shape}, {shape}) sort(d{n}, w{n}), dimensions={{1}}, is_stable=true, "
            "to_apply=order"
        )
        lines.append(f"  g{n} = {shape} get-tuple-element(t{n}), index=0")
        lines.append(f"  m{n + 1} = {shape} minimum(g{n}, m{n})")
        value = f"m{n + 1}"
    lines += [f"  h{n} = {shape} get-tuple-element(t{n}), index=1" for n in range(4)]
    lines.append(f"  ROOT r = ({', '.join([shape] * 6)}) tuple(m4, m1, h0, h1, h2, h3)")
    text = f"HloModule sorts\n\n{order}\nENTRY e {{\n" + "\n".join(lines) + "\n}\n"
    given = arguments(text, 0)
    assert_calls_give_what_is_said(text, given)


def test_one_array_for_two_arguments_of_all_calls() -> None:
    text = f"""f {{
  w = s32[{SIZE},{SIZE}] parameter(0)
  x = s32[{SIZE},{SIZE}] parameter(1)
  y = s32[{SIZE},{SIZE}] parameter(2)
  d = s32[{SIZE},{SIZE}] dot(w, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT r = s32[{SIZE},{SIZE}] subtract(d, y)
}}

ENTRY e {{
  v = s32[{SIZE},{SIZE}] parameter(0)
  z = s32[{SIZE},{SIZE}] parameter(1)
  t = (s32[{SIZE},{SIZE}], s32[{SIZE},{SIZE}]) tuple(z, z)
  a = s32[{SIZE},{SIZE}] get-tuple-element(t), index=0
  b = s32[{SIZE},{SIZE}] get-tuple-element(t), index=1
  c = s32[{SIZE},{SIZE}] call(v, a, b), to_apply=f
  ROOT g = s32[{SIZE},{SIZE}] call(c, a, b), to_apply=f
}}
"""
    given = arguments(text, 1)
    modelled = load_machine("tiny", {})
    program = lower(parse(text), Plan(), modelled)
    verify(program, modelled.chip.tiles_per_ipu)
    assert program.functions
    expected = evaluate_everywhere(parse(text), *given)
    for results in results_of(program, *given):
        np.testing.assert_array_equal(results[0], np.asarray(expected[0]), strict=True)


def test_calls_are_found_in_a_computation_that_is_lowered_in_another_order() -> None:
    module = hloipu.verify("""
HloModule update
block { p = f32[4] parameter(0)
  ROOT sum = f32[4] add(p, p) }
ENTRY e { w = f32[4] parameter(0)
  v = f32[4] parameter(1)
  first = f32[4] negate(w)
  second = f32[4] negate(v)
  a = f32[4] call(first), to_apply=block
  b = f32[4] call(second), to_apply=block
  ROOT new = (f32[4], f32[4]) tuple(b, a) }
""")
    other = order_by_results(module.entry)
    written = [at for at, x in enumerate(module.entry.instructions) if x.opcode == "call"]
    moved = [at for at, x in enumerate(other.instructions) if x.opcode == "call"]
    assert [*module.entry.calls["block"]] == written
    assert [*other.calls["block"]] == moved != written


def test_each_call_costs_the_same_however_many_there_are() -> None:
    def steps_of_python(calls: int) -> int:
        lines = ["ENTRY e { a0 = f32[4] parameter(0)"]
        lines += [f"  a{n + 1} = f32[4] call(a{n}), to_apply=block" for n in range(calls)]
        module = parse(
            "HloModule m\nblock { p = f32[4] parameter(0)\n  ROOT n = f32[4] negate(p) }\n"
            + "\n".join(lines)
            + f"\n  ROOT r = f32[4] negate(a{calls}) }}\n"
        )
        profile = Profile()
        profile.runcall(lower, module, Plan(), load_machine("tiny", {}))
        return sum(entry.callcount for entry in profile.getstats())

    few, many = steps_of_python(100), steps_of_python(400)
    assert many < 4.2 * few
