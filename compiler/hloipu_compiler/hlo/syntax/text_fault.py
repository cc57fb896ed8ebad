"""The fault that readers of one value raise: offsets into its text alone."""


class TextFault(Exception):
    """A value's text is wrong; the parser turns it into a Fault with a place in the whole source.

    `offset` counts characters from the start of the text that the reader was given.
    """

    def __init__(
        self, code: str, message: str, offset: int = 0, *, expected: str = "", hint: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.offset = offset
        self.expected = expected
        self.hint = hint

    def __str__(self) -> str:
        expected = f", expected {self.expected}" if self.expected else ""
        return f"error[{self.code}]: {self.message} at offset {self.offset}{expected}"
