"""Judges models lowered by the recipes: verified, compiled, run, beside the framework's values."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import hloipu
from hloipu.lowered_steps import LoweredStep
from hloipu_compiler.plan.entry_arrays import aliased, parameter_arrays

_TOLERANCE = 2e-4
"""Of values, against the largest of their array: f32 sums in another order, of a training step."""

_LEAST = 1e-3
"""Largest value of an array from which its values are judged by it: gradients that are nothing but
rounding, such as those of biases before a normalisation, are below."""


@dataclass(frozen=True)
class Model:
    """A lowered model, with what its framework computes."""

    step: LoweredStep
    results: Sequence[Any]
    """In order; without those that are the new state, where `state` is given."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Variables after the step, by name; those that are not here are not judged."""


def judge(models: Sequence[Callable[[], Model]], only: str = "") -> int:
    """Print a row for each model; return how many fail."""
    failed = 0
    for make in models:
        name = make.__name__.strip("_")
        if only not in name:
            continue
        start, at = time.perf_counter(), "lower"
        try:
            model = make()
            lowered = time.perf_counter() - start
            at = "verify"
            module = hloipu.verify(model.step.text)
            at = "compile"
            program = hloipu.compile(model.step.text, target="gc200", over_memory="allow")
            at = "run"
            outputs = program.run(*model.step.arguments).outputs
            at = "values"
            off = worst(module, outputs, model)
            cycles = program.estimate().total_cycles or "data decides how many"
            row = f"{'ok' if off <= _TOLERANCE else 'DIFF'}  off by {off:.1e}, {cycles} cycles"
            failed += off > _TOLERANCE
        except Exception as error:  # whatever a newcomer meets is a row of the table
            failed += 1
            lowered = time.perf_counter() - start
            row = f"FAIL  {at}: {type(error).__name__}: {str(error)[:300]}"
        took = time.perf_counter() - start
        print(f"{name:24s} {row}  ({lowered:.1f} s + {took - lowered:.1f} s)", flush=True)
    return failed


def worst(module: hloipu.Module, outputs: Sequence[Any], model: Model) -> float:
    """Return how far results and state are off, of the largest value of each array."""
    names = {x.number: x.name for x in parameter_arrays(module)}
    aliases = aliased(module) if model.state else []
    pairs = {pair.result: names[pair.parameter] for pair in aliases}
    returned = [x for n, x in enumerate(outputs) if n not in pairs]
    pairs_of_state = [
        (outputs[n], model.state[name]) for n, name in pairs.items() if name in model.state
    ]
    return max(
        _off(ours, np.asarray(theirs))
        for ours, theirs in [*pairs_of_state, *zip(returned, model.results, strict=True)]
    )


def _off(ours: Any, theirs: np.ndarray[Any, Any]) -> float:
    ours = np.asarray(ours)
    if ours.shape != theirs.shape:
        raise ValueError(f"{ours.shape} in place of {theirs.shape}")
    if theirs.dtype.kind in "biu":
        return float(np.any(ours != theirs))
    a, b = ours.astype("f8"), theirs.astype("f8")
    if np.any(np.isfinite(a) != np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(b)
    largest = np.abs(b[finite]).max(initial=0.0)
    return float(np.abs(a - b)[finite].max(initial=0.0) / max(largest, _LEAST))
