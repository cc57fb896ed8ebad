"""What every way to run a module makes of it: one verdict, or what is wrong."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hloipu.api import compile_verified
from hloipu.options.resolve import resolve
from hloipu_compiler.errors import InvalidHloError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.element_types import ElementType
from hloipu_runtime.errors import HloipuError, LimitError, UnsupportedError
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.storage import user_dtype
from tools.conformance.case import Case
from tools.conformance.values import inputs_of

INVALID, AGREES, REFUSED, FAILED = "invalid", "agrees", "refused", "failed"
MODES = ("functional", "exact")

_ROUNDINGS = 32
"""Units in the last place, of the largest element, that two orders of one sum may differ by.

Sums of narrower types are kept in f32 and rounded once: to neighbours at most."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one module."""

    name: str
    status: str
    said: str = ""
    """Of a refusal its code; of a failure what is wrong, and where."""


class _Failure(Exception):
    """What is wrong with a module's way through the compiler."""


def judged(case: Case, target: str = "tiny") -> Verdict:
    """Verify a module, compile it for a machine, estimate it, run it in both modes, evaluate it."""
    try:
        module = _step("verify", lambda: _verified(case))
        if isinstance(module, HloipuError):
            return Verdict(case.name, INVALID, module.code)
        options = resolve("compile", {"target": target, "over_memory": "allow"}).options
        program = _step("compile", lambda: compile_verified(module, options))
        arguments = inputs_of(case)
        evaluated = _step("evaluate", lambda: evaluate_everywhere(module, *arguments))
        if isinstance(program, HloipuError):
            if not isinstance(evaluated, HloipuError):
                _check_shapes("evaluate", module, evaluated)
            return Verdict(case.name, REFUSED, program.code)
        results = {"evaluate": evaluated}
        for mode in MODES:
            results[mode] = _step(mode, partial(_outputs, program, arguments, mode))
        estimate = _step("estimate", lambda: program.estimate())
        for stage, values in {**results, "estimate": estimate}.items():
            if isinstance(values, HloipuError):
                raise _Failure(f"{stage} refuses what was compiled: {values.code} {values.message}")
        for stage, values in results.items():
            _check_shapes(stage, module, values)
        if case.judged == "values":
            for mode in MODES:
                _check_values(mode, module, results[mode], evaluated)
    except _Failure as failure:
        return Verdict(case.name, FAILED, str(failure))
    return Verdict(case.name, AGREES)


def _verified(case: Case) -> Module:
    module = parse(case.text)
    verify(module)
    return module


def _step(name: str, work: Callable[[], Any]) -> Any:
    """Return what a step gives, or its typed error; any other error is a failure."""
    try:
        return work()
    except (InvalidHloError, LimitError, UnsupportedError) as error:
        return error
    except Exception as error:  # the point of the tool: every error is counted, none is raised
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = "/".join(last.filename.rsplit("/", 2)[-2:])
        said = " ".join(str(error).split())[:120]
        raise _Failure(f"{name}: {type(error).__name__}: {said} ({place}:{last.lineno})") from error


def _check_shapes(stage: str, module: Module, values: Sequence[Array]) -> None:
    leaves = array_leaves(module.entry.program_shape.result)
    if len(leaves) != len(values):
        raise _Failure(f"{stage}: {len(values)} results for {len(leaves)}")
    for number, (leaf, value) in enumerate(zip(leaves, values, strict=True)):
        wanted = user_dtype(leaf.element_type.name)
        if value.shape != leaf.dimensions or value.dtype != wanted:
            raise _Failure(
                f"{stage}: result {number} is {value.dtype}{list(value.shape)}, "
                f"declared is {leaf.without_layout()}"
            )


def _check_values(
    mode: str, module: Module, values: Sequence[Array], wanted: Sequence[Array]
) -> None:
    leaves = array_leaves(module.entry.program_shape.result)
    for number, (leaf, value, other) in enumerate(zip(leaves, values, wanted, strict=True)):
        if not _agree(value, other, leaf.element_type):
            raise _Failure(
                f"{mode}: result {number} is {_shown(value)}, evaluated it is {_shown(other)}"
            )


def _agree(value: Array, wanted: Array, element_type: ElementType) -> bool:
    """Whether two results are equal, or as close as two orders of rounding leave them."""
    if not (element_type.is_float or element_type.is_complex) or value.size == 0:
        return bool(np.array_equal(value, wanted))
    with np.errstate(all="ignore"):
        ours = value.astype(np.complex128 if element_type.is_complex else np.float64)
        theirs = wanted.astype(ours.dtype)
        finite = np.isfinite(theirs)
        if not np.array_equal(np.isfinite(ours), finite):
            return False
        if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
            return False
        largest = float(np.max(np.abs(theirs[finite]), initial=0.0))
        off = float(np.max(np.abs(ours[finite] - theirs[finite]), initial=0.0))
    narrow = element_type.bits < 32
    epsilon = 2.0**-element_type.mantissa_bits if narrow else np.finfo(value.dtype).eps
    return off <= (1 if narrow else _ROUNDINGS) * float(epsilon) * largest


def _shown(values: Array) -> str:
    return " ".join(str(values.reshape(-1)[:6].tolist()).split())[:90]


def _outputs(program: CompiledProgram, arguments: Sequence[Any], mode: str) -> list[Any]:
    return program.run(*arguments, mode=mode).outputs
