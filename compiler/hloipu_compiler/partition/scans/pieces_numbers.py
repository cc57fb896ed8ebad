"""Renumbers parameters and results where some become several."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from hloipu_compiler.ir.attributes import Alias, Attributes, Donor
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import Shape, array_shape
from hloipu_compiler.partition.scans.pieces_choosing import Choice, Cut
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.wrapping import FeedBinding, StatePair, Wrapping
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.stacks import PARAMETER, RESULT, Numbering, Stack

_OF_NUMBERS = ("input_output_alias", "buffer_donor")
_OF_PLACES = frozenset("alias_passthrough_params replicate_results_map".split())


@dataclass(frozen=True)
class Numbers:
    """New numbers of the old parameters and results: of those that became several, all pieces'."""

    parameters: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]

    def of_parameters(self, old: Iterable[int]) -> tuple[int, ...]:
        """Return the new numbers of some parameters."""
        return tuple(new for n in old for new in self.parameters[n])

    def of_results(self, old: Iterable[int]) -> tuple[int, ...]:
        """Return the new numbers of some results."""
        return tuple(new for n in old for new in self.results[n])


def numbers_of(entry: Computation, choice: Choice) -> Numbers:
    """Return the new numbers of an entry of which each parameter and result is an array."""
    cuts = dict(enumerate(_cut_parameters(entry, choice)))
    root = entry.instructions[entry.root]
    results = root.operands if root.opcode == "tuple" else (entry.root,)
    return Numbers(
        _runs([1 if cut is None else len(cut.bounds) - 1 for cut in cuts.values()]),
        _runs([len(choice.results[n].bounds) - 1 if n in choice.results else 1
               for n in range(len(results))]),
    )  # fmt: skip


def _cut_parameters(entry: Computation, choice: Choice) -> list[Cut | None]:
    return [choice.cut[p] if p in choice.parameters else None for p in entry.parameters]


def _runs(counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(a, b)) for a, b in pairwise([0, *accumulate(counts)]))


def renumbered_wrapping(wrapping: Wrapping, numbers: Numbers, stacks: Sequence[Stack]) -> Wrapping:
    """Return how the step in pieces is wrapped: as the whole one was."""
    names = {n: name for stack in stacks if stack.kind == PARAMETER
             for n, name in zip(stack.numbers, piece_names(stack), strict=True)}  # fmt: skip
    state = [
        StatePair(names.get(given, pair.name), given, new)
        for pair in wrapping.state
        for given, new in zip(
            numbers.parameters[pair.parameter], numbers.results[pair.result], strict=True
        )
    ]
    return replace(
        wrapping,
        state=tuple(state),
        feeds=tuple(x._replace(places=numbers.of_parameters(x.places)) for x in wrapping.feeds),
        constants=numbers.of_parameters(wrapping.constants),
        outfeeds=tuple(_outfeed_moved(x, numbers) for x in wrapping.outfeeds),
        results=numbers.of_results(wrapping.results),
        inputs=numbers.of_parameters(wrapping.inputs),
    )


def _outfeed_moved(queue: FeedBinding, numbers: Numbers) -> FeedBinding:
    pairs = zip(queue.places, queue.names, strict=False)
    names = tuple(name for place, name in pairs for _ in numbers.results[place])
    return queue._replace(places=numbers.of_results(queue.places), names=names)


def piece_names(stack: Stack) -> list[str]:
    """Return a name for each piece, after its rows: `w[0:4]`, `w[:,4:8]`."""
    ahead = ":," * stack.axis
    bounds = [0, *accumulate(stack.sizes)]
    return [f"{stack.name}[{ahead}{a}:{b}]" for a, b in pairwise(bounds)]


