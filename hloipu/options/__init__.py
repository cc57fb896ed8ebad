"""The option table, and the sources of option values.

One table (`table.Options`) serves the command line, Python's keywords, `hloipu.toml`, HLOIPU_FLAGS
and a module's `ipu_*` attributes; `resolve.resolve` puts their values in order. Imports nothing
heavy, so that the Python face and the command line start fast.
"""
