"""Evidence for what a step was taken for, told to users and checked for conflicts.

Optimizers are told by what their updates hold: how many arrays of state for each weight, square
roots of them, signs, products with the weight itself (weight decay). Names follow the papers:
Adam (Kingma and Ba, 1412.6980), AdamW (Loshchilov and Hutter, 1711.05101), Adafactor (Shazeer and
Stern, 1804.04235), Lion (Chen et al., 2302.06675).
"""

from collections.abc import Sequence, Set

from hloipu_compiler.analysis.scaling_dims import WHOLE, Cell, scaling_classes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, sizes_of
from hloipu_compiler.partition.training.carried_state import has_slope, is_float
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.gradient_walk import is_number
from hloipu_compiler.partition.training.marks import names_backward_ops
from hloipu_compiler.partition.training.reach import (
    Mask,
    ancestors,
    dependants,
    parameter_positions,
    result_positions,
)
from hloipu_compiler.partition.training.step_phases import FREE, UPDATE, Phases, Roles

_ROOTS = frozenset({"sqrt", "rsqrt", "power", "cbrt"})


def evidence_of(entry: Computation, phases: Phases, *, trains: bool) -> str:
    """Return what a step is and what says so, in one line."""
    if trains:
        return _training(entry, phases)
    if not phases.per_micro_batch:
        return "trains nothing: each micro-batch has results of its own"
    floats = sum(_is_float_parameter(entry, pair.parameter) for pair in phases.per_micro_batch)
    others = len(phases.per_micro_batch) - floats
    kinds = [f"{floats} of floats"] * bool(floats) + [f"{others} of whole numbers"] * bool(others)
    return f"trains nothing: each micro-batch writes {_arrays(floats + others)} of state, " + (
        " and ".join(kinds)
    )


def check_forward(entry: Computation, roles: Roles, assumed: Set[int]) -> None:
    """Raise StagingError E0513 where a step seen to train nothing shows signs of training.

    `assumed`: state that was taken for caches, and not said to be. Signs are backward ops by their
    names, and a loss that state goes into whose new value it is not made of: a cache is written on
    the way to the result.
    """
    parameters, results = parameter_positions(entry), result_positions(entry)
    floats = [
        pair
        for pair in roles.state
        if pair.parameter in assumed
        and _is_float_parameter(entry, pair.parameter)
        and results[pair.result] not in parameters[pair.parameter]
    ]
    if not floats:
        return
    if names_backward_ops(entry):
        raise _conflict("its ops have names of a backward pass", floats[0].parameter)
    if any(op.metadata and op.operands for op in entry.instructions):
        return  # named, and no op is named as backward
    new = {pair.result for pair in roles.state}
    data = dependants(entry, [i for number in roles.data for i in parameters[number]])
    for number, position in enumerate(results):
        if position is None or number in new or not data[position]:
            continue
        op = entry.instructions[position]
        if not (is_float(op) and isinstance(op.shape, ArrayShape) and is_number(op)):
            continue
        cone = ancestors(entry, [position])
        for pair in floats:
            new_value = results[pair.result]
            is_read = any(cone[i] for i in parameters[pair.parameter])
            if is_read and new_value is not None and not cone[new_value]:
                raise _conflict(
                    f"result {number} may be a loss, which the new value of parameter "
                    f"{pair.parameter} has no part in",
                    pair.parameter,
                )


def compared_samples(module: Module, data: Sequence[int]) -> str:
    """Return the name of a product that compares the samples of a batch; empty: none does.

    It has two dimensions that are the batch, as the similarities of a contrastive loss have.
    `data`: parameters, whose first dimension is taken for the batch where all agree on its size.
    """
    entry = module.entry
    if len({_dimensions(entry, number)[:1] for number in data}) != 1:
        return ""
    joined = scaling_classes(module).of_cell
    cells = (Cell(entry.name, entry.parameters[number], WHOLE, 0) for number in data)
    batches = {joined[cell] for cell in cells if cell in joined}
    for computation in module.computations:
        for position, op in enumerate(computation.instructions):
            if op.opcode != "dot" or not isinstance(op.shape, ArrayShape):
                continue
            cells = (Cell(computation.name, position, WHOLE, d) for d in range(op.shape.rank))
            if sum(joined.get(cell) in batches for cell in cells) > 1:
                return op.name
    return ""


def _conflict(sign: str, parameter: int) -> StagingError:
    return StagingError(
        "E0513",
        "no gradient is found: all state that changes looks like caches that each micro-batch "
        f"writes; and yet {sign}",
        hint=f"if it trains, say what is a weight: --role {parameter}=weight, by number, name or "
        f"group; if each micro-batch makes its state anew, say so: --role {parameter}=carry",
    )


