"""Evaluates a module on arrays."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.analysis.meanings import require_meanings
from hloipu_compiler.interpret.planning.plan import TOKEN_VALUE, Array, Plan, Watcher
from hloipu_compiler.interpret.planning.planner import Planner
from hloipu_compiler.interpret.planning.site import Effects, array_leaves, storage_bytes
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_runtime.arguments import shown
from hloipu_runtime.element_types import ElementType
from hloipu_runtime.errors import LimitError, UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.core.storage import cast_scalar, from_storage, to_storage, user_dtype

VIEWS = frozenset(
    "broadcast reshape bitcast transpose reverse slice get-tuple-element tuple parameter "
    "opt-barrier copy iota domain add-dependency".split()
)
"""Ops whose results take no memory of their own, mostly."""


MOST_ELEMENTS = 2**58
"""Of one array in numpy, whatever is allowed: their bytes, of c128 too, are counted in 63 bits."""


@dataclass(frozen=True, slots=True)
class EvaluationLimits:
    """Limits of one evaluation; bytes are of live values in storage form."""

    live_bytes: int = 8 * 2**30
    value_elements: int = 2**31
    executed_instructions: int = 500_000
    """With those of every call, loops counted as one iteration. Each takes 1 to 50 microseconds
    besides its arithmetic; the largest of 110 real dumps executes 4,000."""
    max_iterations: int | None = None
    """Turns that a loop may take each time it is entered; None: any number."""


class Evaluator:
    """A module made ready to evaluate, any number of times.

    Raises UnsupportedError where a computation holds an op without meaning here, LimitError where
    its values would need more memory than `limits` allow.
    """

    def __init__(
        self, module: Module, effects: Effects | None = None, limits: EvaluationLimits | None = None
    ) -> None:
        self.module = module
        check_call_depth(module)
        require_meanings(module)
        limits = limits or EvaluationLimits()
        check_executed(module, limits.executed_instructions)
        self._effects = replace(effects or Effects(), max_iterations=limits.max_iterations)
        self._planner = Planner(module, self._effects)
        check_sizes(module, limits)
        with memory_told(module.name):
            self.plan: Plan = self._planner.plan(module.entry.name)
        shapes = module.entry.program_shape
        self.parameter_shapes = shapes.parameters
        self.result_shape = shapes.result

    def __call__(self, *arguments: object, watch: Watcher | None = None) -> list[Array]:
        """Evaluate on arrays in entry-parameter order; tuples of arrays for tuple parameters.

        Returns the leaves of the result in order, in the user's dtypes (ml_dtypes for bf16, f8…).
        Raises UsageError where an argument does not fit its parameter.
        """
        results = self.run_stored(self.arguments_in_storage(arguments), watch)
        types = [leaf.element_type for leaf in array_leaves(self.result_shape)]
        return [
            from_storage(value, t.name) if t.is_array else value
            for value, t in zip(results, types, strict=True)
        ]

    def run_stored(self, leaves: list[Array], watch: Watcher | None = None) -> list[Array]:
        """Evaluate on leaves in storage form, to leaves in storage form; `leaves` is emptied."""
        self._effects.state.clear()  # each evaluation draws from the seed's beginning
        with computing(), memory_told(self.module.name):
            return self.plan.run(leaves, watch)

    def arguments_in_storage(self, arguments: Sequence[object]) -> list[Array]:
        """Check arguments against the parameters and bring them to storage form."""
        wanted = len(self.parameter_shapes)
        if len(arguments) != wanted:
            raise UsageError(
                "E3101",
                f"{self.module.name!r} takes {wanted} arguments, {len(arguments)} were given",
                hint="give one array for each entry parameter, in order",
            )
        leaves: list[Array] = []
        for number, (argument, shape) in enumerate(
            zip(arguments, self.parameter_shapes, strict=True)
        ):
            arrays = list(flattened(argument, shape))
            expected = array_leaves(shape)
            if len(arrays) != len(expected):
                raise UsageError(
                    "E3101",
                    f"parameter {number} of {self.module.name!r} takes {len(expected)} arrays, "
                    f"{len(arrays)} were given",
                )
            leaves += [
                argument_in_storage(number, value, leaf)
                for value, leaf in zip(arrays, expected, strict=True)
            ]
        return leaves


def flattened(argument: object, shape: Shape) -> Iterator[object]:
    """Yield the leaves of what is given for a parameter: nested as its shape is, or flat."""
    if not isinstance(shape, TupleShape) or not isinstance(argument, tuple | list):
        yield argument
    elif any(isinstance(x, tuple | list) for x in argument) and len(argument) == len(
        shape.elements
    ):
        for element, element_shape in zip(argument, shape.elements, strict=True):
            yield from flattened(element, element_shape)
    else:
        yield from argument


def argument_in_storage(number: int, value: object, shape: ArrayShape) -> Array:
    """Bring one argument to storage form; exact types only, as a wrong one is a mistake."""
    if not shape.element_type.is_array:
        return TOKEN_VALUE
    name = shape.element_type.name
    array = _as_array(number, value, shape)
    if array.shape != shape.dimensions:
        raise UsageError(
            "E3102",
            f"parameter {number} is {shape.without_layout()}, "
            f"an array of shape {list(array.shape)} was given",
            hint="give an array of exactly that shape",
        )
    dtype = user_dtype(name)
    if array.dtype != dtype and not (
        array.ndim == 0 and _may_stand_for(array.dtype, shape.element_type)
    ):
        raise UsageError(
            "E3103",
            f"parameter {number} is {shape.without_layout()}, an array of {array.dtype} was given",
            hint=f"convert it first: x.astype({dtype.name!r})",
        )
    cast = cast_scalar(array, dtype) if array.ndim == 0 else array
    if cast is None:
        raise UsageError(
            "E3103",
            f"parameter {number} is {shape.without_layout()}, which cannot hold {shown(value)}",
            hint="give a number within the type's range",
        )
    return to_storage(cast, name)


def _as_array(number: int, value: object, shape: ArrayShape) -> Array:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise UsageError(
            "E3102",
            f"parameter {number} is {shape.without_layout()}, what was given is not an array",
        ) from error


def _may_stand_for(scalar_type: np.dtype[Any], wanted: ElementType) -> bool:
    """Whether a scalar of one type may be given for another: an integer for a float, say."""
    number = "biufc".find(scalar_type.kind)
    if number < 0:
        return False
    if wanted.is_complex:
        return True
    return number <= (3 if wanted.is_float else 2 if wanted.is_integer else 0)


def check_sizes(module: Module, limits: EvaluationLimits) -> None:
    """Refuse a module whose values cannot exist in memory, before anything is computed."""
    for computation in module.computations:
        for instruction in computation.instructions:
            allowed = MOST_ELEMENTS
            if instruction.opcode not in VIEWS:
                allowed = min(limits.value_elements, allowed)
            for leaf in array_leaves(instruction.shape):
                count = prod(leaf.dimensions)
                if count > allowed:
                    raise LimitError(
                        "E5010",
                        f"instruction {instruction.name!r} makes {leaf.without_layout()}: "
                        f"{count:,} elements, {allowed:,} are allowed",
                        limit="value_elements",
                        allowed=allowed,
                        found=count,
                        hint="raise it with --limit value_elements=N if the memory is there"
                        if allowed < MOST_ELEMENTS
                        else "no array has so many",
                    )
    peak, at = peak_bytes(module)
    if peak > limits.live_bytes:
        raise LimitError(
            "E5011",
            f"evaluating {module.name!r} takes about {peak / 2**30:.1f} GiB at {at!r}, "
            f"{limits.live_bytes / 2**30:.1f} GiB are allowed",
            limit="live_bytes",
            allowed=limits.live_bytes,
            found=peak,
            hint="raise it with --limit live_bytes=N if the memory is there",
        )


@contextmanager
def memory_told(name: str) -> Iterator[None]:
    """Raise LimitError E5015 in place of a MemoryError."""
    try:
        yield
    except MemoryError as error:
        raise LimitError(
            "E5015",
            f"the process was given no more memory while {name!r} was evaluated",
            limit="memory",
            allowed=0,
            found=0,
            hint="lower --limit live_bytes=N to be refused first, or use a larger machine",
        ) from error


MOST_NESTED_CALLS = 100
"""Each nested call takes a few frames of Python's stack, while planning and while running."""


