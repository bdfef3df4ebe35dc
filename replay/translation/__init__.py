"""FIX market data made of a binary feed, and the books by order that it is compared with."""
