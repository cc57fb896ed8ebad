"""The Python face: texts, paths and open files; names that resolve on first use."""

import io
from pathlib import Path

import pytest

import hloipu
from tests.support.arrays import f32

TEXT = """HloModule twice
ENTRY e {
  a = f32[3] parameter(0)
  ROOT r = f32[3] add(a, a)
}
"""
X = f32([1, 2, 3])


def test_every_public_name_resolves() -> None:
    assert dir(hloipu) == hloipu.__all__
    for name in hloipu.__all__:
        assert getattr(hloipu, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hloipu.nothing


def test_text_path_and_open_files(tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(TEXT)
    with path.open() as text_file, path.open("rb") as binary_file:
        for given in (
            TEXT,
            str(path),
            path,
            text_file,
            binary_file,
            io.StringIO(TEXT),
            io.BytesIO(TEXT.encode()),
        ):
            if hasattr(given, "seek"):
                given.seek(0)
            assert hloipu.parse(given).name == "twice"
            if hasattr(given, "seek"):
                given.seek(0)
            assert hloipu.verify(given).instruction_count == 2
            if hasattr(given, "seek"):
                given.seek(0)
            (result,) = hloipu.evaluate(given, X)
            assert result.tolist() == [2, 4, 6]


def test_the_name_of_the_file_stands_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "bad.hlo"
    path.write_text(TEXT.replace("add", "ad"))
    with pytest.raises(hloipu.ParseError) as caught:
        hloipu.parse(path)
    assert str(caught.value).startswith(f"{path}:4:")
    with path.open() as file, pytest.raises(hloipu.ParseError, match=r"bad\.hlo:4:"):
        hloipu.parse(file)
    with pytest.raises(hloipu.ParseError, match="<text>:4:"):
        hloipu.parse(path.read_text())


def test_errors_have_their_kinds() -> None:
    with pytest.raises(hloipu.VerifyError) as caught:
        hloipu.verify(TEXT.replace("ROOT r = f32[3]", "ROOT r = f32[4]"))
    assert [fault.code for fault in caught.value.faults] == ["E0301"]
    assert isinstance(caught.value, hloipu.InvalidHloError)
    assert isinstance(caught.value, hloipu.HloipuError)
    with pytest.raises(hloipu.HloipuError, match="takes 1 arguments, 0 were given"):
        hloipu.evaluate(TEXT)
    with pytest.raises(hloipu.HloipuError, match="E3001"):
        hloipu.parse("no such file.hlo")
    with pytest.raises(hloipu.UnsupportedError, match="mystery"):
        hloipu.evaluate(
            TEXT.replace("add(a, a)", 'custom-call(a), custom_call_target="mystery"'), X
        )


@pytest.mark.parametrize("content", [b"\x7fELF\0\0", b"PK\x03\x04", b"\x1f\x8b\x08", b"\x0a\0\x12"])
def test_binary_content_is_refused(content: bytes) -> None:
    with pytest.raises(hloipu.HloipuError, match="E3002"):
        hloipu.parse(io.BytesIO(content))


def test_strings_that_are_not_utf_8_survive() -> None:
    text = TEXT.replace("add(a, a)", 'add(a, a), metadata={op_name="caf\\351"}')
    raw = text.replace("\\351", "é").encode("latin-1")
    assert "é" in hloipu.parse(io.BytesIO(raw)).entry["r"].metadata


def test_the_arguments_stay_as_they_are() -> None:
    x = X.copy()
    (result,) = hloipu.evaluate(TEXT, x)
    assert x.tolist() == [1, 2, 3]
    assert result is not x
