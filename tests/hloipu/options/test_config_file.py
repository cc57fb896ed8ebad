"""hloipu.toml: where it is looked for, what it may say, and the lines that messages name."""

import os
from pathlib import Path

import pytest

from hloipu.options.config_file import nearest_file
from hloipu.options.resolve import Resolved, resolve
from hloipu_runtime.errors import UsageError


def resolved(folder: Path, text: str | bytes) -> Resolved:
    data = text.encode() if isinstance(text, str) else text
    (folder / "hloipu.toml").write_bytes(data)
    return resolve("run", environment={}, folder=folder)


def refused(folder: Path, text: str | bytes) -> UsageError:
    with pytest.raises(UsageError) as caught:
        resolved(folder, text)
    return caught.value


def test_the_nearest_file_is_found(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "hloipu.toml").touch()
    assert nearest_file(inner) == tmp_path / "hloipu.toml"
    (inner.parent / "hloipu.toml").mkdir()
    assert nearest_file(inner) == tmp_path / "hloipu.toml"
    (inner / "hloipu.toml").touch()
    assert nearest_file(inner) == inner / "hloipu.toml"


def test_a_named_file_is_read_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "hloipu.toml").write_text("ipus = 2")
    other = tmp_path / "other.toml"
    other.write_text("ipus = 3")
    found = resolve("run", environment={}, folder=tmp_path, config=other)
    assert found.options.ipus == 3
    assert str(found.origins["ipus"]) == f"{other}:1"


def test_values_have_toml_s_types(tmp_path: Path) -> None:
    found = resolved(
        tmp_path,
        'target = "bow"\ncache_size_bytes = "64MiB"\ncode_memory = false\n'
        'seed = 7\nset = ["tiles_per_ipu=4"]\npasses = "front"\n',
    ).options
    assert (found.target, found.cache_size_bytes, found.code_memory) == ("bow", 2**26, False)
    assert (found.seed, found.set, found.passes) == (7, (("tiles_per_ipu", "4"),), "front")


def test_paths_are_taken_from_the_file_s_folder(tmp_path: Path) -> None:
    found = resolved(tmp_path, 'target = "mine.toml"\ncache_dir = "cache"\n').options
    assert found.target == str(tmp_path / "mine.toml")
    assert found.cache_dir == str(tmp_path / "cache")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ('\nipus = "4"', "E3011", "hloipu.toml:2: ipus is an integer from 1 to 65536, not '4'"),
        ("ipus = true", "E3011", "hloipu.toml:1: ipus is an integer from 1 to 65536, not True"),
        ("ipus = 1979-05-27", "E3011", "not a date"),
        ("\n\niups = 4", "E3010", "hloipu.toml:3: there is no option 'iups'"),
        ('"a\\u001bb" = 4', "E3010", "hloipu.toml: there is no option 'a\\x1bb'"),
        ("[sett]\na = 1", "E3010", "hloipu.toml:1: there is no option 'sett'"),
        ("ipus = 4\nipus = 5", "E3016", "hloipu.toml:2: not TOML: Cannot overwrite a value"),
        ("target = gc200", "E3016", "hloipu.toml:1:10: not TOML: Invalid value"),
        ("ipus =", "E3016", "not TOML: Invalid value"),
        ("a = " + "[" * 16_000, "E3016", "hloipu.toml: not TOML: nested too deep"),
        ("ipus = " + "9" * 5_000, "E3016", "hloipu.toml: not TOML"),
        (b"# ok\n\xff", "E3016", "hloipu.toml:2: not UTF-8"),
        ("#" * 17_000, "E3015", "more than 16384 bytes"),
        ('plugin = ["x.py"]', "E3014", "hloipu.toml:1: a file may not state plugin"),
        ("set = 4", "E3011", "set is KEY=VALUE"),
        ("ipu_config = 4", "E3011", "ipu_config is a table, not 4"),
        (".".join("a" * 5_000) + " = 1", "E3010", "there is no option 'a'"),
    ],
)
def test_mistakes_are_named_with_their_line(
    tmp_path: Path, text: str | bytes, code: str, said: str
) -> None:
    error = refused(tmp_path, text)
    assert error.code == code
    assert said in error.message


@pytest.mark.parametrize("name", ["missing.toml", "", "a\0b"])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be read|not a file") as caught:
        resolve("run", environment={}, config=f"{tmp_path}/{name}")
    assert caught.value.code == "E3015"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a file"):
        resolve("run", environment={}, config=tmp_path / "pipe")
