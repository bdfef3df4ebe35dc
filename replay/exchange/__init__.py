"""The simulated exchange in real time, and the ledgers that check its messages' outcomes."""
