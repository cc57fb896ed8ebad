"""Cuts a step's stacked arrays into pieces: weights, gradients, optimizer state, caches.

    pieces:     p = f32[4,8] parameter(0)            p.rows.0 = f32[2,8] parameter(0)
                a = slice(p), slice={[0:2],[0:8]}    p.rows.2 = f32[2,8] parameter(1)
                b = slice(p), slice={[2:4],[0:8]}    a and b are these
                g = concatenate(da, db)              p.rows.0 - lr * da is result 0,
                new = p - lr * g is result 0         p.rows.2 - lr * db is result 1

What is computed for each piece is what was computed of its rows, bit by bit. Only reductions over
the rows themselves are done piece by piece and then put together, so that sums of floats may
differ in their last bits.
"""

from dataclasses import dataclass, replace

from hloipu_compiler.ir.graph import Module, with_computation
from hloipu_compiler.partition.scans.pieces_choosing import Choice, chosen
from hloipu_compiler.partition.scans.pieces_classes import Cuts
from hloipu_compiler.partition.scans.pieces_numbers import (
    Numbers,
    numbers_of,
    renumbered_header,
    renumbered_request,
    renumbered_wrapping,
    stacks_of,
)
from hloipu_compiler.partition.scans.pieces_writing import written
from hloipu_compiler.partition.training.marks import made_by_each
from hloipu_compiler.partition.training.reach import (
    dependants,
    parameter_positions,
    result_positions,
)
from hloipu_compiler.passes.eliminate_dead_code import dead_code_eliminated
from hloipu_compiler.plan.entry_arrays import parameter_arrays
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_runtime.program.stacks import Stack


@dataclass(frozen=True)
class InPieces:
    """A step in pieces, and what goes with its new numbers of parameters and results."""

    module: Module
    wrapping: Wrapping
    stacks: tuple[Stack, ...]
    """Arrays that users go on seeing whole."""
    numbers: Numbers | None
    """None: nothing became several, and numbers are what they were."""

    def request(self, request: PipelineRequest) -> PipelineRequest:
        """Return what is asked of the cut, by the new numbers."""
        return request if self.numbers is None else renumbered_request(request, self.numbers)


def step_in_pieces(module: Module, wrapping: Wrapping, cuts: Cuts | None = None) -> InPieces:
    """Return a flat step of which stacked arrays are pieces wherever slices cut them.

    `cuts`: names of the slices and concatenations of the entry that cut arrays, with the places
    where they do, or wherever their rows begin and end; None: all do.
    Whatever goes by the rows of such an array is done piece by piece, and its parameters, with
    their next values, and results become several, unless an op reads all of a parameter at once.
    Numbers in the wrapping are the new ones.
    """
    choice = chosen(module, wrapping, cuts)
    if not choice.cut:
        return InPieces(module, wrapping, (), None)
    step = _written(module, wrapping, choice)
    unlike = _results_of_unlike_pieces(step)
    if not unlike:
        return step
    results = {number: cut for number, cut in choice.results.items() if number not in unlike}
    return _written(module, wrapping, replace(choice, results=results))


def _results_of_unlike_pieces(step: InPieces) -> set[int]:
    """Return numbers in the whole step of results whose pieces do not all depend on data.

    Rows that no data decides come once in an update, the others with each micro-batch; only whole
    are they elements of one queue.
    """
    if step.numbers is None:
        return set()
    entry = step.module.entry
    parameters, results = parameter_positions(entry), result_positions(entry)
    fed = [at for feed in step.wrapping.feeds for n in feed.places for at in parameters[n]]
    varying = dependants(entry, [*fed, *made_by_each(entry)])
    state = {pair.result for pair in step.wrapping.state}
    unlike = set()
    for whole, pieces in enumerate(step.numbers.results):
        at = [results[n] for n in pieces if n not in state]
        if len({varying[position] for position in at if position is not None}) > 1:
            unlike.add(whole)
    return unlike


def _written(module: Module, wrapping: Wrapping, choice: Choice) -> InPieces:
    entry = written(module, choice)
    cut_module = dead_code_eliminated(with_computation(module, entry))
    if not choice.parameters and not choice.results:
        return InPieces(cut_module, wrapping, (), None)
    numbers = numbers_of(module.entry, choice)
    names = [array.name for array in parameter_arrays(module)]
    for pair in wrapping.state:
        names[pair.parameter] = pair.name
    stacks = stacks_of(module.entry, choice, numbers, names)
    cut_module = replace(cut_module, attributes=renumbered_header(cut_module, numbers))
    return InPieces(cut_module, renumbered_wrapping(wrapping, numbers, stacks), stacks, numbers)
