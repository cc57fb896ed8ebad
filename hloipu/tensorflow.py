"""TensorFlow functions as HLO text: with constants, names of variables and the user's lines.

TensorFlow's own text leaves constants of more than ten elements out, calls every parameter
`XLA_Args`, and names a line within TensorFlow for nearly every op. Tried with TensorFlow 2.21.
"""

import re
import sysconfig
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hloipu.lowered_steps import LoweredStep, printed, with_names
from hloipu_runtime.errors import UsageError
from hloipu_runtime.plain_text import plain_message

try:
    import tensorflow as tf
except ImportError as _error:
    raise UsageError(
        "E3174",
        "TensorFlow is not installed",
        hint="pip install tensorflow-cpu 'hloipu[jax]'; HLO text needs no TensorFlow",
    ) from _error

__all__ = ["LoweredStep", "lower"]

_ALIAS = re.compile(r"\{[\d, ]*\}: \((\d+), \{\}, may-alias\)")
_PLACE = re.compile(r'op_name="([^"]*)"( source_file="[^"]*" source_line=\d+)?')
_SUBGRAPHS = ("body", "cond", "then_branch", "else_branch", "f")
"""Attributes of ops that name functions."""


def lower(function: Any, *arguments: Any) -> LoweredStep:
    """Return a `tf.function` as HLO text for tensors or arrays like these, variables as they are.

    A plain function is made one. All variables that it reads are parameters after the arguments;
    those that it assigns are state. Create them before: build the model and the optimizer, or call
    the function once. Raises UsageError E3179 where TensorFlow cannot compile the function.
    """
    if not hasattr(function, "experimental_get_compiler_ir"):
        function = tf.function(function, jit_compile=True)
    tensors = tf.nest.map_structure(
        lambda array: tf.constant(array) if isinstance(array, np.ndarray) else array, arguments
    )
    try:
        concrete = function.get_concrete_function(*tensors)
        serialized = function.experimental_get_compiler_ir(*tensors)(stage="hlo_serialized")
    except (tf.errors.OpError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            "E3179",
            f"TensorFlow cannot compile the function: {plain_message(error)}",
            hint="mark it tf.function(jit_compile=True), give tensors of fixed shapes, and create "
            "variables before: model.build(…), optimizer.build(model.trainable_variables)",
        ) from error
    text = printed(serialized)
    variables = {id(variable.handle): variable for variable in concrete.variables}
    captured = [variables.get(id(tensor), tensor) for tensor in concrete.captured_inputs]
    batch = len(concrete.inputs) - len(captured)
    names = [tensor.name.partition(":")[0] for tensor in (*concrete.inputs[:batch], *captured)]
    state_numbers = tuple(sorted(int(number) for number in _ALIAS.findall(text.partition("\n")[0])))
    flat = [tensor for tensor in tf.nest.flatten(tensors) if tf.is_tensor(tensor)]
    by_name = dict(zip(names[batch:], captured, strict=True))

    def assign(state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            by_name[name].assign(value)

    return LoweredStep(
        with_names(_with_lines(_exact(text), concrete.graph), names),
        tuple(names),
        tuple(np.asarray(tensor) for tensor in (*flat, *captured)),
        tuple(range(batch)),
        state_numbers,
        assign,
    )


def _exact(text: str) -> str:
    """Return text whose aliases are taken as they are: TensorFlow pairs variables, not shapes."""
    head, newline, body = text.partition("\n")
    return head.replace("may-alias", "must-alias") + newline + body


def _with_lines(text: str, graph: Any) -> str:
    """Return text whose ops name the line of the user's by which they were made, if one did."""
    places = dict(_places(graph))

    def placed(match: re.Match[str]) -> str:
        name = match[1]
        return f'op_name="{name}"{places.get(name, "")}'

    return _PLACE.sub(placed, text)


def _places(graph: Any) -> Iterator[tuple[str, str]]:
    library = sysconfig.get_paths()["purelib"]
    waiting, known = [graph], {graph.name}
    while waiting:
        inner_graph = waiting.pop()
        for op in inner_graph.get_operations():
            user_frames = [
                frame
                for frame in op.traceback or ()
                if not frame.filename.startswith((library, "<"))
            ]
            if user_frames:
                file = user_frames[-1].filename.replace("\\", "/").replace('"', "")
                yield op.name, f' source_file="{file}" source_line={user_frames[-1].lineno}'
            for name in _functions(op):
                if name not in known:
                    known.add(name)
                    waiting.append(inner_graph._get_function(name).graph)


def _functions(op: Any) -> Iterator[str]:
    for attribute in _SUBGRAPHS:
        if attribute in op.node_def.attr and (name := op.node_def.attr[attribute].func.name):
            yield name
