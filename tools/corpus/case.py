"""One program of the corpus, and how it becomes text."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

FLOATS = ("float32", "bfloat16", "float16", "float64")
SMALL_FLOATS = (
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3b11fnuz",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e8m0fnu",
    "float4_e2m1fn",
)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEXES = ("complex64", "complex128")
SHAPES: tuple[tuple[int, ...], ...] = ((), (7,), (3, 5), (2, 3, 4), (0, 4), (2, 1, 3, 2), (1,))


@dataclass(frozen=True)
class Case:
    """A function with example arguments (shapes are enough) and options for `jax.jit`."""

    name: str
    function: Callable[..., Any]
    arguments: Sequence[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    optimise: bool = False
    """Whether XLA:CPU's optimised module joins the corpus as well."""

    def lower(self) -> Any:
        """Return JAX's lowering, with 64-bit types where the arguments have any."""
        wide = any(
            getattr(leaf, "dtype", jnp.dtype("int8")).name
            in ("float64", "complex128", "int64", "uint64")
            for leaf in jax.tree.leaves(self.arguments)
        )
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            return jax.jit(self.function, **self.options).lower(*self.arguments)


def array(dtype: str, *sizes: int) -> Any:
    """Return an argument of a type and sizes, without values."""
    return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype))


def f32(*sizes: int) -> Any:
    """Return an f32 argument."""
    return array("float32", *sizes)


def s32(*sizes: int) -> Any:
    """Return an s32 argument."""
    return array("int32", *sizes)


def texts(case: Case) -> Iterator[tuple[str, str]]:
    """Yield (form, text): JAX's short and full prints, and the optimised module if asked."""
    lowered = case.lower()
    computation = lowered.compiler_ir("hlo")
    yield "short", computation.as_hlo_text()
    yield "full", computation.as_hlo_module().to_string()
    if case.optimise:
        yield "optimised", lowered.compile().as_text()
