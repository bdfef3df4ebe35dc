"""What a stream says of its market, kept: books, quotes, trades, reference data."""
