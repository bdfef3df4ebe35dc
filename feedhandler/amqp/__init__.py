"""AMQP 1.0: proton's bindings, addresses, frames and the fan-out of one stream to many links.

What both sides share is in this folder. `serving` is the embedded node, `publishing` sends to
brokers, `subscribing` is the client's side, `queueing` has the queues of slow receivers, `durable`
the node's durable queues, `working` their clients.
"""
