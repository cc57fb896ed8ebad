"""What `hloipu run` does with programs that keep state or have queues."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hloipu.cli.feed_files import source_of
from hloipu.cli.saying import say
from hloipu.cli.session_options import MEASURED, SYNTHETIC, SessionOptions
from hloipu.cli.values import shown
from hloipu.initial_arrays import constant_numbers
from hloipu.inputs import save_arrays
from hloipu.options.table import Options
from hloipu.pipelining import pipeline_request
from hloipu.wrapping import wrapping_request
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.arguments import Progress
from hloipu_runtime.atomic_file import check_writable, replacing
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import UsageError
from hloipu_runtime.program.program import Port, Program, Queue
from hloipu_runtime.program.seen import number_of, seen_by_users
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.session.inputs import named_arrays
from hloipu_runtime.session.queues import spec_of_queue
from hloipu_runtime.session.session import Session
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.made import synthetic
from hloipu_runtime.streams.per_host import PerHost
from hloipu_runtime.streams.rate import measure
from hloipu_runtime.streams.source import Source

if TYPE_CHECKING:
    from hloipu.hosts import HostsSession

CHECKPOINT_FILE = "checkpoint.hloipu"
MEASURED_ELEMENTS = 256
"""Of an infeed, to tell how fast this host makes them."""


_HOST_OPS = frozenset({"infeed", "outfeed"})


def needs_session(module: Module, options: Options) -> bool:
    """Whether a module's program will keep state or have queues."""
    asks = wrapping_request(options).asks or pipeline_request(options).asks
    return asks or any(
        op.opcode in _HOST_OPS
        for computation in module.computations
        for op in computation.instructions
    )


def run_in_session(
    program: CompiledProgram,
    arrays: Mapping[int, Any],
    options: Options,
    asked: SessionOptions,
    progress: Progress | None,
) -> tuple[Profile, dict[int, Any], dict[str, list[Any]]]:
    """Run a program in a session as asked; `arrays` are state and constants by parameter.

    Returns the profile, the results and the state by number of the result, and what the outfeeds
    gave. Raises what sessions raise, UsageError E3151 for options that contradict each other.
    """
    check_steps_asked(program.program, asked)
    user_view = seen_by_users(program.program)
    state = {p.name: arrays[p.parameter] for p in user_view.state if p.parameter in arrays}
    made_up = {queue.name: SYNTHETIC for queue in user_view.queues if options.synthetic_data}
    files = {**made_up, **asked.infeeds}
    check_queue_names(program.program, asked)
    infeeds = {
        queue.name: fed
        for queue in user_view.queues
        if queue.to_device
        and (fed := _fed(queue, files, program.program.hosts, asked.repeats, options.seed))
    }
    numbers = numbers_asked(program, asked)
    session_options: dict[str, Any] = {
        "state": state or None,
        "constants": {
            **{n: arrays[n] for n in constant_numbers(program.program) if n in arrays},
            **{number: values[0] for number, values in numbers.items()},
        },
        "infeeds": infeeds,
        "mode": options.mode,
        "poison": options.poison,
        "seed": options.seed,
        "timeout": asked.timeout,
        "rates": producer_rates(program.program, asked, options.seed),
        "max_iterations": options.max_iterations,
    }
    with _opened(program, asked, session_options) as session:
        outputs = _all_steps(session, asked, numbers, progress)
        drained = {
            queue.name: [arrived.element for arrived in session.arrived(queue.name)]
            for queue in program.program.queues
            if not queue.to_device
        }
        results = _by_result(session, outputs)
        return session.profile(), results, drained


def _opened(
    program: CompiledProgram, asked: SessionOptions, session_options: Mapping[str, Any]
) -> "Session | HostsSession":
    if asked.scheduler is None and asked.processes is None:
        return program.session(**session_options)
    from hloipu.hosts import open_session  # few runs have several processes

    where: dict[str, Any] = {"scheduler": asked.scheduler or "local", "processes": asked.processes}
    return open_session(program, **where, **session_options)


def producer_rates(program: Program, asked: SessionOptions, seed: int) -> dict[str, float]:
    """Return elements per second of the infeeds that the command line states a rate for.

    A rate that is measured is that of this machine now, of the file's first elements; of several
    hosts' files, the lowest.
    """
    rate_by_infeed: dict[str, float] = {}
    queues = {queue.name: queue for queue in seen_by_users(program).queues if queue.to_device}
    for name, text in asked.rates.items():
        if text != MEASURED:
            rate_by_infeed[name] = _rate(name, text)
            continue
        files = [file for fed, file in asked.infeeds.items() if fed.partition("@")[0] == name]
        if not files:
            continue  # the session says what is missing
        rate_by_infeed[name] = min(
            _measured(queues[name], source_of_file(queues[name], file, repeats=True, seed=seed),
                      asked.timeout)
            for file in files
        )  # fmt: skip
        say(f"{name}: this host makes {rate_by_infeed[name]:,.4g} elements/s", err=True)
    return rate_by_infeed


