"""Programs as JSON data and arrays, for files: written from their annotations, read with care.

`pools` keeps what occurs often once, `coders` turn records into JSON data and back, `program_codec`
does it for a whole program, and `checks` refuse what no compiler wrote.
"""
