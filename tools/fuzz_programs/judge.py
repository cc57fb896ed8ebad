"""One program run by both sides, and how their outputs compare with what is known of them."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.kernels.core.blocks import Array
from tests.support.xla_oracle import Oracle, OracleError
from tools.fuzz_programs.program import Output, Program

AGREED, DIFFERED, REFUSED, FAILED = "agreed", "differed", "refused", "failed"
"""Outcomes: equal within bounds; not so; XLA took no part; our side raised."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one program ended."""

    number: int
    kind: str
    detail: str = ""
    compared: int = 0
    """Elements compared."""
    exact: int = 0
    """Elements that had to be equal."""


def judged(program: Program, oracle: Oracle) -> Outcome:
    """Run a program on both sides and compare."""
    arguments = program.arguments()
    try:
        module = parse(program.text)
        verify(module)
        ours = evaluate(module, *arguments)
    except HloipuError as error:
        return Outcome(
            program.number, FAILED, f"{type(error).__name__} {error.code}: {error}"[:400]
        )
    except Exception as error:  # what the fuzzer looks for
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "?"
        detail = f"{type(error).__name__} at {place}: {error}"
        return Outcome(program.number, FAILED, detail[:400])
    try:
        theirs = oracle.run(program.text_for_xla, arguments)
    except OracleError as error:
        return Outcome(program.number, REFUSED, " ".join(str(error).split())[:400])
    return compared(program, ours, theirs)


def compared(program: Program, ours: Sequence[Array], theirs: Sequence[Array]) -> Outcome:
    """Compare all outputs; the detail names the first that differs."""
    elements = exact = 0
    if len(ours) != len(theirs):
        counts = f"{len(ours)} outputs, XLA has {len(theirs)}"
        return Outcome(program.number, DIFFERED, counts)
    for index, (known, a, b) in enumerate(zip(program.outputs, ours, theirs, strict=True)):
        fault = difference(known, a, b)
        if fault:
            return Outcome(program.number, DIFFERED, f"output {index}: {fault}")
        elements += a.size
        exact += a.size if known.facts.exact else 0
    return Outcome(program.number, AGREED, "", elements, exact)


def difference(known: Output, ours: Array, theirs: Array) -> str:
    """Say how two arrays of an output differ, or nothing."""
    element, facts = ELEMENT_TYPES[known.element_type], known.facts
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype}{list(ours.shape)} against {theirs.dtype}{list(theirs.shape)}"
    if not (element.is_float or element.is_complex):
        return described(ours, theirs, np.asarray(ours != theirs), "exact")
    wide = np.complex128 if element.is_complex else np.float64
    a, b = ours.astype(wide), theirs.astype(wide)
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
        bad = ~(apart <= facts.error * (1.5 if element.is_complex else 1.0))
        parts = (a.real, a.imag) if element.is_complex else (a,)
        outside = [
            (part < facts.low - facts.error) | (part > facts.high + facts.error) for part in parts
        ]
    words = f"error at most {facts.error:.3g}" if facts.error else "exact"
    fault = described(ours, theirs, np.asarray(bad), f"{known.element_type}, {words}")
    if not fault and any(o.any() for o in outside):
        return f"both leave [{facts.low}, {facts.high}]: the generator's bounds are wrong"
    return fault


def described(ours: Array, theirs: Array, bad: Array, allowed: str) -> str:
    """Describe the first differing element, if any."""
    if not bad.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    return (
        f"{int(bad.sum())} of {bad.size} elements differ ({allowed}), first at {list(place)}: "
        f"{ours[place]} against XLA's {theirs[place]}"
    )
