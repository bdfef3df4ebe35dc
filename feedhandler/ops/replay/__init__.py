"""The replay command, and its control while it runs."""
