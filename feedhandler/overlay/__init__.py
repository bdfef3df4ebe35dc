"""A multicast laid over unicast: a tree of proxies with hedging, and simultaneous delivery."""
