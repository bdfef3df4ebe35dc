// A stock Vert.x Proton client of a stream and of the node's durable queue `orders`: what it does, it
// tells on stdout, one JSON object a line. Argument: the node's port.

import io.vertx.core.Vertx;
import io.vertx.core.json.JsonObject;
import io.vertx.proton.ProtonClient;
import io.vertx.proton.ProtonConnection;
import io.vertx.proton.ProtonHelper;
import io.vertx.proton.ProtonReceiver;
import io.vertx.proton.ProtonSender;
import java.util.Base64;
import java.util.HexFormat;
import org.apache.qpid.proton.amqp.Binary;
import org.apache.qpid.proton.amqp.messaging.AmqpValue;
import org.apache.qpid.proton.amqp.messaging.Data;
import org.apache.qpid.proton.message.Message;

public final class Client {
    private static final int PACKETS = 40;
    private static final int CREDIT = 5;
    private static final int ORDERS = 10;

    private final Vertx vertx;
    private final ProtonConnection connection;

    private Client(Vertx vertx, ProtonConnection connection) {
        this.vertx = vertx;
        this.connection = connection;
    }

    public static void main(String[] arguments) {
        Vertx vertx = Vertx.vertx();
        int port = Integer.parseInt(arguments[0]);
        ProtonClient.create(vertx).connect("127.0.0.1", port, connecting -> {
            ProtonConnection connection = connecting.result();
            connection.disconnectHandler(gone -> tell("failed", "text", "disconnected"));
            connection.openHandler(opened -> new Client(vertx, opened.result()).subscribe()).open();
        });
    }

    /** Receives with credit that it gives by hand; all of it once, and the rest when told to. */
    private void subscribe() {
        ProtonReceiver receiver = connection.createReceiver("euronext.104?quality=0");
        int[] count = {0};
        receiver.setPrefetch(0).handler((delivery, message) -> {
            tellMessage(message);
            count[0] += 1;
            if (count[0] == CREDIT) {
                settleDown(() -> {
                    tell("used");
                    whenTold(() -> receiver.flow(PACKETS));
                });
            } else if (count[0] == PACKETS) {
                receiver.closeHandler(closed -> put()).close();
            }
        });
        receiver.openHandler(opened -> {
            receiver.flow(CREDIT);
            tell("subscribed");
        }).open();
    }

    private void put() {
        ProtonSender sender = connection.createSender("queue.orders");
        int[] accepted = {0};
        sender.openHandler(opened -> {
            for (int number = 0; number < ORDERS; number += 1) {
                Message message = ProtonHelper.message("order " + number);
                message.setDurable(true);
                message.setMessageId("vertx-" + number);
                sender.send(message, delivery -> {
                    accepted[0] += 1;
                    if (accepted[0] == ORDERS) {
                        tell("put", "outcome", delivery.getRemoteState().getType().toString());
                        sender.closeHandler(closed -> take()).close();
                    }
                });
            }
        }).open();
    }

    /** Takes the queue's messages; the first one it releases once. */
    private void take() {
        ProtonReceiver receiver = connection.createReceiver("queue.orders");
        int[] count = {0};
        receiver.setPrefetch(0).setAutoAccept(false).handler((delivery, message) -> {
            count[0] += 1;
            boolean first = count[0] == 1;
            tell(first ? "left" : "taken", "body", ((AmqpValue) message.getBody()).getValue());
            if (first) {
                ProtonHelper.released(delivery, true);
                receiver.flow(ORDERS);
            } else {
                ProtonHelper.accepted(delivery, true);
            }
            if (count[0] == 1 + ORDERS) {
                receiver.closeHandler(closed -> ask()).close();
            }
        });
        receiver.openHandler(opened -> receiver.flow(1)).open();
    }

    private void ask() {
        ProtonReceiver receiver = connection.createReceiver("queue.nothing");
        receiver.closeHandler(closed -> {
            tell("refused", "what", "unknown source", "answer", receiver.getRemoteCondition().toString());
            receiver.close();
            ProtonSender sender = connection.createSender("euronext.104");
            sender.closeHandler(refused -> {
                tell("refused", "what", "producer to a stream", "answer", sender.getRemoteCondition().toString());
                sender.close();
                close();
            }).open();
        }).open();
    }

    private void close() {
        connection.closeHandler(closed -> {
            connection.disconnectHandler(gone -> {});
            connection.disconnect();
            tell("closed");
            vertx.close();
        }).close();
    }

    /** Goes on when the node has answered everything so far: AMQP answers in order. */
    private void settleDown(Runnable then) {
        ProtonReceiver echo = connection.createReceiver("euronext.999");
        echo.openHandler(opened -> {
            echo.close();
            then.run();
        }).open();
    }

    /** Goes on behind the next line on stdin. */
    private void whenTold(Runnable then) {
        vertx.executeBlocking(() -> {
            while (System.in.read() != '\n') {}
            return null;
        }).onSuccess(line -> then.run());
    }

    private static void tellMessage(Message message) {
        Binary id = (Binary) message.getMessageId();
        Binary body = ((Data) message.getBody()).getValue();
        tell("message", "link", "feed", "subject", message.getSubject(),
            "id", HexFormat.of().formatHex(bytes(id)),
            "content", message.getContentType(), "number", message.getGroupSequence(),
            "body", Base64.getEncoder().encodeToString(bytes(body)));
    }

    private static byte[] bytes(Binary binary) {
        byte[] found = new byte[binary.getLength()];
        binary.asByteBuffer().get(found);
        return found;
    }

    /** Writes an event; `more` are names and values in turn. */
    private static void tell(String event, Object... more) {
        JsonObject line = new JsonObject().put("event", event);
        for (int place = 0; place < more.length; place += 2) {
            line.put((String) more[place], more[place + 1]);
        }
        System.out.println(line.encode());
    }
}
