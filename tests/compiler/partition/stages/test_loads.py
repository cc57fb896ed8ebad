"""Layers of a step: equal blocks, and what stands beside them with the same products."""

import hloipu
from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.partition.stages.balancing import burdens
from hloipu_compiler.partition.stages.cutting import ASSUMED_BUDGET
from hloipu_compiler.partition.stages.loads import layers_of, loads_of
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, Phases
from hloipu_compiler.plan.schedule import Schedule
from tests.support.cases import each

CONTRACTED = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def step(layers: int) -> Computation:
    """Return layers of three products, and one product; the first layer makes a mask for all."""
    lines = ["h = f32[64,64] parameter(0)", "m = s32[64] parameter(1)"]
    lines += ["v = f32[64,32] parameter(2)"]
    previous = "h"
    for n in range(layers):
        for number, sizes in enumerate(["64,128", "128,96", "96,64"]):
            lines += [f"w{n}_{number} = f32[{sizes}] parameter({3 + 3 * n + number})"]
        lines += [f"a{n} = f32[64,128] dot({previous}, w{n}_0), {CONTRACTED}"]
        lines += [f"t{n} = f32[64,128] tanh(a{n})"]
        if not n:
            lines += ["c = f32[64] convert(m)", "e = f32[64] exponential(c)"]
            lines += ["mask = f32[64,96] broadcast(e), dimensions={0}"]
        lines += [f"b{n} = f32[64,96] dot(t{n}, w{n}_1), {CONTRACTED}"]
        lines += [f"k{n} = f32[64,96] multiply(b{n}, mask)"]
        lines += [f"d{n} = f32[64,64] dot(k{n}, w{n}_2), {CONTRACTED}"]
        lines += [f"s{n} = f32[64,64] sine(d{n})"]
        previous = f"s{n}"
    lines += [f"ROOT last = f32[64,32] dot({previous}, v), {CONTRACTED}"]
    body = "\n  ".join(lines)
    return hloipu.verify(f"HloModule m\n\nENTRY e {{\n  {body}\n}}\n").entry


@each("layers", [4, 7])
def test_a_layer_in_whose_midst_a_mask_is_made_is_one(layers: int) -> None:
    entry = step(layers)
    phases = Phases((FORWARD,) * len(entry.instructions), (), (), (), (), -1, (), ())
    of_op = layers_of(entry, phases)
    names = [
        {of_op.get(f"{letter}{layer}") for letter in ("a", "t", "b", "k", "d")}
        for layer in range(layers)
    ]
    assert all(len(each_layer) == 1 for each_layer in names)
    assert len(set.union(*names) - {None}) == layers
    assert {of_op[name] for name in ("c", "e", "mask")} == names[0]
    assert "last" not in of_op  # one product is no layer


def checkpointed(layers: int, *, ends: bool = False) -> tuple[Computation, Phases]:
    """Return layers `s = sine(dot(h, w))`, each a checkpoint that the backward pass repeats.

    `ends`: each ends with an op that need not be repeated, as norms end with an addition.
    """
    end = "t" if ends else "s"
    array = "f32[64,64]"
    lines = [f"h = {array} parameter(0)"]
    lines += [f"w{n} = {array} parameter({n + 1})" for n in range(layers)]
    for n in range(layers):
        previous = f"{end}{n - 1}" if n else "h"
        lines += [f"d{n} = {array} dot({previous}, w{n}), {CONTRACTED}"]
        lines += [f"s{n} = {array} sine(d{n})"]
        lines += [f"t{n} = {array} negate(s{n})"] if ends else []
    gradient = f"{end}{layers - 1}"
    for n in reversed(range(layers)):
        previous = f"{end}{n - 1}" if n else "h"
        lines += [f"rd{n} = {array} dot({previous}, w{n}), {CONTRACTED}"]
        lines += [f"rs{n} = {array} cosine(rd{n})"]
        lines += [f"g{n} = {array} multiply({gradient}, rs{n})"]
        gradient = f"g{n}"
    body = "\n  ".join([*lines[:-1], f"ROOT {lines[-1]}"])
    entry = hloipu.verify(f"HloModule m\n\nENTRY e {{\n  {body}\n}}\n").entry
    phase = ["" if op.parameter_number >= 0 else BACKWARD for op in entry.instructions]
    for position, op in enumerate(entry.instructions):
        if op.opcode in ("sine", "dot", "negate") and op.name[0] != "r":
            phase[position] = FORWARD
    return entry, Phases(tuple(phase), (), (), (), (), -1, (), ())


def test_layers_end_where_checkpoints_end() -> None:
    """Blocks found equal from sine to dot: cut there, both sides would compute a block again."""
    entry, phases = checkpointed(4)
    trips = {f"s{n}": (0, n) for n in range(4)} | {f"d{n}": (0, n - 1) for n in range(1, 4)}
    cycles = [1.0] * len(entry.instructions)
    loads = loads_of(entry, phases, (), cycles, trips)
    names = [entry.instructions[position].name for position in loads.ahead]
    assert names == ["d0", "s0", "d1", "s1", "d2", "s2", "d3", "s3"]
    assert {n for n in range(1, 8) if n not in loads.inside} >= {2, 4, 6}
    assert {3, 5} <= loads.inside


def test_layers_end_at_what_waits_for_the_backward_pass() -> None:
    """Before the last op of a block as little is computed again, but what crosses does not wait."""
    entry, phases = checkpointed(3, ends=True)
    trips = {f"{x}{n}": (0, n) for n in range(3) for x in "ds"}
    trips |= {f"t{n}": (0, n + 1) for n in range(3)}
    loads = loads_of(entry, phases, (), [1.0] * len(entry.instructions), trips)
    names = [entry.instructions[position].name for position in loads.ahead]
    assert names[:4] == ["d0", "s0", "t0", "d1"]
    assert not {3, 6} & loads.inside
    assert {2, 5} <= loads.inside


def test_of_what_waits_cheap_values_count_only_if_they_are_not_made_again() -> None:
    """The backward pass reads `d`, `e` and `k`, which follow from `d`."""
    array = "f32[64,64]"
    entry = hloipu.verify(
        f"""HloModule m

ENTRY q {{
  h = {array} parameter(0)
  w = {array} parameter(1)
  d = {array} dot(h, w), {CONTRACTED}
  e = {array} exponential(d)
  k = {array} multiply(e, d)
  s = {array} dot(k, w), {CONTRACTED}
  b = {array} multiply(s, e)
  c = {array} multiply(b, k)
  ROOT g = {array} multiply(c, d)
}}
"""
    ).entry
    ahead = [n for n, op in enumerate(entry.instructions) if op.name in ("d", "e", "k", "s")]
    phase = ["" if op.parameter_number >= 0 else BACKWARD for op in entry.instructions]
    for position in ahead:
        phase[position] = FORWARD
    phases = Phases(tuple(phase), (), (), (), (), -1, (), ())
    found = loads_of(entry, phases, (), [1.0] * len(phase))
    schedule, size = Schedule(2, "sequential", 1), 64 * 64 * 4
    waiting = {
        kind: sum(
            part.stash_bytes
            for part in burdens(found, schedule, ASSUMED_BUDGET, (3,), recompute=kind)
        )
        for kind in ("none", "cheap")
    }
    assert waiting == {"none": 4 * size, "cheap": 2 * size}
