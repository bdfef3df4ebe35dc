"""AMQP 1.0: proton's bindings, addresses, frames and the fan-out of one stream to many links.

What both sides share lies here. `serving` is the embedded node, `publishing` the way to brokers,
`subscribing` the client's side, `queueing` what waits for whoever is slow.
"""
