// Subscribes by TLS with a user and a password, and goes on where it ended the last time.
//
//     node resume.js amqps://ann@gateway1:5671 'euronext.104?quality=0' ca.pem password.txt tag.txt
"use strict";

const fs = require("fs");
const rhea = require("rhea");

const [, , url, pattern, ca, passwordFile, tagFile, count] = process.argv;
let left = count ? Number(count) : Infinity;

function give_up(reason) {
    console.error(reason);
    process.exit(1);
}

let address = pattern;
if (fs.existsSync(tagFile)) {
    address += (address.includes("?") ? "&" : "?") + "from=" + fs.readFileSync(tagFile, "latin1");
}
const { hostname: host, port, username } = new URL(url);
const connection = rhea.create_container().connect({
    transport: "tls", host, port: port || 5671, reconnect: false,
    ca: fs.readFileSync(ca), servername: host, rejectUnauthorized: true,
    username, password: fs.readFileSync(passwordFile, "utf8").trim(),
});
const receiver = connection.open_receiver({ source: { address }, credit_window: 1000 });

receiver.on("message", ({ message }) => {
    if (left <= 0) return;
    const tag = message.message_id; // day, feed, service, sequence number, message number
    console.log(`packet ${tag.readUInt16BE(6)} ${tag.readBigUInt64BE(8)}`);
    fs.writeFileSync(tagFile, tag.toString("hex")); // once the packet is dealt with
    if (--left === 0) connection.close();
});
receiver.on("receiver_error", () => {
    give_up(`refused: ${receiver.error.condition}: ${receiver.error.description}`);
});
connection.on("connection_error", () => give_up(`no connection: ${connection.error}`));
connection.on("disconnected", ({ error }) => {
    if (left > 0) give_up(`no connection: ${error || "the gateway closed it"}`);
});
