"""A family of loops: counted, and ended by data."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.ir.shapes import Shape
from tools.fuzz_programs.adjusting import (
    clamped,
    floored,
    is_exact,
    is_integer,
    kind_of,
    small_integer,
)
from tools.fuzz_programs.builder import Body, Families
from tools.fuzz_programs.calls import deeper
from tools.fuzz_programs.conversions import converted
from tools.fuzz_programs.facts import AnyFacts, Facts, Transfer, UntameError, epsilon, full_range
from tools.fuzz_programs.values import Value, array_shape

MOST_TRIPS = 5

REACH = 8.0
"""Floats that a loop carries stay within ±this."""


def kept(body: Body, value: Value, facts: Facts) -> Value:
    """Bring a value under the facts that a loop keeps of it."""
    if not facts.covers(value.known) and kind_of(value).value == "float":
        value = clamped(body, value, facts.low, facts.high)
        if facts.exact and value.known.grain % facts.grain:
            value = floored(body, value)
    if not replace(facts, error=1e30 if facts.error else 0).covers(value.known):
        raise UntameError
    return value


def invariant(body: Body, value: Value) -> Facts:
    """Choose what a loop keeps of a value: exact wholes, floats with an error, any integer."""
    element = value.array.element_type
    if not (element.is_float or element.is_complex):
        return full_range(value.type)
    if element.is_complex or element.bits < 16:
        raise UntameError
    if value.known.exact and body.rng.random() < 0.6:
        return Facts(-REACH, REACH, 0, 1)
    return Facts(-REACH, REACH, max(value.known.error, 8 * epsilon(value.type)))


def loop(body: Body) -> Value:
    """Append a while: counted, or ended by data within a bound of trips."""
    rng = body.rng
    inner, outer_count = deeper(body, "loop_body"), rng.randrange(1, 4)
    carried, known = [], []
    for _ in range(outer_count):
        value = body.pick()
        facts = invariant(body, value)
        carried.append(kept(body, value, facts))
        known.append(facts)
    counter_type = rng.choice("s32 s32 s64 u32 s8".split())
    data_bounded = rng.random() < 0.4
    # XLA takes `for (i = 0; i < 1; i += 2)` for a loop without trips; other bounds are multiples.
    trips, step = rng.randrange(0, MOST_TRIPS + 1), 1 if data_bounded else rng.choice((1, 1, 2))
    if data_bounded:
        count = body.pick(lambda v: is_integer(v) and v.sizes == ()) if any(
            v.sizes == () for v in body.arrays(is_integer)
        ) else body.fresh("s32", (), Facts(0, 4, 0, 1))  # fmt: skip
        bound = converted(body, small_integer(body, count, 0, MOST_TRIPS * step), counter_type)
    else:
        bound = body.scalar(counter_type, trips * step)
    carried += [body.scalar(counter_type, 0), bound]
    known += [Facts(0, (MOST_TRIPS + 1) * step, 0, 1), Facts(0, MOST_TRIPS * step, 0, 1)]
    start = body.tuple(carried)
    write_loop_body(inner, start.shape, known, step)
    condition = write_condition(body, start.shape, known, data_bounded)
    root = inner.values[-1]

    def transfer(first: AnyFacts) -> AnyFacts:
        assert isinstance(first, tuple)
        state: AnyFacts = tuple(
            replace(k, error=f.error) if isinstance(f, Facts) else f
            for k, f in zip(known, first, strict=True)
        )
        for _ in range(MOST_TRIPS if data_bounded else trips):
            after = inner.replay(root, [state])
            assert isinstance(after, tuple)
            state = tuple(
                replace(k, error=max(s.error, a.error))  # type: ignore[union-attr]
                for k, s, a in zip(known, state, after, strict=True)  # type: ignore[arg-type]
            )
        return state

    attributes = f"condition={condition}, body={inner.name}"
    result = body.add("while", start.shape, [start], transfer, attributes)
    results = [body.element(result, i) for i in range(outer_count + rng.randrange(2))]
    return results[0]


def write_loop_body(inner: Body, shape: Shape, known: Sequence[Facts], step: int) -> None:
    """Write the computation of one trip; its root is the last value."""
    *lanes, counter, bound = inner.elements(inner.parameter(shape, tuple(known)))
    inner.grow(inner.rng.randrange(1, 8))
    results = []
    for lane, facts in zip(lanes, known, strict=False):
        alike = [
            v for v in inner.arrays() if v.shape == lane.shape and (v.known.exact or facts.error)
        ]
        unused = [v for v in alike if v.position not in inner.used]
        results.append(kept(inner, inner.rng.choice(unused or alike[-4:] or [lane]), facts))
    one = inner.scalar(counter.type, step)
    # The condition ends the loop before the counter leaves the invariant.
    after = inner.add("add", counter.shape, [counter, one], lambda f, _: f)
    inner.root(inner.tuple([*results, after, bound]))


def write_condition(body: Body, shape: Shape, known: Sequence[Facts], data_bounded: bool) -> str:
    """Write the condition: the counter below its bound, and perhaps a predicate on the state."""
    condition = deeper(body, "condition")
    *_, counter, bound = condition.elements(condition.parameter(shape, tuple(known)))
    flag = array_shape("pred", ())
    less: Transfer = lambda *_: Facts(0, 1, 0, 1)  # noqa: E731
    root = condition.add("compare", flag, [counter, bound], less, "direction=LT")
    if data_bounded and body.rng.random() < 0.5:
        condition.grow(3, body.draft.plain)
        flags = [v for v in condition.arrays(is_exact) if v.shape == flag]
        root = condition.add("and", flag, [root, body.rng.choice(flags)], less)
    condition.root(root)
    return condition.name


FAMILIES: Families = {loop: 4}
"""Family -> weight."""
