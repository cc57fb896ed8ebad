"""Stages of backward ops of random steps: nothing is read that a later part of the step makes."""

from random import Random

import pytest

import hloipu
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.partition.stages.assignment import whole_stages
from hloipu_compiler.partition.stages.backward_places import with_forward_reads
from hloipu_compiler.partition.stages.pipelining import Cutting, reading_forward_values
from hloipu_compiler.partition.training.step_phases import (
    BACKWARD,
    FORWARD,
    Gradient,
    Phases,
)

ARRAY, BOTH = "f32[128]", "(f32[128], s32[128])"
LESS = """less {
  a = f32[] parameter(0)  b = f32[] parameter(1)  c = s32[] parameter(2)  d = s32[] parameter(3)
  ROOT r = pred[] compare(a, b), direction=LT
}"""


class Drawn:
    """Forward ops, and backward ops that read them or repeat them, as checkpoints do."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lines = [f"w = {ARRAY} parameter(0)", "order = s32[128] iota(), iota_dimension=0"]
        self.phase = {"w": "", "order": "free"}
        self.forward: dict[str, tuple[str, str, list[str]]] = {}
        self.repeats: dict[str, list[str]] = {}
        arrays = ["w"]
        for _ in range(random.randint(3, 20)):
            arrays.append(self.op(FORWARD, [random.choice(arrays[-5:]), random.choice(arrays)]))
        self.cotangents: list[str] = []
        for _ in range(random.randint(3, 25)):
            read = random.choice(self.cotangents[-3:] or arrays)
            again = self.again(random.choice(arrays), random.randint(0, 5))
            self.cotangents.append(self.op(BACKWARD, [read, again]))
        last = self.cotangents[-1]
        body = "\n".join([*self.lines, f"ROOT t = ({ARRAY}) tuple({last})"])
        self.text = f"HloModule m\n{LESS}\nENTRY e {{\n{body}\n}}\n"

    def op(self, phase: str, operands: list[str]) -> str:
        """Write an op of up to two arrays; return the array that it makes."""
        opcode = self.random.choice(["add", "multiply", "tanh", "reshape", "sort"])
        if opcode == "sort":
            whole = self.write(phase, BOTH, "sort", [operands[0], "order"])
            return self.write(phase, ARRAY, "get-tuple-element", [whole])
        return self.write(
            phase, ARRAY, opcode, operands if opcode in ("add", "multiply") else operands[:1]
        )

    def write(
        self, phase: str, shape: str, opcode: str, operands: list[str], index: int = 0
    ) -> str:
        name = f"v{len(self.lines)}"
        said = {"sort": ", dimensions={0}, to_apply=less", "get-tuple-element": f", index={index}"}
        read = ", ".join(operands)
        self.lines.append(f"{name} = {shape} {opcode}({read}){said.get(opcode, '')}")
        self.phase[name] = phase
        if phase == FORWARD:
            self.forward[name] = shape, opcode, operands
        return name

    def again(self, name: str, depth: int) -> str:
        """Return an array of the forward pass, perhaps computed again, or what was before."""
        if name not in self.forward or depth == 0:
            return name
        if name in self.repeats and self.random.random() < 0.7:
            return self.random.choice(self.repeats[name])
        shape, opcode, operands = self.forward[name]
        depth -= opcode != "get-tuple-element"
        read = [self.again(i, max(depth, opcode == "get-tuple-element")) for i in operands]
        new = self.write(BACKWARD, shape, opcode, read)
        self.repeats.setdefault(name, []).append(new)
        if opcode == "sort" and self.random.random() < 0.5:
            places = self.write(BACKWARD, "s32[128]", "get-tuple-element", [new], 1)
            self.cotangents.append(self.write(BACKWARD, ARRAY, "convert", [places]))
        return new


def cut(random: Random, entry: Computation, phases: Phases, count: int) -> dict[int, int]:
    """Return stages of forward ops that follow each other, and some of backward ops at random."""
    forward = [n for n, phase in enumerate(phases.phase) if phase == FORWARD]
    places = sorted(random.choices(range(len(forward) + 1), k=count - 1))
    stages = {n: sum(place <= at for place in places) for at, n in enumerate(forward)}
    for n in forward:
        if is_element(entry.instructions[n]):
            stages[n] = stages[entry.instructions[n].operands[0]]
    for n, op in enumerate(entry.instructions):
        if phases.phase[n] == BACKWARD and not is_element(op) and random.random() < 0.03:
            stages[n] = random.randrange(count)
    return stages


def is_element(op: Instruction) -> bool:
    return op.opcode == "get-tuple-element"


@pytest.mark.parametrize("seed", range(4))
def test_backward_ops_read_no_stage_below_and_elements_stay_with_their_tuples(seed: int) -> None:
    random = Random(seed)
    for _ in range(50):
        drawn, count = Drawn(random), random.randint(2, 5)
        entry = hloipu.verify(drawn.text).entry
        phase = tuple(drawn.phase.get(op.name, "") for op in entry.instructions)
        phases = Phases(phase, (), (), (), (), -1, (), ())
        placed = whole_stages(entry, phases, cut(random, entry, phases, count), count)
        stages = placed.places
        read = with_forward_reads(entry, placed.forward_reads)
        for position, op in enumerate(read.instructions):
            mine = [stages[i] for i in op.operands if phase[i] == BACKWARD]
            if phase[position] == BACKWARD:
                assert 0 <= stages[position] <= min(mine, default=count - 1)
                assert not is_element(op) or [stages[position]] == mine
        for (reader, again), forward in placed.forward_reads.items():
            assert entry.instructions[forward].shape == entry.instructions[again].shape
            users = [n for n in entry.users[forward] if phase[n] == FORWARD]
            assert stages[reader] in [stages[n] for n in users]  # it is there already


@pytest.mark.parametrize("seed", [11, 24344, 24981])
def test_ops_that_read_forward_values_stay_where_these_are_at_hand(seed: int) -> None:
    """Placed anew, ops of the latter steps would read what stages below them make."""
    random = Random(seed)
    drawn, count = Drawn(random), random.randint(2, 5)
    module = hloipu.verify(drawn.text)
    phase = tuple(drawn.phase.get(op.name, "") for op in module.entry.instructions)
    phases = Phases(phase, (), (), (), (), -1, (), ())
    cutting = Cutting(module, phases, True, count, cut(random, module.entry, phases, count), ())
    read = reading_forward_values(cutting)
    assert read.module is not module
    assert read.stages == cutting.stages
    assert not read.placed.forward_reads


MASKED = """HloModule m
ENTRY e {
  x = f32[4,128] parameter(0)
  mask = f32[128] parameter(1)
  low = f32[128] negate(mask)
  b = f32[4,128] broadcast(low), dimensions={1}
  f0 = f32[4,128] add(x, b)
  f1 = f32[4,128] add(f0, b)
  unit = f32[1,128] reshape(low)
  same = f32[128] reshape(unit)
  again = f32[4,128] broadcast(same), dimensions={1}
  r1 = f32[4,128] add(f0, again)
  g1 = f32[4,128] multiply(f1, r1)
  ROOT g0 = f32[4,128] multiply(g1, f0)
}
"""


def test_mask_that_is_reshaped_there_and_back_again_is_what_the_forward_pass_has() -> None:
    """As a checkpoint's block makes it again: it does not draw the block to where it was made."""
    entry = hloipu.verify(MASKED).entry
    at = {op.name: n for n, op in enumerate(entry.instructions)}
    forward = {"low": 0, "b": 0, "f0": 0, "f1": 1}
    backward = ("unit", "same", "again", "r1", "g1", "g0")
    phase = [""] * len(at)
    for name, n in at.items():
        phase[n] = FORWARD if name in forward else BACKWARD if name in backward else ""
    marks = {at[name]: stage for name, stage in {**forward, "r1": 1, "g1": 1, "g0": 0}.items()}
    stages = whole_stages(entry, Phases(tuple(phase), (), (), (), (), -1, (), ()), marks, 2).places
    assert [stages[at[name]] for name in ("again", "r1", "g1", "g0")] == [1, 1, 1, 0]


