"""Shared parts of lowerings: builder, values, exchanges, remote memory."""
