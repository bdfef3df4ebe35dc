"""Simulation of the overlay beside its source: latency model, techniques, figures, one report."""
