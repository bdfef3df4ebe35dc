"""Simulated latency of trees in a cloud: our tables and figures beside the source's."""
