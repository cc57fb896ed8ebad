"""Variables and values declared in a program's text, looked up by name."""

from hloipu_runtime.program.program import Value, Variable
from hloipu_runtime.program.steps import ValueId, VariableId
from tests.support.program_reader.tokens import Cursor


class Names:
    """Names declared so far; `v3` is a variable, `%3` a value."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.variables: list[Variable] = []
        self.values: list[Value] = []

    def declare(self, mark: str, number: int) -> None:
        """Pass the name of the next record of a table."""
        if self.cursor.token.text != f"{mark}{number}":
            self.cursor.wrong(f"'{mark}{number}', the next")
        self.cursor.advance()

    def variable(self) -> VariableId:
        """Pass a variable's name and return its number."""
        start = self.cursor.token
        text = self.cursor.word("a variable, such as v3")
        if text[0] != "v" or not text[1:].isdecimal() or len(text) > 10:
            self.cursor.fail("variables are named v0, v1 and so on", start)
        number = int(text[1:])
        if number >= len(self.variables):
            self.cursor.fail(f"there is no variable {text}", start)
        return number

    def value(self) -> ValueId:
        """Pass a value's name and return its number."""
        start = self.cursor.token
        if start.kind != "value":
            self.cursor.wrong("a value, such as %3")
        self.cursor.advance()
        if len(start.text) > 10 or int(start.text[1:]) >= len(self.values):
            self.cursor.fail(f"there is no value {start.text[:40]}", start)
        return int(start.text[1:])

    def variable_and_value(self) -> tuple[VariableId, ValueId]:
        """Pass a variable and the value that it holds."""
        variable = self.variable()
        self.cursor.expect("=")
        return variable, self.value()
