"""Random instructions, right and wrong, as module texts: what the shape rules are measured with.

Each draw starts from a right instruction and sometimes changes a size, a type or a number.
"""

from collections.abc import Callable, Sequence
from random import Random

ADD = "f {{ a = {0}[] parameter(0)  b = {0}[] parameter(1)  ROOT r = {0}[] add(a, b) }}\n"
LESS = (
    "f {{ a = {0}[] parameter(0)  b = {0}[] parameter(1)"
    "  ROOT r = pred[] compare(a, b), direction=LT }}\n"
)
FLOATS = ("f32", "f32", "f32", "bf16", "f64", "f8e5m2")
TYPES = (*FLOATS, "s32", "s32", "u8", "s4", "pred", "c64")


class Draw:
    """A source of random texts; `changes` is how often something is made wrong."""

    def __init__(self, seed: int, changes: float = 0.08) -> None:
        self.random = Random(seed)
        self.changes = changes

    def text(self) -> tuple[str, str]:
        """Return an opcode and the text of a module whose root is one such instruction."""
        opcode, draw = self.random.choice(DRAWS)
        return opcode, draw(self, opcode)

    # ---- pieces ---------------------------------------------------------------------------------
    def changed(self) -> bool:
        """Whether to make something wrong now."""
        return self.random.random() < self.changes

    def element_type(self, name: str, among: Sequence[str] = TYPES) -> str:
        """Return the type, seldom another."""
        return self.random.choice(among) if self.changed() else name

    def sizes(self, fewest: int = 0, most: int = 3) -> list[int]:
        """Return a few small sizes, zeros and ones among them."""
        rank = self.random.randint(fewest, most)
        return [self.random.choice((0, 1, 2, 3, 4, 6)) for _ in range(rank)]

    def near(self, sizes: Sequence[int]) -> list[int]:
        """Return the sizes, seldom one of them changed, added or left out."""
        found = list(sizes)
        if self.changed():
            kind, at = self.random.randrange(3), self.random.randrange(len(found) + 1)
            if kind == 0:
                found.insert(at, self.random.choice((1, 2)))
            elif found and kind == 1:
                found.pop(at - 1)
            elif found:
                found[at - 1] = max(0, found[at - 1] + self.random.choice((-1, 1)))
        return found

    def numbers(self, numbers: Sequence[int]) -> str:
        """Return a list of dimension numbers as text, seldom a wrong one."""
        found = list(numbers)
        if self.changed():
            found.insert(0, self.random.randint(-1, 3))
        if self.changed() and found:
            found.pop()
        return "{" + ",".join(map(str, found)) + "}"

    def subset(self, count: int) -> list[int]:
        """Return some of the numbers below a count, ascending."""
        return sorted(self.random.sample(range(count), self.random.randint(0, count)))


def shaped(element_type: str, sizes: Sequence[int]) -> str:
    """Return a shape as text."""
    return f"{element_type}[{','.join(map(str, sizes))}]"


def module(opcode: str, operands: Sequence[str], more: str = "", to: str = "", f: str = "") -> str:
    """Return a module: parameters of the operands' shapes, then the instruction."""
    lines = [f"  p{i} = {shape} parameter({i})" for i, shape in enumerate(operands)]
    names = ", ".join(f"p{i}" for i in range(len(operands)))
    lines.append(f"  ROOT z = {to} {opcode}({names}){more}")
    return "HloModule m\n" + f + "ENTRY e {\n" + "\n".join(lines) + "\n}\n"


def _unary(draw: Draw, opcode: str) -> str:
    return module(opcode, [shaped(draw.random.choice(TYPES), draw.sizes())])


def _binary(draw: Draw, opcode: str) -> str:
    name, sizes = draw.random.choice(TYPES), draw.sizes()
    more = ", direction=GE" if opcode == "compare" else ""
    kinds = ("", ", type=FLOAT", ", type=TOTALORDER", ", type=SIGNED", ", type=UNSIGNED")
    more += draw.random.choice(kinds) if opcode == "compare" else ""
    other = shaped(draw.element_type(name), draw.near(sizes))
    return module(opcode, [shaped(name, sizes), other], more)


