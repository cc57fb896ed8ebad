"""Proofs of deviations: functions that say which elements of an output they explain."""

import re
from collections.abc import Callable, Sequence

import numpy as np

from hloipu_compiler.interpret.agreement import Budget, smallest_normal
from hloipu_compiler.interpret.budgets import disagreements
from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.interpret.planning.site import Effects
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.core.storage import from_storage, to_storage
from hloipu_runtime.kernels.sorting import SortKey, ascending_keys
from tools.conformance.case import Case, shape_text, wide_type
from tools.conformance.deviations import Evidence, Explainer
from tools.conformance.workers import ORACLE_SECONDS
from tools.mapping import kept_oracle


def results_on(evidence: Evidence, inputs: Sequence[Array]) -> Array:
    """Return our output on other inputs."""
    return Evaluator(evidence.module, Effects(state={}))(*inputs)[evidence.leaf]


def subnormal_operand(evidence: Evidence) -> Array:
    """Tell where some operand is subnormal."""
    is_subnormal = np.zeros(evidence.ours.shape, bool)
    for given, array in zip(evidence.case.inputs, evidence.inputs, strict=True):
        if ELEMENT_TYPES[given.element_type].is_float and array.shape in ((), is_subnormal.shape):
            size = np.abs(to_storage(array, given.element_type))
            is_subnormal |= (size > 0) & (size < smallest_normal(given.element_type))
    return is_subnormal


def below_the_normals_of_f32(evidence: Evidence) -> Array:
    """Tell where the operand is smaller than every normal f32."""
    size = np.abs(to_storage(evidence.inputs[0], evidence.case.inputs[0].element_type))
    return np.asarray(size < smallest_normal("f32"))


def both_below_normal(evidence: Evidence) -> Array:
    """Tell where both results are subnormal or zero."""
    name = evidence.budget.element_type
    smallest = smallest_normal(name)
    ours, theirs = (to_storage(x, name) for x in (evidence.ours, evidence.theirs))
    return np.asarray((np.abs(ours) < smallest) & (np.abs(theirs) < smallest))


def wide_reference(evidence: Evidence) -> Array:
    """Return the output computed in f64 (or c128) and rounded once, in the user's dtype."""
    from tools.conformance.outcome import wide_inputs, wide_results

    name = evidence.budget.element_type
    wide = wide_results(evidence.case, wide_inputs(evidence.case, evidence.inputs))[evidence.leaf]
    if ELEMENT_TYPES[name].is_complex:
        return np.asarray(wide.astype(evidence.ours.dtype))
    return from_storage(round_to(wide, name), name)


def ours_is_nearer(evidence: Evidence) -> Array:
    """Tell where f64 says that we are within budget; for types narrower than f64."""
    if wide_type(evidence.budget.element_type) == evidence.budget.element_type:
        return np.zeros(evidence.ours.shape, bool)
    return ~disagreements(evidence.ours, wide_reference(evidence), evidence.budget)


def theirs_is_contracted(evidence: Evidence) -> Array:
    """Tell where XLA's result is the one that rounding once gives, within a step."""
    name = evidence.budget.element_type
    if wide_type(name) == name:
        return np.asarray(evidence.theirs == contracted_f64(evidence))
    return ~disagreements(evidence.theirs, wide_reference(evidence), Budget(name, ulps=1.0))


def contracted_f64(evidence: Evidence) -> Array:
    """Return the output of a module `a * b - 1` on f64, rounded once from 64 mantissa bits."""
    a, b = (x.astype(np.longdouble) for x in evidence.inputs[:2])
    return (a * b - 1).astype(np.float64)


def extended_is_ours(evidence: Evidence) -> Array:
    """Tell where long double (64 mantissa bits on x86) says that we are within budget."""
    function = EXTENDED.get(evidence.case.opcode)
    if function is None or np.finfo(np.longdouble).nmant < 63:
        return np.zeros(evidence.ours.shape, bool)
    wide = np.clongdouble if evidence.ours.dtype.kind == "c" else np.longdouble
    exact = function(*(x.astype(wide) for x in evidence.inputs)).astype(evidence.ours.dtype)
    return ~disagreements(evidence.ours, exact, evidence.budget)


EXTENDED: dict[str, Callable[..., Array]] = {
    "sine": np.sin, "cosine": np.cos, "log-plus-one": np.log1p, "power": np.power,
    "atan2": lambda y, x: -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y)),
}  # fmt: skip


def exponent_of_six_bits(evidence: Evidence) -> Array:
    """Tell where XLA:CPU gives what the exponent's lower six bits give."""
    base, exponent = evidence.inputs
    low = (exponent.astype(np.int64) & 63).astype(exponent.dtype)
    return np.asarray(results_on(evidence, [base, low]) == evidence.theirs)


def exponent_is_signed(evidence: Evidence) -> Array:
    """Tell where XLA:CPU gives what the same bits give as a negative exponent: 0, or 1 for 1."""
    base, exponent = evidence.inputs
    negative = exponent >> (8 * exponent.itemsize - 1) == 1
    highest = np.iinfo(base.dtype).max
    wanted = np.where(base == 1, 1, np.where(base == highest, evidence.theirs, 0))
    possible = np.isin(evidence.theirs, [0, 1, highest])
    return np.asarray(negative & possible & ((evidence.theirs == wanted) | (base == 0)))


def error_is_of_the_logarithm(evidence: Evidence) -> Array:
    """Tell where an error of four eps in y log x explains the distance of two powers."""
    x, y = (value.astype(np.complex128) for value in evidence.inputs)
    ours, theirs = evidence.ours.astype(np.complex128), evidence.theirs.astype(np.complex128)
    allowed = 4 * evidence.budget.epsilon * np.abs(y * np.log(x)) * np.abs(ours)
    return np.asarray(np.abs(ours - theirs) <= allowed)


