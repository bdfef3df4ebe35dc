"""Sessions made from a seed or after a profile."""
