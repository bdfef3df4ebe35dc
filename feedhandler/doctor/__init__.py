"""Checks of a host, a configuration and data on disk, each with its remedy."""
