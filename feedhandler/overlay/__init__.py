"""A fair overlay multicast: a tree of proxies with hedging, and simultaneous delivery."""
