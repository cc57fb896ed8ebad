"""The process of one host: runs its replicas, which meet other hosts' by messages."""

import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Client
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hloipu.hosts.messages import Answer, Call, Line, Met, Stop, failure_of
from hloipu.hosts.parcels import Packer, Parcel, unpacked
from hloipu.sweeping.jobs import fingerprint
from hloipu_runtime.compiled import load
from hloipu_runtime.errors import HloipuError, HostError, UsageError
from hloipu_runtime.plain_text import plain_message
from hloipu_runtime.session.session import Session
from hloipu_runtime.streams.per_host import Operands

Key = tuple[str, tuple[int, ...]]


class _Elsewhere:
    """The other hosts, as collectives see them."""

    def __init__(self, line: Line, number: int, begin: Mapping[str, Any]) -> None:
        """Be the process of this number; `begin`: what the session begins with."""
        self.host: int = begin["host"]
        self.numbers: range = begin["numbers"]
        self._number = number
        self._line = line
        self._packer = Packer(begin["folder"], number)
        self._changed = threading.Condition()
        self._came: dict[Key, tuple[Parcel, ...]] = {}
        self._stopped = False

    def exchange(self, name: str, group: tuple[int, ...], operands: Operands) -> Operands:
        """Send what the members here bring; return what all bring.

        Raises HostError E2083 where another host failed meanwhile.
        """
        members_per_host = len(self.numbers)
        other_hosts = sorted({member // members_per_host for member in group} - {self._number})
        self._line.send(Met(name, group, (self._packer.packed(operands, other_hosts),)))
        key = (name, group)
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or key in self._came)
            if key not in self._came:
                raise HostError("E2083", f"collective {name!r}: another host failed")
            parcels = self._came.pop(key)
        brought = dict(operands)
        for parcel in parcels:
            brought |= unpacked(parcel, self._number)
        return brought

    def came(self, met: Met) -> None:
        """Record what members of other hosts bring."""
        with self._changed:
            self._came[met.name, met.group] = met.parcels
            self._changed.notify_all()

    def stop(self) -> None:
        """End all waiting after another host's failure."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


def run_host(address: tuple[str, int], key: bytes, host: int, name: str) -> None:
    """Serve a session as one of its hosts, until its user lets it go or is gone.

    `name`: what messages call it, `host 1`, or `process 1` of a program that is not on hosts.
    """
    line = Line(Client(address, authkey=key))
    begin = None
    try:
        line.send(host)
        begin = _received(line, host, name)
        if begin is None:
            return
        elsewhere = _Elsewhere(line, host, begin)
        calls: SimpleQueue[Call | None] = SimpleQueue()
        threading.Thread(target=_read, args=(line, elsewhere, calls), daemon=True).start()
        try:
            session = _session(begin, elsewhere)
        except BaseException as error:
            # Whatever it is, the user's process is to say it.
            line.send(failure_of(error, host, name))
            return
        with session:
            line.send(Answer(0, None))
            while (call := calls.get()) is not None:
                line.send(_answer(session, call, host, name))
    except EOFError:
        pass
    finally:
        line.close()
        if begin is not None and begin["folder"]:  # the user's process may be gone
            shutil.rmtree(begin["folder"], ignore_errors=True)


def _received(line: Line, host: int, name: str) -> Mapping[str, Any] | None:
    """Return what the session begins with; None where it is told that this cannot be read."""
    try:
        message: Mapping[str, Any] = line.receive()
        if message["hloipu"] != fingerprint():
            raise UsageError(
                "E3193",
                f"{name} has another hloipu than this process, which may compute otherwise",
                hint="install the same hloipu on all of them",
            )
        return message
    except EOFError:
        raise
    except HloipuError as error:
        line.send(failure_of(error, host, name))
        return None
    except Exception as error:  # whatever unpickling what is the user's raises
        fault = UsageError(
            "E2076",
            f"{name} cannot read what it is given: {plain_message(error)}",
            hint="functions and classes of a script itself need cloudpickle: pip install "
            "'hloipu[sweep]', or put them into a module that all hosts have",
        )
        line.send(failure_of(fault, host, name))
        return None


def _read(line: Line, elsewhere: _Elsewhere, calls: "SimpleQueue[Call | None]") -> None:
    try:
        while True:
            match line.receive():
                case Met() as met:
                    elsewhere.came(met)
                case Call() as call:
                    calls.put(call)
                case Stop():
                    elsewhere.stop()
    except EOFError:
        elsewhere.stop()
        calls.put(None)


def _session(begin: Mapping[str, Any], elsewhere: _Elsewhere) -> Session:
    with tempfile.TemporaryDirectory(prefix="hloipu-host-") as folder:
        path = Path(folder) / "program.ipux"
        path.write_bytes(begin["program"])
        program = load(path)
    program = replace(program, **begin["shown"])
    return program.session(**begin["given"], elsewhere=elsewhere)


def _answer(session: Session, call: Call, host: int, name: str) -> Any:
    try:
        return Answer(call.number, _METHODS[call.method](session, **call.keywords))
    except BaseException as error:
        # Whatever it is, the user's process is to say it.
        return failure_of(error, host, name)


def _run(session: Session, **keywords: Any) -> tuple[int, list[Any], int, int, int]:
    ran = session.run(**keywords)
    return ran.steps, ran.outputs, ran.cycles, session.steps, session.cycles


def _load_state(session: Session, path: str) -> tuple[int, int]:
    session.load_state(path)
    return session.steps, session.cycles


_METHODS: Mapping[str, Any] = {
    "run": _run,
    "load_state": _load_state,
    "save_part": lambda session, path, host: session.save_part(path, host),
    "save_index": lambda _, **keywords: _save_index(**keywords),
    "state": lambda session, here, **keywords: (
        session.state(**keywords) if here else session.meet_states()
    ),
    "save_state": lambda session, path: session.save_state(path),
    "give_state": lambda session, state: session.give_state(state),
    "load_constants": lambda session, constants: session.load_constants(constants),
    "arrived": lambda session, name, host: session.stream(name, host).drain(),
    "queues": lambda session: session.queues(),
    "profile": lambda session: session.profile(),
}
"""What the user's process may ask for."""


def _save_index(**keywords: Any) -> None:
    from hloipu_runtime.session.host_parts import save_index

    save_index(**keywords)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the user's process has it, and ends this one
    _ADDRESS, _PORT, _HOST, _NAME = sys.argv[1:]
    _KEY = bytes.fromhex(sys.stdin.readline().strip())
    run_host((_ADDRESS, int(_PORT)), _KEY, int(_HOST), _NAME)
