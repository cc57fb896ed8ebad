"""Pass pipelines: passes in order, with groups that repeat to a fixed point."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass

from hloipu_compiler.passes.framework.pass_base import NO_FACTS, Facts, Pass
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """Passes that run in turn, again and again until a round changes nothing."""

    passes: tuple[Pass, ...]
    most_rounds: int


Step = Pass | Group


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Steps whose requirements are known to be met, and the facts that hold at the end."""

    steps: tuple[Step, ...]
    establishes: Facts

    def passes(self) -> Iterator[Pass]:
        """Yield every pass in order, those of a group once."""
        for step in self.steps:
            yield from step.passes if isinstance(step, Group) else (step,)

    def __str__(self) -> str:
        return ",".join(map(step_text, self.steps))


def built(steps: Sequence[Step], known: Facts = NO_FACTS) -> Pipeline:
    """Return the pipeline of some steps, given the facts that hold before it.

    A group's passes must find what they require in its first round and in any later one. Raises
    UsageError (E3132) where a pass requires a fact that nothing before it establishes.
    """
    facts = known
    for step in steps:
        if isinstance(step, Group):
            facts = _after(step.passes, _after(step.passes, facts))
        else:
            facts = _after((step,), facts)
    return Pipeline(tuple(steps), facts)


def _after(passes: Sequence[Pass], facts: Facts) -> Facts:
    for one in passes:
        missing = sorted(one.requires - facts)
        if missing:
            raise UsageError(
                "E3132",
                f"the pass {one.name} requires {missing[0]!r}, which does not hold there",
                hint="put a pass before it that establishes this: "
                "hloipu opt --list-passes says which",
            )
        facts = (facts - one.breaks) | one.establishes
    return facts


def step_text(step: Step) -> str:
    """Return a step as `--passes` reads it."""
    if isinstance(step, Group):
        return f"({','.join(map(step_text, step.passes))})*{step.most_rounds}"
    options = [
        f"{_key(name)}={_option_text(getattr(step, name))}"
        for name, default in _options(type(step))
        if getattr(step, name) != default
    ]
    return f"{step.name}{{{','.join(options)}}}" if options else step.name


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def option_texts(cls: type[Pass]) -> list[str]:
    """Return the options of a pass with their defaults, as `--passes` reads them."""
    return [f"{_key(name)}={_option_text(default)}" for name, default in _options(cls)]


def _options(cls: type[Pass]) -> list[tuple[str, object]]:
    return [(x.name, x.default) for x in fields(cls)] if is_dataclass(cls) else []


def _key(name: str) -> str:
    return name.replace("_", "-")
