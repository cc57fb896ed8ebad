"""A sharded JAX program in few words: a mesh, a function, and what its arguments are.

    Program("mlp", "2x4", mlp, ("16,32:a,-", "32,64:-,b", "bf16 64,32:b,-", "s32<8 16"), "a,-")

An argument is an element type (f32 where none is said; `<n`: whole numbers below n), its sizes,
and after a colon the mesh axes of each dimension: `a`, `b`, `c` by their order in the mesh, `ab`
for two on one dimension, `-` for none. Without a colon nothing is said about it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_ARGUMENT = re.compile(r"(?:(\w+)(?:<(\d+))? )?([\d,]*)(?::(.*))?")
_UNCONSTRAINED = "?"


@dataclass(frozen=True)
class Program:
    """One row of the table."""

    name: str
    mesh: str
    """Sizes of its axes, such as 2x4."""
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    result: str = ""
    """The axes of each dimension of the only result; empty: nothing is said."""
    runs: bool = True
    """Whether values are compared; bytes alone where sizes are those of real models."""
    alone: bool = False
    """Whether values are those of one device, since XLA's of several are others."""
    typed: bool = False
    """Whether shardings are part of types: the axes of the mesh are explicit."""
    in_shardy: bool = False
    """Whether GSPMD's texts cannot say it."""


def mesh_of(text: str, *, alone: bool = False, typed: bool = False) -> Mesh:
    """Return a mesh of the first devices, with axes a, b, c; `alone`: each of one device."""
    kind = AxisType.Explicit if typed else AxisType.Auto
    sizes = [1 if alone else int(n) for n in text.split("x")]
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return Mesh(devices, tuple("abc"[: len(sizes)]), axis_types=(kind,) * len(sizes))


def spec(text: str) -> P:
    """Return the axes of dimensions."""
    found: list[Any] = []
    for axes in text.split(",") if text else ():
        if axes == _UNCONSTRAINED:
            found.append(P.UNCONSTRAINED)
        else:
            found.append(None if axes == "-" else tuple(axes))
    return P(*found)


def constrain(x: Any, text: str) -> Any:
    """Return an array that is to be divided so, on the mesh of the program."""
    return jax.lax.with_sharding_constraint(x, spec(text))


def argument(text: str, mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, int]:
    """Return what JAX is told about an argument, and the number that its values are below."""
    matched = _ARGUMENT.fullmatch(text)
    assert matched is not None, text
    kind, limit, sizes, axes = matched.groups()
    shape = tuple(int(n) for n in sizes.split(",") if n)
    dtype = jnp.dtype(kind or "float32")
    sharding = NamedSharding(mesh, spec(axes)) if axes is not None else None
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding), int(limit or 2)


def drawn(stated: jax.ShapeDtypeStruct, limit: int, number: int) -> np.ndarray:
    """Return values of an argument: normal floats, or whole numbers below a limit."""
    draws, dtype = np.random.default_rng(number), stated.dtype
    if dtype.kind in "iub":
        return np.asarray(draws.integers(0, limit, stated.shape), dtype)
    values = draws.standard_normal(stated.shape)
    if dtype.kind == "c":
        values = values + 1j * draws.standard_normal(stated.shape)
    return np.asarray(values, dtype)
