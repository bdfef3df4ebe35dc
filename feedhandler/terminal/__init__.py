"""The terminal side of all commands: exit codes, errors, progress, tables, arguments, children."""