def on_the_branch_cut(evidence: Evidence) -> Array:
    """Tell where the two results differ by a whole turn: plus and minus pi."""
    turn = np.abs(evidence.ours.astype(np.complex128) - evidence.theirs)
    return np.asarray(np.abs(turn - 2 * np.pi) <= 64 * evidence.budget.epsilon)


def error_is_of_a_modulus_of_one(evidence: Evidence) -> Array:
    """Tell where the distance is a few eps: the log of a number of modulus one errs by that."""
    apart = np.abs(evidence.ours.astype(np.complex128) - evidence.theirs)
    return np.asarray(apart <= 4 * evidence.budget.epsilon)


def bits_are_counted(evidence: Evidence) -> Array:
    """Tell where counting the bits one by one gives our result."""
    bits = ELEMENT_TYPES[evidence.case.element_type].bits
    words = evidence.inputs[0].astype(np.int64) & ((1 << bits) - 1)
    count = sum((words >> place) & 1 for place in range(bits))
    wrapped = np.asarray(count).astype(evidence.ours.dtype).astype(np.int64)
    return np.asarray(evidence.ours.astype(np.int64) == wrapped)


def operand_is_six(evidence: Evidence) -> Array:
    """Tell where the operand is 6 or -6, the largest value of f4e2m1fn."""
    return np.asarray(np.abs(evidence.inputs[0].astype(np.float32)) == 6)


def theirs_is_misordered(evidence: Evidence) -> Array:
    """Tell whether ours is in total order and XLA's, of the same elements, is not."""
    (dimension,) = evidence.module.entry.instructions[-1].attributes.integers("dimensions")
    name = evidence.budget.element_type
    key = SortKey(0, "direction=GT" in evidence.case.text, "total")
    ours, theirs = (
        np.moveaxis(ascending_keys(to_storage(x, name), key), dimension, -1).astype(np.float64)
        for x in (evidence.ours, evidence.theirs)
    )
    same = np.array_equal(np.sort(ours, axis=-1), np.sort(theirs, axis=-1))
    proven = same and np.all(np.diff(ours, axis=-1) >= 0) and np.any(np.diff(theirs, axis=-1) < 0)
    return np.full(evidence.ours.shape, bool(proven))


def padding_is_its_own_op(evidence: Evidence) -> Array:
    """Tell where XLA:CPU gives our result once a pad, not the window, takes elements away."""
    text = with_padding_apart(evidence.case.text)
    if text is None:
        return np.zeros(evidence.ours.shape, bool)
    program = kept_oracle(ORACLE_SECONDS).load(text)
    try:
        theirs = program.run(evidence.inputs)[evidence.leaf]
    finally:
        program.unload()
    return ~disagreements(evidence.ours, theirs, evidence.budget, evidence.magnitudes)


def with_padding_apart(text: str) -> str | None:
    """Return a module with the padding of its convolution as a pad, where some is negative."""
    found = re.search(r"\n.*convolution\((\w+), .*dim_labels=(\w+?)_", text)
    window = re.search(r"pad=(\S+) lhs_dilate=([\dx]+)", text)
    shape = found and re.search(rf"\b{found[1]} = (\w+)\[([\d,]+)\]", text)
    if not (found and window and shape) or "-" not in window[1]:
        return None
    spatial = [
        (*map(int, sides.split("_")), int(dilation) - 1)
        for sides, dilation in zip(window[1].split("x"), window[2].split("x"), strict=True)
    ]
    edges = [spatial[int(x)] if x.isdigit() else (0, 0, 0) for x in found[2]]
    sizes = [
        size + low + high + inner * (size - 1)
        for size, (low, high, inner) in zip(map(int, shape[2].split(",")), edges, strict=True)
    ]
    zero = f"\n  padding_zero = {shape[1]}[] constant(0)"
    padded = f"\n  padded_image = {shape_text(shape[1], sizes)} pad({found[1]}, padding_zero)"
    padded += ", padding=" + "x".join("_".join(map(str, edge)) for edge in edges)
    none = f"pad={'x'.join(['0_0'] * len(spatial))} lhs_dilate={'x'.join(['1'] * len(spatial))}"
    plain = found[0].replace(f"({found[1]},", "(padded_image,").replace(window[0], none)
    return text.replace(found[0], zero + padded + plain)


def passes_nan_over(evidence: Evidence) -> Array:
    """Tell where XLA:CPU's extreme is ours of the same numbers without the NaN among them."""
    extreme = re.search(r"ROOT \S+ = \S+ (minimum|maximum)\(", evidence.case.text)
    if extreme is None:
        return np.zeros(evidence.ours.shape, bool)
    neutral = np.inf if extreme[1] == "minimum" else -np.inf
    inputs = [np.where(np.isnan(x), np.array(neutral, x.dtype), x) for x in evidence.inputs]
    without = results_on(evidence, inputs)
    return np.isnan(evidence.ours) & ~disagreements(without, evidence.theirs, evidence.budget)


EXPLAINERS: dict[str, Explainer] = {
    function.__name__: function
    for function in (
        subnormal_operand, below_the_normals_of_f32, both_below_normal, ours_is_nearer,
        theirs_is_contracted,
        extended_is_ours, exponent_of_six_bits, exponent_is_signed, error_is_of_the_logarithm,
        on_the_branch_cut, error_is_of_a_modulus_of_one,
        bits_are_counted, operand_is_six, theirs_is_misordered, padding_is_its_own_op,
        passes_nan_over,
    )
}  # fmt: skip
"""By name, for the table."""

__all__ = ["EXPLAINERS", "Case"]
