"""Pipelines as text: `inline-calls,(simplify-algebra,fold-constants{max-elements=64})*3`."""

import re
from collections.abc import Mapping
from dataclasses import fields

from hloipu_compiler.passes.framework.pass_base import Pass
from hloipu_compiler.passes.framework.registry import pass_named
from hloipu_compiler.passes.pipeline import Group, Pipeline, Step, built
from hloipu_runtime.errors import UsageError
from hloipu_runtime.nearest import did_you_mean

_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z0-9_.+-]+)|(?P<mark>[(),{}=*]))")
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
MOST_ROUNDS = 100
"""Of one group; a pipeline that needs more does not settle."""


def read_pipeline(text: str, aliases: Mapping[str, Pipeline]) -> Pipeline:
    """Return the pipeline that a text says; a name in `aliases` stands for all of its steps.

    Raises UsageError: E3131 unknown pass, E3132 unmet requirement, E3133 the text is no pipeline,
    E3134 an option that the pass does not have, or a wrong value of one.
    """
    reader = _Reader(text, aliases)
    steps = reader.steps("")
    return built(steps)


class _Reader:
    """Tokens of one text, and where the reading stands."""

    def __init__(self, text: str, aliases: Mapping[str, Pipeline]) -> None:
        self.text = text
        self.aliases = aliases
        self.at = 0

    def _next(self) -> str:
        token = _TOKEN.match(self.text, self.at)
        if token is None:
            if self.text[self.at :].strip():
                raise self._wrong("something else")
            self.at = len(self.text)
            return ""
        self.at = token.end()
        return token["word"] or token["mark"]

    def _peek(self) -> str:
        before = self.at
        token = self._next()
        self.at = before
        return token

    def _wrong(self, token: str) -> UsageError:
        shown = f"{self.text[: self.at]}>>>{self.text[self.at :]}"
        return UsageError(
            "E3133",
            f"{token or 'the end'} where a pass, an option or a mark is expected: {shown}",
            hint="write a,b{option=value},(c,d)*3",
        )

    def _expect(self, mark: str) -> None:
        if self._peek() != mark:
            raise self._wrong(self._peek())
        self._next()

    def steps(self, end: str) -> list[Step]:
        steps: list[Step] = []
        while True:
            if self._peek() == "(":
                steps.append(self._group(end))
            else:
                steps += self._named()
            if self._peek() != ",":
                break
            self._next()
        self._expect(end)
        return steps

    def _group(self, outside: str) -> Group:
        if outside:
            raise self._wrong("a group in a group")
        self._expect("(")
        inside = self.steps(")")
        passes = tuple(x for x in inside if isinstance(x, Pass))
        if len(passes) != len(inside):
            raise self._wrong("a group in a group")
        self._expect("*")
        rounds = self._next()
        if not rounds.isdecimal() or not 1 <= int(rounds[:9]) <= MOST_ROUNDS:
            raise self._wrong(f"{rounds!r} rounds (1 to {MOST_ROUNDS})")
        return Group(passes, int(rounds))

    def _named(self) -> list[Step]:
        before = self.at
        name = self._next()
        if not name or not name[0].isalnum():
            self.at = before
            raise self._wrong(name)
        options = self._options() if self._peek() == "{" else {}
        if name in self.aliases:
            if options:
                raise UsageError("E3134", f"the pipeline {name} takes no options")
            return list(self.aliases[name].steps)
        return [pass_with_options(pass_named(name), options)]

    def _options(self) -> dict[str, str]:
        self._expect("{")
        options: dict[str, str] = {}
        while self._peek() != "}":
            key = self._next()
            self._expect("=")
            options[key] = self._next()
            if self._peek() != ",":
                break
            self._next()
        self._expect("}")
        return options


def pass_with_options(cls: type[Pass], options: Mapping[str, str]) -> Pass:
    """Return a pass with its options read from text; raises UsageError (E3134)."""
    types = {field.name.replace("_", "-"): field for field in fields(cls)}  # type: ignore[arg-type]
    values: dict[str, object] = {}
    for given, text in options.items():
        key = given.replace("_", "-")
        if key not in types:
            names = ", ".join(types) or "none"
            raise UsageError(
                "E3134",
                f"the pass {cls.name} has no option {given!r}",
                hint=did_you_mean(key, types, f"it has: {names}"),
            )
        kind = types[key].type
        values[types[key].name] = _value(
            cls.name, key, kind.__name__ if isinstance(kind, type) else str(kind), text
        )
    return cls(**values)


def _value(name: str, key: str, kind: str, text: str) -> object:
    if kind == "bool" and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    if kind == "str":
        return text
    try:
        if kind == "int" and len(text) < 20:
            return int(text)
        if kind == "float":
            return float(text)
    except ValueError:
        pass
    words = {"bool": "true or false", "int": "a whole number", "float": "a number"}
    raise UsageError("E3134", f"{name}{{{key}=}} takes {words.get(kind, kind)}, not {text!r}")
