"""Write the parse tables of `hlo.lark` to the file that the reader of HLO text starts from."""

import json

from hloipu_compiler.hlo.syntax.parse_tables import GRAMMAR, TABLES, made_tables

if __name__ == "__main__":
    text = json.dumps(made_tables(GRAMMAR.read_bytes()), separators=(",", ":"))
    TABLES.write_text(f"{text}\n", encoding="utf-8")
