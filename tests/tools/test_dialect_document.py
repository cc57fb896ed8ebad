from tools.dialect.document import DOCUMENT, document
from tools.dialect.exceptions import read


def test_the_page_shows_the_table_that_the_judge_reads() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(read())
