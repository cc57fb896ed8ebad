"""Reduction of large modules: a handful of instructions is left, after few tests."""

import random
from collections.abc import Callable
from math import ceil, log2

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.reduce.reducer import reduce_module, verifies

COUNT = 1000
ONE_OPERAND = ("tanh", "negate", "exponential")
TWO_OPERANDS = ("add", "multiply", "subtract", "maximum")
MATRIX = "f32[16,16]"
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def lines(count: int, seed: int, inputs: list[str]) -> list[str]:
    """Return so many instructions, each of which reads some that stand shortly before it."""
    draw, names, made = random.Random(seed), list(inputs), []
    for number in range(count):
        opcode = draw.choice((*ONE_OPERAND, *TWO_OPERANDS, "dot"))
        operands = draw.choices(names[-40:], k=1 if opcode in ONE_OPERAND else 2)
        more = f", {DOT}" if opcode == "dot" else ""
        made.append(f"  v{number} = {MATRIX} {opcode}({', '.join(operands)}){more}")
        names.append(f"v{number}")
    return made


def in_the_entry(seed: int, planted: list[str]) -> Module:
    parameters = [f"  p{n} = {MATRIX} parameter({n})" for n in range(8)]
    made = lines(COUNT, seed, [f"p{n}" for n in range(8)])
    made[COUNT // 2 : COUNT // 2 + 1] = planted
    last = f"  ROOT r = {MATRIX} add(v{COUNT - 1}, v{COUNT - 2})"
    return parse("\n".join(["HloModule m", "", "ENTRY e {", *parameters, *made, last, "}\n"]))


def in_a_loop(seed: int, planted: list[str]) -> Module:
    """Return a module whose instructions are in the body of a loop, with a call on the way."""
    state = f"(s32[], {MATRIX}, {MATRIX})"
    reads = [
        f"  s = {state} parameter(0)",
        "  i = s32[] get-tuple-element(s), index=0",
        f"  p0 = {MATRIX} get-tuple-element(s), index=1",
        f"  p1 = {MATRIX} get-tuple-element(s), index=2",
    ]
    made = lines(COUNT, seed, ["p0", "p1"])
    made[COUNT // 2 : COUNT // 2 + 1] = planted
    text = [
        "HloModule m", "", "body {", *reads, *made,
        "  one = s32[] constant(1)", "  j = s32[] add(i, one)",
        f"  ROOT r = {state} tuple(j, v{COUNT - 1}, v{COUNT - 2})", "}", "",
        "below {", *reads[:2], "  n = s32[] constant(3)",
        "  ROOT r = pred[] compare(i, n), direction=LT", "}", "",
        "loop {", f"  s = {state} parameter(0)",
        f"  ROOT w = {state} while(s), condition=below, body=body", "}", "",
        "ENTRY e {", f"  p = {MATRIX} parameter(0)", "  z = s32[] constant(0)",
        f"  q = {MATRIX} tanh(p)", f"  b = {state} tuple(z, p, q)",
        f"  c = {state} call(b), to_apply=loop",
        f"  x = {MATRIX} get-tuple-element(c), index=1",
        f"  ROOT o = {MATRIX} negate(x)", "}\n",
    ]  # fmt: skip
    return parse("\n".join(text))


PLANTED = [
    f"  left = {MATRIX} abs(v400)",
    f"  right = {MATRIX} sine(v300)",
    f"  bad = {MATRIX} dot(left, right), {DOT}",
    f"  v500 = {MATRIX} multiply(bad, v499)",
]
"""A dot of an abs and a sine, neither of which is anywhere else; others read what follows it."""


def reads(computation: Computation, opcode: str, *below: str) -> bool:
    return any(
        x.opcode == opcode
        and tuple(computation.instructions[o].opcode for o in x.operands) == below
        for x in computation.instructions
    )


def counted(asked: list[str], holds: Callable[[Module], bool]) -> Callable[[str], bool]:
    """Return a test that notes what it is asked, and trusts that it verifies."""

    def interesting(text: str) -> bool:
        asked.append(text)
        module = parse(text)
        assert verifies(module)
        return holds(module)

    return interesting


def bad_dot(module: Module) -> bool:
    return any(reads(c, "dot", "abs", "sine") for c in module.computations)


def bad_dot_in_a_loop(module: Module) -> bool:
    bodies = {
        x.attributes.text("body")
        for c in module.computations
        for x in c.instructions
        if x.opcode == "while"
    }
    return any(reads(module.computation[name], "dot", "abs", "sine") for name in bodies)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("made", [in_the_entry, in_a_loop])
def test_a_fault_among_a_thousand_instructions(
    made: Callable[[int, list[str]], Module], seed: int
) -> None:
    module, asked = made(seed, PLANTED), list[str]()

    found = reduce_module(module, counted(asked, bad_dot))

    assert found.ending == "smallest"
    opcodes = sorted(x.opcode for x in found.module.entry.instructions)
    assert opcodes == ["abs", "dot", "parameter", "parameter", "sine"]
    assert found.module.instruction_count == 5
    assert parse(found.text).without_places() == found.module
    # As many tests for each instruction that is kept as halvings lead to it, twice over.
    assert found.tests == len(asked) <= 2 * 5 * ceil(log2(COUNT))


def test_a_fault_that_needs_its_loop() -> None:
    module, asked = in_a_loop(0, PLANTED), list[str]()

    found = reduce_module(module, counted(asked, bad_dot_in_a_loop))

    assert found.ending == "smallest"
    assert found.module.instruction_count <= 14
    assert found.tests <= 12 * ceil(log2(COUNT))


def test_several_parts_far_from_each_other() -> None:
    """What takes several instructions, hundreds apart, keeps these and what ties them together."""
    module = in_the_entry(0, [*PLANTED[1:2], f"  v500 = {MATRIX} add(right, v499)"])

    def both(candidate: Module) -> bool:
        opcodes = [x.opcode for x in candidate.entry.instructions]
        return "sine" in opcodes and opcodes.count("dot") >= 3

    found = reduce_module(module, counted([], both))

    opcodes = [x.opcode for x in found.module.entry.instructions if x.opcode != "parameter"]
    assert opcodes.count("dot") == 3
    assert opcodes.count("sine") == 1
    assert len(opcodes) <= 4 + 3
    assert found.tests <= 40 * ceil(log2(COUNT))


def test_a_test_that_all_but_holds_for_everything_ends() -> None:
    module = in_a_loop(1, PLANTED)

    found = reduce_module(module, lambda text: "f32" in text)

    assert found.ending == "smallest"
    assert found.module.instruction_count <= 2
    assert found.tests < 60
