"""The simulated exchange in real time, and the ledgers that check what became of its messages."""
