"""Cost of one execution of an instruction: FLOPs, transcendentals, bytes.

The counts follow openxla/xla `HloCostAnalysis`: an elementwise op is one FLOP an element, a
transcendental one counts apart, a dot or convolution is two FLOPs a multiply-add, convolutions do
not count taps that fall into padding or holes, and bytes are what is read and written once.

Sources: openxla/xla `xla/service/hlo_cost_analysis.cc` for dot, convolution, reduce, windows and
batch norm. Not XLA's: n log2 n applications of the comparator for sort; 5 n log2 n for a complex
FFT (Cooley-Tukey); nothing for bitcast-convert, which only renames bits.
"""

from collections.abc import Callable, Sequence
from math import ceil, log2, prod
from typing import NamedTuple

from hloipu_compiler.ir.attributes import Attributes, ConvolutionLabels, Window
from hloipu_compiler.ir.dimension_rules import dimension_rule
from hloipu_compiler.ir.factors import FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import ELEMENTWISE, Trait, with_trait
from hloipu_compiler.ir.shapes import ArrayShape, Shape, byte_count, leaves, sizes_of
from hloipu_runtime.kernels.windows_geometry import WindowDimension

Operands = Sequence[Shape]

_MOST_PLACES = 2**20
"""Places of a window's dimension that are looked at one by one; wider windows count as unpadded."""


class FlopRules:
    """FLOPs of the instructions of one module.

    `counted` are the elementwise ops that count in computations applied to elements.
    """

    def __init__(self, module: Module, counted: frozenset[str]) -> None:
        self._computations = module.computation
        self._counted = counted
        self._applications: dict[str, int] = {}

    def of(self, instruction: Instruction, operands: Operands) -> int:
        """Return the FLOPs of one execution; 0 for ops that only move data, and for opaque ones."""
        rule = _RULES.get(instruction.opcode)
        return rule(self, instruction, operands) if rule else 0

    def applied(self, instruction: Instruction, key: str = "to_apply") -> int:
        """FLOPs of one application of a small computation: its elementwise instructions."""
        name = instruction.attributes.text(key)
        flops = self._applications.get(name)
        if flops is None:
            callee = self._computations.get(name)
            body = callee.instructions if callee is not None else ()
            flops = self._applications[name] = sum(inner.opcode in self._counted for inner in body)
        return flops


def element_count(shape: Shape) -> int:
    """Return the number of elements of all array leaves together."""
    return sum(leaf.element_count for _, leaf in leaves(shape) if isinstance(leaf, ArrayShape))


