"""The way to brokers: connections to each kind, destinations, confirmed publication."""
