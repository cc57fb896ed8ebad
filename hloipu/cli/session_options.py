"""Options of `hloipu run` and `check` for programs that keep state or have queues."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeVar

import click

from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass

F = TypeVar("F", bound=Callable[..., Any])
SYNTHETIC = "synthetic"
MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Session options of a command line."""

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
    rates: Mapping[str, str] = field(default_factory=dict)
    """Queue -> elements per second, or `measured`."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> a number, or one for each call."""
    scheduler: str | None = None
    """Where each host is a process: `local`, or an address of Dask; None: all are here."""
    processes: int | None = None
    """That run the program, which is not on several hosts."""

    @property
    def given(self) -> str:
        """Name of an option that is given; empty: none is."""
        named = {
            "--infeed": self.infeeds, "--outfeed-to": self.outfeeds, "--steps": self.steps,
            "--repeat": self.repeats, "--checkpoint": self.checkpoint, "--every": self.every,
            "--resume": self.resumes, "--producer-rate": self.rates,
            "--scheduler": self.scheduler, "--processes": self.processes,
        }  # fmt: skip
        return next((name for name, value in named.items() if value), "")

    def require_none(self) -> None:
        """Raise UsageError E3158 where an option is given: there is no session to use it in."""
        if self.given:
            raise UsageError(
                "E3158",
                f"{self.given}: the program keeps no state and has no queues",
                hint="give --loop N, and --feed and --outfeed",
            )


_OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "infeed": click.option(
        "--infeed", multiple=True, metavar="NAME=FILE[:ARRAY,…]",
        help="Feed a queue with the rows of an .npz or .npy file's arrays, "
        f"put together to batches if need be, or with NAME={SYNTHETIC}; NAME@HOST for the data of "
        "one of --hosts; repeatable."),
    "input": click.option(
        "--input", multiple=True, metavar="NAME=X[,X…]",
        help="Give a parameter that is one number, such as a learning rate, this number, or one "
        "for each call of the device; repeatable."),
    "outfeed_to": click.option(
        "--outfeed-to", multiple=True, metavar="NAME=FILE",
        help="Write what an outfeed gave to this .npz file; repeatable."),
    "producer_rate": click.option(
        "--producer-rate", multiple=True, metavar="NAME=RATE",
        help="Elements of an infeed that the host makes per simulated second, "
        f"or as many as it does here (NAME={MEASURED}); by default all are "
        "there in time; repeatable."),
    "steps": click.option(
        "--steps", type=click.IntRange(0), metavar="N",
        help="Run N steps in all, resumed ones counted; by default one run's."),
    "repeat": click.option(
        "--repeat", is_flag=True, help="Restart infeeds where their files end."),
    "checkpoint": click.option(
        "--checkpoint", type=click.Path(), metavar="DIR", help="Keep the state in this folder."),
    "every": click.option(
        "--every", type=click.IntRange(1), metavar="N",
        help="Write a checkpoint every N steps, not only at the end."),
    "resume": click.option(
        "--resume", is_flag=True, help="Resume from the checkpoint, if there is one."),
    "scheduler": click.option(
        "--scheduler", metavar="local|ADDRESS",
        help="Run each of --hosts as a process: of this machine, or on a worker of the Dask "
        "scheduler at this address; by default all are one process."),
    "processes": click.option(
        "--processes", type=click.IntRange(1), metavar="N",
        help="Run the replicas, or the partitions of one, in N processes: of this machine, or of "
        "the --scheduler's cluster."),
    "timeout": click.option(
        "--timeout", type=float, default=60.0, show_default=True, metavar="SECONDS",
        help="Time limit for an element of an infeed."),
}  # fmt: skip
"""By the name of the keyword, in the order of the help."""
_FEEDING = ("infeed", "steps", "repeat", "timeout")


def session_options(command: F) -> F:
    """Give a command the options of sessions, which it receives as one argument `session`."""
    return _with(command, tuple(_OPTIONS))


def feeding_options(command: F) -> F:
    """Give a command those of them that say what a session is fed with, as `session` as well."""
    return _with(command, _FEEDING)


def _with(command: F, names: Sequence[str]) -> F:
    @functools.wraps(command)
    def called(*arguments: Any, **keywords: Any) -> Any:
        option_values = {name: keywords.pop(name) for name in names}
        session = SessionOptions(
            infeeds=_pairs("--infeed", option_values["infeed"]),
            outfeeds=_pairs("--outfeed-to", option_values.get("outfeed_to", ())),
            steps=option_values["steps"],
            repeats=option_values["repeat"],
            checkpoint=option_values.get("checkpoint"),
            every=option_values.get("every"),
            resumes=option_values.get("resume", False),
            timeout=option_values["timeout"],
            rates=_pairs("--producer-rate", option_values.get("producer_rate", ()), "RATE"),
            inputs=_pairs("--input", option_values.get("input", ()), "X"),
            scheduler=option_values.get("scheduler"),
            processes=option_values.get("processes"),
        )
        return command(*arguments, session=session, **keywords)

    decorated: Any = called
    for name in reversed(names):
        decorated = _OPTIONS[name](decorated)
    return decorated  # type: ignore[no-any-return]


def _pairs(flag: str, texts: Sequence[str], value_name: str = "FILE") -> dict[str, str]:
    value_by_name: dict[str, str] = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not (name and mark and value):
            raise UsageError("E3011", f"{flag} {text!r}: expected is NAME={value_name}")
        if name in value_by_name:
            raise UsageError("E3012", f"{flag}: {name!r} is named twice")
        value_by_name[name] = value
    return value_by_name
