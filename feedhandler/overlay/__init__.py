"""Fair multicast over a tree of proxies, for networks that have no multicast of their own."""
