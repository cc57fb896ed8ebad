"""Families of windows: reduce-window, select-and-scatter."""

from collections.abc import Sequence
from math import prod

from tools.fuzz_programs.adjusting import is_float
from tools.fuzz_programs.builder import Body, Families
from tools.fuzz_programs.facts import Facts, UntameError, represents
from tools.fuzz_programs.regions import combiner_region, combining, initial, reducible
from tools.fuzz_programs.values import Value, array_shape, braces


def window_of(body: Body, sizes: Sequence[int], *, dilated: bool) -> tuple[str, list[int], int]:
    """Draw a window; returns its text, the result's sizes and the elements of one window."""
    rng = body.rng
    parts: dict[str, list[str]] = {
        "size": [],
        "stride": [],
        "pad": [],
        "lhs_dilate": [],
        "rhs_dilate": [],
    }
    result, count = [], 1
    for n in sizes:
        size, stride = rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2))
        base, spread = (rng.choice((1, 1, 2)) if dilated else 1 for _ in range(2))
        low, high = rng.choice((0, 0, 1)), rng.choice((0, 1, 2))
        whole = low + high + (max(0, n - 1) * base + min(n, 1))
        reach = (size - 1) * spread + 1
        result.append(0 if reach > whole else (whole - reach) // stride + 1)
        count *= size
        words = (size, stride, f"{low}_{high}", base, spread)
        for key, word in zip(parts, words, strict=True):
            parts[key].append(str(word))
    text = " ".join(f"{key}={'x'.join(words)}" for key, words in parts.items())
    return f"window={{{text}}}", result, count


def reduce_window(body: Body) -> Value:
    """Append a reduce-window with strides, padding and dilations."""
    value, opcode = reducible(body, most=200)
    if not value.sizes or opcode not in ("add", "maximum", "minimum", "and", "or", "multiply"):
        raise UntameError
    start = initial(body, opcode, value)
    text, sizes, count = window_of(body, value.sizes, dilated=True)
    region = combiner_region(body, opcode, value.type)
    shape = array_shape(value.type, sizes)
    transfer = combining(opcode, value.type, count, padded=True)
    return body.add("reduce-window", shape, [value, start], transfer, f"{text}, to_apply={region}")


def select_and_scatter(body: Body) -> Value:
    """Append a select-and-scatter: what the gradient of a pooling does.

    Its operand has no ties: HLO leaves the order open in which a window is visited.
    """
    value = distinct(body, body.pick(lambda v: is_float(v) and 1 <= len(v.sizes) <= 3))
    text, sizes, count = window_of(body, value.sizes, dilated=False)
    text = text.partition(" lhs_dilate")[0] + "}"
    if 0 in sizes or 0 in value.sizes:
        raise UntameError
    source = body.fresh(value.type, sizes)
    region = combiner_region(body, "add", value.type)
    select = Body(body.draft, "select")
    known, scalar = Facts(0, 0, 0, 1), array_shape(value.type, ())
    a, b = (select.parameter(scalar, known) for _ in range(2))
    direction = f"direction={body.rng.choice(('GE', 'LE'))}"
    select.root(select.add("compare", array_shape("pred", ()), [a, b], lambda *_: known, direction))
    total = combining("add", value.type, count)
    return body.add(
        "select-and-scatter", value.shape, [value, source, body.scalar(value.type, 0)],
        lambda f, g, s: total(g, s), f"{text}, select={select.name}, scatter={region}",
    )  # fmt: skip


def distinct(body: Body, like: Value) -> Value:
    """Make an array of different numbers of the shape and type of another."""
    count = prod(like.sizes)
    facts = Facts(0, max(0, count - 1), 0, 1)
    if not represents(like.type, facts):
        raise UntameError
    flat = array_shape(like.type, (count,))
    numbers = body.add("iota", flat, [], lambda: facts, "iota_dimension=0")
    order = body.rng.sample(range(len(like.sizes)), len(like.sizes))
    turned = array_shape(like.type, [like.sizes[d] for d in order])
    shaped = body.same("reshape", turned, numbers)
    back = [order.index(d) for d in range(len(order))]
    return body.same("transpose", like.shape, shaped, f"dimensions={braces(back)}")


FAMILIES: Families = {reduce_window: 3, select_and_scatter: 1}
"""Family -> weight."""
