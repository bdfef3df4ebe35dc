// A stock rhea client that does what the test tells it on stdin and tells on stdout what happened.
// The words are in tests/support/foreign_clients.py.
"use strict";

const net = require("node:net");
const readline = require("node:readline");
const rhea = require("rhea");

const links = {};
const sessions = {};
let connection;
let socket;

function tell(event, more) {
    process.stdout.write(JSON.stringify({ event, ...more }) + "\n");
}

function reason(error) {
    return { condition: error ? error.condition || "" : "", description: error ? error.description || "" : "" };
}

function sessionOf(name) {
    if (!name) return connection;
    if (!sessions[name]) {
        sessions[name] = connection.create_session();
        sessions[name].word = name;
        sessions[name].begin();
    }
    return sessions[name];
}

function hear(link, word) {
    links[word] = { link, deliveries: [] };
    link.word = word;
    const opened = link.is_receiver() ? "receiver_open" : "sender_open";
    link.on(opened, () => {
        const source = link.remote.attach.source;
        tell("attached", {
            link: word,
            address: source && source.address ? source.address : "",
            filter: source && source.filter ? Object.keys(source.filter) : [],
            settled: link.remote.attach.snd_settle_mode === 1,
        });
    });
    const ended = (context) => tell("detached", { link: word, ...reason(link.error) });
    link.on(link.is_receiver() ? "receiver_close" : "sender_close", ended);
    link.on(link.is_receiver() ? "receiver_error" : "sender_error", () => {});
    link.on("receiver_drained", () => {
        link.drain = false;
        tell("drained", { link: word, credit: link.credit });
    });
    link.on("message", ({ message, delivery }) => {
        links[word].deliveries.push(delivery);
        tell("message", {
            link: word,
            subject: message.subject,
            id: message.message_id.toString("hex"),
            content: message.content_type,
            number: message.group_sequence,
            body: message.body.content.toString("base64"),
            settled: Boolean(delivery.remote_settled),
        });
    });
}

const verbs = {
    connect({ port, max_frame, idle_ms }) {
        const options = {
            port, host: "127.0.0.1", reconnect: false, container_id: "rhea client",
            username: "anonymous",
        };
        if (max_frame) options.max_frame_size = max_frame;
        if (idle_ms) options.idle_time_out = idle_ms;
        connection = rhea.create_container().connect(options);
        socket = connection.socket;
        connection.on("connection_open", () => tell("opened", {}));
        connection.on("connection_error", () => {});
        connection.on("session_error", () => {});
        connection.on("session_close", ({ session }) => tell("ended", { session: session.word || "" }));
        connection.on("connection_close", () => tell("closed", reason(connection.error)));
        connection.on("disconnected", () => tell("disconnected", {}));
        connection.on("error", (error) => tell("failed", { description: String(error) }));
    },
    attach({ link, address, settled, session, name, selector }) {
        const source = { address };
        if (selector) source.filter = rhea.filter.selector(selector);
        hear(sessionOf(session).open_receiver({
            name, source, credit_window: 0, autoaccept: false, snd_settle_mode: settled ? 1 : 0,
        }), link);
    },
    dynamic({ link }) {
        hear(connection.open_receiver({ source: { dynamic: true }, credit_window: 0 }), link);
    },
    sender({ link, address }) {
        hear(connection.open_sender({ target: { address } }), link);
    },
    credit({ link, count }) {
        links[link].link.add_credit(count);
    },
    drain({ link }) {
        links[link].link.drain_credit();
    },
    outcome({ link, place, what }) {
        const delivery = links[link].deliveries[place];
        const how = {
            accept: () => delivery.accept(),
            reject: () => delivery.reject({ condition: "amqp:internal-error", description: "no" }),
            release: () => delivery.release(),
            modify: () => delivery.modified({ delivery_failed: true, undeliverable_here: true }),
        };
        how[what]();
    },
    detach({ link }) {
        links[link].link.close();
    },
    end({ session }) {
        sessions[session].close();
    },
    close() {
        connection.close();
    },
    reset() {
        connection.socket.resetAndDestroy();
        tell("gone", {});
    },
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
    const order = JSON.parse(line);
    verbs[order.do](order);
}).on("close", () => process.exit(0));
