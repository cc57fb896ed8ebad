"""Where a forward pass is cut into stages: as annotated, or in parts of like cost.

Forward ops are taken in their order. A cut costs what crosses it; the dearest stage costs most. The
best cuts are found stage by stage over the places where least crosses (dynamic programming).
"""

from collections.abc import Sequence
from math import inf, prod, sqrt

from hloipu_compiler.hlo.frontend_attributes import read_frontend_attributes
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_compiler.staging.errors import StagingError
from hloipu_compiler.staging.phases import FORWARD, Phases

_MOST_CUTS = 400
"""Places to cut at that are looked at, those at which least crosses."""
_CYCLES_PER_BYTE = 0.25
"""What a byte that crosses a cut costs beside an element that is multiplied. Assumed."""


def annotated(entry: Computation) -> dict[int, int]:
    """Return the stage of every op whose attribute `ipu_stage` says so."""
    found: dict[int, int] = {}
    for position, x in enumerate(entry.instructions):
        text = x.attributes.text("frontend_attributes")
        if "ipu_stage" not in text:
            continue
        value = read_frontend_attributes(text).get("ipu_stage", "")
        if value.isdecimal() and len(value) < 6:
            found[position] = int(value)
    return found


def cut(entry: Computation, phases: Phases, stages: int) -> dict[int, int]:
    """Return the stage of every forward op, so that stages are alike and little crosses.

    Raises StagingError E0506 where there are fewer forward ops than stages.
    """
    ahead = [n for n, phase in enumerate(phases.phase) if phase == FORWARD]
    if len(ahead) < stages:
        raise StagingError(
            "E0506",
            f"{len(ahead)} forward ops cannot make up {stages} stages",
            hint="ask for fewer stages",
        )
    if stages == 1:
        return dict.fromkeys(ahead, 0)
    crossing = _crossing(entry, ahead)
    costs = [work(entry, entry.instructions[n]) for n in ahead]
    places = sorted(range(1, len(ahead)), key=lambda n: (crossing[n], n))
    places = sorted(places[: max(_MOST_CUTS, stages)])
    cuts = _best(costs, [crossing[n] * _CYCLES_PER_BYTE for n in places], places, stages)
    found: dict[int, int] = {}
    stage = 0
    for number, position in enumerate(ahead):
        while stage < len(cuts) and number >= cuts[stage]:
            stage += 1
        found[position] = stage
    return found


def _best(
    costs: Sequence[float], crossing: Sequence[float], places: Sequence[int], stages: int
) -> list[int]:
    """Return the cuts for which the dearest stage, with what crosses into it, costs least."""
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    ends = [0, *places, len(costs)]
    into = [0.0, *crossing, 0.0]
    best = [[0.0] + [inf] * (len(ends) - 1)]
    back: list[list[int]] = []
    for _ in range(stages):
        row, chosen = [inf] * len(ends), [0] * len(ends)
        for last in range(1, len(ends)):
            for first in range(last - 1, -1, -1):
                stage = sums[ends[last]] - sums[ends[first]] + into[first] + into[last]
                found = max(best[-1][first], stage)
                if found < row[last]:
                    row[last], chosen[last] = found, first
                if stage >= row[last]:
                    break  # earlier beginnings only make the stage dearer
        best.append(row)
        back.append(chosen)
    cuts = []
    last = len(ends) - 1
    for chosen in reversed(back):
        last = chosen[last]
        cuts.append(ends[last])
    return list(reversed(cuts[:-1]))


def _crossing(entry: Computation, ahead: Sequence[int]) -> list[int]:
    """Return for each place among the forward ops the bytes that later ones take from earlier."""
    place = {position: number for number, position in enumerate(ahead)}
    change = [0] * (len(ahead) + 1)
    for number, position in enumerate(ahead):
        last = max((place[user] for user in entry.users[position] if user in place), default=-1)
        if last > number:
            size = _bytes(entry.instructions[position].shape)
            change[number + 1] += size
            change[last + 1] -= size
    found, total = [], 0
    for value in change:
        total += value
        found.append(total)
    return found


def work(entry: Computation, x: Instruction) -> float:
    """Return about what an op costs: elements made, times what each of them is summed from."""
    size = float(_elements(x.shape))
    if x.opcode in ("dot", "convolution") and x.operands:
        lhs, rhs = (_elements(entry.instructions[i].shape) for i in x.operands[:2])
        # Operands and the result share all dimensions, each standing in two of the three.
        return size * max(1.0, sqrt(lhs * rhs / max(size, 1.0))) / 8
    if x.opcode in ("while", "conditional", "custom-call", "sort", "fft", "scatter", "gather"):
        return size + sum(_elements(entry.instructions[i].shape) for i in x.operands)
    if x.opcode == "reduce":
        return float(_elements(entry.instructions[x.operands[0]].shape))
    return size


def _elements(shape: Shape) -> int:
    if isinstance(shape, TupleShape):
        return sum(_elements(part) for part in shape.elements)
    return prod(shape.dimensions) if isinstance(shape, ArrayShape) else 0


def _bytes(shape: Shape) -> int:
    if isinstance(shape, TupleShape):
        return sum(_bytes(part) for part in shape.elements)
    if not isinstance(shape, ArrayShape):
        return 0
    return (prod(shape.dimensions) * shape.element_type.bits + 7) // 8
