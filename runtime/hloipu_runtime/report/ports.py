"""Inputs and outputs of a program for users: names, shapes, types and roles."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.program.program import Port, Program
from hloipu_runtime.program.seen import Seen, number_of, seen_by_users


class ArrayPort(NamedTuple):
    """An array that a program takes or gives."""

    name: str
    """That of the module's parameter, else `result.N` or that of the queue and a number."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """In which users give and get it."""
    role: str
    """`argument`, `constant` (loaded once a session), `state`, `feed` or `result`."""
    number: int
    """Of the parameter or result in the entry, arrays counted; -1: it stands for none."""
    queue: str = ""
    """That feeds it or takes it."""


def inputs_of(program: Program, names: Sequence[str]) -> tuple[ArrayPort, ...]:
    """Return a program's inputs, by the numbers of parameters; `names`: of these."""
    user_view = seen_by_users(program)
    ports = (
        _array(port, _name(names, number_of(port)), role, number_of(port))
        for n, port in enumerate(user_view.parameters)
        for role in ("constant" if n < user_view.loaded else "argument",)
    )
    return _with_state_and_queues(ports, user_view, names, to_device=True)


def outputs_of(program: Program, names: Sequence[str]) -> tuple[ArrayPort, ...]:
    """Return a program's outputs, by the numbers of results."""
    user_view = seen_by_users(program)
    ports = (
        _array(port, f"result.{number_of(port)}", "result", number_of(port))
        for port in user_view.results
    )
    return _with_state_and_queues(ports, user_view, names, to_device=False)


def _with_state_and_queues(
    ports: Iterable[ArrayPort], user_view: Seen, names: Sequence[str], *, to_device: bool
) -> tuple[ArrayPort, ...]:
    state_ports = (
        ArrayPort(state.name, tuple(state.shape), user_dtype(state.element_type), "state", number)
        for state in user_view.state
        if (number := state.parameter if to_device else state.result) >= 0
    )
    every = (*ports, *state_ports, *_of_queues(user_view, names, to_device=to_device))
    return tuple(sorted(every, key=lambda port: (port.number < 0, port.number)))


def _of_queues(user_view: Seen, names: Sequence[str], *, to_device: bool) -> Iterator[ArrayPort]:
    for queue in user_view.queues:
        if queue.to_device != to_device:
            continue
        for n, port in enumerate(queue.streams):
            number = queue.places[n] if n < len(queue.places) else -1
            plain = f"{queue.name}.{n}" if to_device or number < 0 else f"result.{number}"
            name = names[number] if to_device and 0 <= number < len(names) else plain
            yield _array(port, name, "feed" if to_device else "result", number, queue.name)


def _array(port: Port, name: str, role: str, number: int, queue: str = "") -> ArrayPort:
    return ArrayPort(name, tuple(port.shape), user_dtype(port.element_type), role, number, queue)


def _name(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else f"parameter.{number}"


def size_bytes(ports: Sequence[ArrayPort]) -> int:
    """Return the bytes of arrays as users hold them."""
    return sum(int(np.prod(port.shape, dtype=np.int64)) * port.dtype.itemsize for port in ports)


def html_table(title: str, facts: Sequence[tuple[str, str]]) -> str:
    """Return a table of two columns for notebooks; all text is escaped."""
    from html import escape

    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(text)}</td></tr>"
        for name, text in facts
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"
