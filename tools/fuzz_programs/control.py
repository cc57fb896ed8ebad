"""Families of control flow and calls: while, conditional, call, fusion."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from tools.fuzz_programs.builder import MOST_DEPTH, Body, Families, Value, array_shape
from tools.fuzz_programs.elementwise import (
    clamped,
    converted,
    floored,
    is_exact,
    is_integer,
    kind_of,
    small_integer,
)
from tools.fuzz_programs.facts import (
    AnyFacts,
    Facts,
    Transfer,
    UntameError,
    epsilon,
    full_range,
    widened,
)

MOST_TRIPS = 5
REACH = 8.0
"""Floats that a loop carries stay within ±this."""


def deeper(body: Body, stem: str) -> Body:
    """Return a new computation that the body may call."""
    if body.depth >= MOST_DEPTH:
        raise UntameError
    return Body(body.draft, stem, depth=body.depth + 1)


def scalar_computation(body: Body, operands: Sequence[Value]) -> tuple[Body, Value]:
    """Write a computation on scalars, given the arrays whose elements it is applied to."""
    callee = deeper(body, "mapped")
    for operand in operands:
        callee.parameter(array_shape(operand.type, ()), operand.facts)
    callee.grow(body.rng.randrange(1, 6), body.draft.scalar)
    root = latest(callee, lambda v: v.sizes == ())
    callee.root(root)
    return callee, root


def latest(body: Body, accepts: object = None) -> Value:
    """Choose one of the last values, rather an unused one."""
    found = list(body.arrays(accepts))  # type: ignore[arg-type]
    if not found:
        raise UntameError
    unused = [v for v in found if v.position not in body.used]
    return body.rng.choice(unused or found[-3:])


def arguments(body: Body, most: int = 3) -> list[Value]:
    """Choose one to `most` arrays."""
    return [body.pick() for _ in range(body.rng.randrange(1, most + 1))]


# ---- call and fusion --------------------------------------------------------------------------
def call(body: Body) -> Value:
    """Append a call of a new computation, or of one that is called already."""
    if body.draft.callees and body.rng.random() < 0.4:
        return call_again(body)
    callee, operands, root = new_callee(body, "callee", body.draft.families)
    body.draft.callees.append((callee, root))
    return called(body, "call", callee, root, operands, f"to_apply={callee.name}")


def call_again(body: Body) -> Value:
    """Append a call of a computation written before, where its parameters' facts allow."""
    callee, root = body.rng.choice(body.draft.callees)
    if callee.depth <= body.depth:
        raise UntameError

    def argument(parameter: Value) -> Value:
        def fits(v: Value) -> bool:
            return v.shape == parameter.shape and parameter.known.covers(v.known)

        return body.pick(fits)

    operands = [argument(p) for p in callee.parameters]
    return called(body, "call", callee, root, operands, f"to_apply={callee.name}")


def fusion(body: Body) -> Value:
    """Append a fusion; everything in one must be used, so that it may have many results."""
    callee, operands = begun_callee(body, "fused", body.draft.plain)
    results = [latest(callee)]
    for value in callee.arrays():
        unused = value.position not in callee.used and value.position != results[0].position
        if unused and (value in callee.parameters or body.rng.random() < 0.3):
            results.append(value)
    root = results[0] if len(results) == 1 else callee.tuple(results)
    if not callee.root(root, whole=True):
        raise UntameError
    kind = body.rng.choice(("kLoop", "kLoop", "kInput", "kOutput"))
    return called(body, "fusion", callee, root, operands, f"kind={kind}, calls={callee.name}")


def new_callee(body: Body, stem: str, families: Families) -> tuple[Body, list[Value], Value]:
    """Write a computation on chosen arrays; its root is an array or a tuple."""
    callee, operands = begun_callee(body, stem, families)
    root = latest(callee)
    if body.rng.random() < 0.35:
        root = callee.tuple([root, latest(callee)])
    callee.root(root)
    return callee, operands, root


def begun_callee(body: Body, stem: str, families: Families) -> tuple[Body, list[Value]]:
    """Write a computation on chosen arrays, without its root yet."""
    callee, operands = deeper(body, stem), arguments(body)
    for operand in operands:
        callee.parameter(operand.shape, operand.facts)
    callee.grow(body.rng.randrange(1, 8), families)
    return callee, operands


def called(
    body: Body, opcode: str, callee: Body, root: Value, operands: Sequence[Value], attributes: str
) -> Value:
    """Append the instruction that calls, and take a tuple apart."""

    def transfer(*facts: AnyFacts) -> AnyFacts:
        return callee.replay(root, facts)

    return apart(body, body.add(opcode, root.shape, operands, transfer, attributes))


