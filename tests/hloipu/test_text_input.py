import io
from pathlib import Path

import pytest

import hloipu
from hloipu.text import decoded
from hloipu_runtime.errors import UsageError
from tests.support.command_line import run

TEXT = "HloModule m\nENTRY e {\n  x = f32[2,3] parameter(0)\n  ROOT y = f32[2,3] negate(x)\n}\n"


def test_a_path_an_open_file_and_a_text_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(TEXT)
    expected = hloipu.parse(TEXT).without_places()
    with path.open("rb") as binary, path.open() as text:
        for given in (path, str(path), binary, text, io.StringIO(TEXT)):
            assert hloipu.verify(given).without_places() == expected


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\n\x05hello\x12\x04main", "binary"), (b"\x1f\x8b\x08", "gzip"), (b"PK\x03\x04", "zip"),
        (b"\x7fELF\x02", "a program"), ("HloModule".encode("utf-16"), "UTF-16"),
        (b"\x93hloipu\n\x01\0\0\0", "that hloipu wrote"),
    ],
)  # fmt: skip
def test_what_is_not_text_is_named(data: bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        decoded(data, "m.hlo")
    assert caught.value.code == "E3002"
    assert caught.value.hint


@pytest.mark.parametrize("text", ["a\tb\r\n\x1b", "é", "日本"])
def test_text_is_text(text: str) -> None:
    assert decoded(text.encode(), "m.hlo") == text


def test_bytes_that_are_no_utf8_stay_apart() -> None:
    assert decoded(b"caf\xe9 \xe8", "m.hlo") == "café è"


def test_limits_can_be_set_by_name() -> None:
    with pytest.raises(hloipu.LimitError) as caught:
        hloipu.parse(TEXT, limits=hloipu.Limits(rank=1))
    assert (caught.value.limit, caught.value.allowed, caught.value.found) == ("rank", 1, 2)
    outcome = run("verify", "--limit", "rank=1", "-", stdin=TEXT)
    assert outcome.code == 8
    assert "--limit rank=N" in outcome.err
    assert run("verify", "--limit", "rank=2", "-", stdin=TEXT).code == 0


@pytest.mark.parametrize("given", ["rnak=1", "rank", "rank=x", "rank=-1", "nesting=201"])
def test_limits_that_cannot_be(given: str) -> None:
    outcome = run("verify", "--limit", given, "-", stdin=TEXT)
    assert outcome.code == 2
    assert "E3117" in outcome.err


def test_a_limit_error_says_its_place_as_json() -> None:
    outcome = run("show", "--json", "--limit", "rank=1", "-", stdin=TEXT)
    assert '"line": 3' in outcome.out


def test_an_object_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        hloipu.parse(7)  # type: ignore[arg-type]
    assert caught.value.code == "E3180"
