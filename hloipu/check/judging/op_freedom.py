"""Certain bits of an op's result, by the published budgets of its kind."""

from dataclasses import dataclass
from math import ceil, floor, log2, prod

from hloipu_compiler.interpret.budgets import (
    FACTORS,
    ORDER_DEPENDENT,
    REDUCING,
    ULPS_COMPLEX,
    ULPS_F32,
    ULPS_F64,
    UNFLUSHED,
)
from hloipu_compiler.interpret.planning.regions import MONOIDS, monoid_of
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.attributes import ConvolutionLabels
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.algebra.repeats import logistic_argument
from hloipu_compiler.passes.framework.rewriting import Draft
from hloipu_runtime.element_types import ElementType

EXACT = UNFLUSHED | frozenset(
    "maximum minimum clamp compare is-finite sign floor ceil round-nearest-afz "
    "round-nearest-even real imag complex while conditional call fusion map rng-bit-generator "
    "rng all-gather all-to-all ragged-all-to-all collective-permute collective-broadcast "
    "infeed outfeed and or xor not after-all add-dependency domain".split()
)
"""Ops that round nothing, or whose callees do; `is_exact` knows of the modulus."""
LIBRARY_FACTOR = 8.0
"""Of LAPACK's routines: that of `cholesky` and `triangular-solve`."""
COMPILED_ULPS = {"divide": 1.5, "multiply": 0.5}
"""What ops are off that IEEE 754 rounds, where compilers compute them otherwise.

A divisor that repeats is inverted and multiplied with (docs/numerics.md), in f32 and narrower:
which ones do is seen only once calls are inlined and ops fused, so it is said of all. A product
that is added to something is not rounded itself (XLA:CPU lets LLVM contract the two), see
`summed_products`.
"""
_KEEPING_PRODUCTS = frozenset(
    "multiply divide maximum minimum clamp compare is-finite sign floor ceil round-nearest-afz "
    "round-nearest-even".split()
)
"""Ops that add their operands to nothing, nor does what they expand to: products are rounded."""


@dataclass(frozen=True, slots=True)
class Freedom:
    """Mantissa bits that correct implementations of an op agree on; None: all that there are."""

    result_bits: int | None = None
    operand_bits: int | None = None
    """The same of what a sum is made of: its terms are added in any order."""


NO_FREEDOM = Freedom()


def summed_products(module: Module, computation: Computation) -> frozenset[str]:
    """Return the names of the products that may be part of a sum.

    Whoever uses them or their parts adds, calls, or is unknown: also the caller of the computation.
    """
    summed: set[int] = set() if computation is module.entry else {computation.root}
    instructions, users = computation.instructions, computation.users
    for position in range(len(instructions) - 1, -1, -1):
        if any(_sums(instructions[user], user in summed) for user in users[position]):
            summed.add(position)
    return frozenset(
        instructions[at].name for at in summed if instructions[at].opcode == "multiply"
    )


def logistic_quotients(module: Module, computation: Computation) -> frozenset[str]:
    """Return the names of the quotients 1 / (1 + exp(-x)), which programs compute as one op."""
    draft = Draft(module, computation)
    draft.made.extend(computation.instructions)
    return frozenset(
        x.name
        for x in computation.instructions
        if x.opcode == "divide" and logistic_argument(draft, x) is not None
    )


def _sums(user: Instruction, is_summed: bool) -> bool:
    """Whether operands of an instruction may be part of a sum; of its own result it is known."""
    if user.opcode in UNFLUSHED:
        return is_summed
    if user.attributes.called or user.opcode == "custom-call":
        return True
    kinds = [leaf.element_type for leaf in array_leaves(user.shape)]
    return user.opcode not in _KEEPING_PRODUCTS and any(k.is_float or k.is_complex for k in kinds)


def is_exact(computation: Computation, instruction: Instruction) -> bool:
    """Whether an op rounds nothing itself, as `abs` and `sign` do of complex numbers."""
    if instruction.opcode not in EXACT:
        return False
    return instruction.opcode not in ULPS_COMPLEX or not _is_of_complex(computation, instruction)


def _is_of_complex(computation: Computation, instruction: Instruction) -> bool:
    operands = [computation.instructions[at].shape for at in instruction.operands]
    return any(x.element_type.is_complex for shape in operands for x in array_leaves(shape))