def apart(body: Body, value: Value) -> Value:
    """Return an array; of a tuple its elements are appended, and the first is returned."""
    return value if isinstance(value.shape, ArrayShape) else body.elements(value)[0]


# ---- conditional ------------------------------------------------------------------------------
def conditional(body: Body) -> Value:
    """Append a conditional by a predicate or by a branch number, which may be out of range."""
    rng = body.rng
    predicated = rng.random() < 0.5
    if body.depth >= MOST_DEPTH:
        raise UntameError
    count = 2 if predicated else rng.randrange(1, 5)
    chooser = chosen_scalar(body, "pred" if predicated else "s32")
    operands, branches, roots = [], [], []
    for _ in range(count):
        given = arguments(body)
        operands.append(given[0] if len(given) == 1 else body.tuple(given))
        branch = deeper(body, "branch")
        parameter = branch.parameter(operands[-1].shape, operands[-1].facts)
        if len(given) > 1:
            branch.elements(parameter)
        branch.grow(rng.randrange(0, 5))
        roots.append(result_like(branch, roots[0].shape) if roots else new_result(branch))
        branch.root(roots[-1])
        branches.append(branch)
    names = ", ".join(b.name for b in branches)
    if predicated and rng.random() < 0.7:
        attributes = (
            f"true_computation={branches[0].name}, false_computation={branches[1].name}"
        )
    elif predicated:
        raise UntameError
    else:
        attributes = f"branch_computations={{{names}}}"

    def transfer(_: Facts, *facts: AnyFacts) -> AnyFacts:
        results = [b.replay(r, [f]) for b, r, f in zip(branches, roots, facts, strict=True)]
        joined = results[0]
        for other in results[1:]:
            joined = widened(joined, other)
        return joined

    made = body.add("conditional", roots[0].shape, [chooser, *operands], transfer, attributes)
    return apart(body, made)


def chosen_scalar(body: Body, element_type: str) -> Value:
    """Choose or make an exact scalar of a type."""
    wanted = array_shape(element_type, ())
    found = [v for v in body.arrays(is_exact) if v.shape == wanted]
    if found and body.rng.random() < 0.7:
        return body.rng.choice(found)
    facts = None if element_type == "pred" else Facts(-1, 4, 0, 1)
    return body.fresh(element_type, (), facts)


def new_result(body: Body) -> Value:
    """Return a root of any shape."""
    root = latest(body)
    return body.tuple([root, latest(body)]) if body.rng.random() < 0.4 else root


def result_like(body: Body, shape: Shape) -> Value:
    """Return a root of a given shape."""
    if isinstance(shape, TupleShape):
        return body.tuple([result_like(body, s) for s in shape.elements])
    assert isinstance(shape, ArrayShape)
    found = [v for v in body.arrays() if v.shape == shape]
    if found and body.rng.random() < 0.8:
        return body.rng.choice(found[-4:])
    return body.fresh(shape.element_type.name, shape.dimensions)


# ---- while ------------------------------------------------------------------------------------
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
    trips, step = rng.randrange(0, MOST_TRIPS + 1), rng.choice((1, 1, 2))
    data_bounded = rng.random() < 0.4
    if data_bounded:
        found = body.pick(lambda v: is_integer(v) and v.sizes == ()) if any(
            v.sizes == () for v in body.arrays(is_integer)
        ) else body.fresh("s32", (), Facts(0, 4, 0, 1))  # fmt: skip
        bound = converted(body, small_integer(body, found, 0, MOST_TRIPS * step), counter_type)
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
    made = body.add("while", start.shape, [start], transfer, attributes)
    results = [body.element(made, i) for i in range(outer_count + rng.randrange(2))]
    return results[0]


def write_loop_body(inner: Body, shape: Shape, known: Sequence[Facts], step: int) -> None:
    """Write the computation of one trip; its root is the last value."""
    *lanes, counter, bound = inner.elements(inner.parameter(shape, tuple(known)))
    inner.grow(inner.rng.randrange(1, 8))
    results = []
    for lane, facts in zip(lanes, known, strict=False):
        found = [
            v for v in inner.arrays() if v.shape == lane.shape and (v.known.exact or facts.error)
        ]
        unused = [v for v in found if v.position not in inner.used]
        results.append(kept(inner, inner.rng.choice(unused or found[-4:] or [lane]), facts))
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
        found = [v for v in condition.arrays(is_exact) if v.shape == flag]
        root = condition.add("and", flag, [root, body.rng.choice(found)], less)
    condition.root(root)
    return condition.name


FAMILIES = {call: 3, fusion: 3, conditional: 3, loop: 4}
"""Family -> weight."""
