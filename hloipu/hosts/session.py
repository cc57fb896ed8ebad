"""A session whose hosts are processes, with the interface of a session in one process."""

import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from hloipu.hosts.hub import Hub
from hloipu.hosts.messages import dumped
from hloipu.hosts.places import HERE, Places, places_for
from hloipu.sweeping.jobs import fingerprint
from hloipu_runtime.arguments import DEFAULT_TIMEOUT_SECONDS, Number, Positive, State, checked
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.costs.costs import Costs
from hloipu_runtime.errors import UsageError
from hloipu_runtime.program.program import Program
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.session.run_result import SessionRun
from hloipu_runtime.session.state import names_in_parts
from hloipu_runtime.streams.outfeed import Arrived, rows_together
from hloipu_runtime.streams.per_host import EVERY_HOST, PerHost


class _HostSource:
    """One host's own source."""

    def __init__(self, source: Any) -> None:
        self.given = source

    def __call__(self, host: int) -> Any:
        return self.given


@checked
def open_session(
    program: CompiledProgram,
    *,
    scheduler: str = HERE,
    processes: Number | None = None,
    infeeds: Mapping[str, Any] | None = None,
    outfeeds: Mapping[str, Any] | None = None,
    timeout: Positive = DEFAULT_TIMEOUT_SECONDS,
    **session_options: Any,
) -> "HostsSession":
    """Return a session whose participants are run by several processes, with the values of one.

    A process for each host of a program compiled with `hosts`; or of any other program so many
    `processes`, each of which has as many replicas, or as many partitions of one. `scheduler`:
    `local`, processes of this machine, or the address of a Dask scheduler that has a worker for
    each. `session_options` and the others are those of `CompiledProgram.session`. `timeout`
    is for an element of a feed; twice that hosts wait for each other. Values are those of one
    process, bit for bit, where all processors compute alike. Raises what sessions raise, UsageError
    E2075 for programs that cannot be run so, E2076 for what cannot be sent, E3192 and E3193 without
    Dask, HostError E2080 to E2083 for hosts that are missing, gone or failed.
    """
    hosts = program.program.hosts
    count = _processes(program.program, processes)
    odd = sorted({"device", "identical", "elsewhere"} & session_options.keys())
    if odd:
        raise UsageError("E2075", f"{odd[0]!r} is for sessions in one process", hint="leave it out")
    by_process = [
        {
            **session_options,
            "infeeds": _queues_of_process(infeeds or {}, number, hosts),
            "outfeeds": _queues_of_process(outfeeds or {}, number, hosts),
            "timeout": timeout,
        }
        for number in range(count)
    ]
    return HostsSession(program, scheduler, by_process, timeout)