def _select(draw: Draw, opcode: str) -> str:
    name, sizes = draw.random.choice(TYPES), draw.sizes()
    chooser = draw.near(sizes) if draw.random.random() < 0.6 else draw.near(())
    operands = [shaped(draw.element_type("pred"), chooser), shaped(name, sizes)]
    return module(opcode, [*operands, shaped(draw.element_type(name), draw.near(sizes))])


def _broadcast(draw: Draw, opcode: str) -> str:
    name, sizes = draw.random.choice(TYPES), draw.sizes()
    kept = draw.subset(len(sizes))
    operand = shaped(draw.element_type(name), draw.near([sizes[d] for d in kept]))
    return module(opcode, [operand], f", dimensions={draw.numbers(kept)}", shaped(name, sizes))


def _transpose(draw: Draw, opcode: str) -> str:
    sizes = draw.sizes()
    order = list(range(len(sizes)))
    draw.random.shuffle(order)
    return module(opcode, [shaped("f32", sizes)], f", dimensions={draw.numbers(order)}")


def _slice(draw: Draw, opcode: str) -> str:
    sizes, ranges, made = draw.sizes(), [], []
    for size in sizes:
        start = draw.random.randint(0, size)
        limit = draw.random.randint(start, size) + (1 if draw.changed() else 0)
        stride = 0 if draw.changed() else draw.random.randint(1, 3)
        ranges.append(f"[{start}:{limit}:{stride}]")
        made.append(-(-(limit - start) // stride) if stride else 0)
    more = f", slice={{{', '.join(ranges)}}}"
    return module(opcode, [shaped("s32", sizes)], more, shaped("s32", draw.near(made)))


def _pad(draw: Draw, opcode: str) -> str:
    name, sizes = draw.random.choice(TYPES), draw.sizes(1)
    pick = draw.random.randint
    edges = [f"{pick(-2, 2)}_{pick(-1, 2)}_{pick(0, 2)}" for _ in draw.near(sizes)] or ["0_0"]
    value = shaped(draw.element_type(name), draw.near(()))
    return module(opcode, [shaped(name, sizes), value], f", padding={'x'.join(edges)}")


def _concatenate(draw: Draw, opcode: str) -> str:
    name, sizes = draw.random.choice(TYPES), draw.sizes(1)
    along = draw.random.randrange(len(sizes))
    operands = []
    for _ in range(draw.random.randint(1, 3)):
        part = [draw.random.randint(0, 3) if d == along else n for d, n in enumerate(sizes)]
        operands.append(shaped(draw.element_type(name), draw.near(part)))
    return module(opcode, operands, f", dimensions={{{along}}}")


def _dynamic_slice(draw: Draw, opcode: str) -> str:
    sizes = draw.sizes()
    part = [draw.random.randint(0, n) + (1 if draw.changed() else 0) for n in sizes]
    starts = [shaped(draw.element_type("s32"), draw.near(())) for _ in draw.near(sizes)]
    more = f", dynamic_slice_sizes={{{','.join(map(str, part))}}}"
    return module(opcode, [shaped("f32", sizes), *starts], more, shaped("f32", draw.near(part)))


def _reduce(draw: Draw, opcode: str) -> str:
    name, sizes = draw.random.choice(TYPES), draw.sizes()
    more = f", dimensions={draw.numbers(draw.subset(len(sizes)))}, to_apply=f"
    init = shaped(draw.element_type(name), draw.near(()))
    return module(opcode, [shaped(name, sizes), init], more, f=ADD.format(draw.element_type(name)))


def _window(draw: Draw, sizes: Sequence[int], kernel: Sequence[int] = ()) -> str:
    pick, count = draw.random.randint, len(draw.near(sizes))
    sides = kernel or [pick(1, 3) for _ in sizes]
    keys = {
        "size": [str(side) for side in [*sides, 1][:count]],
        "stride": [str(0 if draw.changed() else pick(1, 2)) for _ in range(count)],
        "pad": [f"{pick(-1, 2)}_{pick(0, 2)}" for _ in range(count)],
        "rhs_dilate": [str(pick(1, 2)) for _ in range(count)],
    }
    return ", window={" + " ".join(f"{k}={'x'.join(v)}" for k, v in keys.items() if v) + "}"


def _reduce_window(draw: Draw, opcode: str) -> str:
    sizes = [n + 2 for n in draw.sizes(1)]
    more = _window(draw, sizes) + ", to_apply=f"
    return module(opcode, [shaped("f32", sizes), "f32[]"], more, f=ADD.format("f32"))


def _convolution(draw: Draw, opcode: str) -> str:
    kernel = [draw.random.randint(1, 3) for _ in range(draw.random.randint(1, 2))]
    digits = [str(i) for i in range(len(kernel))]
    groups, taken = draw.random.choice((1, 1, 2)), draw.random.randint(1, 2)
    left = {"b": 2, "f": taken * groups, **dict.fromkeys(digits, 5)}
    right = {"i": taken, "o": 2 * groups, **dict(zip(digits, kernel, strict=True))}
    labels = []
    for names in ("bf", "io", "bf"):
        order = [*names, *digits]
        draw.random.shuffle(order)
        labels.append("".join(order))
    more = f"{_window(draw, kernel, kernel)}, dim_labels={labels[0]}_{labels[1]}->{labels[2]}"
    more += f", feature_group_count={0 if draw.changed() else groups}"
    operands = [
        shaped("f32", draw.near([left[c] for c in labels[0]])),
        shaped(draw.element_type("f32", FLOATS), draw.near([right[c] for c in labels[1]])),
    ]
    return module(opcode, operands, more)


def _dot(draw: Draw, opcode: str) -> str:
    batch, inner = draw.sizes(0, 1), draw.sizes(0, 2)
    more, operands = "", []
    for side in ("lhs", "rhs"):
        dimensions = [*batch, *inner, *draw.sizes(0, 2)]
        order = list(range(len(dimensions)))
        draw.random.shuffle(order)
        places = [order.index(d) for d in range(len(batch) + len(inner))]
        more += f", {side}_batch_dims={draw.numbers(places[: len(batch)])}"
        more += f", {side}_contracting_dims={draw.numbers(places[len(batch) :])}"
        found = shaped(draw.element_type("f32"), draw.near([dimensions[d] for d in order]))
        operands.append(found)
    return module(opcode, operands, more)


def _gather(draw: Draw, opcode: str) -> str:
    sizes = draw.sizes(1)
    collapsed = draw.subset(len(sizes))
    mapped = draw.subset(len(sizes))
    slices = [min(1, n) if d in collapsed else max(0, n - 1) for d, n in enumerate(sizes)]
    batch = draw.sizes(0, 2)
    vector = draw.random.randint(0, len(batch))
    indices = [*batch[:vector], len(mapped), *batch[vector:]]
    kept = len(sizes) - len(collapsed)
    offsets = sorted(draw.random.sample(range(kept + len(batch)), kept))
    more = (
        f", offset_dims={draw.numbers(offsets)}, collapsed_slice_dims={draw.numbers(collapsed)}"
        f", start_index_map={draw.numbers(mapped)}, index_vector_dim={vector}"
        f", slice_sizes={{{','.join(map(str, draw.near(slices)))}}}"
    )
    operands = [shaped("f32", sizes), shaped(draw.element_type("s32"), draw.near(indices))]
    return module(opcode, operands, more)


def _sort(draw: Draw, opcode: str) -> str:
    name, sizes = draw.random.choice(FLOATS), draw.sizes(1)
    along = draw.random.randrange(len(sizes) + (1 if draw.changed() else 0))
    more = f", dimensions={{{along}}}, to_apply=f"
    return module(
        opcode, [shaped(name, sizes)], more, f=LESS.format(draw.element_type(name, FLOATS))
    )


_ONE = "tanh floor abs not negate is-finite popcnt sign real copy cholesky".split()
_TWO = "add subtract and shift-left complex compare atan2 maximum".split()
DRAWS: tuple[tuple[str, Callable[[Draw, str], str]], ...] = (
    *((opcode, _unary) for opcode in _ONE),
    *((opcode, _binary) for opcode in _TWO),
    ("select", _select), ("broadcast", _broadcast), ("transpose", _transpose), ("slice", _slice),
    ("pad", _pad), ("concatenate", _concatenate), ("dynamic-slice", _dynamic_slice),
    ("reduce", _reduce), ("reduce-window", _reduce_window), ("convolution", _convolution),
    ("dot", _dot), ("gather", _gather), ("sort", _sort),
)  # fmt: skip
