"""Ops on sizes that no grid divides, with strides, dilations, halos, groups and negative padding.

Planners cut such ops unevenly. A box that is off by one is off in what tiles exchange and in what
the program says of it, so that only values tell. Operands may come out of another op, which puts
them elsewhere than the planner wishes.
"""

from collections.abc import Callable, Iterable
from math import prod
from random import Random

from tools.conformance.case import (
    Case,
    Dimensions,
    Input,
    braces,
    module_text,
    scalar_region,
    shape_text,
)
from tools.conformance.contractions import Four, dot_attributes, dot_result
from tools.conformance.reductions import comparator, left, style_of

SIZES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
TYPES = ("f32", "s32", "bf16")
Draw = Callable[[Random], Case | None]
"""None where what is drawn has no elements."""
_STARTS = {
    "identity add": ("0", "0"), "identity maximum": ("-inf", "-2147483648"),
    "identity minimum": ("inf", "2147483647"),
}  # fmt: skip
"""What reductions start from, of floats and of integers."""
MOST_ELEMENTS = 6000
"""Of an array, so that XLA and one tile after the other take milliseconds."""


def odd_cases(count: int, seed: int) -> list[Case]:
    """Return so many cases, families in turn: the same ones for a seed, however many."""
    families = tuple(_FAMILIES)
    return [
        _drawn(families[n % len(families)], n, Random(f"odd shapes {seed}:{n}"))
        for n in range(count)
    ]


def _drawn(family: str, number: int, rng: Random) -> Case:
    while True:
        case = _FAMILIES[family](rng)
        if case is not None and all(prod(x.dimensions) <= MOST_ELEMENTS for x in case.inputs):
            return Case(
                case.opcode, case.element_type, f"odd {family} {number} {case.variant}", case.text,
                case.inputs, case.terms, case.combiner, case.summed,
            )  # fmt: skip


def _sizes(rng: Random, rank: int) -> Dimensions:
    return tuple(rng.choice(SIZES) for _ in range(rank))


def _case(
    rng: Random,
    opcode: str,
    inputs: list[Input],
    result: str,
    attributes: str = "",
    regions: str = "",
    moved: int = 1,
    **judged: object,
) -> Case:
    """Return the case of one op; some of its first `moved` operands come out of a reversal.

    What reductions start from is mostly a constant, as planners look for its being neutral.
    """
    names, before = [f"p{i}" for i in range(len(inputs))], []
    for i, given in enumerate(inputs[:moved]):
        if given.dimensions and rng.random() < 0.5:
            axis = rng.randrange(len(given.dimensions))
            names[i] = f"q{i}"
            before.append(f"  q{i} = {given.shape} reverse(p{i}), dimensions={{{axis}}}")
    for i, given in enumerate(inputs):
        if given.style in _STARTS and rng.random() < 0.8:
            names[i] = f"c{i}"
            literal = _STARTS[given.style][given.element_type == "s32"]
            before.append(f"  c{i} = {given.shape} constant({literal})")
    tail = f", {attributes}" if attributes else ""
    root = f"{result} {opcode}({', '.join(names)}){tail}"
    text = module_text(inputs, root, regions, "\n".join(before))
    kind = inputs[0].element_type
    return Case(opcode, kind, attributes, text, tuple(inputs), **judged)  # type: ignore[arg-type]


def _dot(rng: Random) -> Case | None:
    t = rng.choice(TYPES)
    batch, inner = _sizes(rng, rng.choice((0, 0, 1))), _sizes(rng, rng.choice((1, 1, 2)))
    rows, columns = _sizes(rng, rng.choice((0, 1, 1, 2))), _sizes(rng, rng.choice((0, 1, 1, 2)))
    sides, places = [], []
    for free in (rows, columns):
        dims = [("b", n) for n in range(len(batch))] + [("k", n) for n in range(len(inner))]
        dims += [("f", n) for n in range(len(free))]
        rng.shuffle(dims)
        size = {"b": batch, "k": inner, "f": free}
        sides.append(tuple(size[kind][n] for kind, n in dims))
        places.append(
            (
                tuple(dims.index(("b", n)) for n in range(len(batch))),
                tuple(dims.index(("k", n)) for n in range(len(inner))),
            )
        )
    numbers: Four = (places[0][0], places[1][0], places[0][1], places[1][1])
    inputs = [Input(t, side, "moderate") for side in sides]
    result = shape_text(t, dot_result(sides[0], sides[1], numbers))
    return _case(rng, "dot", inputs, result, dot_attributes(numbers), moved=2,
                 summed=(0, 1), terms=prod(inner))  # fmt: skip


