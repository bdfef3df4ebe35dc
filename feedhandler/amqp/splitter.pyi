class Splitter:
    route_lookups: int
    route_hits: int
    route_resets: int
