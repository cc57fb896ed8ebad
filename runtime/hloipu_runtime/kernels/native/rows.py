"""Writes a kernel over rows as LLVM text: loops along each row, and reductions between them.

Sums are added up in numpy's order of a contiguous axis, so that they have numpy's bits: eight
running sums of up to 128 elements, and halves of more (numpy/numpy:
numpy/_core/src/umath/loops_utils.h.src, `pairwise_sum`). Extrema have the same bits in any order.
"""

from collections.abc import Iterable
from typing import NamedTuple

from hloipu_runtime.kernels.native.instructions import Instruction, write
from hloipu_runtime.kernels.native.loop import INTERLEAVED, NEXT_ROW
from hloipu_runtime.kernels.native.text import Text, memory_type, number, register_type

FEWEST_SUMMED = 33
"""Columns: fewer are added up in other orders, see `kernels.reduction`."""


class RowPlace(NamedTuple):
    """An array of rows: where a value is read from or written to."""

    value: int
    type: str
    """Storage type."""
    is_shared: bool
    """Whether a row has one element, which all its columns share."""


class RowReduction(NamedTuple):
    """A value of all columns of a row, reduced to one of the row: add, maximum or minimum."""

    value: int
    source: int
    """Stands in a place."""
    monoid: str


Numbered = tuple[int, Instruction]


class RowLoop(NamedTuple):
    """What is done along a row, and then once for the row."""

    columns: tuple[Numbered, ...]
    """For each column; values that former loops made are read from their places."""
    stored: tuple[int, ...]
    """Values for each column that are written to their places."""
    reductions: tuple[RowReduction, ...]
    rows: tuple[Numbered, ...]


class RowKernel(NamedTuple):
    """What a compiled kernel does, row by row."""

    places: tuple[RowPlace, ...]
    inputs: frozenset[int]
    """Values that are there before."""
    outputs: frozenset[int]
    """Values of rows that are written to their places."""
    literals: tuple[tuple[int, str, str], ...]
    """Numbers, storage types and texts of values that are the same for good: integers, pred."""
    rows: tuple[Numbered, ...]
    """What is done once for the row before all loops."""
    loops: tuple[RowLoop, ...]


class _Writing:
    """The text of a kernel so far."""

    def __init__(self, kernel: RowKernel) -> None:
        self.kernel = kernel
        self.body = Text()
        self.names: dict[int, str] = {}
        """Of values of the row."""
        self.types = {place.value: place.type for place in kernel.places}
        self.place = {place.value: k for k, place in enumerate(kernel.places)}
        self.reducers: dict[str, list[str]] = {}
        self.groups: list[str] = []
        """Metadata of loops."""
        for value, kind, text in kernel.literals:
            self.names[value], self.types[value] = text, kind

    def line(self, text: str) -> None:
        self.body.lines.append(text)

    def argument(self, kind: str, position: int) -> str:
        at = self.body.new(f"getelementptr i64, ptr %arguments, i64 {position}")
        return self.body.new(f"load {kind}, ptr {at}")

    def instructions(self, numbered: Iterable[Numbered], names: dict[int, str]) -> None:
        for value, instruction in numbered:
            given = instruction.arguments
            self.types[value] = instruction.type
            names[value] = write(
                self.body, instruction, [names[x] for x in given], [self.types[x] for x in given]
            )

    def load(self, value: int, row: str, column: str | None) -> str:
        memory, register = memory_type(self.types[value]), register_type(self.types[value])
        access = ""
        if column is not None:
            row = self.body.new(f"getelementptr {memory}, ptr {row}, i64 {column}")
            access = ", !llvm.access.group !0"
        loaded = self.body.new(f"load {memory}, ptr {row}{access}")
        return loaded if memory == register else self.body.new(f"icmp ne {memory} {loaded}, 0")

    def store(self, value: int, name: str, row: str, column: str | None) -> None:
        memory, register = memory_type(self.types[value]), register_type(self.types[value])
        access = ""
        if column is not None:
            row = self.body.new(f"getelementptr {memory}, ptr {row}, i64 {column}")
            access = ", !llvm.access.group !0"
        if memory != register:
            name = self.body.new(f"zext {register} {name} to {memory}")
        self.line(f"  store {memory} {name}, ptr {row}{access}")

    def loop(self, k: int, loop: RowLoop, before: str, rows: list[str]) -> str:
        """Write one loop and what follows it; return the label where that stands."""
        label = before
        if loop.columns or loop.stored:
            label = f"ended{k}"
            self.groups.append(f"!{10 + k} = distinct !{{!{10 + k}, !1, !2}}")
            self.line(f"  br label %inner{k}")
            self.line(f"inner{k}:")
            column = f"%column{k}"
            self.line(f"  {column} = phi i64 [0, %{before}], [%following{k}, %inner{k}]")
            names = dict(self.names)
            computed = {value for value, _ in loop.columns}
            reads = [number for _, instruction in loop.columns for number in instruction.arguments]
            for x in dict.fromkeys((*reads, *loop.stored)):
                if x not in names and x not in computed:
                    names[x] = self.load(x, rows[self.place[x]], column)
            self.instructions(loop.columns, names)
            for x in loop.stored:
                self.store(x, names[x], rows[self.place[x]], column)
            self.line(f"  %following{k} = add nuw i64 {column}, 1")
            self.line(f"  %more{k} = icmp ult i64 %following{k}, %columns")
            self.line(f"  br i1 %more{k}, label %inner{k}, label %{label}, !llvm.loop !{10 + k}")
            self.line(f"{label}:")
        for value, source, monoid in loop.reductions:
            kind = self.types[value] = self.types[source]
            name, self.reducers[name], declared = reducer(monoid, kind)
            self.body.intrinsics |= declared
            at = rows[self.place[source]]
            register = register_type(kind)
            reduced = self.body.new(f"call {register} @{name}(ptr {at}, i64 %columns)")
            if monoid == "add":  # as numpy's reductions begin with zero
                reduced = self.body.new(f"fadd {register} {number(0.0)}, {reduced}")
            self.names[value] = reduced
        self.instructions(loop.rows, self.names)
        return label


