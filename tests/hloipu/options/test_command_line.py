"""The table's click options: what a command receives, --print-config, and refusals."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from hloipu.cli.options import Asked, option_group
from hloipu_runtime.errors import UsageError


@click.command("run")
@click.argument("file")
@option_group("run")
@click.option("--json", "as_json", is_flag=True)
def command(file: str, asked: Asked, as_json: bool) -> None:
    """Run FILE."""
    asked.resolved()
    click.echo(f"{file} {dict(sorted(asked.given.items()))}")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HLOIPU_FLAGS", raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def output(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exception is None, result.exception
    return result.stdout


def test_only_what_was_given_arrives() -> None:
    assert output("m.hlo") == "m.hlo {}\n"
    assert output("--ipus", "4", "--no-cache", "m.hlo", "--set", "a=1", "--set", "b=2") == (
        "m.hlo {'cache': False, 'ipus': 4, 'set': (('a', '1'), ('b', '2'))}\n"
    )
    assert output("--cache", "--code-memory", "m.hlo") == (
        "m.hlo {'cache': True, 'code_memory': True}\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--ipus", "four"), "E3011", "--ipus: ipus is an integer from 1 to 65536, not 'four'"),
        (("--ipus", "1", "--ipus", "2"), "E3012", "--ipus is given 2 times"),
        (("--cache", "--no-cache"), "E3012", "--cache is given 2 times"),
        (("--set", "a=1", "--set", "b.a=2"), "E3012", "--set says one thing twice"),
        (("--set", "a"), "E3011", "--set: set is KEY=VALUE"),
        (("--plugin", "x.py", "--plugin", "x.py"), "E3012", "--plugin says one thing twice"),
        (("--ipu-ids", "two"), "E3011", "--ipu-ids: ipu_ids is"),
    ],
)
def test_refusals(arguments: tuple[str, ...], code: str, said: str) -> None:
    error = run("m.hlo", *arguments).exception
    assert isinstance(error, UsageError)
    assert error.code == code
    assert said in error.message


def test_click_refuses_unknown_options_and_names_the_nearest() -> None:
    result = run("m.hlo", "--over-memry", "allow")
    assert result.exit_code == 2
    assert "--over-memory" in result.stderr


def test_help_shows_what_is_available() -> None:
    said = output("--help")
    assert "--over-memory refuse|allow" in said
    assert "--code-memory / --no-code-memory" in said
    assert "[default: 1GiB]" in said
    assert "--ipu-ids" in said


def test_print_config_shows_values_and_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("hloipu.toml").write_text("\ncode_memory = false\n")
    monkeypatch.setenv("HLOIPU_FLAGS", "--target=bow")
    lines = output("m.hlo", "--print-config", "--seed", "7").splitlines()
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines}
    assert rows["option"] == ["value", "from"]
    assert rows["target"] == ["bow", "HLOIPU_FLAGS"]
    assert rows["seed"] == ["7", "command line"]
    assert rows["code_memory"] == ["false", "hloipu.toml:2"]
    assert rows["mode"] == ["functional", "default"]
    record = json.loads(output("m.hlo", "--print-config", "--json"))
    assert record["schema"] == "hloipu.config/1"
    assert record["options"]["target"]["source"] == "flags"
    assert record["options"]["code_memory"] == {
        "value": False,
        "source": "file",
        "place": "hloipu.toml:2",
    }


def test_a_named_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("\nseed = 3\n")
    said = output("m.hlo", "--print-config", "--config", "mine.toml")
    assert "mine.toml:2" in said


def test_warnings_go_to_stderr() -> None:
    Path("hloipu.toml").write_text("[ipu_config]\nnorms.use_stable_statistics = true\n")
    result = run("m.hlo")
    assert result.stdout == "m.hlo {}\n"
    assert result.stderr == (
        "warning: hloipu.toml:2: 'norms.use_stable_statistics' is accepted and has no effect here\n"
    )