def _measured(queue: Queue, source: Source, timeout: float) -> float:
    """Return the elements per second that a source makes here and now."""
    with InfeedQueue(queue.name, spec_of_queue(queue), source, timeout=timeout) as fed:
        (rate,) = measure(fed, 1, MEASURED_ELEMENTS, copy=True)
    return rate.elements_per_second


def _rate(name: str, text: str) -> float:
    """Return elements per second; UsageError E3011 for what is no rate."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not rate > 0:
        raise UsageError(
            "E3011", f"--producer-rate {name}={text[:40]}: expected is a positive number of "
            f"elements per second, or {MEASURED!r}",
        )  # fmt: skip
    return rate


def _fed(
    queue: Queue, files: Mapping[str, str], hosts: int, repeats: bool, seed: int
) -> Source | PerHost | None:
    """Return what feeds a queue: its file, or the file of each host, NAME@HOST; None: nothing.

    Raises UsageError E3155 where only some hosts have one.
    """
    names = [f"{queue.name}@{host}" for host in range(hosts)]
    missing = [name for name in names if name not in files]
    if len(missing) < len(names):
        if missing or queue.name in files:
            both = missing[0] if missing else queue.name
            raise UsageError(
                "E3155",
                f"--infeed: some of {hosts} hosts have data of their own, and {both} "
                + ("is not given" if missing else "is given for all"),
                hint="give one file for all hosts, or NAME@0=FILE, NAME@1=FILE and so on",
            )
        return PerHost([source_of_file(queue, files[name], repeats, seed) for name in names])
    if queue.name not in files:
        return None
    return source_of_file(queue, files[queue.name], repeats, seed)


def source_of_file(queue: Queue, path: str, repeats: bool, seed: int) -> Source:
    """Return a queue's source: a file, again and again if asked, or made-up elements."""
    if path == SYNTHETIC:
        return synthetic(spec_of_queue(queue), seed)
    source = source_of(queue, path)
    return source.wrap() if repeats else source


def check_steps_asked(program: Program, asked: SessionOptions) -> None:
    """Raise UsageError E3151 or E3153 for steps and checkpoints that contradict each other."""
    if (asked.every or asked.resumes) and not asked.checkpoint:
        raise UsageError(
            "E3151", "--every and --resume need a folder", hint="give --checkpoint DIR"
        )
    if asked.every and asked.every % program.steps_per_run:
        raise UsageError(
            "E3153",
            f"--every {asked.every}: the program does {program.steps_per_run} steps in a run",
            hint=f"give a multiple of {program.steps_per_run}",
        )


def check_queue_names(program: Program, asked: SessionOptions) -> None:
    """Raise UsageError E3155 for a queue that the program has not."""
    for path in asked.outfeeds.values():
        check_writable(path)
    for flag, names, to_device in (
        ("--infeed", asked.infeeds, True),
        ("--producer-rate", asked.rates, True),
        ("--outfeed-to", asked.outfeeds, False),
    ):
        known = [queue.name for queue in program.queues if queue.to_device is to_device]
        if flag == "--infeed":
            known += [f"{name}@{host}" for name in known for host in range(program.hosts)]
        for name in names:
            if name not in known:
                has = ", ".join(known) or "none"
                raise UsageError(
                    "E3155", f"{flag}: there is no queue {name!r}", hint=f"it has {has}"
                )


