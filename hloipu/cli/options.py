"""The option table as click options, for the subcommands that take options of it."""

import functools
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hloipu.cli.saying import say
from hloipu.cli.table import table
from hloipu.options.faults import fault, wrong_value
from hloipu.options.kinds import Flag
from hloipu.options.resolve import Resolved, resolve
from hloipu.options.table import OPTIONS, Option, Options
from hloipu_runtime.frozen import dataclass

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

_PREFIX = "option_"
_NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Asked:
    """Option values of a command line, and where else to look."""

    command: str
    given: Mapping[str, object]
    config: str | None

    @property
    def opaque(self) -> tuple[tuple[str, int], ...]:
        """Cycles of opaque custom calls; for estimates alone."""
        if self.command != "estimate":
            return ()
        return resolve(
            self.command, self.given, place="command line", config=self.config
        ).options.opaque

    def resolved(self, attributes: Mapping[str, str] = _NO_ATTRIBUTES) -> Resolved:
        """Return all options' values, a module's frontend attributes considered.

        Warnings go to stderr. Raises UsageError as `hloipu.options.resolve.resolve` does.
        """
        resolved = resolve(
            self.command,
            self.given,
            place="command line",
            attributes=attributes,
            config=self.config,
        )
        for warning in resolved.warnings:
            say(f"warning: {warning}", err=True)
        return resolved


def native_kernels_of(options: Options) -> AbstractContextManager[None]:
    """Allow or forbid compiled kernels and their cache within the block, as options say."""
    from hloipu_runtime.kernels.native.settings import Settings, native_kernels

    folder = None if options.cache_dir is None else Path(options.cache_dir)
    return native_kernels(Settings(options.fast, options.cache, folder))


def option_group(command: str) -> Callable[[F], F]:
    """Give a command its options of the table, which it receives as one argument `asked`.

    Adds `--config FILE` and `--print-config` as well, which shows the options in place of the work.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def called(*arguments: Any, **keywords: Any) -> Any:
            option_values = {
                key.removeprefix(_PREFIX): keywords.pop(key)
                for key in list(keywords)
                if key.startswith(_PREFIX)
            }
            asked = Asked(
                command,
                {name: value for name, value in option_values.items() if value is not None},
                keywords.pop("config"),
            )
            if keywords.pop("print_config"):
                as_json = keywords.get("as_json") or keywords.get("output_format") == "json"
                say(_config_text(asked.resolved(), as_json))
                return None
            return function(*arguments, asked=asked, **keywords)

        decorated: Any = called
        for add in reversed((*_table_options(command), *_COMMON)):
            decorated = add(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def option_of_table(name: str) -> Callable[[F], F]:
    """Give a command one option of the table alone, which it receives by its name."""
    return _click_option(OPTIONS[name], name)


def _config_text(resolved: Resolved, as_json: bool) -> str:
    if as_json:
        return json.dumps(resolved.record(), ensure_ascii=False)
    return table(("option", "value", "from"), resolved.rows(), left=3)


class TableOption(click.Option):
    """An option of the table: its kind reads the text, and a second use is refused."""

    def __init__(self, declarations: Any, *, row: Option, **settings: Any) -> None:
        super().__init__(declarations, **settings)
        self.row = row

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Make the parser collect every use; it would keep only the last."""
        if not self.is_flag:
            parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=1)
            return
        for spellings, text in ((self.opts, "true"), (self.secondary_opts, "false")):
            parser.add_option(
                obj=self, opts=spellings, dest=self.name, action="append_const", const=text
            )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        """Return what a shell may offer for the value."""
        from hloipu.cli.completing import offered

        return offered(self.row, ctx, incomplete)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value that the uses make, or None where there was none.

        Raises UsageError E3011 for a text that is not of the option's kind, E3012 for a second use
        of an option that is not repeatable.
        """
        if not isinstance(value, list | tuple) or not value:
            return None
        kind, flag = self.row.kind, self.row.flag
        if len(value) > 1 and not kind.repeatable:
            raise fault("E3012", f"{flag} is given {len(value)} times", hint="leave one of them")
        values = [kind.read(text) for text in value]
        if None in values:
            raise wrong_value(self.row.name, kind.expected, value[values.index(None)], place=flag)
        if not kind.repeatable:
            return values[0]
        parts = [
            part for read_value in values if isinstance(read_value, tuple) for part in read_value
        ]
        joined = kind.check(parts)
        if joined is None:
            raise fault("E3012", f"{flag} says one thing twice", hint="leave one of them out")
        return joined


class GroupedCommand(click.Command):
    """A command whose help shows its own options first, then those of the table by group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under the headings of `GROUPS`."""
        from hloipu.options.groups import GROUPS, group_of  # no run needs it

        other_options: list[tuple[str, str]] = []
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in GROUPS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or not isinstance(parameter, click.Option):
                continue
            name = (parameter.name or "").removeprefix("option_")
            is_of_table = isinstance(parameter, TableOption)
            (rows[group_of(name)] if is_of_table else other_options).append(record)
        for heading, records in {"Options": other_options, **rows}.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _table_options(command: str) -> list[Callable[[Any], Any]]:
    rows = [row for row in OPTIONS.values() if command in row.about.commands]
    return [_click_option(row) for row in rows]


def _click_option(row: Option, parameter: str = "") -> Callable[[Any], Any]:
    flag = isinstance(row.kind, Flag)
    spelling = f"{row.flag}/{row.flag.replace('--', '--no-', 1)}" if flag else row.flag
    shapes: dict[str, Any] = {"is_flag": True} if flag else {"metavar": row.kind.metavar}
    default = "" if row.default in (None, ()) else f"  [default: {row.kind.write(row.default)}]"
    return click.option(
        parameter or _PREFIX + row.name,
        spelling,
        cls=TableOption,
        row=row,
        default=None,
        help=row.about.help + default,
        **shapes,
    )


_COMMON = (
    click.option("--config", type=click.Path(), metavar="FILE",
                 help="Read this file in place of the nearest hloipu.toml."),
    click.option("--print-config", is_flag=True,
                 help="Print each option's value and where it came from, and stop."),
)  # fmt: skip