def check_call_depth(module: Module) -> None:
    """Refuse a module whose computations call each other too deeply."""
    depth: dict[str, int] = {}
    for computation in callees_first(module, only_reachable=True):
        called = {name for op in computation.instructions for name in op.attributes.called}
        depth[computation.name] = 1 + max((depth.get(name, 0) for name in called), default=-1)
    deepest = depth[module.entry.name]
    if deepest > MOST_NESTED_CALLS:
        raise LimitError(
            "E5013",
            f"calls in {module.name!r} are nested {deepest} deep, "
            f"{MOST_NESTED_CALLS} can be evaluated",
            limit="nested_calls",
            allowed=MOST_NESTED_CALLS,
            found=deepest,
            hint="inline calls before dumping the module",
        )


def check_executed(module: Module, allowed: int) -> None:
    """Refuse a module whose calls of calls execute too many instructions.

    A computation counts as often as it is called, of a conditional its longest branch, of a loop
    one iteration, of what is applied to elements one application.
    """
    executed: dict[str, int] = {}
    for computation in callees_first(module, only_reachable=True):
        total = len(computation.instructions)
        for instruction in computation.instructions:
            if instruction.attributes.called:
                below = [executed[name] for name in instruction.attributes.called]
                total += max(below) if instruction.opcode == "conditional" else sum(below)
        executed[computation.name] = total
    executing = executed[module.entry.name]
    if executing > allowed:
        raise LimitError(
            "E5018",
            f"{module.name!r} executes {shown_count(executing)} instructions with those of its "
            f"calls, {allowed:,} are allowed",
            limit="executed_instructions",
            allowed=allowed,
            found=executing,
            hint="raise it with --limit executed_instructions=N if there is time",
        )


