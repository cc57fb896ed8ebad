"""The hub of a session in several processes: calls to the hosts, and their collectives."""

import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from hloipu.hosts.messages import Answer, Call, Failure, Line, Met, Stop, dumped, error_of
from hloipu.hosts.parcels import Parcel
from hloipu_runtime.errors import HloipuError, HostError

CONNECT_SECONDS = 60.0
"""For the processes of all hosts to start. Assumed."""
PATIENCE = 2
"""Times the limit for an element of a feed, which a host may wait for before it comes to a
collective, that others wait there for it."""
HANDSHAKE_SECONDS = 10
"""For whoever connects to show that it has the key. Assumed."""
_TICK_SECONDS = 0.1


class _Table:
    """One meeting of hosts at a collective."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.parcels: dict[int, tuple[Parcel, ...]] = {}
        """By host."""


class Hub:
    """Connections to the processes of all hosts.

    What members of a collective bring goes through here to the hosts that wait for it. Every wait
    ends: with what was waited for, or a fault that names the hosts which it is of.
    """

    def __init__(
        self,
        hosts: int,
        participants: int,
        timeout: float,
        address: str,
        process_noun: str = "host",
    ) -> None:
        """Listen at an address; messages call a process `process_noun`, of one host or of none."""
        self._process_noun = process_noun
        self.hosts = hosts
        self.key: bytes = secrets.token_bytes(32)
        self.steps: int = 0
        """Steps done, for messages."""
        self._members_per_host = participants // hosts
        self._limit = PATIENCE * timeout
        self._listener = socket.create_server((address, 0), backlog=hosts)
        self._listener.settimeout(_TICK_SECONDS)
        self._calling = threading.Lock()
        """Held over a whole call: threads that share a session take turns."""
        self._numbers = count(1)
        self._number = 0
        """Of the call that is waited for; 0: of what hosts begin with."""
        self._changed = threading.Condition()
        self._lines: dict[int, Line] = {}
        self._tables: dict[tuple[str, tuple[int, ...]], _Table] = {}
        self._answers: dict[int, Any] = {}
        self._fault: HloipuError | None = None
        self._closed = False

    @property
    def address(self) -> tuple[str, int]:
        """Address that hosts connect to."""
        host, port = self._listener.getsockname()
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
                        f"{self._named(ended)} ended as it started",
                        hosts=tuple(ended),
                        hint="is the same hloipu installed where it runs?",
                    )
                if time.monotonic() > deadline:
                    missing = tuple(h for h in range(self.hosts) if h not in self._lines)
                    raise HostError(
                        "E2080",
                        f"{self._named(missing)} did not connect within {CONNECT_SECONDS:g} s",
                        hosts=missing,
                        hint=f"can it reach this process at {self.address[0]}?",
                    )
                self._changed.wait(_TICK_SECONDS)

    def begin(self, messages: Sequence[bytes]) -> None:
        """Send each host what it begins with, and wait until all have."""
        self._ask(0, dict(enumerate(messages)))

    def call(self, method: str, **keywords: Any) -> list[Any]:
        """Return what a method of each host's session returns."""
        return self.call_each(method, dict.fromkeys(range(self.hosts), keywords))

    def call_each(self, method: str, keywords: Mapping[int, Mapping[str, Any]]) -> list[Any]:
        """Return what a method of some hosts' sessions returns, called with these by host.

        Raises what a host raised, HostError E2080 where one does not come to a collective, or does
        not answer, in time, E2081 where its process ended.
        """
        number = next(self._numbers)
        calls = {host: Call(number, method, arguments) for host, arguments in keywords.items()}
        return self._ask(number, {host: dumped(call) for host, call in calls.items()})

    def close(self) -> None:
        """Disconnect the hosts."""
        with self._changed:
            self._closed = True
            lines = list(self._lines.values())
        for line in lines:
            line.close()
        self._listener.close()

    def _ask(self, number: int, messages: Mapping[int, bytes]) -> list[Any]:
        """Send messages to hosts, and return their answers to this number."""
        with self._calling:
            with self._changed:
                if self._fault is not None:
                    raise self._fault
                if self._closed:
                    raise HostError("E2081", "the session is closed", hint="open another")
                self._answers.clear()
                self._number = number
            self._send(messages)
            fault = self._wait(messages)
            if fault is not None:
                for line in list(self._lines.values()):
                    line.send(Stop())
                raise fault
            return [self._answers[host] for host in messages]

    def _send(self, messages: Mapping[int, bytes]) -> None:
        try:
            for host, message in messages.items():
                self._lines[host].send(message)
        except BaseException:  # an interrupt: some hosts have the call, and others not
            with self._changed:
                self._fail(
                    HostError(
                        "E2083",
                        "interrupted while a call was sent: not all hosts have it",
                        hosts=tuple(messages),
                        hint="begin again, and load the last checkpoint",
                    )
                )
            raise

    def _wait(self, messages: Mapping[int, bytes]) -> HloipuError | None:
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
            return self._fault

    def _look_at_tables(self, now: float) -> None:
        for (name, group), table in self._tables.items():
            if now - table.since > self._limit:
                missing = sorted(self._hosts_of(group) - table.parcels.keys())
                waiting = self._named(sorted(table.parcels))
                where = f"has not come to the collective {name!r}, where {waiting} waits"
                self._fail(self._late(missing, where))
                return

    def _late(self, missing: Sequence[int], where: str) -> HostError:
        return HostError(
            "E2080",
            f"{self._named(missing)} {where}, for {self._limit:g} s after {self.steps:,} steps",
            hosts=tuple(missing),
            hint="begin again, and load the last checkpoint; give a longer timeout where a step "
            "takes so long",
        )

    def _fail(self, fault: HloipuError) -> None:
        """Fail for good; the first fault stays, but that others failed says less than why."""
        if self._fault is None or self._fault.code == "E2083":
            self._fault = fault
        self._changed.notify_all()

    def _named(self, hosts: Sequence[int]) -> str:
        several = "es" if self._process_noun.endswith("s") else "s"
        return (
            f"{self._process_noun}{several if len(hosts) > 1 else ''} {', '.join(map(str, hosts))}"
        )

    def _hosts_of(self, group: Sequence[int]) -> set[int]:
        return {member // self._members_per_host for member in group}

    def _accept(self) -> None:
        """Accept connections until all hosts are here; strangers are refused."""
        while len(self._lines) < self.hosts and not self._closed:
            try:
                connected, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # closed, or no room for a connection just now
                time.sleep(_TICK_SECONDS)
                continue
            threading.Thread(target=self._admit, args=(connected,), daemon=True).start()

    def _admit(self, connected: socket.socket) -> None:
        """Serve a connection, once it has shown the key and said which host it is."""
        try:
            with connected:
                _limit_waits(connected, HANDSHAKE_SECONDS)
                connection = Connection(connected.detach())
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            line = Line(connection)
            host = line.receive()
            with socket.socket(fileno=os.dup(connection.fileno())) as same:
                _limit_waits(same, 0)
        except Exception:  # whoever that was: anything may come from a stranger
            return
        with self._changed:
            self._lines[host] = line
            self._changed.notify_all()
        self._read(host, line)

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
                    elif isinstance(message, Answer) and message.number == self._number:
                        self._answers[host] = message.value
                    self._changed.notify_all()
        except EOFError:
            with self._changed:
                if not self._closed:
                    self._fail(
                        HostError(
                            "E2081",
                            f"{self._named([host])} is gone: its process ended, or cannot be "
                            f"reached, after {self.steps:,} steps",
                            hosts=(host,),
                            hint="begin again, and load the last checkpoint",
                        )
                    )

    def _met(self, host: int, met: Met) -> None:
        """Record what a host's members send; forward it once all of the group have come."""
        key = (met.name, met.group)
        with self._changed:
            table = self._tables.setdefault(key, _Table())
            table.parcels[host] = met.parcels
            if table.parcels.keys() != self._hosts_of(met.group):
                return
            del self._tables[key]
        for receiver in table.parcels:
            brought = [
                x for whose, parcels in table.parcels.items() if whose != receiver for x in parcels
            ]
            self._lines[receiver].send(Met(met.name, met.group, tuple(brought)))


def _limit_waits(connected: socket.socket, seconds: int) -> None:
    """Limit each wait of a blocking socket, which then raises OSError; 0: no limit."""
    limit = struct.pack("@ll", seconds, 0)  # `struct timeval`
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, direction, limit)
