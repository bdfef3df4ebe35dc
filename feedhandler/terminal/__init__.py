"""What commands share: exit codes, one-line errors, progress, tables, arguments, children."""