def _window(rng: Random, kernel: int, kind: str = "") -> tuple[int, ...]:
    """Return size, stride, padding on both sides, dilation of the image and of the window."""
    stride, image = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 1, 2, 3))
    window = rng.choice((1, 1, 2))
    if kind == "input gradient":
        stride = 1
    if kind == "weight gradient":
        stride, image = rng.choice((1, 2)), 1
    low, high = (rng.randrange(-2, 4) for _ in range(2))
    return kernel, stride, low, high, image, window


def _out(size: int, window: tuple[int, ...]) -> int:
    kernel, stride, low, high, image, dilation = window
    padded = (size - 1) * image + 1 + low + high
    return (padded - (kernel - 1) * dilation - 1) // stride + 1 if padded > 0 else 0


def _window_text(windows: list[tuple[int, ...]], reversal: list[bool] | None = None) -> str:
    sizes, strides, _, _, images, dilations = zip(*windows, strict=True)
    pads = "x".join(f"{w[2]}_{w[3]}" for w in windows)
    text = f"size={_by(sizes)} stride={_by(strides)} pad={pads} "
    text += f"lhs_dilate={_by(images)} rhs_dilate={_by(dilations)}"
    if reversal is not None:
        text += f" rhs_reversal={_by([int(x) for x in reversal])}"
    return f"window={{{text}}}"


def _by(numbers: Iterable[int]) -> str:
    return "x".join(map(str, numbers))


