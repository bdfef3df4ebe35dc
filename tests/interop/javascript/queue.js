// A stock rhea client of a durable queue: puts ten messages, cancels one by its message-id, gives one
// back and takes all; what happened is one JSON object on stdout. Argument: the node's port.
"use strict";

const rhea = require("rhea");

const COUNT = 10;
const told = { accepted: 0, taken: [], counts: {} };
const connection = rhea.create_container().connect({
    port: Number(process.argv[2]), host: "127.0.0.1", reconnect: false, username: "anonymous",
});
let sent = 0;

connection.on("error", (error) => { throw error; });
const sender = connection.open_sender("queue.orders");
sender.on("sendable", () => {
    while (sender.sendable() && sent < COUNT) {
        sender.send({ message_id: `order-${sent}`, body: sent, durable: true });
        sent += 1;
    }
});
sender.on("accepted", () => {
    told.accepted += 1;
    if (told.accepted === COUNT) ask({ operation: "cancel", "message-id": "order-3" }, take);
});
sender.on("rejected", ({ delivery }) => { throw new Error(String(delivery.remote_state)); });

function ask(properties, then) {
    const answers = connection.open_receiver({ source: { dynamic: true } });
    const asking = connection.open_sender("queue.orders/$management");
    answers.on("receiver_open", () => {
        const reply_to = answers.source.address;
        asking.send({ reply_to, correlation_id: "c1", application_properties: properties });
    });
    answers.on("message", ({ message }) => {
        told.answer = message.application_properties.answer;
        told.correlation = message.correlation_id;
        then();
    });
}

function take() {
    const receiver = connection.open_receiver({
        source: "queue.orders", credit_window: 0, autoaccept: false,
    });
    let given = false;
    receiver.on("receiver_open", () => receiver.add_credit(COUNT + 1));
    receiver.on("message", ({ message, delivery }) => {
        told.counts[message.body] = message.delivery_count || 0;
        if (message.body === 5 && !given) {
            given = true;
            delivery.modified({ delivery_failed: true, undeliverable_here: false });
            return;
        }
        delivery.accept();
        told.taken.push(message.body);
        if (told.taken.length === COUNT - 1) connection.close();
    });
}

connection.on("connection_close", () => process.stdout.write(JSON.stringify(told) + "\n"));
