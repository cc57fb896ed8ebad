"""Options of `hloipu run` for programs that keep state or have queues, and what they do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from hloipu.cli.eval import shown
from hloipu.inputs import save_arrays
from hloipu.options.table import Options
from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import UsageError
from hloipu_runtime.program.program import Program, Queue
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.session import Session
from hloipu_runtime.session_inputs import spec_of_queue
from hloipu_runtime.sim.host import Progress
from hloipu_runtime.streams.arrays import Rows, from_file
from hloipu_runtime.streams.made import synthetic
from hloipu_runtime.streams.source import Source

F = TypeVar("F", bound=Callable[..., Any])
SYNTHETIC = "synthetic"
CHECKPOINT_FILE = "checkpoint.hloipu"


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What the command line says of a session."""

    infeeds: Mapping[str, str]
    """Queue -> file, or `synthetic`."""
    outfeeds: Mapping[str, str]
    """Queue -> file."""
    steps: int | None
    repeats: bool
    """Whether infeeds begin again where their files end."""
    checkpoint: str | None
    every: int | None
    resumes: bool
    timeout: float

    @property
    def given(self) -> str:
        """Name of an option that is given; empty: none is."""
        named = {
            "--infeed": self.infeeds, "--outfeed-to": self.outfeeds, "--steps": self.steps,
            "--repeat": self.repeats, "--checkpoint": self.checkpoint, "--every": self.every,
            "--resume": self.resumes,
        }  # fmt: skip
        return next((name for name, value in named.items() if value), "")


