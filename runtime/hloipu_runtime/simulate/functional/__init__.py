"""The functional mode: whole tensors at a time, from a proved program's logical form."""