BLOCK = """HloModule m
ENTRY e {
  x = f32[128,128] parameter(0)
  w = f32[128,128] parameter(1)
  f0 = f32[128,128] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  f1 = f32[128,128] tanh(f0)
  f2 = f32[128,128] dot(f1, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  r0 = f32[128,128] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  r1 = f32[128,128] tanh(r0)
  g2 = f32[128,128] dot(f2, r1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  g1 = f32[128,128] multiply(g2, r1)
  ROOT g0 = f32[128,128] dot(g1, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_cut_within_a_checkpoint_has_each_stage_compute_its_own_part_again() -> None:
    entry = hloipu.verify(BLOCK).entry
    at = {op.name: n for n, op in enumerate(entry.instructions)}
    phase = {"f": FORWARD, "r": BACKWARD, "g": BACKWARD}
    phases = Phases(
        tuple(phase.get(op.name[0], "") for op in entry.instructions), (), (), (), (), -1, (), ()
    )
    cut = {at["f0"]: 0, at["f1"]: 0, at["f2"]: 1}
    placed = whole_stages(entry, phases, cut, 2)
    stages = {name: placed.places[n] for name, n in at.items() if n > 1}
    assert stages == {"f0": 0, "f1": 0, "f2": 1, "r0": 0, "r1": 0, "g2": 1, "g1": 0, "g0": 0}
    assert placed.forward_reads == {(at["g2"], at["r1"]): at["f1"]}


BIAS = """HloModule m
plus {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT s = f32[] add(p, q)
}
ENTRY e {
  x = f32[128,128] parameter(0)
  w = f32[128,128] parameter(1)
  bias = f32[128] parameter(2)
  zero = f32[] constant(0)
  f0 = f32[128,128] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  wide = f32[128,128] broadcast(bias), dimensions={1}
  f1 = f32[128,128] add(f0, wide)
  f2 = f32[128,128] dot(f1, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  g2 = f32[128,128] dot(f2, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  gsum = f32[128] reduce(g2, zero), dimensions={0}, to_apply=plus
  gbias = f32[128] negate(gsum)
  g0 = f32[128,128] dot(READ, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  gone = f32[] reduce(gbias, zero), dimensions={0}, to_apply=plus
  ROOT r = (f32[128], f32[128,128], f32[]) tuple(gbias, g0, gone)
}
"""


@pytest.mark.parametrize(
    ("reads", "stage", "other"), [("g2", 0, ""), ("f0", 1, ""), ("g2", 1, BACKWARD)]
)
def test_gradient_of_a_bias_is_summed_where_the_bias_is_if_what_it_sums_passes_there(
    reads: str, stage: int, other: str
) -> None:
    entry = hloipu.verify(BIAS.replace("READ", reads)).entry
    at = {op.name: n for n, op in enumerate(entry.instructions)}
    phase = {"f": FORWARD, "g": BACKWARD}
    known = {"wide": "free", "bias": "", "zero": "free", "gone": other}
    phases = Phases(
        tuple(known.get(op.name, phase.get(op.name[0], "")) for op in entry.instructions),
        (Gradient(at["gbias"], (2,)),), (), (), (), -1, (), (),
    )  # fmt: skip
    places = whole_stages(entry, phases, {at["f0"]: 0, at["f1"]: 0, at["f2"]: 1}, 2).places
    assert [places[at[name]] for name in ("g2", "gsum", "gbias")] == [1, stage, stage]
