"""What goes wrong while a program runs."""

from hloipu_runtime.errors import HloipuError


class TileFault(HloipuError):
    """A vertex or a transfer touches what its tile does not have."""

    exit_code = 9

    def __init__(self, place: str, message: str) -> None:
        super().__init__(
            "E4051",
            f"{place}: {message}",
            hint="the program was changed after it was proved; compile the module again",
        )
        self.place = place
