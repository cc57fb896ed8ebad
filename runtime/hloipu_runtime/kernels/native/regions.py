"""Writes many ops on small arrays as one LLVM function, with loops and calls of library code.

Sizes and strides are numbers in the text. An array lies in some memory, and is told by a numpy
array that lies likewise in a stand-in for that memory; a value of one element is in a register.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.kernels.native.instructions import Instruction, write
from hloipu_runtime.kernels.native.llvm import POINTER_AT
from hloipu_runtime.kernels.native.numpy_loops import NumpyLoop
from hloipu_runtime.kernels.native.rows import reducer
from hloipu_runtime.kernels.native.text import Text, memory_type, number, register_type

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]

HEADER = ("most", "done", "is_ended")
"""The first integers of a region: turns to do at most, then of its answer."""
ALIGNMENT = 64
FEWEST_SUMMED = 8
"""Elements that numpy adds up in eight running sums; fewer one after another."""
FEWEST_PARALLEL = 8
"""Turns of an inner loop: shorter ones are no vectors."""


class Memory(NamedTuple):
    """Where arrays lie."""

    pointer: str
    """LLVM's name of where it begins."""
    offset: int
    """Of the stand-in's beginning behind that, in bytes."""
    stand_in: Array


class Place(NamedTuple):
    """An array in memory."""

    memory: Memory
    view: Array
    """Of the stand-in."""
    type: str
    """Storage type of its elements."""

    def seen(self, view: Array) -> "Place":
        """Return another view of the same memory."""
        return self._replace(view=view)


class Register(NamedTuple):
    """A value of one element."""

    name: str
    type: str
    shape: Sizes


Held = Place | Register


