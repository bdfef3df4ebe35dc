import io.aeron.Aeron;
import io.aeron.ExclusivePublication;
import io.aeron.Publication;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.FragmentHandler;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.agrona.concurrent.BackoffIdleStrategy;
import org.agrona.concurrent.UnsafeBuffer;

/**
 * Aeron's multi-destination-cast as a peer of the overlay: a publisher and its receivers, each a
 * process with a media driver of its own in DIRECTORY, which goes with the process. Both end with
 * their standard input.
 *
 * <pre>
 * Client publish DIRECTORY
 *     to PORT                     a destination on loopback
 *     send MESSAGES RATE BYTES    answered with "sent", and how often the publication said no
 * Client receive DIRECTORY RECEIVERS
 *                                 says "ports" and where each receiver is
 *     take MESSAGES               answered with "ready" once every receiver has the publisher
 *     end FILE                    "had", and how many came, once all have or after two seconds;
 *                                 FILE: how long each took, ns, as little-endian 64-bit integers
 * </pre>
 */
public class Client {
    private static final int STREAM = 1;
    private static final int FRAGMENTS = 10;
    private static final int TERM_BYTES = 256 * 1024;
    private static final long PATIENCE_NS = 2_000_000_000L;

    public static void main(String[] words) throws Exception {
        var context =
                new MediaDriver.Context()
                        .aeronDirectoryName(words[1])
                        .dirDeleteOnStart(true)
                        .dirDeleteOnShutdown(true)
                        .publicationTermBufferLength(TERM_BYTES)
                        .threadingMode(ThreadingMode.SHARED);
        try (MediaDriver driver = MediaDriver.launchEmbedded(context);
                Aeron aeron =
                        Aeron.connect(
                                new Aeron.Context()
                                        .aeronDirectoryName(driver.aeronDirectoryName()))) {
            switch (words[0]) {
                case "publish" -> publish(aeron);
                case "receive" -> new Receivers(aeron, Integer.parseInt(words[2])).run();
                default -> throw new IllegalArgumentException(words[0]);
            }
        }
    }

    private static void publish(Aeron aeron) throws IOException {
        var in = new BufferedReader(new InputStreamReader(System.in));
        var publication = aeron.addExclusivePublication("aeron:udp?control-mode=manual", STREAM);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] order = line.split(" ");
            switch (order[0]) {
                case "to" -> publication.addDestination(channel(order[1]));
                case "send" -> {
                    int messages = Integer.parseInt(order[1]);
                    double rate = Double.parseDouble(order[2]);
                    long refused = send(publication, messages, rate, Integer.parseInt(order[3]));
                    System.out.println("sent " + refused);
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    private static String channel(String port) {
        return "aeron:udp?endpoint=127.0.0.1:" + port;
    }

    /** Send at a rate, each message with the time of its sending; how often that was refused. */
    private static long send(
            ExclusivePublication publication, int messages, double rate, int bytes) {
        var buffer = new UnsafeBuffer(ByteBuffer.allocateDirect(bytes));
        long began = System.nanoTime();
        long refused = 0;
        for (int n = 0; n < messages; n++) {
            long due = began + (long) (n * 1e9 / rate);
            for (long early = due - System.nanoTime(); early > 0; early = due - System.nanoTime()) {
                LockSupport.parkNanos(early);
            }
            buffer.putLong(0, System.nanoTime());
            for (long at = publication.offer(buffer, 0, bytes);
                    at < 0;
                    at = publication.offer(buffer, 0, bytes)) {
                if (at == Publication.CLOSED || at == Publication.MAX_POSITION_EXCEEDED) {
                    throw new IllegalStateException("the publication is over: " + at);
                }
                refused++;
                Thread.yield();
            }
        }
        return refused;
    }

    /** All receivers, asked in turns by one thread. */
    private static class Receivers {
        private final Queue<String> orders = new ConcurrentLinkedQueue<>();
        private final List<Subscription> subscriptions = new ArrayList<>();
        private long[] took = {};
        private int had;
        private boolean reported = true;
        private Path file;
        private long until;

        Receivers(Aeron aeron, int count) {
            for (int n = 0; n < count; n++) {
                subscriptions.add(aeron.addSubscription(channel("0"), STREAM));
            }
        }

        void run() throws IOException {
            var idle = new BackoffIdleStrategy();
            FragmentHandler handler =
                    (buffer, offset, length, header) -> {
                        if (had < took.length) {
                            took[had++] = System.nanoTime() - buffer.getLong(offset);
                        }
                    };
            System.out.println("ports " + ports());
            var reading = new Thread(this::read);
            reading.setDaemon(true);
            reading.start();
            while (true) {
                int work = 0;
                for (int n = 0; n < subscriptions.size(); n++) {
                    work += subscriptions.get(n).poll(handler, FRAGMENTS);
                }
                String order = orders.poll();
                if (order != null && order.isEmpty()) {
                    return;
                }
                if (order != null) {
                    begin(order.split(" "));
                }
                if (!reported && subscriptions.stream().allMatch(each -> each.imageCount() == 1)) {
                    System.out.println("ready");
                    reported = true;
                }
                if (file != null && (had == took.length || System.nanoTime() > until)) {
                    end();
                }
                idle.idle(work);
            }
        }

        private String ports() {
            while (subscriptions.stream().anyMatch(each -> each.resolvedEndpoint() == null)) {
                Thread.yield();
            }
            return subscriptions.stream()
                    .map(Subscription::resolvedEndpoint)
                    .map(each -> each.substring(each.lastIndexOf(':') + 1))
                    .collect(Collectors.joining(" "));
        }

        /** Orders come here; an empty one is the end. */
        private void read() {
            try {
                var in = new BufferedReader(new InputStreamReader(System.in));
                for (String line = in.readLine(); line != null; line = in.readLine()) {
                    orders.add(line);
                }
            } catch (IOException error) {
                System.err.println(error);
            }
            orders.add("");
        }

        private void begin(String[] order) {
            switch (order[0]) {
                case "take" -> {
                    took = new long[Integer.parseInt(order[1]) * subscriptions.size()];
                    had = 0;
                    reported = false;
                }
                case "end" -> {
                    file = Path.of(order[1]);
                    until = System.nanoTime() + PATIENCE_NS;
                }
                default -> throw new IllegalArgumentException(order[0]);
            }
        }

        private void end() throws IOException {
            var bytes = ByteBuffer.allocate(had * Long.BYTES).order(ByteOrder.LITTLE_ENDIAN);
            for (int n = 0; n < had; n++) {
                bytes.putLong(took[n]);
            }
            Files.write(file, bytes.array());
            System.out.println("had " + had);
            file = null;
        }
    }
}