def _dot(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    return 2 * element_count(instruction.shape) * dimension_rule(instruction, operands).summed()


def _ragged_dot(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    flops = _dot(rules, instruction, operands)
    ragged = instruction.attributes.integers("lhs_ragged_dims")
    if not set(ragged) & set(instruction.attributes.integers("lhs_contracting_dims")):
        return flops
    # Each group contracts its own stretch; all together contract the dimension once.
    return flops // max(1, *sizes_of(operands[2])[-1:])


def _valid_taps(size: int, out_size: int, window: WindowDimension) -> int:
    """Pairs (output place, kernel place) of one dimension that meet an input element.

    A loop over the kernel's places only; places of the output are counted in closed form, unless
    base dilation leaves holes, where the residues have to be counted. Beyond `_MOST_PLACES` steps
    every pair counts.
    """
    holes = window.base_dilation if window.base_dilation > 1 else 1
    if window.size * min(holes, out_size) > _MOST_PLACES:
        return window.size * out_size
    taps = 0
    for place in range(window.size):
        offset = place * window.window_dilation - window.pad_low
        # Valid x = out * stride + offset: 0 <= x < dilated size, and x a multiple of the dilation.
        last = (size - 1) * window.base_dilation
        first_out = max(0, ceil(-offset / window.stride))
        last_out = min(out_size - 1, (last - offset) // window.stride) if size > 0 else -1
        if last_out < first_out:
            continue
        if window.base_dilation == 1:
            taps += last_out - first_out + 1
        else:
            taps += _hits(first_out, last_out, window.stride, offset, window.base_dilation)
    return taps


def _hits(first: int, last: int, stride: int, offset: int, dilation: int) -> int:
    """How many n in first..last make n * stride + offset a multiple of `dilation`."""
    full_periods, remainder = divmod(last - first + 1, dilation)
    hits = sum((n * stride + offset) % dilation == 0 for n in range(first, first + remainder))
    if full_periods:
        period = range(first, first + dilation)
        hits += full_periods * sum((n * stride + offset) % dilation == 0 for n in period)
    return hits


def _convolution(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    labels = instruction.attributes.get("dim_labels")
    window: Window = instruction.attributes.window()
    lhs, rhs, out = sizes_of(operands[0]), sizes_of(operands[1]), sizes_of(instruction.shape)
    if not isinstance(labels, ConvolutionLabels) or not len(lhs) == len(rhs) == len(out):
        return 0
    taps = 1
    for number, dimension in enumerate(window.dimensions):
        places = (labels.lhs.find(str(number)), labels.out.find(str(number)))
        if min(places) < 0:
            return 0
        taps *= _valid_taps(lhs[places[0]], out[places[1]], dimension)
    batch, features = lhs[labels.lhs.index("b")], out[labels.out.index("f")]
    inputs = rhs[labels.rhs.index("i")]
    groups = max(1, instruction.attributes.integer("batch_group_count", 1))
    return 2 * (batch // groups) * features * inputs * taps


def _reduce(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    arrays = len(operands) // 2
    before = element_count(operands[0])
    after = element_count(instruction.shape) // max(1, arrays)
    return max(0, before - after) * rules.applied(instruction)


def _reduce_window(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    arrays = max(1, len(operands) // 2)
    size = prod(d.size for d in instruction.attributes.window().dimensions)
    places = element_count(instruction.shape) // arrays
    return places * max(0, size - 1) * rules.applied(instruction)


def _select_and_scatter(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    size = prod(d.size for d in instruction.attributes.window().dimensions)
    source = element_count(operands[1])
    select = rules.applied(instruction, "select")
    return source * (max(0, size - 1) * select + rules.applied(instruction, "scatter"))


def _scatter(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    return element_count(operands[-1]) * rules.applied(instruction)


def _per_element(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    return element_count(instruction.shape) * rules.applied(instruction)


def _sort(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    sizes = sizes_of(operands[0])
    rule = dimension_rule(instruction, operands)
    length = prod(sizes[d] for d in rule.dimensions(0, FactorKind.WHOLE))
    compares = element_count(operands[0]) * ceil(log2(max(2, length)))
    return compares * rules.applied(instruction)


def _topk(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    return element_count(operands[0]) * ceil(log2(max(2, instruction.attributes.integer("k", 1))))


def _fft(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    length = prod(instruction.attributes.integers("fft_length"))
    transform_elements = max(element_count(operands[0]), element_count(instruction.shape))
    return ceil(5 * transform_elements * log2(max(2, length)))


def _cholesky(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    sizes = sizes_of(operands[0])
    return element_count(operands[0]) * sizes[-1] // 3 if sizes else 0


def _triangular_solve(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    sizes = sizes_of(operands[0])
    return element_count(instruction.shape) * sizes[-1] if sizes else 0


def _batch_norm(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    per_element = {"batch-norm-training": 8, "batch-norm-inference": 4, "batch-norm-grad": 11}
    return element_count(operands[0]) * per_element[instruction.opcode]


def _broadcast_elements(rules: FlopRules, instruction: Instruction, operands: Operands) -> int:
    return element_count(instruction.shape)


_Rule = Callable[[FlopRules, Instruction, Operands], int]

_RULES: dict[str, _Rule] = {
    "dot": _dot,
    "scaled-dot": _dot,
    "ragged-dot": _ragged_dot,
    "convolution": _convolution,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "scatter": _scatter,
    "map": _per_element,
    "scan": _per_element,
    "sort": _sort,
    "topk": _topk,
    "fft": _fft,
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    "batch-norm-training": _batch_norm,
    "batch-norm-inference": _batch_norm,
    "batch-norm-grad": _batch_norm,
    "rng": _broadcast_elements,
    "rng-bit-generator": _broadcast_elements,
    "all-reduce": _per_element,
    "all-reduce-start": _per_element,
    "reduce-scatter": _per_element,
}


TRANSCENDENTAL = frozenset(
    "acos acosh asin asinh atan2 atanh cbrt cosine cosh erf exponential exponential-minus-one log "
    "log-plus-one logistic power rsqrt sine sinh sqrt tan tanh".split()
)
FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all opt-barrier add-dependency "
    "partition-id replica-id domain".split()
)
"""Ops that neither compute nor move anything."""
CALLS = frozenset("while conditional call async-start".split())
"""Ops whose work is that of the computations they run."""
_ENDS = with_trait(Trait.ASYNC_UPDATE) | with_trait(Trait.ASYNC_DONE)
"""Ends of what has begun elsewhere and was counted there."""
_APPLIERS = with_trait(Trait.APPLIER)
_PARTLY_READ = frozenset("slice dynamic-slice gather".split())
_MARKS = frozenset(
    "Sharding SPMDFullToShardShape SPMDShardToFullShape LayoutConstraint MoveToHost MoveToDevice "
    "annotate_device_placement X64Combine X64SplitLow X64SplitHigh".split()
)
"""Custom calls of XLA's own that compute nothing; those of `xla.sdy.` are such, too."""
MOST_COUNTED = 10**30
"""Where counts stop: nested loops of a hostile text multiply to numbers of any length."""


class OpCost(NamedTuple):
    """Work of one execution; bytes count each operand and result once."""

    flops: int = 0
    transcendentals: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def plus(self, other: "OpCost") -> "OpCost":
        """Return the work of both."""
        return OpCost(*(min(a + b, MOST_COUNTED) for a, b in zip(self, other, strict=True)))

    def times(self, count: int) -> "OpCost":
        """Return the work of `count` executions."""
        return OpCost(*(min(a * count, MOST_COUNTED) for a in self))


NO_COST = OpCost()


class CostSum:
    """Adds up the work of many executions; plain numbers, because every instruction adds to it."""

    __slots__ = ("exact", "instructions", "parts")

    def __init__(self) -> None:
        self.instructions = 0
        self.parts = [0, 0, 0, 0]
        self.exact = True

    def add(self, cost: OpCost, times: int, *, exact: bool) -> None:
        """Add one instruction that runs so many times; `exact`: its whole work is known."""
        self.instructions += 1
        self.exact &= exact
        if cost is not NO_COST:
            parts = self.parts
            parts[0] += cost[0] * times
            parts[1] += cost[1] * times
            parts[2] += cost[2] * times
            parts[3] += cost[3] * times

    @property
    def total(self) -> OpCost:
        """The work so far."""
        return OpCost(*self.parts).times(1)


def is_opaque(instruction: Instruction) -> bool:
    """Whether an instruction runs foreign code, so that nobody knows its FLOPs."""
    if instruction.opcode != "custom-call":
        return False
    target = instruction.attributes.text("custom_call_target")
    return target not in _MARKS and not target.startswith("xla.sdy.")


_Key = tuple[str, Attributes, Shape, tuple[Shape, ...]]


class OpCosts:
    """The work of the instructions of one module, each by itself; equal ones are counted once.

    Computations applied to elements (reducers, comparators, mapped functions) are part of it,
    loops, branches and calls are not.
    """

    def __init__(self, module: Module) -> None:
        self._rules = FlopRules(module, ELEMENTWISE - TRANSCENDENTAL)
        self._hard_rules = FlopRules(module, TRANSCENDENTAL)
        self._known: dict[_Key, OpCost] = {}
        self._bytes: dict[Shape, int] = {}

    def of(self, computation: Computation, instruction: Instruction) -> OpCost:
        """Return the work of one instruction of `computation`."""
        opcode = instruction.opcode
        if opcode in FREE or opcode in CALLS or opcode in _ENDS:
            return NO_COST
        operands = tuple(
            [computation.instructions[operand].shape for operand in instruction.operands]
        )
        key = (opcode, instruction.attributes, instruction.shape, operands)
        cost = self._known.get(key)
        if cost is None:
            cost = self._known[key] = self._count(instruction, operands)
        return cost

    def bytes_of(self, shape: Shape) -> int:
        """Return the bytes of all leaves of a shape."""
        count = self._bytes.get(shape)
        if count is None:
            count = self._bytes[shape] = byte_count(shape)
        return count

    def _count(self, instruction: Instruction, operands: tuple[Shape, ...]) -> OpCost:
        opcode = instruction.opcode
        size: Callable[[Shape], int] = self.bytes_of
        written_bytes = size(instruction.shape)
        if opcode in _PARTLY_READ:
            return OpCost(0, 0, written_bytes + sum(map(size, operands[1:])), written_bytes)
        if opcode == "dynamic-update-slice" and len(operands) > 1:
            return OpCost(0, 0, sum(map(size, operands[1:])), size(operands[1]))
        read_bytes = sum(map(size, operands))
        if opcode in ELEMENTWISE:
            count = element_count(instruction.shape)
            flops, hard = (0, count) if opcode in TRANSCENDENTAL else (count, 0)
            return OpCost(flops, hard, read_bytes, written_bytes)
        hard = self._hard_rules.of(instruction, operands) if opcode in _APPLIERS else 0
        return OpCost(self._rules.of(instruction, operands), hard, read_bytes, written_bytes)
