"""Codec of records as plain data, driven by annotations.

`coders` make data of records and records of data, `pools` keep what occurs often once.
"""
