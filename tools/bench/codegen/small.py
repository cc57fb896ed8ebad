"""Ops small enough for every mapping to be tried on `tiny`, and what the compiler makes of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine
from tools.bench.codegen.measuring import measured
from tools.bench.codegen.search import Found
from tools.bench.codegen.searched_ops import (
    best_convolution,
    best_matmul,
    best_reduction,
    best_transpose,
)

MACHINE = "tiny"
MOST = 1.3
"""Times the cycles of the best mapping that ours may take."""


@dataclass(frozen=True, slots=True)
class Small:
    """An op as text, and the search for its best mapping."""

    name: str
    text: str
    search: Callable[[Machine], Found]


@dataclass(frozen=True, slots=True)
class Compared:
    """Cycles of the compiler's mapping and of the best."""

    name: str
    ours: int
    best: int
    tried: int
    best_mapping: str

    @property
    def times(self) -> float:
        """How many times the best mapping's cycles ours takes."""
        return self.ours / self.best if self.best else 1.0


def compared(words: Sequence[str]) -> Iterator[Compared]:
    """Yield each small op whose name has one of the words in it."""
    machine = load_machine(MACHINE)
    for small in (*_matmuls(), *_convolutions(), *_reductions(), *_transposes()):
        if not any(w in small.name for w in words):
            continue
        found = small.search(machine)
        ours = measured(small.text, MACHINE).total
        yield Compared(small.name, ours, found.cycles, found.tried, found.words)


def _sizes(*sizes: int) -> str:
    return ",".join(map(str, sizes))


def _matmuls() -> Iterator[Small]:
    sizes = [
        ("f16", 64, 64, 64), ("f32", 64, 64, 64), ("f16", 128, 32, 48), ("f32", 16, 256, 16),
        ("f16", 8, 512, 8), ("f32", 200, 8, 24), ("f16", 17, 33, 65), ("f32", 1, 256, 64),
    ]  # fmt: skip
    for kind, m, k, n in sizes:
        text = (
            f"HloModule m\nENTRY e {{\n x = {kind}[{m},{k}] parameter(0)\n"
            f" y = {kind}[{k},{n}] parameter(1)\n ROOT r = {kind}[{m},{n}] dot(x, y), "
            "lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n"
        )

        search = partial(best_matmul, kind=kind, m=m, k=k, n=n)
        yield Small(f"matmul {kind} {m}x{k}x{n}", text, search)


def _convolutions() -> Iterator[Small]:
    sizes = [("f16", 2, 8, 16, 16, 3), ("f32", 1, 12, 8, 16, 3), ("f16", 4, 4, 32, 16, 1)]
    for kind, batch, side, cin, cout, taps in sizes:
        pad = taps // 2
        image, kernel = (batch, side, side, cin), (taps, taps, cin, cout)
        made = (batch, side, side, cout)
        text = (
            f"HloModule m\nENTRY e {{\n x = {kind}[{_sizes(*image)}] parameter(0)\n"
            f" w = {kind}[{_sizes(*kernel)}] parameter(1)\n ROOT r = {kind}[{_sizes(*made)}] "
            f"convolution(x, w), window={{size={taps}x{taps} pad={pad}_{pad}x{pad}_{pad}}}, "
            "dim_labels=b01f_01io->b01f\n}\n"
        )
        one = (taps, 1, pad, pad, 1, 1)
        codelet = Convolution(
            (0, 3, 1, 2), (2, 3, 0, 1), (0, 3, 1, 2), (one, one), (False, False), kind
        )

        search = partial(
            best_convolution,
            codelet=codelet,
            image=Tensor(kind, image),
            kernel=Tensor(kind, kernel),
            made=Tensor(kind, made),
        )
        yield Small(
            f"convolution {kind} {batch}x{side}^2 {taps}x{taps} {cin}->{cout}", text, search
        )


def _reductions() -> Iterator[Small]:
    sizes = [
        ((64, 64), (1,)), ((64, 64), (0,)), ((64, 64), (0, 1)), ((4096,), (0,)), ((3, 1000), (1,)),
        ((1000, 3), (0,)), ((16, 16, 16), (0, 2)), ((8, 40), (1,)),
    ]  # fmt: skip
    for shape, dimensions in sizes:
        kept = tuple(n for d, n in enumerate(shape) if d not in dimensions)
        text = (
            "HloModule m\nadd {\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n"
            " ROOT c = f32[] add(a, b)\n}\n"
            f"ENTRY e {{\n x = f32[{_sizes(*shape)}] parameter(0)\n z = f32[] constant(0)\n"
            f" ROOT r = f32[{_sizes(*kept)}] reduce(x, z), dimensions={{{_sizes(*dimensions)}}}, "
            "to_apply=add\n}\n"
        )

        search = partial(best_reduction, kind="f32", shape=shape, dimensions=dimensions)
        yield Small(f"sum f32 {shape} over {dimensions}", text, search)


def _transposes() -> Iterator[Small]:
    sizes = [
        ("f32", (64, 64), (1, 0)), ("f16", (128, 32), (1, 0)), ("f32", (6, 50, 8), (2, 0, 1)),
        ("f32", (4, 32, 16), (1, 0, 2)), ("f32", (8, 12, 20), (0, 2, 1)),
    ]  # fmt: skip
    for kind, shape, order in sizes:
        made = tuple(shape[d] for d in order)
        text = (
            f"HloModule m\nENTRY e {{\n x = {kind}[{_sizes(*shape)}] parameter(0)\n"
            f" ROOT r = {kind}[{_sizes(*made)}] transpose(x), dimensions={{{_sizes(*order)}}}\n}}\n"
        )

        search = partial(best_transpose, kind=kind, shape=shape, permutation=order)
        yield Small(f"transpose {kind} {shape} to {order}", text, search)
