"""Families of calls: call, fusion, map, conditional."""

from collections.abc import Sequence

from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_runtime.element_types import Kind
from tools.fuzz_programs.adjusting import is_exact, is_float, kind_of
from tools.fuzz_programs.builder import MOST_DEPTH, Body, Families
from tools.fuzz_programs.facts import AnyFacts, Facts, UntameError, widened
from tools.fuzz_programs.values import Value, array_shape, braces


def map_elements(body: Body) -> Value:
    """Append a map by a scalar computation of several operations."""
    value = body.pick(lambda v: len(v.sizes) >= 1)
    value = next((v for v in body.arrays(is_float) if v.sizes == value.sizes), value)
    operands = [value]

    def fits(v: Value) -> bool:
        # A map mixes no float formats among its operands.
        return v.sizes == value.sizes and (kind_of(v) is not Kind.FLOAT or v.type == value.type)

    candidates = [value, *body.arrays(fits)]
    operands += body.rng.choices(candidates, k=body.rng.choice((0, 1, 2)))
    name, root = scalar_computation(body, operands)
    shape = array_shape(root.type, value.sizes)
    dimensions = braces(range(len(value.sizes)))
    attributes = f"dimensions={dimensions}, to_apply={name.name}"
    return body.add("map", shape, operands, lambda *f: name.replay(root, f), attributes)


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
    candidates = list(body.arrays(accepts))  # type: ignore[arg-type]
    if not candidates:
        raise UntameError
    unused = [v for v in candidates if v.position not in body.used]
    return body.rng.choice(unused or candidates[-3:])


def arguments(body: Body, most: int = 3) -> list[Value]:
    """Choose one to `most` arrays."""
    return [body.pick() for _ in range(body.rng.randrange(1, most + 1))]


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


def conditional(body: Body) -> Value:
    """Append a conditional by a predicate or by a branch number, which may be out of range."""
    rng = body.rng
    predicated = rng.random() < 0.5
    if body.depth >= MOST_DEPTH:
        raise UntameError
    count = 2 if predicated else rng.randrange(1, 5)
    chooser = chosen_scalar(body, "pred" if predicated else "s32")
    operands: list[Value] = []
    branches: list[Body] = []
    roots: list[Value] = []
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
        attributes = f"true_computation={branches[0].name}, false_computation={branches[1].name}"
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

    result = body.add("conditional", roots[0].shape, [chooser, *operands], transfer, attributes)
    return apart(body, result)


def chosen_scalar(body: Body, element_type: str) -> Value:
    """Choose or make an exact scalar of a type."""
    wanted = array_shape(element_type, ())
    scalars = [v for v in body.arrays(is_exact) if v.shape == wanted]
    if scalars and body.rng.random() < 0.7:
        return body.rng.choice(scalars)
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
    alike = [v for v in body.arrays() if v.shape == shape]
    if alike and body.rng.random() < 0.8:
        return body.rng.choice(alike[-4:])
    return body.fresh(shape.element_type.name, shape.dimensions)


FAMILIES: Families = {map_elements: 2, call: 3, fusion: 3, conditional: 3}
"""Family -> weight."""
