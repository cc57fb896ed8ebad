"""Programs as text for people, and back.

One line for each variable, value, vertex group, transfer and definition; braces for blocks.
`docs/program-text.md` tells how to read it. `printer` writes it, `parser` reads it.
"""
