"""Durable queues of the embedded node: `queue.<name>` addresses over the persistent queue."""
