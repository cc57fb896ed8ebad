"""One kernel of the benchmark: a function of JAX as HLO text, and what it needs at least."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

from hloipu.jax import lower
from tools.bench.codegen.limits import Needs

F16, F32, S32 = jnp.float16, jnp.float32, jnp.int32
WIDTH = {F16: 2, F32: 4, S32: 4}
NAMES = {F16: "f16", F32: "f32"}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel."""

    family: str
    name: str
    text: str
    needs: Needs
    target: float = 0.0
    """Least share of the limit; 0: none is asked."""
    plain: str = ""
    """The same without transposes and reshapes, which are to cost nothing on top of it."""
    options: tuple[tuple[str, object], ...] = ()
    """Of compiling."""


def kernel(
    family: str,
    name: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    needs: Needs,
    *,
    target: float = 0.0,
    options: tuple[tuple[str, object], ...] = (),
) -> Kernel:
    """Return a kernel for arguments like these."""
    return Kernel(family, name, lower(function, *arguments).text, needs, target, options=options)


def view(
    name: str, function: Callable[..., Any], plain: Callable[..., Any], arguments: tuple[Any, ...]
) -> Kernel:
    """Return a kernel that sees arrays otherwise, beside the one that need not."""
    text, without = (lower(f, *arguments).text for f in (function, plain))
    return Kernel("view", name, text, Needs(), plain=without)


def array(kind: Any, *sizes: int) -> Any:
    """Return an abstract array."""
    return jax.ShapeDtypeStruct(sizes, kind)
