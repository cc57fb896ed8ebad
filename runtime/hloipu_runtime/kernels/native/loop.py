"""A kernel: instructions for each element of arrays of rows and columns, as LLVM's text.

An operand has an element for each column of a row, or one that the whole row shares; rows of all
operands and results begin at a stride of their own, which may be zero. Rows of some may be named by
numbers instead, one after another: these may be the same again.
"""

from typing import NamedTuple

from hloipu_runtime.kernels.native.instructions import Instruction, write
from hloipu_runtime.kernels.native.llvm import POINTER_AT
from hloipu_runtime.kernels.native.text import Text, memory_type, register_type

INTERLEAVED = 2
"""Vectors side by side: rounding is a chain of instructions that wait for each other."""

NEXT_TURN = (
    "  %next = add nuw i64 %i, 1", "  %more = icmp ult i64 %next, %count",
    "  br i1 %more, label %loop, label %done",
    "done:", "  ret void", "}",
)  # fmt: skip
"""The end of a function that is one loop: `%i` counts up to `%count`."""
NEXT_COLUMN = (
    "  %following = add nuw i64 %column, 1",
    "  %more = icmp ult i64 %following, %columns",
    "  br i1 %more, label %inner, label %ended, !llvm.loop !1",
)
"""The end of the loop `inner` along a row."""
NEXT_ROW = (
    "ended:",
    "  %next = add nuw i64 %row, 1",
    "  %again = icmp ult i64 %next, %rows",
    "  br i1 %again, label %outer, label %done",
    "done:",
    "  ret void",
    "}",
)
"""The end of the loop `outer` over rows, and of the kernel."""


class Operand(NamedTuple):
    """What is read."""

    type: str
    """Storage type."""
    is_shared: bool
    """Whether a row has one element, which all its columns share."""


class Kernel(NamedTuple):
    """What a compiled kernel does. Values have numbers: operands come first."""

    operands: tuple[Operand, ...]
    literals: tuple[tuple[int, str, str], ...]
    """Numbers, storage types and texts of values that are the same for good: integers, pred."""
    instructions: tuple[tuple[int, Instruction], ...]
    """With the numbers of what they make, in order."""
    results: tuple[int, ...]
    indexed: tuple[int, ...] = ()
    """Places, operands before results, whose rows are named by an array of numbers."""
    name_bits: int = 64
    """Of these numbers."""
    columns: int = 0
    """Of every row, whatever is passed; 0: as many as are passed."""
    planed: tuple[int, ...] = ()
    """Places whose rows lie in planes; none of them is indexed."""
    boxed: bool = False
    """Whether it is called with a tuple: of the array of integers, then of each place's array."""


def text_of(kernel: Kernel, name: str) -> str:
    """Return a kernel as a function `name` of an array of integers.

    Rows and columns come first, then the address of each place and the stride of its rows, in
    bytes. Where rows are named the address of their numbers follows, then how many rows a group has
    that numbers are counted in, and how many numbers: one that no row has, read without a sign, is
    passed over. Where rows lie in planes the rows of one follow, the first row, and from plane to
    plane the stride of each such place.

    Of a boxed kernel the argument is the address of a tuple, from which it takes the addresses of
    places itself: that takes Python as long as a small kernel.
    """
    names: dict[int, str] = {}
    types: dict[int, str] = {}
    body = Text()
    for k, operand in enumerate(kernel.operands):
        types[k] = operand.type
        names[k] = f"%x{k}"
    for number, kind, value in kernel.literals:
        names[number], types[number] = value, kind
    for number, instruction in kernel.instructions:
        given = instruction.arguments
        names[number] = write(
            body, instruction, [names[x] for x in given], [types[x] for x in given]
        )
        types[number] = instruction.type
    count = len(kernel.operands)
    places = [types[x] for x in range(count)] + [types[number] for number in kernel.results]
    head: list[str] = []
    rows: list[str] = []
    loads: list[str] = []
    shared: list[str] = []
    if kernel.boxed:
        head += _memory("%arguments", 0)
    head += _argument("%rows", "i64", 0)
    fixed = [f"  %columns = add i64 0, {kernel.columns}"]
    head += fixed if kernel.columns else _argument("%columns", "i64", 1)
    for k, kind in enumerate(places):
        head += _memory(f"%p{k}", 1 + k) if kernel.boxed else _argument(f"%p{k}", "ptr", 2 + 2 * k)
        head += _argument(f"%s{k}", "i64", 3 + 2 * k)
        row = "%named" if k in kernel.indexed else "%within" if k in kernel.planed else "%row"
        rows.append(f"  %o{k} = mul i64 {row}, %s{k}")
        begin = f"%p{k}"
        if k in kernel.planed:
            head += _argument(f"%h{k}", "i64", 4 + 2 * len(places) + kernel.planed.index(k))
            rows.append(f"  %d{k} = mul i64 %plane, %h{k}")
            rows.append(f"  %b{k} = getelementptr i8, ptr %p{k}, i64 %d{k}")
            begin = f"%b{k}"
        rows.append(f"  %r{k} = getelementptr i8, ptr {begin}, i64 %o{k}")
        if k < count:
            into = shared if kernel.operands[k].is_shared else loads
            into += _load(k, kind, "" if kernel.operands[k].is_shared else "%column")
    if kernel.indexed:
        head += _argument("%names", "ptr", 2 + 2 * len(places))
        head += _argument("%limit", "i64", 3 + 2 * len(places))
        head += _argument("%group", "i64", 4 + 2 * len(places))
        rows = [*_named_row(kernel.name_bits), *rows]
    if kernel.planed:
        head += _argument("%height", "i64", 2 + 2 * len(places))
        head += _argument("%first", "i64", 3 + 2 * len(places))
        rows = [
            "  %absolute = add i64 %first, %row",
            "  %plane = udiv i64 %absolute, %height",
            "  %within = urem i64 %absolute, %height",
            *rows,
        ]
    stores = []
    for k, number in enumerate(kernel.results, count):
        stores += _store(k, types[number], names[number])
    lines = [
        *sorted(body.intrinsics.values()),
        f"define void @{name}(ptr {'%boxes' if kernel.boxed else '%arguments'}) #0 {{",
        "entry:",
        *head,
        "  br label %outer",
        "outer:",
        "  %row = phi i64 [0, %entry], [%next, %ended]",
        *rows,
        *shared,
        "  br label %inner",
        "inner:",
        f"  %column = phi i64 [0, %{'there' if kernel.indexed else 'outer'}], [%following, %inner]",
        *loads,
        *body.lines,
        *stores,
        *NEXT_COLUMN,
        *NEXT_ROW,
        'attributes #0 = { nounwind "denormal-fp-math"="dynamic,dynamic" }',
        "!0 = distinct !{}",
        "!1 = distinct !{!1, !2, !3}",
        '!2 = !{!"llvm.loop.parallel_accesses", !0}',
        f'!3 = !{{!"llvm.loop.interleave.count", i32 {INTERLEAVED}}}',
    ]
    return "\n".join(lines) + "\n"