def session_options(command: F) -> F:
    """Give a command the options of sessions, which it receives as one argument `session`."""

    def called(*arguments: Any, **keywords: Any) -> Any:
        found = SessionOptions(
            infeeds=_pairs("--infeed", keywords.pop("infeed")),
            outfeeds=_pairs("--outfeed-to", keywords.pop("outfeed_to")),
            steps=keywords.pop("steps"),
            repeats=keywords.pop("repeat"),
            checkpoint=keywords.pop("checkpoint"),
            every=keywords.pop("every"),
            resumes=keywords.pop("resume"),
            timeout=keywords.pop("timeout"),
        )
        return command(*arguments, session=found, **keywords)

    called.__doc__ = command.__doc__
    called.__name__ = command.__name__
    called.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Any = called
    for option in (
        click.option("--timeout", type=float, default=60.0, show_default=True, metavar="SECONDS",
                     help="Wait so long for an element of an infeed."),
        click.option("--resume", is_flag=True, help="Go on from the checkpoint, if there is one."),
        click.option("--every", type=click.IntRange(1), metavar="N",
                     help="Write a checkpoint every N steps, not only at the end."),
        click.option("--checkpoint", type=click.Path(), metavar="DIR",
                     help="Keep the state in this folder."),
        click.option("--repeat", is_flag=True, help="Begin infeeds again where their files end."),
        click.option("--steps", type=click.IntRange(0), metavar="N",
                     help="Do N steps in all, resumed ones counted; by default one run's."),
        click.option("--outfeed-to", multiple=True, metavar="NAME=FILE",
                     help="Write what an outfeed gave to this .npz file; repeatable."),
        click.option("--infeed", multiple=True, metavar="NAME=FILE",
                     help="Feed a queue with the rows of an .npz or .npy file's arrays, put "
                     f"together to batches if need be, or with NAME={SYNTHETIC}; repeatable."),
    ):  # fmt: skip
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def _pairs(flag: str, given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, mark, value = text.partition("=")
        if not (name and mark and value):
            raise UsageError("E3011", f"{flag} {text!r}: expected is NAME=FILE")
        if name in found:
            raise UsageError("E3012", f"{flag}: the queue {name!r} is named twice")
        found[name] = value
    return found


def run_in_session(
    program: CompiledProgram,
    arguments: Sequence[Any],
    options: Options,
    asked: SessionOptions,
    progress: Progress | None,
) -> tuple[Profile, dict[int, Any], dict[str, list[Any]]]:
    """Run a program in a session as asked; `arguments` are all that the entry takes.

    Returns the profile, the results and the state by number of the result, and what the outfeeds
    gave. Raises what sessions raise, UsageError E3151 for options that contradict each other.
    """
    _check(program.program, asked)
    state = {p.name: arguments[p.parameter] for p in program.program.state if p.parameter >= 0}
    constants = {
        int(port.stream.rpartition(".")[2]): arguments[int(port.stream.rpartition(".")[2])]
        for port in program.program.parameters
    }
    infeeds = {
        queue.name: source_of_file(queue, asked.infeeds[queue.name], asked.repeats, options.seed)
        for queue in program.program.queues
        if queue.to_device and queue.name in asked.infeeds
    }
    _known(program.program, asked)
    with program.session(
        state=state,
        constants=constants,
        infeeds=infeeds,
        mode=options.mode,
        poison=options.poison,
        seed=options.seed,
        timeout=asked.timeout,
    ) as session:
        outputs = _all_steps(session, asked, progress)
        drained = {
            queue.name: [x.element for x in session.stream(queue.name).drain()]
            for queue in program.program.queues
            if not queue.to_device
        }
        results = _by_result(session, outputs)
        return session.profile(), results, drained


def source_of_file(queue: Queue, path: str, repeats: bool, seed: int) -> Source:
    """Return a queue's source; rows are put together to batches where elements are batches."""
    spec = spec_of_queue(queue)
    if path == SYNTHETIC:
        return synthetic(spec, seed)
    rows = from_file(path)
    source: Source = rows
    batch = _batch(rows, [leaf.shape for leaf in spec.leaves])
    if batch:
        source = rows.batch(batch)
    return source.wrap() if repeats else source


def _batch(rows: Rows, shapes: Sequence[tuple[int, ...]]) -> int:
    """Return how many rows make an element; 0: a row is one."""
    if len(shapes) != len(rows.leaves) or not all(shapes):
        return 0
    sizes = {shape[0] for shape in shapes}
    alike = all(x.shape[1:] == s[1:] for x, s in zip(rows.leaves, shapes, strict=True))
    return sizes.pop() if alike and len(sizes) == 1 else 0


def _check(program: Program, asked: SessionOptions) -> None:
    if (asked.every or asked.resumes) and not asked.checkpoint:
        raise UsageError("E3151", "--every and --resume need a folder", hint="give --checkpoint DIR")
    if asked.every and asked.every % program.steps_per_run:
        raise UsageError(
            "E3153",
            f"--every {asked.every}: the program does {program.steps_per_run} steps in a run",
            hint=f"give a multiple of {program.steps_per_run}",
        )


def _known(program: Program, asked: SessionOptions) -> None:
    for flag, names, way in (
        ("--infeed", asked.infeeds, True),
        ("--outfeed-to", asked.outfeeds, False),
    ):
        known = [queue.name for queue in program.queues if queue.to_device is way]
        for name in names:
            if name not in known:
                has = ", ".join(known) or "none"
                raise UsageError("E3155", f"{flag}: there is no queue {name!r}", hint=f"it has {has}")


def _all_steps(
    session: Session, asked: SessionOptions, progress: Progress | None
) -> list[Any]:
    """Run until all steps are done, with checkpoints between; return the last results."""
    place = None
    if asked.checkpoint:
        Path(asked.checkpoint).mkdir(parents=True, exist_ok=True)
        place = Path(asked.checkpoint) / CHECKPOINT_FILE
        if asked.resumes and place.exists():
            session.load_state(place)
            click.echo(f"resumed after {session.steps} steps", err=True)
    in_a_run = session.program.steps_per_run
    total = in_a_run if asked.steps is None else asked.steps
    outputs: list[Any] = []
    while session.steps < total:
        left = total - session.steps
        outputs = session.run(min(asked.every or left, left), progress=progress).outputs
        if place is not None:
            session.save_state(place)
    return outputs


def _by_result(session: Session, outputs: Sequence[Any]) -> dict[int, Any]:
    """Return results and state by the number of the entry's result that they are."""
    found = {
        int(port.stream.rpartition(".")[2]): array
        for port, array in zip(session.program.results, outputs, strict=False)
    }
    state = session.state()
    found |= {p.result: state[p.name] for p in session.program.state if p.result >= 0}
    return dict(sorted(found.items()))


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
        click.echo(f"wrote {len(drained[name])} elements of {name} to {path}", err=True)
    if output:
        save_arrays(output, list(results.values()))
        click.echo(f"wrote {len(results)} arrays to {output}", err=True)
        return
    if as_json:
        return
    for name, elements in drained.items():
        last = f", last {shown_element(elements[-1])}" if elements else ""
        click.echo(f"{name}: {len(elements)} elements{last}")
    for number, value in results.items():
        click.echo(f"out_{number} {value.dtype}{list(value.shape)} = {shown(value)}")


def shown_element(element: Any) -> str:
    """Return an outfeed's element in a few words."""
    parts = element if isinstance(element, tuple) else (element,)
    return ", ".join(shown(part) for part in parts)


def _columns(name: str, elements: Sequence[Any]) -> dict[str, Any]:
    """Return one array for each leaf of an outfeed, its elements in a row."""
    if not elements:
        return {}
    if not isinstance(elements[0], tuple):
        return {name: np.stack(elements)}
    return {f"{name}.{k}": np.stack(column) for k, column in enumerate(zip(*elements, strict=True))}
