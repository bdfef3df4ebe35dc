class Splitter:
    tells_send_time: bool
    route_lookups: int
    route_hits: int
    route_resets: int
