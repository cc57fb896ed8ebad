"""Records as plain data and back: by their annotations alone, so that no field is forgotten.

`coders` make data of records and records of data, `pools` keep what occurs often once.
"""
