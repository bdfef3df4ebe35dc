"""State of a market, kept from its stream: books, quotes, trades, reference data."""