def renumbered_request(request: PipelineRequest, numbers: Numbers) -> PipelineRequest:
    """Return what is asked of the cut, by the new numbers."""
    loss = request.loss
    if loss is not None and 0 <= loss < len(numbers.results):
        loss = numbers.results[loss][0]
    carried = frozenset(numbers.of_parameters(sorted(request.carried)))
    kinds = {new: kind for old, kind in request.accumulators.items()
             for new in numbers.parameters[old]}  # fmt: skip
    return replace(request, carried=carried, loss=loss, accumulators=kinds)


def stacks_of(
    entry: Computation, choice: Choice, numbers: Numbers, names: Sequence[str]
) -> tuple[Stack, ...]:
    """Return what users go on seeing whole; `names` of the old parameters."""
    stacks = []
    for number, cut in enumerate(_cut_parameters(entry, choice)):
        if cut is not None:
            at = numbers.parameters[number][0]
            shape = entry.instructions[entry.parameters[number]].shape
            stacks.append(_stack(names[number], PARAMETER, at, cut, shape))
    for number, cut in sorted(choice.results.items()):
        position = entry.instructions[entry.root].operands[number]
        at = numbers.results[number][0]
        stacks.append(
            _stack(f"result.{number}", RESULT, at, cut, entry.instructions[position].shape)
        )
    return tuple(stacks)


def _stack(name: str, kind: str, first: int, cut: Cut, shape: Shape) -> Stack:
    sizes = tuple(b - a for a, b in pairwise(cut.bounds))
    return Stack(name, kind, first, cut.axis, sizes, array_shape(shape).dimensions)


def renumbered_header(module: Module, numbers: Numbers) -> Attributes:
    """Return the header's attributes for an entry in pieces, which `module` has by now."""
    values = {
        key: value
        for key, value in module.attributes.items()
        if key not in _OF_PLACES and key not in _OF_NUMBERS
    }
    if "entry_computation_layout" in values:
        values["entry_computation_layout"] = module.entry.program_shape
    moved = [y for x in module.attributes.aliases() for y in _aliases(x, numbers)]
    given = [
        Donor(new, x.parameter_index)
        for x in module.attributes.donors()
        for new in numbers.parameters[x.parameter]
    ]
    if moved:
        values["input_output_alias"] = tuple(moved)
    if given:
        values["buffer_donor"] = tuple(given)
    return Attributes(values, module.attributes.called)


def _aliases(alias: Alias, numbers: Numbers) -> list[Alias]:
    """Return the aliases of the pieces; none where only one side is in pieces."""
    new = numbers.results[alias.output_index[0] if alias.output_index else 0]
    given = numbers.parameters[alias.parameter]
    if len(new) != len(given):
        return []
    return [alias._replace(output_index=(m,), parameter=g) for m, g in zip(new, given, strict=True)]


_NUMBERED = re.compile(r"parameter\.(\d+)(?!\d)")


def with_stacks(program: Program, stacks: Sequence[Stack]) -> Program:
    """Return a program that says which of its arrays are pieces of one.

    Where its variables and values are named after a parameter's number, they have that of the
    user's array, and the rows: `parameter.3[0:4]`.
    """
    if not stacks:
        return program
    numbering = Numbering(stacks, PARAMETER)
    rows = {
        number: f"parameter.{numbering.users(number)}{name.removeprefix(stack.name)}"
        for stack in numbering.stacks
        for number, name in zip(stack.numbers, piece_names(stack), strict=True)
    }

    def shown(origin: str) -> str:
        match = _NUMBERED.match(origin)
        if match is None:
            return origin
        number = int(match[1])
        name = rows.get(number, f"parameter.{numbering.users(number)}")
        return name + origin[match.end() :]

    variables = tuple(
        replace(variable, name=shown(variable.name), origin=shown(variable.origin))
        if variable.origin.startswith("parameter.")
        else variable
        for variable in program.variables
    )
    values = tuple(
        replace(value, origin=shown(value.origin))
        if value.origin.startswith("parameter.")
        else value
        for value in program.values
    )
    return replace(program, variables=variables, values=values, stacks=tuple(stacks))
