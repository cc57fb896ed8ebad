"""Programs as JSON data and arrays, for files: written as they are, read with care.

`program_codec` turns a program into data and back, `checks` refuse what no compiler wrote.
"""
