"""Recordings, playing and generating them, injected faults, and the simulated exchange.

`captures` reads and writes files, `playing` sends them to lines, `generating` makes sessions,
`exchange` is an exchange in real time, `state` keeps what a stream says of its market.
"""
