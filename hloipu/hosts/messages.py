"""Messages between the user's process and those of hosts, and errors in them.

Connections are those of `multiprocessing`, with a key of its own for each session. Messages are
pickled: they are for networks that one trusts, as Dask's are.
"""

import os
import pickle
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from hloipu.hosts.parcels import Parcel
from hloipu_runtime.errors import HloipuError, HostError, UsageError
from hloipu_runtime.plain_text import plain_message


class Call(NamedTuple):
    """To a host: call a method of its session."""

    number: int
    method: str
    keywords: Mapping[str, Any]


class Answer(NamedTuple):
    """From a host: what the method of the call of this number returned.

    Nobody waits any more for that of a call which was interrupted.
    """

    number: int
    value: Any


class Failure(NamedTuple):
    """From a host: what it raised."""

    kind: type[HloipuError]
    data: Mapping[str, Any]


class Met(NamedTuple):
    """Both ways: what members of a collective bring, from a host and to those that wait there."""

    name: str
    group: tuple[int, ...]
    parcels: tuple[Parcel, ...]
    """Operands of each host's members: one from a host, those of all others to it."""


class Stop(NamedTuple):
    """To a host: another one failed, so that nobody will come to its collectives."""


class Line:
    """One end of a connection, which several threads send over."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        """Send a message, or one that is bytes already.

        Nothing happens where nobody is there any more: reading tells that.
        """
        raw = message if isinstance(message, bytes) else dumped(message)
        with self._lock, suppress(OSError):
            self._connection.send_bytes(raw)

    def receive(self) -> Any:
        """Return the next message; EOFError where the other end is closed."""
        try:
            raw = self._connection.recv_bytes()
            return pickle.loads(raw)  # noqa: S301 - who sends it has the session's key
        except OSError as error:
            raise EOFError from error

    def close(self) -> None:
        """Close the connection, waking a thread that reads here.

        Closing alone does neither, as long as that thread waits.
        """
        with (
            suppress(OSError),
            socket.socket(fileno=os.dup(self._connection.fileno())) as duplicate,
        ):
            duplicate.shutdown(socket.SHUT_RDWR)


def dumped(message: Any) -> bytes:
    """Return a message as bytes; functions by their code, where `cloudpickle` is installed.

    Raises UsageError E2076 for what cannot be sent to another process.
    """
    try:
        if find_spec("cloudpickle") is None:
            return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        import cloudpickle

        return bytes(cloudpickle.dumps(message, pickle.HIGHEST_PROTOCOL))
    except Exception as error:  # whatever objects of the user's raise
        raise UsageError(
            "E2076",
            f"what is given cannot be sent to another process: {plain_message(error)}",
            hint="give arrays, files or sources of them, or PerHost with a function of a module",
        ) from error


def failure_of(error: BaseException, host: int, name: str) -> Failure:
    """Return an error as a message; one that is not hloipu's becomes HostError E2082."""
    if not isinstance(error, HloipuError):
        error = HostError(
            "E2082",
            f"{name} raised {plain_message(error)}",
            hosts=(host,),
            hint="begin again, and load the last checkpoint",
        )
    return Failure(type(error), {"message": error.message, **vars(error)})


def error_of(failure: Failure) -> HloipuError:
    """Return the error of a message."""
    error = failure.kind.__new__(failure.kind)
    error.args = (failure.data["message"],)
    vars(error).update(failure.data)
    return error
