"""Findings on element types: wider than need be, emulated, or summed up wide."""

from collections import defaultdict
from collections.abc import Callable, Iterator

from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.computing import codelet_work, operand_part, work_charge
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.findings.facts import Facts
from hloipu_runtime.program.steps import VertexGroup
from hloipu_runtime.report.change import Finding

_PRODUCTS = frozenset({"dot", "convolution"})
"""Codelets of the matrix units, which are several times as fast on f16."""
_EMULATED_BITS = 64


def wide_products(facts: Facts) -> Iterator[Finding]:
    """Find matrix products of f32, and ask the codelet itself what f16 would take."""
    saved: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row, groups in facts.computing:
        for group in groups:
            if group.codelet.name not in _PRODUCTS or not row.cycles:
                continue
            kinds = {
                facts.program.variables[operand.variable].element_type for operand in group.inputs
            }
            if kinds != {"f32"}:
                continue
            now, then = (_cycles(facts, group, kind) for kind in ("f32", "f16"))
            totals = saved[row.name]
            totals[0] += now * row.executions
            totals[1] += max(0, now - then) * row.executions
    for name, (now, gain) in saved.items():
        # Half of the bytes travel: what is exchanged for it halves at most.
        exchange = facts.works[name].exchange // 2 if name in facts.works else 0
        if not gain + exchange:
            continue
        yield Finding(
            "wide-product",
            name,
            facts.source_of.get(name, ""),
            f"{name} multiplies f32 for {now:,} cycles; f16 would take {now - gain:,} and half "
            "of the bytes",
            "cast both operands to f16 (partial sums stay f32)",
            gain + exchange,
            0,
            {"f32_cycles": now, "f16_cycles": now - gain, "exchange_cycles": 2 * exchange},
            (("passes", "narrow-floats,default"),),
        )


def _cycles(facts: Facts, group: VertexGroup, kind: str) -> int:
    """Return the cycles of a group with its floats of 32 bits in another type."""
    narrowed: Callable[[Tensor], Tensor] = lambda tensor: (  # noqa: E731
        tensor._replace(element_type=kind) if tensor.element_type == "f32" else tensor
    )
    operands = tuple(narrowed(operand_part(facts.program, operand)) for operand in group.inputs)
    results = tuple(operand_part(facts.program, operand) for operand in group.outputs)
    work = codelet_work(group.codelet, facts.machine, operands, results)
    return work_charge(facts.machine, work).cycles


def wide_partials(facts: Facts) -> Iterator[Finding]:
    """Find products of f16 that are added up in f32 though half would be exchanged and kept."""
    names: defaultdict[str, int] = defaultdict(int)
    for row, groups in facts.computing:
        if row.cycles and any(_adds_up_wide(facts, group) for group in groups):
            work = facts.works.get(row.name)
            names[row.name] = (work.exchange + work.compute) // 2 if work else row.cycles // 2
    for name, gain in names.items():
        yield Finding(
            "wide-partials",
            name,
            facts.source_of.get(name, ""),
            f"{name} multiplies f16 and adds up its partial sums in f32",
            "--partials-type=f16 halves cycles, memory and exchange of these, and is less exact",
            gain,
            0,
            {"cycles": 2 * gain},
            (("partials_type", "f16"),),
        )


def _adds_up_wide(facts: Facts, group: VertexGroup) -> bool:
    variables = facts.program.variables
    return (
        group.codelet.name in _PRODUCTS
        and {variables[operand.variable].element_type for operand in group.inputs} == {"f16"}
        and getattr(group.codelet, "element_type", "") == "f32"
    )


def emulated(facts: Facts) -> Iterator[Finding]:
    """Find computing on types that the chip does not have."""
    cycles: defaultdict[str, int] = defaultdict(int)
    kinds: dict[str, str] = {}
    for row, groups in facts.computing:
        kind = _emulated_kind(facts, groups)
        if kind and row.cycles:
            cycles[row.name] += row.cycles
            kinds.setdefault(row.name, kind)
    for name, spent in cycles.items():
        yield Finding(
            "emulated-type",
            name,
            facts.source_of.get(name, ""),
            f"{name} computes on {kinds[name]}, which the chip has no instructions for: {spent:,} "
            "cycles, assumed",
            _cure_of_emulated(kinds[name]),
            spent // 2,
            0,
            {"cycles": spent, "element_type": kinds[name]},
        )


def _cure_of_emulated(kind: str) -> str:
    if kind == "c64":
        return "compute on real and imaginary parts as f32, without the products with parts of zero"
    narrow = {"f64": "f32", "c128": "c64", "u64": "uint32"}.get(kind, "int32")
    return f"use {narrow} (jax_enable_x64 off)"


def _emulated_kind(facts: Facts, groups: tuple[VertexGroup, ...]) -> str:
    for group in groups:
        for operand in (*group.inputs, *group.outputs):
            name = facts.program.variables[operand.variable].element_type
            if ELEMENT_TYPES[name].bits >= _EMULATED_BITS:
                return name
    return ""


RULES = (wide_products, wide_partials, emulated)
