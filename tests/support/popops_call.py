"""Custom calls of Graphcore's libraries as modules of their own, evaluated."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.graphcore.encoding.plain_module import plain_module
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.source import Source
from hloipu_compiler.verify.verifier import verify

_KINDS = {"float32": "f32", "float16": "f16", "int32": "s32", "uint32": "u32", "int64": "s64",
          "bfloat16": "bf16", "float64": "f64", "int8": "s8", "uint8": "u8", "bool": "pred",
          "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2",
          "float8_e8m0fnu": "f8e8m0fnu", "uint64": "u64"}  # fmt: skip


def shape_of(x: NDArray[Any]) -> str:
    """Return an array's shape as HLO writes it."""
    return f"{_KINDS[str(x.dtype)]}[{','.join(map(str, x.shape))}]"


def text_of_call(
    target: str, given: Sequence[NDArray[Any]], result: str,
    attributes: Mapping[str, object] | None = None, line: str = "",
) -> str:  # fmt: skip
    """Return a module of one custom call; `line`: attributes in the other spelling."""
    parameters = "".join(
        f"  p{n} = {shape_of(x)} parameter({n})\n" for n, x in enumerate(given)
    )  # fmt: skip
    said = f', custom_call_target="{target}"' + (f", {line}" if line else "")
    if attributes is not None:
        said += f", backend_config={json.dumps(json.dumps(dict(attributes)))}"
    names = ", ".join(f"p{n}" for n in range(len(given)))
    root = f"  ROOT r = {result} custom-call({names}){said}\n"
    return f"HloModule m\n\nENTRY e {{\n{parameters}{root}}}\n"


def evaluated(text: str, *given: NDArray[Any]) -> list[NDArray[Any]]:
    """Return what a text gives, its custom calls written in ops of HLO."""
    module = parse(Source(text))
    verify(module)
    plain = plain_module(module)
    verify(plain)
    return list(Evaluator(plain)(*given))


def called(
    target: str, given: Sequence[NDArray[Any]], result: str,
    attributes: Mapping[str, object] | None = None, line: str = "",
) -> list[NDArray[Any]]:  # fmt: skip
    """Return what a custom call gives."""
    return evaluated(text_of_call(target, given, result, attributes, line), *given)


def drawn(*sizes: int, seed: int = 0) -> NDArray[np.float32]:
    """Return random f32."""
    return np.random.default_rng(seed + sum(sizes)).standard_normal(sizes).astype(np.float32)
