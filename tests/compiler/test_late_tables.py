"""Tables by opcode whose modules are imported late: every name has an entry where it is listed."""

import subprocess
import sys

import pytest

from hloipu_runtime.late_table import LateTable

EVERY_ENTRY = """
import importlib, pkgutil, sys
from hloipu_runtime.late_table import LateTable

add, homes = LateTable.add, {}

def noted(table, entries):
    frame = sys._getframe(1)
    while frame.f_globals["__name__"] == "hloipu_runtime.late_table":
        frame = frame.f_back
    module = frame.f_globals["__name__"].removeprefix(f"{table.package}.")
    homes.update(dict.fromkeys(entries, module))
    add(table, entries)

LateTable.add = noted
table = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
path = importlib.import_module(table.package).__path__
for module in pkgutil.walk_packages(path, f"{table.package}."):
    importlib.import_module(module.name)  # ValueError for one not listed
print(sorted(homes.items()) == sorted((name, table.home(name)) for name in table))
"""


@pytest.mark.parametrize(
    ("module", "table"),
    [
        ("lowering.core.context", "LOWERINGS"),
        ("interpret.planning.site", "LOWERINGS"),
        ("inference.site", "RULES"),
    ],
)
def test_every_name_has_an_entry_and_every_entry_is_listed(module: str, table: str) -> None:
    command = [sys.executable, "-c", EVERY_ENTRY, f"hloipu_compiler.{module}", table]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_an_entry_is_not_entered_twice_nor_unlisted() -> None:
    table: LateTable[str] = LateTable("families", {"first": "a b", "second": "c"})
    assert list(table) == ["a", "b", "c"]
    table.add({"a": "entry"})
    assert (table["a"], table.get("d"), "d" in table) == ("entry", None, False)
    with pytest.raises(ValueError, match="a has two entries"):
        table.register("a")("other")
    with pytest.raises(ValueError, match="d is not listed"):
        table.register("d")("other")
    with pytest.raises(ValueError, match="a stands in first and in second"):
        LateTable[str]("families", {"first": "a", "second": "a"})
