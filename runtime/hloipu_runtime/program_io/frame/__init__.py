"""The file frame of executables and profiles."""
