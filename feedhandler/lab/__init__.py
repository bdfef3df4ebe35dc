"""The latency laboratory: the source paper's experiment in one command."""