def text_of(kernel: RowKernel, name: str) -> str:
    """Return a kernel as a function `name` of an array of integers, see `loop.arguments`."""
    writing = _Writing(kernel)
    body = writing.body
    body.lines += [
        f"define void @{name}(ptr %arguments) #0 {{",
        "entry:",
        "  %rows = load i64, ptr %arguments",
        "  %columns.at = getelementptr i64, ptr %arguments, i64 1",
        "  %columns = load i64, ptr %columns.at",
    ]
    pointers, strides = [], []
    for k in range(len(kernel.places)):
        pointers.append(writing.argument("ptr", 2 + 2 * k))
        strides.append(writing.argument("i64", 3 + 2 * k))
    body.lines += ["  br label %outer", "outer:", "  %row = phi i64 [0, %entry], [%next, %ended]"]
    rows = []
    for pointer, stride in zip(pointers, strides, strict=True):
        offset = body.new(f"mul i64 %row, {stride}")
        rows.append(body.new(f"getelementptr i8, ptr {pointer}, i64 {offset}"))
    for k, place in enumerate(kernel.places):
        if place.is_shared and place.value in kernel.inputs:
            writing.names[place.value] = writing.load(place.value, rows[k], None)
    writing.instructions(kernel.rows, writing.names)
    label = "outer"
    for k, loop in enumerate(kernel.loops):
        label = writing.loop(k, loop, label, rows)
    for k, place in enumerate(kernel.places):
        if place.is_shared and place.value in kernel.outputs:
            writing.store(place.value, writing.names[place.value], rows[k], None)
    body.lines += ["  br label %ended", *NEXT_ROW]
    reducers = [line for key in sorted(writing.reducers) for line in writing.reducers[key]]
    lines = [
        *sorted(body.intrinsics.values()),
        *reducers,
        *body.lines,
        'attributes #0 = { nounwind "denormal-fp-math"="dynamic,dynamic" }',
        "!0 = distinct !{}",
        '!1 = !{!"llvm.loop.parallel_accesses", !0}',
        f'!2 = !{{!"llvm.loop.interleave.count", i32 {INTERLEAVED}}}',
        *writing.groups,
    ]
    return "\n".join(lines) + "\n"


def reducer(monoid: str, kind: str) -> tuple[str, list[str], dict[str, str]]:
    """Return a function's name, its text, and what it declares: elements side by side, reduced."""
    if monoid == "add":
        return f"add.{kind}", _sum(kind), {}
    return f"{monoid}.{kind}", _extremum(monoid, kind), _declared_by_extrema(kind)


