"""`hloipu explain CODE`: what an error means; `explain plan` and `explain sharding`: why so."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from hloipu.api import module_attributes, planned, settled_options
from hloipu.cli.inputs import limit_option, read_input
from hloipu.cli.options import Asked, option_group
from hloipu.cli.saying import say
from hloipu.encoded import with_shardings_written
from hloipu_compiler.explanations import all_codes, explain
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_compiler.planners.planned import PlannedOp, Record, plans_record, plans_text
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UsageError
from hloipu_runtime.nearest import did_you_mean, nearest

_NEAREST = 5
"""Names of ops that an error offers."""


@click.command("explain")
@click.argument("words", nargs=-1, metavar="[CODE | plan OP FILE | sharding OP FILE]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@limit_option
@option_group("emit")
def command(words: tuple[str, ...], as_json: bool, limits: Limits, asked: Asked) -> None:
    """Explain an error CODE, with an example and what to do; without CODE, list them.

    `plan OP FILE`: how the instruction OP of FILE, HLO text (- for standard input), is spread over
    tiles, what that costs, and which other ways lost. Options are those of `hloipu emit`.

    `sharding OP FILE`: how the result of OP is divided over devices, and which annotations decided,
    those that --mesh and --shard make included.
    """
    if words[:1] in (("plan",), ("sharding",)):
        if len(words) != 3:
            raise click.UsageError(
                f"`explain {words[0]}` takes the name of an instruction and a file."
            )
        if words[0] == "plan":
            _explain_plan(words[1], words[2], limits, asked, as_json=as_json)
        else:
            _explain_sharding(words[1], words[2], limits, asked, as_json=as_json)
    elif len(words) > 1:
        raise click.UsageError(
            f"`explain` takes one code, `plan OP FILE` or `sharding OP FILE`, not {words[1]!r}."
        )
    elif words:
        _explain_code(words[0], as_json=as_json)
    else:
        _list_codes(as_json=as_json)


def _explain_plan(op: str, file: str, limits: Limits, asked: Asked, *, as_json: bool) -> None:
    module = parse(read_input(file, limits), limits=limits)
    verify(module)
    settled = settled_options(module, None, asked.resolved(module_attributes(module)).options)
    records_of_op = records_of(planned(settled.module, settled.options), op)
    if as_json:
        say(json.dumps(plans_record(records_of_op), ensure_ascii=False))
    else:
        say(plans_text(records_of_op), nl=False)


def _explain_sharding(op: str, file: str, limits: Limits, asked: Asked, *, as_json: bool) -> None:
    from hloipu_compiler.partition.spmd.deciding import explained, shardings_of
    from hloipu_compiler.partition.spmd.partitioning import ready_to_divide

    module = parse(read_input(file, limits), limits=limits)
    verify(module)
    module, lines = with_shardings_written(module, asked.given, asked.config)
    for line in lines:
        say(line, err=True)
    module = ready_to_divide(module)
    explanations = explained(module, shardings_of(module), op)
    if not explanations:
        known = [instruction.name for c in module.computations for instruction in c.instructions]
        raise UsageError(
            "E0478",
            f"no instruction that runs is named {op!r}, or it has no result",
            hint=did_you_mean(op, known, "`hloipu emit --stage=shardings` prints them all"),
        )
    if as_json:
        record = {
            "schema": "hloipu.shardings/1",
            "values": [explanation.record() for explanation in explanations],
        }
        say(json.dumps(record, ensure_ascii=False))
    else:
        say("".join(explanation.text() for explanation in explanations), nl=False)


def records_of(records: Sequence[Record], op: str) -> list[Record]:
    """Return the records of an op; UsageError E0490 where there are none."""
    wanted = op.removeprefix("%")

    def name(record: Record) -> str:
        return record.op if isinstance(record, PlannedOp) else record.value

    wanted_records = [record for record in records if name(record) == wanted]
    if not wanted_records:
        known = sorted({name(record) for record in records})
        near = nearest(wanted, known, _NEAREST) or known[:_NEAREST]
        raise UsageError(
            "E0490",
            f"no plan was made for an instruction {op!r}",
            hint=f"plans were made for {', '.join(near)}"
            if near
            else "no op of this module needed one: each was computed where its operands lie",
        )
    return wanted_records


def _list_codes(*, as_json: bool) -> None:
    rows = {known: explanation.title for known in all_codes() if (explanation := explain(known))}
    say(
        json.dumps({"schema": "hloipu.codes/1", "codes": rows}, ensure_ascii=False)
        if as_json
        else "\n".join(f"{known}  {title}" for known, title in rows.items())
    )


def _explain_code(code: str, *, as_json: bool) -> None:
    explanation = explain(code.upper())
    if explanation is None:
        raise UsageError(
            "E3003",
            f"there is no error code {code!r}",
            hint=did_you_mean(code, all_codes(), "`hloipu explain` lists them all", most=3),
        )
    if as_json:
        record = {"schema": "hloipu.explain/1", **asdict(explanation)}
        say(json.dumps(record, ensure_ascii=False))
        return
    say(str(explanation))