def _processes(program: Program, asked: int | None) -> int:
    """Return the number of processes of a program; UsageError E2075 where it cannot be that."""
    count = asked or program.hosts
    if not count:
        raise UsageError(
            "E2075",
            "the program was not compiled for hosts",
            hint="compile with hosts=N, or say how many processes run it: processes=N",
        )
    if program.hosts and count != program.hosts:
        raise UsageError(
            "E2075",
            f"a program on {program.hosts} hosts is run by as many processes, not {count}",
            hint="leave processes out, or compile without hosts",
        )
    replicas, partitions = program.replicas, program.partitions
    if replicas % count and (count % replicas or partitions % (count // replicas)):
        raise UsageError(
            "E2075",
            f"{count} processes cannot divide a program of replicas={replicas} and "
            f"partitions={partitions}",
            hint="give a number that divides the replicas, or that they divide, and with the "
            "partitions their product",
        )
    return count


def _queues_of_process(queues: Mapping[str, Any], number: int, hosts: int) -> dict[str, Any]:
    """Return what one process is given for queues: its host's, or that of the only host."""
    if not hosts:
        alone = {k: x.of_one(k, 0, 1) if isinstance(x, PerHost) else x for k, x in queues.items()}
        return alone
    return {
        name: PerHost(_HostSource(queue.of_one(name, number, hosts)))
        if isinstance(queue, PerHost)
        else queue
        for name, queue in queues.items()
    }


class HostsSession:
    """A session in several processes; close it, or use it as a context.

    A fault of a host ends it: begin another, and load the last checkpoint.
    """

    def __init__(
        self,
        program: CompiledProgram,
        scheduler: str,
        by_process: list[dict[str, Any]],
        timeout: float,
    ) -> None:
        """Start the processes; `by_process`: what the session of each is opened with."""
        self.program: Program = program.program
        self.costs: Costs = program.costs
        self.steps: int = 0
        """Steps done, those before a checkpoint that was loaded included."""
        self.cycles: int = 0
        """Simulated cycles that they took, on the first host."""
        self._saving = threading.Lock()
        """Held from the parts to the index: writing one removes parts that it does not name."""
        self._unread: dict[tuple[str, int], deque[Arrived]] = {}
        participants, count = self.program.participants, len(by_process)
        self._processes = count
        self._members_per_process = participants // count
        """Participants of a process."""
        is_divided = self._members_per_process % self.program.partitions > 0
        self._parted = bool(names_in_parts(self.program, is_divided=is_divided))
        """Whether arrays of the state are in parts, which several processes have."""
        process_noun = "host" if self.program.hosts else "process"
        self.places: Places = places_for(scheduler, count, process_noun)
        with tempfile.TemporaryDirectory(prefix="hloipu-program-") as folder:
            path = Path(folder) / "program.ipux"
            program.save(path)
            raw = path.read_bytes()
        self._hub = Hub(count, participants, timeout, self.places.address, process_noun)
        try:
            shown = {"over_memory": program.over_memory, "live_bytes": program.live_bytes}
            messages = [
                dumped(
                    {
                        "hloipu": fingerprint(),
                        "program": raw,
                        "shown": shown,
                        "given": session_options,
                        "host": number if self.program.hosts else EVERY_HOST,
                        "numbers": range(
                            number * self._members_per_process,
                            (number + 1) * self._members_per_process,
                        ),
                        "folder": self.places.folder,
                    }
                )
                for number, session_options in enumerate(by_process)
            ]
            self.places.start(self._hub.address, self._hub.key, count)
            self._hub.connect(self.places.gone)
            self._hub.begin(messages)
        except BaseException:
            self.close()
            raise

    def run(
        self,
        steps: int | None = None,
        *,
        inputs: State | None = None,
        schedules: Mapping[Any, Any] | None = None,
        progress: Any = None,
    ) -> SessionRun:
        """Run `steps` steps on all hosts; see `Session.run`. No `progress` is called."""
        parts = self._hub.call("run", steps=steps, inputs=inputs, schedules=schedules)
        done, outputs, cycles, self.steps, self.cycles = parts[0]
        self._hub.steps = self.steps
        return SessionRun(self.profile, done, outputs, cycles)

    def state(self, replica: int = 0, *, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return copies of a replica's state by name; see `Session.state`."""
        number = replica * self.program.partitions // self._members_per_process
        number = min(max(number, 0), self._processes - 1)  # who refuses what is none
        wanted = None if names is None else list(names)
        asked = {
            n: {"replica": replica, "names": wanted, "here": n == number}
            for n in (range(self._processes) if self._parted else [number])
        }
        states = self._hub.call_each("state", asked)
        return dict(states[number if self._parted else 0])

    def give_state(self, state: State) -> None:
        """Put other arrays in the place of the whole state; see `Session.give_state`."""
        self._hub.call("give_state", state=state)

    def load_constants(self, constants: State) -> None:
        """Load other arrays in place of the constants; see `Session.load_constants`."""
        self._hub.call("load_constants", constants=constants)

    def arrived(self, name: str, host: int = EVERY_HOST) -> list[Arrived]:
        """Return what has arrived of an outfeed and was not read yet, of one host or of all."""
        hosts, partitions = range(self.program.hosts), self.program.partitions
        if host != EVERY_HOST and host not in hosts:
            raise UsageError(
                "E3155",
                f"there is no host {host}",
                hint=f"hosts are 0 to {hosts.stop - 1}" if hosts else "leave it out",
            )
        everyone = range(self._processes)
        # Of a replica that several processes run, the first one has what it gives.
        first = [n for n in everyone if n * self._members_per_process % partitions == 0]
        wanted = first if host == EVERY_HOST else [host]
        asked = {n: {"name": name, "host": n if hosts else EVERY_HOST} for n in wanted}
        for n, elements in zip(wanted, self._hub.call_each("arrived", asked), strict=True):
            self._unread.setdefault((name, n), deque()).extend(elements)
        queues = [self._unread[name, n] for n in wanted]
        count = min(map(len, queues))
        columns = [[queue.popleft() for _ in range(count)] for queue in queues]
        one_each = self._members_per_process <= partitions
        return rows_together(columns, are_rows=one_each)

    def queues(self) -> dict[str, dict[str, Any]]:
        """Return what each queue counted, by name; see `Session.queues`."""
        # Queues of processes that are no hosts have one name; the first one's are told.
        return {name: row for rows in self._hub.call("queues")[::-1] for name, row in rows.items()}

    def profile(self) -> Profile:
        """Return the profile of all calls of `run`, as the first host has it."""
        (answer,) = self._hub.call_each("profile", {0: {}})
        profile: Profile = answer
        return profile

    def save_state(self, path: str | Path) -> None:
        """Write a checkpoint: each host its part, then the first one the index.

        Processes that are no hosts hand their state to the first one, which writes one file. All
        hosts need the folder. Raises what `Session.save_state` raises.
        """
        place = str(Path(path).absolute())
        asked = {host: {"path": place, "host": host} for host in range(self._processes)}
        with self._saving:
            if not self.program.hosts:
                self._hub.call("save_state", path=place)
                return
            parts = self._hub.call_each("save_part", asked)
            index = {
                "path": place,
                "part": parts[0][0],
                "digests": [digest for _, digest in parts],
                "participants": self.program.participants,
            }
            self._hub.call_each("save_index", {0: index})

    def load_state(self, path: str | Path) -> None:
        """Resume from a checkpoint, whose parts all hosts can read; see `Session.load_state`."""
        answers = self._hub.call("load_state", path=str(Path(path).absolute()))
        self.steps, self.cycles = answers[0]
        self._hub.steps = self.steps

    def close(self) -> None:
        """End the processes."""
        self._hub.close()
        self.places.close()

    def __enter__(self) -> "HostsSession":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
