"""Modules in files: HLO texts as they are, and those of C++ tests with what these expect."""

import re
from collections.abc import Iterator
from itertools import combinations
from math import prod
from pathlib import Path
from typing import NamedTuple

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import leaves_of
from hloipu_compiler.vendor.expanding import expanded
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import HloipuError
from tools.spmd_texts.mlir import functions_in

MOST_ELEMENTS = 800_000
"""Of one array: larger texts are made smaller, so that all devices are run in seconds."""
MOST_PRODUCTS = 5e9
ROOT = "ROOT"
_TEST = re.compile(r"\nTEST(?:_[PF])?\(\s*\w+,\s*(\w+)\)")
_RAW = re.compile(r'R"(\w*)\((.*?)\)\1"', re.DOTALL)
_NAMED = re.compile(r'(\w+)\s*=\s*FindInstruction\(\s*module\.get\(\),\s*"([^"]+)"\)')
_EXPECTED = re.compile(
    r'EXPECT_THAT\(\s*(FindInstruction\(\s*module\.get\(\),\s*"([^"]+)"\)|\w+'
    r"|module->entry_computation\(\)->root_instruction\(\)),\s*(?:AllOf\(\s*)?"
    r'op::Sharding\(\s*((?:"[^"]*"\s*)+)\)'
)


class Text(NamedTuple):
    """A module of a file."""

    name: str
    text: str
    expected: tuple[tuple[str, str], ...] = ()
    """Names of ops, and the shardings that a test of propagation expects of them."""


def texts_in(folder: Path) -> Iterator[Text]:
    """Yield the modules of all files below a folder: *.hlo, *.txt, raw strings of *.cc, *.mlir."""
    for path in sorted(
        p for p in folder.rglob("*") if p.suffix in (".hlo", ".txt", ".cc", ".mlir")
    ):
        if path.suffix == ".mlir":
            yield from (Text(f"{path.stem}/{name}", text) for name, text in functions_in(path))
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".cc":
            yield Text(path.stem, text)
            continue
        parts = _TEST.split(text)
        for test, body in zip(parts[1::2], parts[2::2], strict=True):
            raw = [t for _, t in _RAW.findall(body) if "ENTRY" in t and "CHECK" not in t]
            expected = tuple(_expected(body)) if len(raw) == 1 else ()
            for number, one in enumerate(raw):
                name = f"{path.stem}/{test}" + (f".{number}" if number else "")
                yield Text(name, one, expected)


def _expected(body: str) -> Iterator[tuple[str, str]]:
    names = dict(_NAMED.findall(body))
    for said, found, sharding in _EXPECTED.findall(body):
        name = found or names.get(said) or (ROOT if "root_instruction" in said else "")
        if name:
            yield name.removeprefix("%"), "".join(re.findall(r'"([^"]*)"', sharding))


def read(text: str) -> Module:
    """Return a verified module, its vendor calls written as ops."""
    module = parse(text)
    verify(module)
    module = expanded(module)
    verify(module)
    return module


def small(text: str) -> Module | None:
    """Return the module of a text, with sizes made smaller alike everywhere; None: cannot be.

    bf16 is f32 in it: sums in another order are far apart in bf16.
    """
    text = re.sub(r"\bbf16\[", "f32[", text)
    module = read(text)
    for _ in range(12):
        if _is_small(module):
            return module
        found = _smaller(text, module)
        if found is None:
            return None
        text, module = found
    return None


def _smaller(text: str, module: Module) -> tuple[str, Module] | None:
    shapes = [s for c in module.computations for x in c.instructions for s in leaves_of(x.shape)]
    sizes = sorted({n for s in shapes for n in s.dimensions if n >= 6}, reverse=True)[:12]
    for count in (1, 2, 3):
        for chosen in combinations(sizes, count):
            for factor in (16, 8, 4, 2, 3, 5):
                if any(n % factor or n // factor < 2 for n in chosen):
                    continue
                new = _divided(text, set(chosen), factor)
                try:
                    made = read(new)
                except HloipuError:
                    continue
                if _extent(made) < _extent(module):
                    return new, made
    return None


_SIZES = (
    re.compile(r"(\b(?:pred|[suf]\d+|bf16|c64|c128|f8\w*)\[)([0-9,]+)()"),
    re.compile(r"((?:dynamic_slice_sizes|slice_sizes|slice)=\{)([^}]*)()"),
    re.compile(r"((?:feature|batch)_group_count=|\b(?:padding|size|pad)=)([0-9x_-]+)()"),
)


def _divided(text: str, sizes: set[int], factor: int) -> str:
    def one(found: re.Match[str]) -> str:
        n = int(found[0])
        if n in sizes:
            return str(n // factor)
        return str((n + 1) // factor - 1) if n + 1 in sizes else found[0]

    for pattern in _SIZES:
        text = pattern.sub(lambda m: m[1] + re.sub(r"\d+", one, m[2]), text)
    return text


def _extent(module: Module) -> tuple[int, float]:
    """Return the elements of the largest array, and the multiplications of the largest product."""
    elements, products = 0, 0.0
    for computation in module.computations:
        for x in computation.instructions:
            leaves = leaves_of(x.shape)
            elements = max([elements, *(prod(s.dimensions) for s in leaves)])
            if x.opcode in ("dot", "convolution"):
                operands = (leaves_of(computation.instructions[i].shape) for i in x.operands)
                sizes = [n for own in (leaves, *operands) for n in own[0].dimensions]
                products = max(products, float(prod(sizes)) ** 0.5)
    return elements, products


def _is_small(module: Module) -> bool:
    elements, products = _extent(module)
    return elements <= MOST_ELEMENTS and products <= MOST_PRODUCTS
