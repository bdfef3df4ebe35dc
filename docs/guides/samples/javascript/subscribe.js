// Subscribes to the gateway with rhea and prints what comes.
//
//     npm install rhea
//     node subscribe.js amqp://127.0.0.1:5672 'euronext.104?types=230'
"use strict";

const rhea = require("rhea");

// Messages on their way at most; rhea tops the credit up by itself.
const CREDIT = 1000;
// Bytes of UTP-MD's packet header.
const HEADER_BYTES = 16;

const [, , url, address, count] = process.argv;
let left = count ? Number(count) : Infinity;
let next = 0;

// An order update (type 230) by its fields' offsets.
function order(message) {
    const price = message.readUInt32BE(16) / 10 ** message.readUInt8(47);
    const side = message.toString("latin1", 44, 45);
    const action = message.toString("latin1", 46, 47);
    return `order ${message.readUInt32BE(4)} ${action} ${side} ${message.readUInt32BE(24)} @ ${price}`;
}

// A packet's header, and its messages: each begins with its size less 2, and its type.
function printPacket(body) {
    const messages = body.readUInt8(15);
    console.log(`packet ${body.readUInt16BE(12)} ${body.readUInt32BE(4)}: ${messages} messages, ` +
        `${body.readUInt16BE(0)} bytes`);
    let at = HEADER_BYTES;
    for (let i = 0; i < messages; i++) {
        const size = body.readUInt16BE(at) + 2;
        if (body.readUInt16BE(at + 2) === 230) {
            console.log("  " + order(body.subarray(at, at + size)));
        }
        at += size;
    }
}

function give_up(reason) {
    console.error(reason);
    process.exit(1);
}

const { hostname: host, port } = new URL(url);
const connection = rhea.create_container().connect({ host, port: port || 5672, reconnect: false });
// snd_settle_mode 1: messages are settled as they are sent; a market's data is not given back.
const receiver = connection.open_receiver({
    source: { address }, credit_window: CREDIT, snd_settle_mode: 1, autoaccept: false,
});

receiver.on("message", ({ message }) => {
    if (left <= 0) return;
    if (message.group_sequence !== next) { // thinning leaves no gap here
        give_up(`${message.group_sequence - next} messages were lost`);
    }
    next++;
    const body = message.body.content; // a data section: its bytes are in `content`
    if (message.content_type.endsWith(".quality+json")) {
        const told = JSON.parse(body);
        console.log(`quality ${told.service} ${told.state}: ${told.reason}`);
    } else {
        printPacket(body);
    }
    if (--left === 0) connection.close();
});
receiver.on("receiver_error", () => {
    give_up(`refused: ${receiver.error.condition}: ${receiver.error.description}`);
});
connection.on("disconnected", ({ error }) => {
    if (left > 0) give_up(`no connection: ${error || "the gateway closed it"}`);
});