def numbers_asked(program: CompiledProgram, asked: SessionOptions) -> dict[int, list[Any]]:
    """Return what `--input` gives parameters, by number: one value, or one for each call.

    Raises UsageError E3154 for what no parameter is, or as many values as there are no calls,
    E3011 for what is no number.
    """
    in_a_run = program.program.steps_per_run
    calls = max(1, (in_a_run if asked.steps is None else asked.steps) // in_a_run)
    values_by_number: dict[int, list[Any]] = {}
    for port, text in ports_named(program, asked.inputs):
        values = _values(port, text)
        if len(values) not in (1, calls):
            raise UsageError(
                "E3154",
                f"--input gives {len(values)} values for {calls} calls of {in_a_run} steps",
                hint="give one for all, or one for each call; --steps says how many steps are done",
            )
        values_by_number[number_of(port)] = values
    return values_by_number


def ports_named(
    program: CompiledProgram, text_by_name: Mapping[str, str]
) -> list[tuple[Port, str]]:
    """Return the parameters that `--input` names, and what it gives them; raises E3154."""
    ports = {port.stream: port for port in seen_by_users(program.program).parameters}
    keys = {int(name) if name.isdecimal() else name: text for name, text in text_by_name.items()}
    named = named_arrays(program.program, keys, program.parameter_names)
    return [(ports[stream], text) for stream, text in named.items()]


def _values(port: Port, text: str) -> list[Any]:
    number_type = int if ELEMENT_TYPES[port.element_type].is_integer else float
    try:
        return [number_type(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(
            "E3011", f"--input {port.stream}={text[:40]}: expected are numbers between commas"
        ) from None


def _all_steps(
    session: "Session | HostsSession",
    asked: SessionOptions,
    numbers: Mapping[int, list[Any]],
    progress: Progress | None,
) -> list[Any]:
    """Run until all steps are done, with checkpoints between; return the last results."""
    place = None
    if asked.checkpoint:
        place = _folder(asked.checkpoint) / CHECKPOINT_FILE
        if asked.resumes and place.exists():
            session.load_state(place)
            say(f"resumed after {session.steps} steps", err=True)
    in_a_run = session.program.steps_per_run
    total = in_a_run if asked.steps is None else asked.steps
    left = max(0, total - session.steps)
    if left % in_a_run:  # said before anything is done, not in the end
        raise UsageError(
            "E3153",
            f"{left} steps are left; the program does {in_a_run} in a run",
            hint=f"ask for a multiple of {in_a_run}, or compile with another loop",
        )
    outputs: list[Any] = []
    while session.steps < total:
        left = total - session.steps
        steps = min(asked.every or left, left)
        first, end = session.steps // in_a_run, (session.steps + steps) // in_a_run
        schedules = {n: values[first:end] for n, values in numbers.items() if len(values) > 1}
        outputs = session.run(steps, schedules=schedules, progress=progress).outputs
        if place is not None:
            session.save_state(place)
    return outputs


def _folder(path: str) -> Path:
    """Return a folder that is there from now on; UsageError E3004 where it cannot be."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            "E3004",
            f"cannot make the folder {path!r}: {error.strerror}",
            hint="name a folder that can be written to, not a file",
        ) from error
    return folder


def _by_result(session: "Session | HostsSession", outputs: Sequence[Any]) -> dict[int, Any]:
    """Return results and state by the number of the entry's result that they are."""
    user_view = seen_by_users(session.program)
    array_by_result = {
        number_of(port): array for port, array in zip(user_view.results, outputs, strict=False)
    }
    state = session.state()
    array_by_result |= {p.result: state[p.name] for p in user_view.state if p.result >= 0}
    return dict(sorted(array_by_result.items()))


def show_session(
    results: Mapping[int, Any],
    drained: Mapping[str, Sequence[Any]],
    asked: SessionOptions,
    output: str | None,
    as_json: bool,
) -> None:
    """Write what a session gave to files if asked, or print it under the verdict."""
    for name, path in asked.outfeeds.items():
        with replacing(Path(path)) as stream:
            np.savez(stream, **_columns(name, drained[name]))
        say(f"wrote {len(drained[name])} elements of {name} to {path}", err=True)
    if output:
        save_arrays(output, results)
        say(f"wrote {len(results)} arrays to {output}", err=True)
        return
    if as_json:
        return
    for name, elements in drained.items():
        last = f", last {shown_element(elements[-1])}" if elements else ""
        say(f"{name}: {len(elements)} elements{last}")
    for number, value in results.items():
        say(f"out_{number} {value.dtype}{list(value.shape)} = {shown(value)}")


def shown_element(element: Any) -> str:
    """Return an outfeed's element in a few words."""
    if isinstance(element, dict):
        return ", ".join(f"{name} {shown(part)}" for name, part in element.items())
    parts = element if isinstance(element, tuple) else (element,)
    return ", ".join(shown(part) for part in parts)


def _columns(name: str, elements: Sequence[Any]) -> dict[str, Any]:
    """Return one array for each leaf of an outfeed, its elements in a row."""
    if not elements:
        return {}
    if isinstance(elements[0], dict):
        return {
            f"{name}/{key}": np.stack([element[key] for element in elements]) for key in elements[0]
        }
    if not isinstance(elements[0], tuple):
        return {name: np.stack(elements)}
    return {f"{name}.{k}": np.stack(column) for k, column in enumerate(zip(*elements, strict=True))}
