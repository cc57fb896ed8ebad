"""Stack-frame tables in the form that XLA prints, recognised without being read."""

import re

_NAMED = r'[0-9]++ "(?:[^"\\\n]++|\\[nt\'"\\])*+"\n'
_LOCATION = "".join(
    rf"{key}=[0-9]{{1,9}}+{end}"
    for key, end in (
        ("file_name_id", " "), ("function_name_id", " "), ("line", " "), ("end_line", " "),
        ("column", " "), ("end_column", ""),
    )
)  # fmt: skip
_FRAME = "file_location_id=[0-9]{1,9}+ parent_frame_id=[0-9]{1,9}+"
printed_tables = re.compile(
    rf"FileNames\n(?:{_NAMED})*+\n*+FunctionNames\n(?:{_NAMED})*+\n*+"
    rf"FileLocations\n(?:[0-9]++ \{{{_LOCATION}\}}\n)*+\n*+"
    rf"StackFrames\n?(?:[0-9]++ \{{{_FRAME}\}}(?:\n|\Z))*+"
).fullmatch
"""Stack tables as they are printed; these need no reading to be known as right."""
