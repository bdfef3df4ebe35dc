import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka as a peer of the keyed queue. Each line is as the bench's AMQP client says it.
 *
 * <pre>
 * Client create SERVERS TOPIC PARTITIONS
 * Client put SERVERS TOPIC                      lines "key sequence" on standard input
 * Client take SERVERS TOPIC WORKERS HANDLER_US  Confluent's parallel consumer, ordered by key
 * </pre>
 */
public class Client {
    /** System.nanoTime reads Linux' monotonic clock, as Python's monotonic_ns. */
    private static long now() {
        return System.nanoTime();
    }

    private static Properties common(String servers) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        return properties;
    }

    public static void main(String[] words) throws Exception {
        switch (words[0]) {
            case "create" -> create(words[1], words[2], Integer.parseInt(words[3]));
            case "put" -> put(words[1], words[2]);
            case "take" ->
                take(words[1], words[2], Integer.parseInt(words[3]), Long.parseLong(words[4]));
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private static void create(String servers, String topic, int partitions) throws Exception {
        try (Admin admin = Admin.create(common(servers))) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        }
    }

    private static void put(String servers, String topic) throws Exception {
        Properties properties = common(servers);
        properties.put("acks", "all");
        properties.put("enable.idempotence", "true");
        var in = new BufferedReader(new InputStreamReader(System.in));
        List<String> lines = new ArrayList<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            lines.add(line);
        }
        try (var producer =
                new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            producer.partitionsFor(topic);
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            long began = now();
            for (String line : lines) {
                String[] parts = line.split(" ");
                String value = parts[1] + " " + now();
                sent.add(producer.send(new ProducerRecord<>(topic, parts[0], value)));
            }
            for (Future<RecordMetadata> each : sent) {
                each.get();
            }
            System.out.println("put " + began + " " + now());
        }
    }

    private static void take(String servers, String topic, int workers, long handlerUs)
            throws Exception {
        Properties properties = common(servers);
        properties.put("group.id", "bench");
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        var consumer =
                new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
        var options =
                ParallelConsumerOptions.<String, String>builder()
                        .ordering(ParallelConsumerOptions.ProcessingOrder.KEY)
                        .maxConcurrency(workers)
                        .consumer(consumer)
                        .build();
        var out = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
        ParallelStreamProcessor<String, String> processor =
                ParallelStreamProcessor.createEosStreamProcessor(options);
        var ready = new AtomicBoolean();
        processor.subscribe(
                List.of(topic),
                new ConsumerRebalanceListener() {
                    @Override
                    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

                    /** As a link that is attached: before, the group is not formed. */
                    @Override
                    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                        if (ready.compareAndSet(false, true)) {
                            out.println("attached");
                            out.println("ready " + now());
                        }
                    }
                });
        processor.poll(
                context -> {
                    var record = context.getSingleConsumerRecord();
                    long began = now();
                    if (handlerUs > 0) {
                        try {
                            Thread.sleep(handlerUs / 1000, (int) (handlerUs % 1000) * 1000);
                        } catch (InterruptedException error) {
                            throw new IllegalStateException(error);
                        }
                    }
                    long worker = Thread.currentThread().getId();
                    out.println(
                            worker + " " + record.key() + " " + record.value() + " " + began + " "
                                    + now());
                });
        Thread.currentThread().join();
    }
}
