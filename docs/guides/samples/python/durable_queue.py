"""Put a message into a durable queue, cancel one, take the rest. Needs python-qpid-proton.

python durable_queue.py URL QUEUE
"""

import sys

from proton import Message
from proton.utils import BlockingConnection, SyncRequestResponse

url, name = sys.argv[1:]
connection = BlockingConnection(url, timeout=30)

sender = connection.create_sender(f"queue.{name}")
for number in (1, 2, 3):
    # Returns once the message is accepted: it is on the gateway's disk.
    sender.send(Message(id=f"order-{number}", body=f"buy {number}00 IBM", durable=True))

management = SyncRequestResponse(connection, f"queue.{name}/$management")
answer = management.call(Message(properties={"operation": "cancel", "message-id": "order-2"}))
print("cancel order-2:", answer.properties["answer"])
answer = management.call(Message(properties={"operation": "stat"}))
print("waiting:", answer.body["depth"])

receiver = connection.create_receiver(f"queue.{name}", credit=10)
for _ in range(answer.body["depth"]):
    message = receiver.receive(timeout=30)
    print(message.id, message.body, "tried before:", message.delivery_count)
    receiver.accept()  # recorded: it is never delivered again
connection.close()
