package interop.clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** The clients of one scenario, and what it says: the same lines at every broker that keeps the protocol. */
final class Session implements AutoCloseable {
    /** Longer than the 60 s after which a queue that its consumer did not unlock is free. */
    static final long WAIT_MS = 150_000;
    /** The message that creates a topic. */
    static final String FIRST = "first";
    private static final AtomicInteger INSTANCES = new AtomicInteger();

    final String nameServer;
    final String name;
    final String argument;
    private final List<String> lines = new ArrayList<>();
    private final Deque<AutoCloseable> open = new ArrayDeque<>();

    Session(String nameServer, String argument) {
        String[] parts = argument.split("=", 2);
        this.nameServer = nameServer;
        this.name = parts[0];
        this.argument = parts.length > 1 ? parts[1] : "";
    }

    List<String> lines() {
        synchronized (lines) {
            return new ArrayList<>(lines);
        }
    }

    void say(Object... words) {
        synchronized (lines) {
            lines.add(Arrays.stream(words).map(String::valueOf).collect(Collectors.joining(" ")));
        }
    }

    void sayAll(String title, Collection<String> all) {
        say(title, all.size());
        all.forEach(line -> say(" ", line));
    }

    /** Says what was answered, or with which code the broker refused. */
    void sayOutcome(String what, Callable<?> call) {
        try {
            say(what, call.call());
        } catch (Exception refused) {
            say(what, "refused", code(refused));
        }
    }

    static String code(Throwable refused) {
        for (Throwable cause = refused; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException) {
                return String.valueOf(((MQBrokerException) cause).getResponseCode());
            }
        }
        String code = refused instanceof MQClientException ? " " + ((MQClientException) refused).getResponseCode() : "";
        return refused.getClass().getSimpleName() + code;
    }

    String topic(String suffix) {
        return "T-" + name + suffix;
    }

    String topic() {
        return topic("");
    }

    String group() {
        return "G-" + name;
    }

    // Clients.

    /** A name that no other client of this machine has; those of one group may be in several processes. */
    static String instance() {
        return "client-" + System.getProperty("interop.process", "") + INSTANCES.incrementAndGet();
    }

    /** A producer that is started; the topics that its first messages create have as many queues. */
    DefaultMQProducer producer(int queues) throws MQClientException {
        return start(new DefaultMQProducer("P-" + name), queues);
    }

    <P extends DefaultMQProducer> P start(P producer, int queues) throws MQClientException {
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(instance());
        producer.setDefaultTopicQueueNums(queues);
        producer.setSendMsgTimeout(60_000);
        producer.start();
        closing(producer::shutdown);
        return producer;
    }

    DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(instance());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setPollNameServerInterval(1000);
        closing(consumer::shutdown);
        return consumer;
    }

    @SuppressWarnings("deprecation")
    DefaultMQPullConsumer pullConsumer(String group) throws MQClientException {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(instance());
        consumer.start();
        closing(consumer::shutdown);
        return consumer;
    }

    DefaultLitePullConsumer litePullConsumer(String group) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(instance());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        closing(consumer::shutdown);
        return consumer;
    }

    private void closing(Runnable shutdown) {
        open.push(shutdown::run);
    }

    @Override
    public void close() throws Exception {
        while (!open.isEmpty()) {
            open.pop().close();
        }
    }

    // Messages.

    static Message message(String topic, String tags, String keys, String body) {
        return new Message(topic, tags, keys, body.getBytes(StandardCharsets.UTF_8));
    }

    static Message message(String topic, String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    static MessageQueueSelector toQueue(int queueId) {
        return (queues, message, argument) ->
            queues.stream().filter(queue -> queue.getQueueId() == queueId).findFirst().orElseThrow();
    }

    /** Creates a topic by a first message to its queue 0, and returns its queues, by id. */
    List<MessageQueue> create(DefaultMQProducer producer, String topic) throws Exception {
        producer.send(message(topic, FIRST), toQueue(0), null);
        return awaitQueues(producer, topic, producer.getDefaultTopicQueueNums());
    }

    List<MessageQueue> awaitQueues(DefaultMQProducer producer, String topic, int count) throws Exception {
        List<MessageQueue> queues = new ArrayList<>();
        await(() -> {
            queues.clear();
            try {
                queues.addAll(producer.fetchPublishMessageQueues(topic));
            } catch (MQClientException notYet) {
                return false;
            }
            return queues.size() == count;
        });
        queues.sort(null);
        return queues;
    }

    /** Sends messages with these bodies to queue 0. */
    void send(DefaultMQProducer producer, String topic, String... bodies) throws Exception {
        for (String body : bodies) {
            producer.send(message(topic, body), toQueue(0), null);
        }
    }

    static String describe(SendResult result) {
        return String.join(
            " ",
            result.getSendStatus().name(),
            "queue=" + result.getMessageQueue().getBrokerName() + ":" + result.getMessageQueue().getQueueId(),
            "offset=" + result.getQueueOffset(),
            "msgId=" + shape(result.getMsgId()),
            "offsetMsgId=" + shape(result.getOffsetMsgId()),
            "transactionId=" + shape(result.getTransactionId()),
            "region=" + result.getRegionId(),
            "trace=" + result.isTraceOn());
    }

    /** The lengths of ids that commas separate. */
    static String shape(String ids) {
        return ids == null
            ? "null"
            : Arrays.stream(ids.split(",")).map(id -> String.valueOf(id.length())).collect(Collectors.joining(","));
    }

    /** Waits until it is so; what is missing then shows in what is said. */
    static boolean await(Callable<Boolean> reached) throws Exception {
        long end = System.currentTimeMillis() + WAIT_MS;
        while (!reached.call()) {
            if (System.currentTimeMillis() > end) {
                return false;
            }
            Thread.sleep(20);
        }
        return true;
    }
}
