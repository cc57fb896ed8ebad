"""The ways in which a recipe is cut, and what comes of each: it agrees, is refused, or fails."""

import traceback
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

import hloipu
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError
from tests.support.comparing import require_alike
from tools.trainers.recipe import Recipe, Refusal, arrays
from tools.trainers.reference import UPDATES, Expected, by_micro_batches, by_whole_batches

AGREES, REFUSED, FAILS = "agrees", "refused", "fails"


class Way(NamedTuple):
    """How a step is cut; every way takes as many micro-batches for an update."""

    name: str
    micro_batches: int
    replicas: int = 1
    stages: int = 1
    named: bool = False
    """Whether the text has the names that JAX gives to ops."""
    tells_feeds: bool = True
    """Whether hloipu is told which arguments are the batch."""


class Verdict(NamedTuple):
    """What came of a recipe cut in one way."""

    recipe: str
    way: str
    kind: str
    detail: str = ""


WAYS = (
    Way("K4", 4),
    Way("K4-named", 4, named=True),
    Way("K2R2", 2, 2, named=True, tells_feeds=False),
    Way("S2K4", 4, 1, 2),
)


def ways_of(recipe: Recipe) -> Iterator[Way]:
    """Yield the ways in which a recipe is cut: a scanned one into a stage for each layer, too."""
    yield from WAYS
    if recipe.layers:
        yield Way(f"S{recipe.layers}K4", 4, 1, recipe.layers, named=True)


def compiled(recipe: Recipe, cut: Way) -> CompiledProgram:
    """Compile a recipe in one way.

    Feeds are told by number, or left to be seen where the state is donated. Replicas draw from the
    same keys, as the reference does.
    """
    state = recipe.begin
    first = sum(len(jax.tree.leaves(x)) for x in state)
    count = len(recipe.batches([0])[0])
    given = dict[str, Any]()
    if cut.tells_feeds or not recipe.donates or jax.tree.leaves(state.frozen):
        given["feed"] = {"data": tuple(range(first, first + count))}
    outfeed = [f"{name}={number}" for name, number in recipe.metric_numbers.items()]
    return hloipu.compile(
        recipe.text(named=cut.named), target="tiny", over_memory="allow", cache=False,
        outfeed=outfeed, loop=UPDATES, micro_batches=cut.micro_batches, replicas=cut.replicas,
        stages=cut.stages, replica_keys="same", **given,
    )  # fmt: skip


@lru_cache(4)
def _expected(recipe: Recipe, replicas: int) -> Expected:
    return by_micro_batches(recipe, replicas)


@lru_cache(4)
def _of_whole_batches(recipe: Recipe) -> list[Any]:
    return by_whole_batches(recipe)


def assert_agrees(recipe: Recipe, cut: Way, program: CompiledProgram) -> None:
    """Train for some updates and compare state and metrics with JAX's."""
    state = recipe.begin
    kept = arrays((state.learned, state.carried))
    numbers = range(UPDATES * cut.micro_batches * cut.replicas)
    fed = iter(recipe.batches(numbers))
    constants = arrays(state.frozen)
    with program.session(state=kept, constants=constants, infeeds={"data": fed}) as session:
        session.run(UPDATES)
        states = [list(session.state(r).values()) for r in range(cut.replicas)]
        metrics = {
            name: [np.asarray(x.element) for x in session.stream(name).drain()]
            for name in recipe.metric_numbers
        }
    wanted = _expected(recipe, cut.replicas)
    near = recipe.bounds
    for mine, theirs in zip(states, wanted.states, strict=True):
        _assert_near("state", mine, theirs, near)
    for name, elements in metrics.items():
        values = np.array(elements)
        if name in wanted.early and values.size > UPDATES * cut.replicas:
            _assert_near(name, [values.ravel()], [wanted.early[name].ravel()], near)
        elif name in wanted.early:  # made of gradients alone: the update makes it, of their mean
            each = np.repeat(wanted.early[name].mean((1, 2)), cut.replicas)
            _assert_near(name, [values.ravel()], [each], near)
        else:
            each = np.repeat(wanted.late[name], values.size // UPDATES)
            _assert_near(name, [values.ravel()], [each.ravel()], near)
    whole = _of_whole_batches(recipe)
    if not recipe.coupled:
        _assert_near("state by whole batches", states[0][: len(whole)], whole, near)


def _assert_near(what: str, ours: Any, wanted: Any, near: tuple[float, float]) -> None:
    for number, (a, b) in enumerate(zip(ours, wanted, strict=True)):
        said = f"{what} {number}"
        require_alike(a, b, said)
        if not np.issubdtype(b.dtype, np.inexact) and b.dtype.kind in "iub":
            np.testing.assert_array_equal(a, b, said)
        else:
            wide = np.float64
            np.testing.assert_allclose(a.astype(wide), b.astype(wide), *near, err_msg=said)


def judged(recipe: Recipe, cut: Way) -> Verdict:
    """Return what comes of a recipe in one way.

    A refusal that nobody expects is a failure, and so is an expected one that does not come.
    """
    expected = recipe.refusals.get(cut.name, recipe.refusals.get(""))
    try:
        program = compiled(recipe, cut)
        assert_agrees(recipe, cut, program)
    except HloipuError as error:
        return Verdict(recipe.name, cut.name, *_refused(error, expected))
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Verdict(recipe.name, cut.name, FAILS, f"differs: {' '.join(lines[:8])}")
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
        return Verdict(recipe.name, cut.name, FAILS, traceback.format_exc(limit=-3))
    if expected:
        return Verdict(recipe.name, cut.name, FAILS, f"no longer refused with {expected.code}")
    return Verdict(recipe.name, cut.name, AGREES, recipe.coupled)


def _refused(error: HloipuError, expected: Refusal | None) -> tuple[str, str]:
    if expected and error.code == expected.code:
        return REFUSED, f"{error.code}: {expected.why}"
    return FAILS, f"refused unasked: {error}"


def tells_apart(recipe: Recipe) -> bool:
    """Whether a recipe is as coupled as it says: whole batches differ just where it says so.

    One that is refused has no micro-batches that could differ.
    """
    if "" in recipe.refusals:
        return True
    mine = _expected(recipe, 1)
    whole = _of_whole_batches(recipe)
    near = (max(1e-3, recipe.bounds[0]), max(1e-5, recipe.bounds[1]))
    pairs = zip(mine.states[0][: mine.learned], whole, strict=True)
    same = (np.allclose(a.astype(np.float64), b.astype(np.float64), *near) for a, b in pairs)
    return all(same) != bool(recipe.coupled)
