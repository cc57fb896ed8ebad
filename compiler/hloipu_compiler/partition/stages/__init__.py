"""Stages of a pipeline: where a step is cut, and the calls that it becomes."""
