"""`hloipu explain E0102`: what an error code means, offline."""

import difflib
import json
from dataclasses import asdict

import click

from hloipu_compiler.explanations import all_codes, explain
from hloipu_runtime.errors import UsageError


@click.command("explain")
@click.argument("code", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(code: str | None, as_json: bool) -> None:
    """Say what an error CODE means, show an example and what to do; without CODE, list them."""
    if code is None:
        rows = {known: found.title for known in all_codes() if (found := explain(known))}
        click.echo(
            json.dumps({"schema": "hloipu.codes/1", "codes": rows}, ensure_ascii=False)
            if as_json
            else "\n".join(f"{known}  {title}" for known, title in rows.items())
        )
        return
    found = explain(code.upper())
    if found is None:
        near = difflib.get_close_matches(code.upper(), all_codes(), 3)
        raise UsageError(
            "E3003",
            f"there is no error code {code!r}",
            hint=f"did you mean {', '.join(near)}?" if near else "`hloipu explain` lists them all",
        )
    if as_json:
        record = {"schema": "hloipu.explain/1", **asdict(found)}
        click.echo(json.dumps(record, ensure_ascii=False))
        return
    click.echo(str(found))
