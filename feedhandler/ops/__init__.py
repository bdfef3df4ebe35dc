"""The work of the commands: each is a function that returns an exit code."""
