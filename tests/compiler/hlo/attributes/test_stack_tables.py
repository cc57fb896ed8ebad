import pytest

from hloipu_compiler.hlo.attributes.stack_tables import SourceLine, StackTables, read_stack_tables
from hloipu_compiler.hlo.syntax.text_fault import TextFault

TEXT = """
FileNames
1 "/a.py"
2 "/b.py"

FunctionNames
1 "main"
2 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=10 end_line=10 column=1 end_column=9}
2 {file_name_id=2, function_name_id=2, line=5, end_line=5, column=2, end_column=3}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
"""


def test_a_frame_resolves_innermost_first() -> None:
    tables = read_stack_tables(TEXT)
    assert tables.frames(2) == [
        SourceLine("/b.py", 5, "f", 2),
        SourceLine("/a.py", 10, "main", 1),
    ]
    assert tables.frames(1) == [SourceLine("/a.py", 10, "main", 1)]
    assert tables.frames(0) == tables.frames(99) == []


def test_a_circle_ends() -> None:
    tables = read_stack_tables(TEXT.replace("parent_frame_id=1}", "parent_frame_id=3}"))
    assert len(tables.frames(2)) == 2


def test_empty_text() -> None:
    assert read_stack_tables("") == StackTables()


@pytest.mark.parametrize(
    "change",
    [
        ("FunctionNames", "Functions"),
        ('"/a.py"', "a.py"),
        (" end_column=9", ""),
        ("line=10", "line=10 line=10"),
        ("line=10", "line=99999999999"),
        ("parent_frame_id=1}", "parent=1}"),
    ],
)
def test_refused(change: tuple[str, str]) -> None:
    with pytest.raises(TextFault):
        read_stack_tables(TEXT.replace(*change, 1))