def shown_count(count: int) -> str:
    """Return a count for readers; powers of calls have hundreds of digits."""
    return f"{count:,}" if count < 10**15 else "more than 10^15"


def peak_bytes(module: Module) -> tuple[int, str]:
    """Return the most bytes live at one time, and the instruction where that is.

    Callees count with what they need beyond their parameters, views count as nothing.
    """
    inside: dict[str, int] = {}
    place = ""
    for computation in callees_first(module, only_reachable=True):
        last_use = [max(users, default=i) for i, users in enumerate(computation.users)]
        last_use[computation.root] = len(computation.instructions)
        ends: dict[int, int] = {}
        live = peak = 0
        for i, instruction in enumerate(computation.instructions):
            size = _own_bytes(instruction)
            live += size
            ends[last_use[i]] = ends.get(last_use[i], 0) + size
            below = max((inside.get(name, 0) for name in instruction.attributes.called), default=0)
            if live + below > peak:
                peak, place = live + below, instruction.name
            live -= ends.pop(i, 0)
        inside[computation.name] = peak
    entry = module.entry
    arguments = sum(bytes_of(entry.instructions[i].shape) for i in entry.parameters)
    root = entry.instructions[entry.root]
    results = bytes_of(root.shape)  # views among them are written out for who takes them
    if results > inside[entry.name]:
        return results + arguments, root.name
    return inside[entry.name] + arguments, place


def _own_bytes(instruction: Instruction) -> int:
    """Return the bytes that an instruction takes for its result; an iota counts along one row."""
    if instruction.opcode == "iota":
        (leaf,) = array_leaves(instruction.shape)
        row = leaf.dimensions[instruction.attributes.integer("iota_dimension")]
        return storage_bytes(leaf) * row // max(1, leaf.element_count)
    return 0 if instruction.opcode in VIEWS else bytes_of(instruction.shape)


def bytes_of(shape: Shape) -> int:
    """Return the bytes of a shape's leaves in storage form."""
    return sum(map(storage_bytes, array_leaves(shape)))


def evaluate(
    module: Module,
    *arguments: object,
    effects: Effects | None = None,
    limits: EvaluationLimits | None = None,
    watch: Callable[..., None] | None = None,
) -> list[Array]:
    """Evaluate a module once; see `Evaluator`."""
    return Evaluator(module, effects, limits)(*arguments, watch=watch)