def _sum(kind: str) -> list[str]:
    """Return the function that adds up eight elements or more in numpy's order."""
    t = register_type(kind)
    v = f"<8 x {t}>"
    align = "align 4" if t == "float" else "align 8"
    parts = [f"  %r{k} = extractelement {v} %total, i32 {k}" for k in range(8)]
    pairs = [f"  %q{k} = fadd {t} %r{2 * k}, %r{2 * k + 1}" for k in range(4)]
    return [
        f"define internal {t} @add.{kind}(ptr %x, i64 %n) #0 {{",
        "entry:",
        "  %many = icmp ugt i64 %n, 128",
        "  br i1 %many, label %halves, label %leaf",
        "halves:",
        "  %half = lshr i64 %n, 1",
        "  %first = and i64 %half, -8",
        "  %last = sub i64 %n, %first",
        f"  %behind = getelementptr {t}, ptr %x, i64 %first",
        f"  %a = call {t} @add.{kind}(ptr %x, i64 %first)",
        f"  %b = call {t} @add.{kind}(ptr %behind, i64 %last)",
        f"  %ab = fadd {t} %a, %b",
        f"  ret {t} %ab",
        "leaf:",
        "  %whole = and i64 %n, -8",
        f"  %begin = load {v}, ptr %x, {align}",
        "  %is_more = icmp ugt i64 %whole, 8",
        "  br i1 %is_more, label %eights, label %together",
        "eights:",
        "  %i = phi i64 [8, %leaf], [%j, %eights]",
        f"  %sums = phi {v} [%begin, %leaf], [%added, %eights]",
        f"  %at = getelementptr {t}, ptr %x, i64 %i",
        f"  %taken = load {v}, ptr %at, {align}",
        f"  %added = fadd {v} %sums, %taken",
        "  %j = add nuw i64 %i, 8",
        "  %on = icmp ult i64 %j, %whole",
        "  br i1 %on, label %eights, label %together",
        "together:",
        f"  %total = phi {v} [%begin, %leaf], [%added, %eights]",
        *parts,
        *pairs,
        f"  %h0 = fadd {t} %q0, %q1",
        f"  %h1 = fadd {t} %q2, %q3",
        f"  %sum = fadd {t} %h0, %h1",
        "  %is_rest = icmp ult i64 %whole, %n",
        "  br i1 %is_rest, label %rest, label %done",
        "rest:",
        "  %k = phi i64 [%whole, %together], [%l, %rest]",
        f"  %before = phi {t} [%sum, %together], [%after, %rest]",
        f"  %one.at = getelementptr {t}, ptr %x, i64 %k",
        f"  %one = load {t}, ptr %one.at",
        f"  %after = fadd {t} %before, %one",
        "  %l = add nuw i64 %k, 1",
        "  %goes = icmp ult i64 %l, %n",
        "  br i1 %goes, label %rest, label %done",
        "done:",
        f"  %result = phi {t} [%sum, %together], [%after, %rest]",
        f"  ret {t} %result",
        "}",
    ]


def _declared_by_extrema(kind: str) -> dict[str, str]:
    t, width = register_type(kind), kind[1:]
    fence = f"llvm.arithmetic.fence.{kind}"
    declarations = {fence: f"declare {t} @{fence}({t})"}
    for name in ("smax", "smin"):
        i = f"i{width}"
        declarations[f"llvm.{name}.{i}"] = f"declare {i} @llvm.{name}.{i}({i}, {i})"
    return declarations


def _extremum(monoid: str, kind: str) -> list[str]:
    """Return the function of the largest or smallest element: a NaN wins, +0 is larger than -0.

    Floats become integers of the same order, of which LLVM may take the extremum in any order.
    """
    t, i = register_type(kind), f"i{kind[1:]}"
    width = int(kind[1:])
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    name, nan, start = ("smax", high, low) if monoid == "maximum" else ("smin", low, high)

    def turned(value: str, into: str) -> list[str]:
        return [
            f"  %{into}.sign = ashr {i} {value}, {width - 1}",
            f"  %{into}.mask = and {i} %{into}.sign, {high}",
            f"  %{into} = xor {i} {value}, %{into}.mask",
        ]

    return [
        f"define internal {t} @{monoid}.{kind}(ptr %x, i64 %n) #0 {{",
        "entry:",
        f"  %one = call {t} @llvm.arithmetic.fence.{kind}({t} 1.0)",
        "  br label %loop",
        "loop:",
        "  %k = phi i64 [0, %entry], [%l, %loop]",
        f"  %best = phi {i} [{start}, %entry], [%better, %loop]",
        f"  %at = getelementptr {t}, ptr %x, i64 %k",
        f"  %raw = load {t}, ptr %at",
        # As in a mode that takes subnormals for zeros; LLVM is not to know the one.
        f"  %value = fmul {t} %one, %raw",
        f"  %is_nan = fcmp uno {t} %value, %value",
        f"  %bits = bitcast {t} %value to {i}",
        *turned("%bits", "key"),
        f"  %ordered = select i1 %is_nan, {i} {nan}, {i} %key",
        f"  %better = call {i} @llvm.{name}.{i}({i} %best, {i} %ordered)",
        "  %l = add nuw i64 %k, 1",
        "  %on = icmp ult i64 %l, %n",
        "  br i1 %on, label %loop, label %done",
        "done:",
        *turned("%better", "back"),
        f"  %number = bitcast {i} %back to {t}",
        f"  %none = icmp eq {i} %better, {nan}",
        f"  %result = select i1 %none, {t} {number(float('nan'))}, {t} %number",
        f"  ret {t} %result",
        "}",
    ]
