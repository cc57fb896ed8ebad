"""Reference values of steps without errors, and samples with errors within op budgets.

Each module of a step is computed in the form of `hloipu.check.judging.perturb` and its results are
brought back to their own types, so that all that is between the modules, such as adding gradients
up, is done as it is for the reference's own values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

import numpy as np

from hloipu.check.judging.perturb import perturbed
from hloipu.check.outputs import SAMPLES, SAMPLES_OF_DOUBT, Reference, spread_of
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.interpret.widen import widened_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.kernels.core.storage import user_dtype

Values = TypeVar("Values")


@dataclass(frozen=True, slots=True)
class Sampled(Generic[Values]):
    """Values without errors, and some with them."""

    values: Values
    samples: list[Values]
    more: Callable[[], list[Values]]
    """Returns further samples, always the same ones."""


def sampled(
    reference: Reference, compute: Callable[[Reference], Values | str]
) -> Sampled[Values] | None:
    """Return what a computation by a reference gives in samples, or None where it gives none."""
    forms: dict[int, tuple[Module, Module | None]] = {}

    def form_of(module: Module) -> Module | None:
        if id(module) not in forms:
            forms[id(module)] = module, perturbed(module)
        return forms[id(module)][1]

    def drawn(number: int) -> Values | str:
        spread = spread_of(number)

        def moved(work: Sequence[tuple[Module, Sequence[Array]]]) -> list[list[Array] | str]:
            jobs = []
            for module, leaves in work:
                form = form_of(module)
                if form is None:
                    return ["sizes are known only while it runs"] * len(work)
                jobs.append((form, [*widened_arguments(leaves), spread]))
            answers = reference(jobs)
            return [_narrowed(answer, m) for answer, (m, _) in zip(answers, work, strict=True)]

        return compute(moved)

    samples: list[Values] = []
    for number in range(SAMPLES + 1):
        values = drawn(number)
        if isinstance(values, str):
            return None
        samples.append(values)

    @cache
    def more() -> list[Values]:
        numbers = range(SAMPLES + 1, SAMPLES + 1 + SAMPLES_OF_DOUBT)
        return [outcome for outcome in map(drawn, numbers) if not isinstance(outcome, str)]

    return Sampled(samples[0], samples[1:], more)


def _narrowed(answer: list[Array] | str, module: Module) -> list[Array] | str:
    """Bring leaves of a result in f64 to their own types, whose values they have."""
    if isinstance(answer, str):
        return answer
    leaves = array_leaves(module.entry.program_shape.result)
    with np.errstate(all="ignore"):
        return [
            array.astype(user_dtype(leaf.element_type.name))
            if leaf.element_type.is_array
            else array
            for array, leaf in zip(answer, leaves, strict=True)
        ]
