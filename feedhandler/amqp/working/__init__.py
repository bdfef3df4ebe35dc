"""Workers at queues: clients that put messages, get them, and ask about them."""
