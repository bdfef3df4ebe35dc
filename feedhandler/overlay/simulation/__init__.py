"""Latency of trees in a cloud, simulated: the source's tables and figures, and ours beside them."""