def _training(entry: Computation, phases: Phases) -> str:
    weights = {number for gradient in phases.gradients for number in gradient.parameters}
    plural = "" if len(weights) == 1 else "s"
    words = [f"{len(weights)} weight{plural}", _optimizer(entry, phases, weights)]
    if _clips_by_norm(entry, phases):
        words.append("gradients scaled by a norm of all")
    if phases.per_micro_batch:
        words.append(f"{_arrays(len(phases.per_micro_batch))} of state made by each micro-batch")
    if phases.kept:
        words.append(f"{_arrays(len(phases.kept))} of state left alone")
    return f"trains: {', '.join(words)}"


def _arrays(count: int) -> str:
    return "1 array" if count == 1 else f"{count} arrays"


def _optimizer(entry: Computation, phases: Phases, weights: Set[int]) -> str:
    parameters = parameter_positions(entry)
    learned = {i for number in weights for i in parameters[number]}
    kept = [pair.parameter for pair in phases.updated if pair.parameter not in weights]
    floats = [n for n in kept if _is_float_parameter(entry, n)]
    # Factors of moments have the shapes of vectors, so that matrices tell better.
    shapes = [_dimensions(entry, n) for n in weights]
    matrices = {dims for dims in shapes if len(dims) > 1} or set(shapes)
    slots = sum(_dimensions(entry, n) in matrices for n in floats)
    each = round(slots / max(sum(dims in matrices for dims in shapes), 1))
    has_factors = any(_dimensions(entry, n) for n in floats)
    opcodes = {
        op.opcode
        for at, op in enumerate(entry.instructions)
        if phases.phase[at] == UPDATE and not is_number(op)
    }
    decays = any(
        op.opcode == "multiply"
        and phases.phase[at] in (UPDATE, FREE)
        and _scales(op, learned, entry)
        and any(phases.phase[user] == UPDATE for user in entry.users[at])
        for at, op in enumerate(entry.instructions)
    )
    with_decay = " with weight decay" if decays else ""
    if opcodes & {"dot", "while"}:
        return f"an optimizer that multiplies matrices, as Muon and Shampoo do{with_decay}"
    if each == 2 and opcodes & _ROOTS:
        name = "AdamW" if decays else "Adam"
    elif each == 1 and opcodes & _ROOTS:
        name = f"RMSProp or Adagrad{with_decay}"
    elif each == 1:
        name = ("Lion" if "sign" in opcodes else "momentum") + with_decay
    elif each:
        name = f"an optimizer with {each} arrays of state a weight{with_decay}"
    elif has_factors and opcodes & _ROOTS:
        name = f"Adafactor{with_decay}"
    else:
        name = f"gradient descent{with_decay}"
    by_norms = " scaled by norms of weights" if _has_trust_ratios(entry, phases, learned) else ""
    return name if name.startswith("Adafactor") else name + by_norms


def _has_trust_ratios(entry: Computation, phases: Phases, learned: Set[int]) -> bool:
    """Whether norms of weights scale their update, as in LARS and LAMB (1904.00962)."""
    after = dependants(entry, learned)
    norms = [
        at
        for at, op in enumerate(entry.instructions)
        if phases.phase[at] == FREE and op.opcode in _ROOTS and is_number(op) and after[at]
    ]
    reached = dependants(entry, norms)
    return bool(norms) and _changes_weights(entry, phases, reached)


def _scales(op: Instruction, learned: Set[int], entry: Computation) -> bool:
    """Whether a product is of a weight and a number, as in weight decay."""
    for own, other in (op.operands, op.operands[::-1]):
        source = entry.instructions[other]
        if own in learned and source.opcode in ("broadcast", "constant"):
            return True
    return False


def _clips_by_norm(entry: Computation, phases: Phases) -> bool:
    """Whether the update of weights goes through a norm of most gradients."""
    masks = [0] * len(entry.instructions)
    for bit, gradient in enumerate(phases.gradients):
        masks[gradient.position] = 1 << bit
    wanted = max(2, len(phases.gradients) // 2)
    norms = []
    for at, op in enumerate(entry.instructions):
        mask = 0
        for i in op.operands:
            mask |= masks[i]
        masks[at] |= mask
        if op.opcode in _ROOTS and is_number(op) and mask.bit_count() >= wanted:
            norms.append(at)
    if not norms:
        return False
    return _changes_weights(entry, phases, dependants(entry, norms))


def _changes_weights(entry: Computation, phases: Phases, reached: Mask) -> bool:
    """Whether the new value of a weight is among positions."""
    results = result_positions(entry)
    weights = {number for gradient in phases.gradients for number in gradient.parameters}
    new = [results[pair.result] for pair in phases.updated if pair.parameter in weights]
    return any(at is not None and reached[at] for at in new)


def _is_float_parameter(entry: Computation, number: int) -> bool:
    return has_slope(_parameter(entry, number))


def _dimensions(entry: Computation, number: int) -> tuple[int, ...]:
    return sizes_of(_parameter(entry, number).shape)


def _parameter(entry: Computation, number: int) -> Instruction:
    places: Sequence[int] = entry.parameters
    return entry.instructions[places[number]]
