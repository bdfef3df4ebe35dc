// A stock JMS client, Apache Qpid's, of the node's streams and of its durable queue `orders`: what it
// does, it tells on stdout, one JSON object a line. Argument: the node's port.

import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.qpid.jms.JmsConnectionFactory;

public final class Client {
    /** Longer than a busy machine takes: what lasts as long hangs. */
    private static final long PATIENCE_MS = 60_000;
    private static final int PACKETS = 40;
    private static final int SHARED_MESSAGES = 100;
    private static final int ORDERS = 10;
    private static final String BINARY_ID = "ID:AMQP_BINARY:";

    private final Connection connection;

    private Client(Connection connection) {
        this.connection = connection;
    }

    public static void main(String[] arguments) throws JMSException {
        String bounds = "?jms.requestTimeout=" + PATIENCE_MS + "&jms.closeTimeout=" + PATIENCE_MS;
        String url = "amqp://127.0.0.1:" + arguments[0] + bounds;
        try (Connection connection = new JmsConnectionFactory(url).createConnection()) {
            connection.setExceptionListener(error -> tell("failed", "text", error));
            connection.start();
            Client client = new Client(connection);
            client.subscribe();
            client.share();
            client.put();
            client.recover();
            client.leave();
            client.ask();
            client.take();
            client.transact();
        }
        tell("closed");
    }

