"""Durations formatted for people."""

#: Units from the shortest: its nanoseconds, the nanoseconds where the next begins, its name.
_UNITS = (
    (1, 1_000, "ns"),
    (1_000, 1_000_000, "µs"),
    (1_000_000, 10**9, "ms"),
    (10**9, 60 * 10**9, "s"),
)
_SECOND_NS = 10**9


def span_text(span_ns: float) -> str:
    """Format a duration in ns with three digits and its unit: 250 ns, 12.3 µs, 2.42 s.

    From a minute on it has two units: 25 min 20 s, 3 h 20 min.
    """
    if span_ns < 0:
        return f"-{span_text(-span_ns)}"
    for unit_ns, end_ns, name in _UNITS:
        if span_ns < end_ns * 0.9995:
            return f"{span_ns / unit_ns:.3g} {name}"
    seconds = round(span_ns / _SECOND_NS)
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"