def freedom_of(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    summed: frozenset[str],
    logistic: frozenset[str],
) -> Freedom:
    """Return the freedom of an instruction whose result is made of floats or complex numbers.

    `summed`, `logistic`: what `summed_products` and `logistic_quotients` say of the computation.
    """
    element = array_leaves(instruction.shape)[0].element_type
    bits = _computed_bits(element)
    if instruction.name in logistic and element.is_float and element.mantissa_bits < bits:
        # The power and the sum are each rounded by half a step in the text, or not at all.
        return Freedom(_bits_within(element.mantissa_bits, 1))
    if instruction.opcode == "custom-call":
        count = max((_elements(computation, i) for i in instruction.operands), default=2)
        return _sum_freedom(bits, LIBRARY_FACTOR, count)
    if instruction.opcode in FACTORS:
        if instruction.opcode in REDUCING and not _adds(module, instruction):
            return NO_FREEDOM
        if instruction.opcode == "scatter" and element.is_float and element.mantissa_bits < bits:
            # Implementations may round after each update, of which an element gets so many.
            updates = _elements(computation, instruction.operands[-1])
            updates_per_element = ceil(
                updates / max(1, array_leaves(instruction.shape)[0].element_count)
            )
            return _sum_freedom(
                element.mantissa_bits, FACTORS[instruction.opcode], updates_per_element + 1
            )
        return _sum_freedom(bits, FACTORS[instruction.opcode], _terms(computation, instruction))
    is_complex = element.is_complex or _is_of_complex(computation, instruction)
    table = ULPS_COMPLEX if is_complex else ULPS_F64 if bits == 52 else ULPS_F32
    steps = table.get(instruction.opcode, 0)
    if instruction.name in summed or (table is ULPS_F32 and instruction.opcode == "divide"):
        steps = max(steps, COMPILED_ULPS.get(instruction.opcode, 0))
    return Freedom(_bits_within(bits, steps)) if steps else NO_FREEDOM


def _computed_bits(element: ElementType) -> int:
    """Return the mantissa bits of the type that an element type's ops are computed in."""
    if element.is_complex:
        return 23 if element.bits == 64 else 52
    return max(23, element.mantissa_bits)


def _bits_within(bits: int, steps: float) -> int:
    """Return the bits of a grid on which rounding moves values by up to `steps` steps."""
    return max(1, floor(bits - 1 - log2(steps)))


def _sum_freedom(bits: int, factor: float, terms: int) -> Freedom:
    certain = _bits_within(bits, factor * log2(max(2, terms)))
    return Freedom(certain, certain)


def _adds(module: Module, instruction: Instruction) -> bool:
    """Whether what a reduction combines with depends on the order, or rounds."""
    name = instruction.attributes.text("scatter") or instruction.attributes.text("to_apply")
    combiner = monoid_of(module, name)
    if combiner in MONOIDS:
        return combiner in ORDER_DEPENDENT
    return _rounds(module, name)


def _rounds(module: Module, name: str) -> bool:
    return any(
        (y.opcode not in EXACT and array_leaves(y.shape)[0].element_type.kind.name != "PREDICATE")
        or any(_rounds(module, callee) for callee in y.attributes.called)
        for y in module.computation[name].instructions
    )


def _terms(computation: Computation, instruction: Instruction) -> int:
    """Return the length of the longest sum behind one element, or a bound of it."""
    first = computation.instructions[instruction.operands[0]].shape
    if instruction.opcode == "dot" and isinstance(first, ArrayShape):
        return prod(
            first.dimensions[d] for d in instruction.attributes.integers("lhs_contracting_dims")
        )
    if instruction.opcode == "convolution":
        kernel = computation.instructions[instruction.operands[1]].shape
        labels = instruction.attributes.get("dim_labels")
        if isinstance(kernel, ArrayShape) and isinstance(labels, ConvolutionLabels):
            return kernel.element_count // max(1, kernel.dimensions[labels.rhs.index("o")])
    if instruction.opcode == "reduce":
        return _elements(computation, instruction.operands[0]) // max(
            1, array_leaves(instruction.shape)[0].element_count
        )
    if instruction.opcode == "reduce-window":
        return prod(d.size for d in instruction.attributes.window().dimensions)
    return _elements(
        computation, instruction.operands[-1 if instruction.opcode == "scatter" else 0]
    )


def _elements(computation: Computation, position: int) -> int:
    return sum(
        leaf.element_count for leaf in array_leaves(computation.instructions[position].shape)
    )
