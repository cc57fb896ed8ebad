"""Stages of a pipeline: where a step is cut, and the calls it becomes."""