    /** A topic is a stream: the quality message comes first, then the packets. */
    private void subscribe() throws JMSException {
        try (Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE)) {
            MessageConsumer consumer = session.createConsumer(session.createTopic("euronext.104"));
            tell("subscribed");
            for (int place = 0; place < 1 + PACKETS; place += 1) {
                tellMessage("feed", consumer.receive(PATIENCE_MS));
            }
        }
    }

    /** Two consumers of one shared subscription divide a stream's messages. */
    private void share() throws JMSException {
        try (Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE)) {
            Topic topic = session.createTopic("euronext.104?as=message&quality=0");
            MessageConsumer[] members = {
                session.createSharedConsumer(topic, "desk"), session.createSharedConsumer(topic, "desk"),
            };
            // AMQP answers in order: by this answer the node has heard of both members' credit.
            session.createConsumer(session.createTopic("euronext.999")).close();
            tell("shared");
            long end = System.currentTimeMillis() + PATIENCE_MS;
            for (int count = 0; count < SHARED_MESSAGES && System.currentTimeMillis() < end; ) {
                for (int member = 0; member < members.length; member += 1) {
                    Message message = members[member].receive(1);
                    if (message != null) {
                        tellMessage("member " + member, message);
                        count += 1;
                    }
                }
            }
        }
    }

    private void put() throws JMSException {
        try (Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE)) {
            MessageProducer producer = session.createProducer(orders(session));
            producer.setDeliveryMode(DeliveryMode.PERSISTENT);
            for (int number = 0; number < ORDERS - 1; number += 1) {
                producer.send(order(session, number)); // returns once it is accepted
            }
            session.createProducer(null).send(orders(session), order(session, ORDERS - 1));
        }
        tell("put");
    }

    /** What is not acknowledged comes again after recover(), in the same order. */
    private void recover() throws JMSException {
        try (Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE)) {
            MessageConsumer consumer = session.createConsumer(orders(session));
            for (int count = 0; count < 3; count += 1) {
                tellOrder("first", consumer.receive(PATIENCE_MS));
            }
            session.recover();
            for (int count = 0; count < 3; count += 1) {
                Message message = consumer.receive(PATIENCE_MS);
                tellOrder("recovered", message);
                if (count == 2) {
                    message.acknowledge(); // the session's, so all three
                }
            }
        }
    }

    /** What is not acknowledged when its session closes, comes again in another one. */
    private void leave() throws JMSException {
        try (Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE)) {
            tellOrder("left", session.createConsumer(orders(session)).receive(PATIENCE_MS));
        }
    }

    private void take() throws JMSException {
        try (Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE)) {
            MessageConsumer consumer = session.createConsumer(orders(session));
            for (int count = 3; count < ORDERS; count += 1) {
                tellOrder("taken", consumer.receive(PATIENCE_MS));
            }
        }
    }

    /** What a transacted session gets and puts counts at its commit; a rollback has it come again. */
    private void transact() throws JMSException {
        try (Session session = connection.createSession(Session.SESSION_TRANSACTED)) {
            Queue out = session.createQueue("queue.out");
            MessageProducer in = session.createProducer(orders(session));
            MessageProducer producer = session.createProducer(out);
            for (int number = 0; number < 3; number += 1) {
                in.send(order(session, number));
            }
            session.commit();
            MessageConsumer consumer = session.createConsumer(orders(session));
            for (int attempt = 0; attempt < 2; attempt += 1) {
                for (int count = 0; count < 3; count += 1) {
                    Message message = consumer.receive(PATIENCE_MS);
                    tellOrder("attempt " + attempt, message);
                    producer.send(session.createTextMessage("done " + attempt + " " + count));
                }
                if (attempt == 0) {
                    session.rollback();
                } else {
                    session.commit();
                }
            }
            MessageConsumer results = session.createConsumer(out);
            for (int count = 0; count < 3; count += 1) {
                tell("result", "text", results.receive(PATIENCE_MS).getBody(String.class));
            }
            session.commit();
            tell("left over", "text", results.receiveNoWait() == null ? "nothing" : "something");
        }
    }

    /** Asks for what the node has not: each must be a JMSException that says why. */
    private void ask() throws JMSException {
        refused("browser", (session, queue) ->
            session.createBrowser(queue).getEnumeration().hasMoreElements());
        refused("selector", (session, queue) -> session.createConsumer(queue, "price > 100"));
        refused("no-local", (session, queue) -> session.createConsumer(queue, null, true));
        refused("unknown source", (session, queue) ->
            session.createConsumer(session.createQueue("queue.nothing")));
        refused("unknown target", (session, queue) ->
            session.createProducer(session.createQueue("queue.nothing")));
        refused("producer to a stream", (session, queue) ->
            session.createProducer(session.createTopic("euronext.104")));
        refused("temporary queue", (session, queue) -> session.createTemporaryQueue());
    }

    private interface Attempt {
        void make(Session session, Queue queue) throws JMSException;
    }

    private void refused(String what, Attempt attempt) throws JMSException {
        String answer = "";
        try (Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE)) {
            attempt.make(session, orders(session));
        } catch (JMSException error) {
            answer = error.toString();
        }
        tell("refused", "what", what, "answer", answer);
    }

    private static Queue orders(Session session) throws JMSException {
        return session.createQueue("queue.orders");
    }

    private static TextMessage order(Session session, int number) throws JMSException {
        TextMessage message = session.createTextMessage("order " + number);
        message.setIntProperty("number", number);
        message.setJMSCorrelationID("desk " + number);
        return message;
    }

    private static void tellOrder(String event, Message message) throws JMSException {
        String body = message == null ? "nothing" : message.getBody(String.class);
        tell(event, "body", body, "number", message.getIntProperty("number"),
            "correlation", message.getJMSCorrelationID(), "again", message.getJMSRedelivered());
    }

    private static void tellMessage(String link, Message message) throws JMSException {
        boolean text = message instanceof TextMessage; // JSON
        byte[] body = text
            ? message.getBody(String.class).getBytes(StandardCharsets.UTF_8)
            : message.getBody(byte[].class);
        tell("message", "link", link, "subject", message.getJMSType(),
            "id", message.getJMSMessageID().substring(BINARY_ID.length()),
            "content", text ? "quality+json" : "packet",
            "number", message.getIntProperty("JMSXGroupSeq"),
            "body", Base64.getEncoder().encodeToString(body));
    }

    /** Writes an event; `more` are names and values in turn. */
    private static void tell(String event, Object... more) {
        StringBuilder line = new StringBuilder("{\"event\": ").append(json(event));
        for (int place = 0; place < more.length; place += 2) {
            line.append(", ").append(json(more[place])).append(": ").append(json(more[place + 1]));
        }
        System.out.println(line.append("}"));
    }

    private static String json(Object value) {
        if (value instanceof Integer || value instanceof Boolean) {
            return value.toString();
        }
        String text = String.valueOf(value).replace("\\", "\\\\").replace("\"", "\\\"");
        return '"' + text.replace("\n", "\\n") + '"';
    }
}
