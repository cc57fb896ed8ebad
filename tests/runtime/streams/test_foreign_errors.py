"""Exceptions of sources and sinks that cannot be asked what they say are told by their type."""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import pytest

from hloipu_runtime.errors import StreamError
from hloipu_runtime.plain_text import plain_message
from hloipu_runtime.streams.infeed import InfeedQueue
from tests.support.stream_parts import SPEC, TIMEOUT_SECONDS, give


class StrRaisesError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class StrExitsError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class StrIsInterruptedError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class StrIsNoTextError(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class ReprRaisesError(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no")


class NoException(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no")


ERRORS: list[BaseException] = [
    StrRaisesError(), StrExitsError(), StrIsInterruptedError(), StrIsNoTextError(),
    ReprRaisesError("said"), NoException(),
    ValueError(Mute()), ValueError("two", Mute()), ValueError("\x1b[2J\nfits"),
    type("\x1b[2JError", (Exception,), {})(), ValueError(), ValueError("\n"),
    ValueError("x" * 9999),
]  # fmt: skip


def fail(error: BaseException) -> NoReturn:
    raise error


def rows(error: BaseException) -> Iterator[Any]:
    yield np.zeros(3, np.float32)
    raise error


def of_source(error: BaseException, *, inline: bool) -> None:
    queue = InfeedQueue("data", SPEC, rows(error), timeout=TIMEOUT_SECONDS, inline=inline)
    with queue:
        queue.take()
        queue.take()


def of_iterable(error: BaseException) -> None:
    iterable = type("Iterable", (), {"__iter__": lambda _: fail(error)})()
    with InfeedQueue("data", SPEC, iterable, timeout=TIMEOUT_SECONDS) as queue:
        queue.take()


def of_element(error: BaseException) -> None:
    element = type("Element", (), {"__array__": lambda *_, **__: fail(error)})()
    with InfeedQueue("data", SPEC, [element], timeout=TIMEOUT_SECONDS) as queue:
        queue.take()


def of_sink(error: BaseException) -> None:
    give(1, lambda _: fail(error))


PLACES: list[Callable[[BaseException], None]] = [
    lambda error: of_source(error, inline=True), lambda error: of_source(error, inline=False),
    of_iterable, of_element, of_sink,
]  # fmt: skip


GOING_ON = {StrExitsError: SystemExit, StrIsInterruptedError: KeyboardInterrupt}
"""What goes on from `__str__` on the main thread, on which the first of the places is."""


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: ascii(type(error).__name__))
def test_each_is_told_with_its_type(error: BaseException) -> None:
    kind = type(error).__name__.replace("\x1b", "?")
    for place in PLACES if type(error) not in GOING_ON else PLACES[1:]:
        with pytest.raises(StreamError) as caught:
            place(error)
        told = caught.value
        assert told.code in ("E2022", "E2023", "E2029")
        assert kind in told.message
        assert str(told).splitlines()[0].isprintable()
        assert len(told.message) < 500
        if told.code != "E2023":
            assert told.__cause__ is error


@pytest.mark.parametrize(("error", "going_on"), GOING_ON.items())
def test_interrupts_and_exits_go_on_from_a_message(
    error: type[Exception], going_on: type[BaseException]
) -> None:
    for ask in (lambda: plain_message(error()), lambda: PLACES[0](error())):
        with pytest.raises(going_on):
            ask()


def test_one_line_of_what_is_said() -> None:
    assert plain_message(KeyError("a")) == "KeyError: 'a'"
    assert plain_message(ValueError()) == "ValueError"
    assert plain_message(ValueError("one\ntwo")) == "ValueError: one"
    assert plain_message(ValueError("\x1b[2Jfits")) == "ValueError: ?[2Jfits"
    assert "StrRaisesError" in plain_message(StrRaisesError())
