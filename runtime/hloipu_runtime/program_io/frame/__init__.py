"""Files that hloipu writes and reads back: one frame for executables and profiles."""