def _convolution(kind: str) -> Draw:
    def drawn(rng: Random) -> Case | None:
        t, rank = rng.choice(TYPES), rng.choice((1, 2))
        image = tuple(rng.choice(SIZES[1:7]) for _ in range(rank))
        most = min(image) if kind == "weight gradient" else 4
        kernel = tuple(rng.randrange(1, most + 1) for _ in range(rank))
        windows = [_window(rng, k, kind) for k in kernel]
        out = tuple(_out(n, w) for n, w in zip(image, windows, strict=True))
        if min(out) < 1:
            return None
        groups, batches = 1, 1
        if kind == "grouped":
            groups, batches = rng.choice(((2, 1), (3, 1), (5, 1), (1, 2), (1, 3)))
        batch = batches * rng.choice((1, 2, 3, 5))
        inner, features = rng.choice((1, 3, 5, 7)), groups * batches * rng.choice((1, 3, 5))
        reversal = [kind == "input gradient" or rng.random() < 0.2 for _ in range(rank)]
        spatial = "012"[:rank]
        labels = {
            "weight gradient": (f"f{spatial}b", f"i{spatial}o", f"{spatial}bf"),
            "input gradient": (f"b{spatial}f", f"{spatial}oi", f"b{spatial}f"),
        }.get(kind, tuple("".join(rng.sample(x + spatial, rank + 2)) for x in ("bf", "io", "bf")))
        sizes = {"b": batch, "f": groups * inner, "i": inner, "o": features}
        target = {"b": batch // batches, "f": features}

        def shape(label: str, lengths: tuple[int, ...], named: dict[str, int]) -> Dimensions:
            return tuple(lengths[int(c)] if c.isdigit() else named[c] for c in label)

        attributes = f"{_window_text(windows, reversal)}, "
        attributes += f"dim_labels={labels[0]}_{labels[1]}->{labels[2]}"
        attributes += f", feature_group_count={groups}" if groups > 1 else ""
        attributes += f", batch_group_count={batches}" if batches > 1 else ""
        return _case(
            rng, "convolution",
            [Input(t, shape(labels[0], image, sizes), "moderate"),
             Input(t, shape(labels[1], kernel, sizes), "moderate")],
            shape_text(t, shape(labels[2], out, target)), attributes, moved=2,
            summed=(0, 1), terms=inner * prod(kernel),
        )  # fmt: skip

    return drawn


def _monoid(rng: Random, t: str) -> tuple[str, str, str]:
    combiner = rng.choice(("add", "add", "maximum", "minimum"))
    return combiner, scalar_region("combine", combiner, t), style_of(combiner, t)


def _reduce(rng: Random) -> Case | None:
    t, sizes = rng.choice(TYPES), _sizes(rng, rng.choice((1, 2, 3, 4)))
    combiner, region, style = _monoid(rng, t)
    dims = tuple(sorted(rng.sample(range(len(sizes)), rng.randrange(1, len(sizes) + 1))))
    return _case(
        rng, "reduce", [Input(t, sizes, style), Input(t, (), f"identity {combiner}")],
        shape_text(t, left(sizes, dims)), f"dimensions={braces(dims)}, to_apply=combine", region,
        terms=1 + prod(sizes[d] for d in dims), combiner=combiner,
        summed=(0, 1) if combiner == "add" else None,
    )  # fmt: skip


def _reduce_window(rng: Random) -> Case | None:
    t, sizes = rng.choice(TYPES), _sizes(rng, rng.choice((1, 2, 3)))
    combiner, region, style = _monoid(rng, t)
    windows = [_window(rng, rng.randrange(1, 5)) for _ in sizes]
    out = tuple(_out(n, w) for n, w in zip(sizes, windows, strict=True))
    if min(out) < 1:
        return None
    return _case(
        rng, "reduce-window", [Input(t, sizes, style), Input(t, (), f"identity {combiner}")],
        shape_text(t, out), f"{_window_text(windows)}, to_apply=combine", region,
        terms=1 + prod(w[0] for w in windows), combiner=combiner,
        summed=(0, 1) if combiner == "add" else None,
    )  # fmt: skip


def _running_total(rng: Random) -> Case | None:
    t, sizes = rng.choice(TYPES), _sizes(rng, rng.choice((0, 0, 1, 2)))
    # Long ones come in pieces, whose totals are added up first.
    place = rng.randrange(len(sizes) + 1)
    sizes = (*sizes[:place], rng.choice((13, 210, 612, 1015)), *sizes[place:])
    combiner, region, style = _monoid(rng, t)
    axis, after = rng.choice((place, rng.randrange(len(sizes)))), rng.random() < 0.5
    n = sizes[axis]
    one: tuple[int, ...] = (1, 1, 0, 0, 1, 1)
    whole: tuple[int, ...] = (n, 1, 0 if after else n - 1, n - 1 if after else 0, 1, 1)
    windows = [whole if d == axis else one for d in range(len(sizes))]
    return _case(
        rng, "reduce-window", [Input(t, sizes, style), Input(t, (), f"identity {combiner}")],
        shape_text(t, sizes), f"{_window_text(windows)}, to_apply=combine", region,
        terms=1 + n, combiner=combiner, summed=(0, 1) if combiner == "add" else None,
    )  # fmt: skip


def _gather(rng: Random) -> Case | None:
    t, (rows, width, count) = rng.choice(TYPES), _sizes(rng, 3)
    taken = rng.randrange(1, width + 1)
    return _case(
        rng, "gather", [Input(t, (rows, width)), Input("s32", (count,), "indices", rows)],
        shape_text(t, (count, taken)),
        "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        f"slice_sizes={{1,{taken}}}",
    )  # fmt: skip


def _scatter(rng: Random) -> Case | None:
    t, (rows, width, count) = rng.choice(TYPES), _sizes(rng, 3)
    combiner, region, style = _monoid(rng, t)
    taken = rng.randrange(1, width + 1)
    return _case(
        rng, "scatter",
        [Input(t, (rows, width), style), Input("s32", (count, 1), "indices", rows),
         Input(t, (count, taken), style)],
        shape_text(t, (rows, width)),
        "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
        "index_vector_dim=1, to_apply=combine",
        region, terms=count + 2, combiner=combiner, summed=(0, 2) if combiner == "add" else None,
    )  # fmt: skip


def _sort(rng: Random) -> Case | None:
    t, sizes = rng.choice(TYPES), _sizes(rng, rng.choice((1, 2)))
    sizes = (rng.choice((97, 211, 601)),) if len(sizes) == 1 else sizes
    axis = rng.randrange(len(sizes))
    order = ", type=TOTALORDER" if t != "s32" else ""
    region = comparator([t, "s32"], rng.choice(("LT", "GT")), order)
    return _case(
        rng, "sort", [Input(t, sizes, "whole"), Input("s32", sizes, "distinct")],
        f"({shape_text(t, sizes)}, {shape_text('s32', sizes)})",
        f"dimensions={{{axis}}}, is_stable=true, to_apply=comparator", region, moved=2,
    )  # fmt: skip


def _top_k(rng: Random) -> Case | None:
    t, length = rng.choice(("f32", "s32")), rng.choice((97, 211, 601))
    sizes = (*_sizes(rng, rng.choice((0, 1))), length)
    k = rng.choice((1, 3, 7, 13))
    target = (*sizes[:-1], k)
    return _case(
        rng, "topk", [Input(t, sizes, "moderate")],
        f"({shape_text(t, target)}, {shape_text('s32', target)})", f"k={k}, largest=true",
    )  # fmt: skip


def _transpose(rng: Random) -> Case | None:
    t, sizes = rng.choice(TYPES), _sizes(rng, rng.choice((2, 3, 4)))
    order = rng.sample(range(len(sizes)), len(sizes))
    result = shape_text(t, [sizes[d] for d in order])
    return _case(rng, "transpose", [Input(t, sizes)], result, f"dimensions={braces(order)}")


def _concatenate(rng: Random) -> Case | None:
    t, sizes = rng.choice(TYPES), list(_sizes(rng, rng.choice((1, 2, 3))))
    axis = rng.randrange(len(sizes))
    parts = []
    for _ in range(rng.randrange(2, 5)):
        sizes[axis] = rng.choice(SIZES)
        parts.append(Input(t, tuple(sizes)))
    sizes[axis] = sum(x.dimensions[axis] for x in parts)
    return _case(rng, "concatenate", parts, shape_text(t, sizes), f"dimensions={{{axis}}}", moved=3)


def _pad(rng: Random) -> Case | None:
    t, sizes = rng.choice(TYPES), _sizes(rng, rng.choice((1, 2, 3)))
    apart = rng.choice((0, 0, 0, 1, 2))
    pads = [(rng.randrange(-3, 4), rng.randrange(-3, 4), rng.choice((0, apart))) for _ in sizes]
    out = [low + high + n + (n - 1) * x for n, (low, high, x) in zip(sizes, pads, strict=True)]
    if min(out) < 1:
        return None
    text = "x".join(f"{low}_{high}_{x}" for low, high, x in pads)
    return _case(rng, "pad", [Input(t, sizes), Input(t, ())], shape_text(t, out), f"padding={text}")


def _slice(rng: Random) -> Case | None:
    t, sizes = rng.choice(TYPES), _sizes(rng, rng.choice((1, 2, 3)))
    strides = rng.choice(((1,), (1,), (1, 2, 3)))
    ranges, out = [], []
    for n in sizes:
        first = rng.randrange(n)
        last, step = rng.randrange(first + 1, n + 1), rng.choice(strides)
        ranges.append(f"[{first}:{last}:{step}]")
        out.append(-(-(last - first) // step))
    text = f"slice={{{', '.join(ranges)}}}"
    return _case(rng, "slice", [Input(t, sizes)], shape_text(t, out), text)


def _dynamic(opcode: str) -> Draw:
    def drawn(rng: Random) -> Case | None:
        t, sizes = rng.choice(TYPES), _sizes(rng, rng.choice((1, 2, 3)))
        taken = tuple(rng.randrange(1, n + 1) for n in sizes)
        starts = [Input("s32", (), "indices", n) for n in sizes]
        if opcode == "dynamic-slice":
            return _case(rng, opcode, [Input(t, sizes), *starts], shape_text(t, taken),
                         f"dynamic_slice_sizes={braces(taken)}")  # fmt: skip
        inputs = [Input(t, sizes), Input(t, taken), *starts]
        return _case(rng, opcode, inputs, shape_text(t, sizes), moved=2)

    return drawn


_FAMILIES: dict[str, Draw] = {
    "dot": _dot,
    **{f"convolution, {kind}": _convolution(kind)
       for kind in ("forward", "input gradient", "weight gradient", "grouped")},
    "reduce": _reduce, "reduce-window": _reduce_window, "running total": _running_total,
    "gather": _gather, "scatter": _scatter, "sort": _sort, "topk": _top_k,
    "transpose": _transpose, "concatenate": _concatenate, "pad": _pad, "slice": _slice,
    "dynamic-slice": _dynamic("dynamic-slice"),
    "dynamic-update-slice": _dynamic("dynamic-update-slice"),
}  # fmt: skip
