"""The subcommands, a file each."""
