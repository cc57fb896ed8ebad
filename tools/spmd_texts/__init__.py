"""Texts of another partitioner's tests, divided and run on all devices."""
