"""The middle of a session in several processes: calls to the hosts, and their collectives."""

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener
from typing import Any

from hloipu.hosts.messages import Answer, Call, Failure, Line, Met, Operands, Stop, error_of
from hloipu_runtime.errors import HloipuError, HostError

CONNECT_SECONDS = 60.0
"""For the processes of all hosts to start. Assumed."""
PATIENCE = 2
"""Times the limit for an element of a feed, which a host may wait for before it comes to a
collective, that others wait there for it."""
_TICK_SECONDS = 0.1


class _Table:
    """One meeting of hosts at a collective."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.operands: dict[int, Operands] = {}
        """By host."""


class Hub:
    """Connections to the processes of all hosts.

    What members of a collective bring goes through here to the hosts that wait for it. Every wait
    ends: with what was waited for, or a fault that names the hosts which it is of.
    """

    def __init__(self, hosts: int, participants: int, timeout: float, address: str) -> None:
        self.hosts = hosts
        self.key: bytes = secrets.token_bytes(32)
        self.steps: int = 0
        """Steps done, for messages."""
        self._each = participants // hosts
        self._limit = PATIENCE * timeout
        self._listener = Listener((address, 0), backlog=hosts, authkey=self.key)
        self._changed = threading.Condition()
        self._lines: dict[int, Line] = {}
        self._tables: dict[tuple[str, tuple[int, ...]], _Table] = {}
        self._answers: dict[int, Any] = {}
        self._fault: HloipuError | None = None
        self._closed = False

    @property
    def address(self) -> tuple[str, int]:
        """Where hosts connect to."""
        host, port = self._listener.address
        return str(host), int(port)

    def connect(self, gone: Callable[[], Sequence[int]]) -> None:
        """Wait until all hosts are here; `gone`: those whose processes ended meanwhile.

        Raises HostError E2080 where some do not come in time, E2081 where their processes ended.
        """
        threading.Thread(target=self._accept, daemon=True).start()
        deadline = time.monotonic() + CONNECT_SECONDS
        with self._changed:
            while len(self._lines) < self.hosts:
                ended = [host for host in gone() if host not in self._lines]
                if ended:
                    raise HostError(
                        "E2081",
                        f"{_named(ended)} ended as it started",
                        hosts=tuple(ended),
                        hint="is the same hloipu installed where it runs?",
                    )
                if time.monotonic() > deadline:
                    missing = tuple(h for h in range(self.hosts) if h not in self._lines)
                    raise HostError(
                        "E2080",
                        f"{_named(missing)} did not connect within {CONNECT_SECONDS:g} s",
                        hosts=missing,
                        hint=f"can it reach this process at {self.address[0]}?",
                    )
                self._changed.wait(_TICK_SECONDS)

    def begin(self, messages: Sequence[bytes]) -> None:
        """Send each host what it begins with, and wait until all have."""
        self._ask(dict(enumerate(messages)))

    def call(self, method: str, **keywords: Any) -> list[Any]:
        """Return what a method of each host's session returns."""
        return self.call_each(method, dict.fromkeys(range(self.hosts), keywords))

    def call_each(self, method: str, keywords: Mapping[int, Mapping[str, Any]]) -> list[Any]:
        """Return what a method of some hosts' sessions returns, called with these by host.

        Raises what a host raised, HostError E2080 where one does not come to a collective, or does
        not answer, in time, E2081 where its process ended.
        """
        return self._ask({host: Call(method, given) for host, given in keywords.items()})

    def close(self) -> None:
        """Let the hosts go."""
        with self._changed:
            self._closed = True
            lines = list(self._lines.values())
        for line in lines:
            line.close()
        with suppress(OSError):
            self._listener.close()

    def _ask(self, messages: Mapping[int, Any]) -> list[Any]:
        with self._changed:
            if self._fault is not None:
                raise self._fault
            self._answers.clear()
        for host, message in messages.items():
            self._lines[host].send(message)
        first = None
        with self._changed:
            while self._fault is None and len(self._answers) < len(messages):
                now = time.monotonic()
                if self._answers and first is None:
                    first = now
                missing = sorted(messages.keys() - self._answers.keys())
                if first is not None and now - first > self._limit:
                    self._fail(self._late(missing, "has not answered, which others have"))
                    break
                self._look_at_tables(now)
                self._changed.wait(_TICK_SECONDS)
            fault = self._fault
        if fault is not None:
            for line in list(self._lines.values()):
                line.send(Stop())
            raise fault
        return [self._answers[host] for host in messages]

    def _look_at_tables(self, now: float) -> None:
        for (name, group), table in self._tables.items():
            if now - table.since > self._limit:
                missing = sorted(self._hosts_of(group) - table.operands.keys())
                waiting = _named(sorted(table.operands))
                where = f"has not come to the collective {name!r}, where {waiting} waits"
                self._fail(self._late(missing, where))
                return

    def _late(self, missing: Sequence[int], where: str) -> HostError:
        return HostError(
            "E2080",
            f"{_named(missing)} {where}, for {self._limit:g} s after {self.steps:,} steps",
            hosts=tuple(missing),
            hint="begin again, and load the last checkpoint; give a longer timeout where a step "
            "takes so long",
        )

    def _fail(self, fault: HloipuError) -> None:
        """Fail for good; the first fault stays, but that others failed says less than why."""
        if self._fault is None or self._fault.code == "E2083":
            self._fault = fault
        self._changed.notify_all()

    def _hosts_of(self, group: Sequence[int]) -> set[int]:
        return {member // self._each for member in group}

    def _accept(self) -> None:
        while len(self._lines) < self.hosts:
            try:
                line = Line(self._listener.accept())
                host = line.receive()
            except (AuthenticationError, EOFError):
                continue  # whoever that was
            except OSError:
                return
            with self._changed:
                self._lines[host] = line
                self._changed.notify_all()
            threading.Thread(target=self._read, args=(host, line), daemon=True).start()

    def _read(self, host: int, line: Line) -> None:
        try:
            while True:
                message = line.receive()
                if isinstance(message, Met):
                    self._met(host, message)
                    continue
                with self._changed:
                    if isinstance(message, Failure):
                        self._fail(error_of(message))
                    elif isinstance(message, Answer):
                        self._answers[host] = message.value
                    self._changed.notify_all()
        except EOFError:
            with self._changed:
                if not self._closed:
                    self._fail(
                        HostError(
                            "E2081",
                            f"host {host} is gone: its process ended, or cannot be reached, after "
                            f"{self.steps:,} steps",
                            hosts=(host,),
                            hint="begin again, and load the last checkpoint",
                        )
                    )

    def _met(self, host: int, met: Met) -> None:
        """Take in what a host's members bring; hand it on, once all of the group have come."""
        key = (met.name, met.group)
        with self._changed:
            table = self._tables.setdefault(key, _Table())
            table.operands[host] = met.operands
            if table.operands.keys() != self._hosts_of(met.group):
                return
            del self._tables[key]
        for other in table.operands:
            brought: Operands = {}
            for whose, operands in table.operands.items():
                if whose != other:
                    brought |= operands
            self._lines[other].send(Met(met.name, met.group, brought))


def _named(hosts: Sequence[int]) -> str:
    return f"host{'s'[: len(hosts) > 1]} {', '.join(map(str, hosts))}"
