"""A durable queue that is serial per key and parallel across keys."""