class Region:
    """The text so far."""

    def __init__(self) -> None:
        self.text = Text()
        self.loops: list[NumpyLoop] = []
        """Of numpy's, whose addresses and data follow the header."""
        self.constants: dict[tuple[str, bytes], tuple[int, Array]] = {}
        self.arena_bytes = 0
        self._label = "entry"
        self._count = 0
        self._inner_loops = 0
        self._reducers: dict[str, list[str]] = {}
        self._metadata: list[str] = []
        self._on_stack: list[str] = []

    # --- lines and labels -------------------------------------------------------------------------
    def line(self, text: str) -> None:
        """Add a line."""
        self.text.lines.append(f"  {text}")

    def new(self, expression: str) -> str:
        """Add a line that makes a value; return its name."""
        return self.text.new(expression)

    @property
    def usual_nodes(self) -> float:
        """Number of usual small ops that LLVM compiles in the same time.

        A usual op has 40 lines; some passes take time quadratic in inner loops.

        Measured: 30 loops of 27 lines take 0.3 s, 200 take 5 s; 33 loops of 200 lines take 1.8 s.
        """
        return len(self.text.lines) / 40 + (self._inner_loops / 10) ** 2

    def unique(self, name: str) -> str:
        """Return a name that nothing else has."""
        self._count += 1
        return f"{name}{self._count}"

    def begin(self, label: str) -> None:
        """Begin a block that was jumped to."""
        self.text.lines.append(f"{label}:")
        self._label = label

    def jump(self, label: str) -> None:
        """Go to a block."""
        self.line(f"br label %{label}")

    def choose(self, condition: str, yes: str, no: str) -> None:
        """Go to one of two blocks."""
        self.line(f"br i1 {condition}, label %{yes}, label %{no}")

    @contextmanager
    def counted(
        self, count: str, *, is_parallel: bool = False, is_scalar: bool = False
    ) -> Iterator[tuple[str, str]]:
        """Write a loop of at least one turn; yields the name of the turn, and what accesses say.

        `is_scalar`: LLVM is to make no vectors of its elements.
        """
        label, end, turn = self.unique("loop"), self.unique("ended"), self.unique("%turn")
        self._inner_loops += 1
        before = self._label
        self.jump(label)
        self.begin(label)
        place = len(self.text.lines)
        self.line("")
        access, told = "", ""
        if is_scalar:
            group = len(self._metadata)
            self._metadata += [
                f'!{group} = !{{!"llvm.loop.vectorize.enable", i1 false}}',
                f"!{group + 1} = distinct !{{!{group + 1}, !{group}}}",
            ]
            told = f", !llvm.loop !{group + 1}"
        elif is_parallel:
            group = len(self._metadata)
            self._metadata += [
                f"!{group} = distinct !{{}}",
                f'!{group + 1} = !{{!"llvm.loop.parallel_accesses", !{group}}}',
                f"!{group + 2} = distinct !{{!{group + 2}, !{group + 1}}}",
            ]
            access, told = f", !llvm.access.group !{group}", f", !llvm.loop !{group + 2}"
        yield turn, access
        following = self.new(f"add nuw i64 {turn}, 1")
        more = self.new(f"icmp ult i64 {following}, {count}")
        self.line(f"br i1 {more}, label %{label}, label %{end}{told}")
        self.text.lines[place] = f"  {turn} = phi i64 [0, %{before}], [{following}, %{self._label}]"
        self.begin(end)

    def turns(
        self, body: Callable[[], None], *, condition: Callable[[], str] | None = None,
        begin: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Write the turns of a loop as the header asks for, and the end of the function.

        Each turn begins with `begin`, then asks for the condition, if there is one.
        """
        most, done_at, ended_at = (
            self.new(f"getelementptr i64, ptr %header, i64 {k}") if k else "%header"
            for k in range(3)
        )
        bound = self.new(f"load i64, ptr {most}")
        self.jump("head")
        self.begin("head")
        phi = len(self.text.lines)
        self.line("")
        begin()
        again = self.new(f"icmp ult i64 %done, {bound}")
        self.choose(again, "going", "stopped")
        self.begin("going")
        if condition is not None:
            self.choose(condition(), "body", "ended")
            self.begin("body")
        body()
        following = self.new("add nuw i64 %done, 1")
        self.text.lines[phi] = f"  %done = phi i64 [0, %entry], [{following}, %{self._label}]"
        self.jump("head")
        for label, ended in (("ended", 1), ("stopped", 0)):
            if label == "ended" and condition is None:
                continue
            self.begin(label)
            self.line(f"store i64 %done, ptr {done_at}")
            self.line(f"store i64 {ended}, ptr {ended_at}")
            self.line("ret void")

    # --- memory -----------------------------------------------------------------------------------
    def temporary(self, shape: Sizes, kind: str) -> Place:
        """Return memory for a row-major array."""
        stand_in = np.empty(shape, memory_dtype(kind))
        memory = Memory("%arena", self.arena_bytes, stand_in)
        self.arena_bytes += -(-stand_in.nbytes // ALIGNMENT) * ALIGNMENT
        return Place(memory, stand_in, kind)

    def constant(self, value: Array, kind: str) -> Place:
        """Return a float that LLVM is not to know: it makes 1*x x, subnormal or not."""
        key = (kind, value.tobytes())
        offset, _ = self.constants.setdefault(key, (8 * len(self.constants), value))
        stand_in = np.asarray(value).reshape(())
        return Place(Memory("%constants", offset, stand_in), stand_in, kind)

    def address(self, place: Place) -> str:
        """Return the name of where an array's first element lies."""
        memory, offset, stand_in = place.memory
        offset += address_of(place.view) - address_of(stand_in)
        return self.new(f"getelementptr i8, ptr {memory}, i64 {offset}") if offset else memory

    def load(self, kind: str, pointer: str, access: str = "") -> str:
        """Return an element's value."""
        loaded = self.new(f"load {memory_type(kind)}, ptr {pointer}{access}")
        return self.new(f"icmp ne i8 {loaded}, 0") if kind == "pred" else loaded

    def store(self, kind: str, value: str, pointer: str, access: str = "") -> None:
        """Write an element."""
        if kind == "pred":
            value = self.new(f"zext i1 {value} to i8")
        self.line(f"store {memory_type(kind)} {value}, ptr {pointer}{access}")

    def one(self, held: Held) -> str:
        """Return the value of the only element."""
        if isinstance(held, Register):
            return held.name
        return self.load(held.type, self.address(held))

    def in_memory(self, held: Held, shape: Sizes) -> Place:
        """Return a value as an array of a shape, row-major; copied where it lies otherwise."""
        if isinstance(held, Register):
            place = self.temporary(shape, held.type)
            self.fill(place, held.name)
            return place
        view = np.broadcast_to(held.view, shape)
        return self.row_major(held.seen(view))

    def row_major(self, place: Place) -> Place:
        """Return an array that lies row-major, or a copy that does."""
        if place.view.flags.c_contiguous:
            return place
        copy = self.temporary(place.view.shape, place.type)
        self.copy(place, copy)
        return copy

    def fill(self, target: Place, value: str) -> None:
        """Write one value to all elements."""
        with self.each(target.view.shape, [target]) as ((pointer,), access):
            self.store(target.type, value, pointer, access)

    def copy(self, source: Held, target: Place) -> None:
        """Write an array to another place of its shape."""
        if isinstance(source, Register):
            self.fill(target, source.name)
            return
        with self.each(target.view.shape, [source, target]) as ((one, other), access):
            self.store(target.type, self.load(source.type, one, access), other, access)

    # --- loops over elements ----------------------------------------------------------------------
    @contextmanager
    def each(
        self, shape: Sizes, places: Sequence[Place], *, is_parallel: bool = True
    ) -> Iterator[tuple[list[str], str]]:
        """Write loops over all elements, the last dimension innermost.

        Yields the pointers of the element in each array, and what accesses say.
        """
        yield from self._nested(
            merged(shape, [x.view.strides for x in places]),
            [self.address(x) for x in places],
            places, is_parallel,
        )  # fmt: skip

    def _nested(
        self,
        dimensions: Sequence[tuple[int, Sizes]],
        pointers: list[str],
        places: Sequence[Place],
        is_parallel: bool,
    ) -> Iterator[tuple[list[str], str]]:
        if not dimensions:
            yield pointers, ""
            return
        (count, strides), rest = dimensions[0], dimensions[1:]
        is_parallel_here = is_parallel and not rest and count >= FEWEST_PARALLEL
        # A run read backwards ends the process in LLVM 20's vectorizer, of some lengths.
        is_scalar = not rest and any(x < 0 for x in strides)
        loop = self.counted(str(count), is_parallel=is_parallel_here, is_scalar=is_scalar)
        with loop as (turn, access):
            moved = [
                self._moved(pointer, turn, stride, place)
                for pointer, stride, place in zip(pointers, strides, places, strict=True)
            ]
            for inner, own in self._nested(rest, moved, places, is_parallel):
                yield inner, own or access

    def _moved(self, pointer: str, turn: str, stride: int, place: Place) -> str:
        if not stride:
            return pointer
        kind = memory_type(place.type)
        if stride == place.view.itemsize:
            return self.new(f"getelementptr {kind}, ptr {pointer}, i64 {turn}")
        offset = self.new(f"mul nsw i64 {turn}, {stride}")
        return self.new(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def instructions(
        self, numbered: Sequence[tuple[int, Instruction]], names: dict[int, str],
        types: dict[int, str],
    ) -> None:  # fmt: skip
        """Write instructions on named values."""
        for value, instruction in numbered:
            given = instruction.arguments
            types[value] = instruction.type
            names[value] = write(
                self.text, instruction, [names[x] for x in given], [types[x] for x in given]
            )

    def op(self, op: str, kind: str, *arguments: str, types: Sequence[str] = ()) -> str:
        """Write one instruction."""
        numbers = tuple(range(len(arguments)))
        return write(
            self.text, Instruction(op, numbers, kind), arguments, types or [kind] * len(arguments)
        )

    # --- calls ------------------------------------------------------------------------------------
    def numpys(
        self, loop: NumpyLoop, pointers: Sequence[str], sizes: Sequence[int],
        strides: Sequence[int],
    ) -> None:  # fmt: skip
        """Call a loop of numpy's."""
        if loop not in self.loops:
            self.loops.append(loop)
        place = len(HEADER) + 2 * self.loops.index(loop)
        arguments = self._array("ptr", pointers)
        counts = self._array("i64", list(map(str, sizes)))
        steps = self._array("i64", list(map(str, strides)))
        function, data = (
            self.new(f"load ptr, ptr {self.new(f'getelementptr i64, ptr %header, i64 {k}')}")
            for k in (place, place + 1)
        )
        self.line(f"call void {function}(ptr {arguments}, ptr {counts}, ptr {steps}, ptr {data})")

    def _array(self, kind: str, values: Sequence[str]) -> str:
        array = self.unique("%array")
        self._on_stack.append(f"  {array} = alloca {kind}, i64 {len(values)}")
        for k, value in enumerate(values):
            at = self.new(f"getelementptr {kind}, ptr {array}, i64 {k}") if k else array
            self.line(f"store {kind} {value}, ptr {at}")
        return array

    def reduced(self, monoid: str, kind: str, pointer: str, count: int) -> str:
        """Return elements side by side, reduced as numpy does it."""
        register = register_type(kind)
        if monoid == "add" and count < FEWEST_SUMMED:
            total = number(-0.0)
            for k in range(count):
                at = self.new(f"getelementptr {register}, ptr {pointer}, i64 {k}")
                total = self.new(f"fadd {register} {total}, {self.load(kind, at)}")
        else:
            name, lines, declared = reducer(monoid, kind)
            self._reducers[name] = lines
            self.text.intrinsics |= declared
            total = self.new(f"call {register} @{name}(ptr {pointer}, i64 {count})")
        if monoid == "add":  # as numpy's reductions begin with zero
            total = self.new(f"fadd {register} {number(0.0)}, {total}")
        return total

    def paired(self, monoid: str, kind: str, pointer: str, count: int) -> str:
        """Return few elements side by side, added up neighbour by neighbour; see `reduction`."""
        assert monoid == "add"
        register = register_type(kind)
        values = [
            self.load(kind, self.new(f"getelementptr {register}, ptr {pointer}, i64 {k}"))
            for k in range(count)
        ]
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=False)
            folded = [self.new(f"fadd {register} {a}, {b}") for a, b in pairs]
            values = folded + values[2 * len(folded) :]
        return values[0]

    def header(self) -> Array:
        """Return the array that a region begins with, addresses of numpy's loops in it."""
        header = np.zeros(len(HEADER) + 2 * len(self.loops), np.int64)
        for k, loop in enumerate(self.loops):
            address = loop.address
            assert address is not None  # asked before it was called
            header[len(HEADER) + 2 * k :][:2] = address
        return header

    def kept_constants(self) -> Array:
        """Return the constants, each at its place."""
        constants = np.zeros(max(1, len(self.constants)), np.int64)
        for offset, value in self.constants.values():
            constants[offset // 8 :].view(value.dtype)[0] = value
        return constants

    # --- all of it --------------------------------------------------------------------------------
    def whole(self, name: str, memories: Sequence[str]) -> str:
        """Return the function `name` of the address of a tuple of arrays.

        These are the header, the arena, the constants, and `memories`. The text so far is one
        function's from `entry` on, and returns.
        """
        pointers = ("%header", "%arena", "%constants", *memories)
        given = ", ".join(f"ptr noalias {x}" for x in pointers)
        loads: list[str] = []
        for k, pointer in enumerate(pointers):
            place = tuple.__basicsize__ + 8 * k
            loads += [
                f"  {pointer}.box.at = getelementptr i8, ptr %boxes, i64 {place}",
                f"  {pointer}.box = load ptr, ptr {pointer}.box.at",
                f"  {pointer}.at = getelementptr i8, ptr {pointer}.box, i64 {POINTER_AT}",
                f"  {pointer} = load ptr, ptr {pointer}.at",
            ]
        passed = ", ".join(f"ptr {x}" for x in pointers)
        attributes = 'nounwind "denormal-fp-math"="dynamic,dynamic"'
        lines = [
            *sorted(self.text.intrinsics.values()),
            *(line for key in sorted(self._reducers) for line in self._reducers[key]),
            f"define internal void @turns({given}) #0 {{",
            "entry:",
            *self._on_stack,
            *self.text.lines,
            "}",
            f"define void @{name}(ptr %boxes) #0 {{",
            "entry:",
            *loads,
            f"  call void @turns({passed})",
            "  ret void",
            "}",
            f"attributes #0 = {{ {attributes} }}",
            *self._metadata,
        ]
        return "\n".join(lines) + "\n"


def memory_dtype(kind: str) -> np.dtype[Any]:
    """Return numpy's type of the elements of a storage type."""
    letters = {"f": "f", "s": "i", "u": "u", "c": "c"}
    return np.dtype(bool if kind == "pred" else f"{letters[kind[0]]}{int(kind[1:]) // 8}")


def address_of(array: Array) -> int:
    """Return where an array's first element lies."""
    address: int = array.__array_interface__["data"][0]
    return address


def merged(shape: Sizes, strides: Sequence[Sizes]) -> list[tuple[int, Sizes]]:
    """Return the fewest dimensions, outermost first, in which arrays have these strides."""
    dimensions: list[tuple[int, Sizes]] = []
    for d, count in enumerate(shape):
        if count == 1:
            continue
        own = tuple(x[d] for x in strides)
        if dimensions:
            before, outer = dimensions[-1]
            if all(x == count * y for x, y in zip(outer, own, strict=True)):
                dimensions[-1] = before * count, own
                continue
        dimensions.append((count, own))
    return dimensions