def _named_row(bits: int) -> list[str]:
    """Return what reads a row's number, and passes over one that no row has."""
    name = "%number" if bits == 64 else "%short"
    return [
        "  %left = phi i64 [%group, %entry], [%left.next, %ended]",
        "  %base = phi i64 [0, %entry], [%base.next, %ended]",
        "  %left.less = sub i64 %left, 1",
        "  %is_last = icmp eq i64 %left.less, 0",
        "  %left.next = select i1 %is_last, i64 %group, i64 %left.less",
        "  %base.more = add i64 %base, %limit",
        "  %base.next = select i1 %is_last, i64 %base.more, i64 %base",
        f"  %number.at = getelementptr i{bits}, ptr %names, i64 %row",
        f"  {name} = load i{bits}, ptr %number.at",
        *([] if bits == 64 else [f"  %number = sext i{bits} %short to i64"]),
        "  %is_there = icmp ult i64 %number, %limit",
        "  br i1 %is_there, label %there, label %ended",
        "there:",
        "  %named = add i64 %base, %number",
    ]


def _memory(name: str, position: int) -> list[str]:
    """Return what loads the address of the memory of an array in the tuple."""
    place = tuple.__basicsize__ + 8 * position
    return [
        f"  {name}.box.at = getelementptr i8, ptr %boxes, i64 {place}",
        f"  {name}.box = load ptr, ptr {name}.box.at",
        f"  {name}.at = getelementptr i8, ptr {name}.box, i64 {POINTER_AT}",
        f"  {name} = load ptr, ptr {name}.at",
    ]


def loads(*named: str) -> list[str]:
    """Return what loads arguments, one after another, each told as `i64 rows` or `ptr table`."""
    pairs = enumerate(x.split() for x in named)
    return [line for k, (kind, name) in pairs for line in _argument(f"%{name}", kind, k)]


def _argument(name: str, kind: str, position: int) -> list[str]:
    return [
        f"  {name}.at = getelementptr i64, ptr %arguments, i64 {position}",
        f"  {name} = load {kind}, ptr {name}.at",
    ]


def _load(k: int, kind: str, column: str) -> list[str]:
    memory, register = memory_type(kind), register_type(kind)
    place, lines, access = f"%r{k}", [], ""
    if column:
        place, access = f"%a{k}", ", !llvm.access.group !0"
        lines.append(f"  {place} = getelementptr {memory}, ptr %r{k}, i64 {column}")
    if memory == register:
        return [*lines, f"  %x{k} = load {memory}, ptr {place}{access}"]
    lines.append(f"  %m{k} = load {memory}, ptr {place}{access}")
    return [*lines, f"  %x{k} = icmp ne {memory} %m{k}, 0"]


def _store(k: int, kind: str, value: str) -> list[str]:
    memory, register = memory_type(kind), register_type(kind)
    lines = [f"  %a{k} = getelementptr {memory}, ptr %r{k}, i64 %column"]
    if memory != register:
        lines.append(f"  %m{k} = zext {register} {value} to {memory}")
        value = f"%m{k}"
    return [*lines, f"  store {memory} {value}, ptr %a{k}, !llvm.access.group !0"]
