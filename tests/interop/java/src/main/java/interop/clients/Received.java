package interop.clients;

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageExt;

/** What a consumer's listener was given, but for the messages that created topics. */
final class Received {
    /** Of these the values differ from run to run. */
    private static final Set<String> CHANGING = Set.of(
        "UNIQ_KEY", "ORIGIN_MESSAGE_ID", "CONSUME_START_TIME", "MAX_OFFSET", "__transactionId__", "CORRELATION_ID",
        "REPLY_TO_CLIENT", "ARRIVE_TIME", "PUSH_REPLY_TIME", "TRAN_PREPARED_QUEUE_OFFSET", "DLQ_ORIGIN_MESSAGE_ID");

    private final List<MessageExt> messages = new ArrayList<>();

    synchronized void add(MessageExt message) {
        if (!Session.FIRST.equals(text(message))) {
            messages.add(message);
        }
    }

    synchronized List<MessageExt> all() {
        return new ArrayList<>(messages);
    }

    synchronized int count() {
        return messages.size();
    }

    /** Waits for so many, and a little longer for those that should not come. */
    void await(int count) throws Exception {
        Session.await(() -> count() >= count);
        Thread.sleep(300);
    }

    List<String> bodies() {
        return all().stream().map(Received::text).collect(Collectors.toList());
    }

    List<String> sortedBodies() {
        return bodies().stream().sorted().collect(Collectors.toList());
    }

    List<String> described() {
        return all().stream().map(Received::describe).sorted().collect(Collectors.toList());
    }

    /** Consumes concurrently; a message for which *fails* says so is to come again. */
    void concurrently(DefaultMQPushConsumer consumer, Predicate<MessageExt> fails) {
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            boolean failed = false;
            for (MessageExt message : batch) {
                add(message);
                failed |= fails.test(message);
            }
            return failed ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
    }

    void concurrently(DefaultMQPushConsumer consumer) {
        concurrently(consumer, message -> false);
    }

    void orderly(DefaultMQPushConsumer consumer, Predicate<MessageExt> fails) {
        consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
            boolean failed = false;
            for (MessageExt message : batch) {
                add(message);
                failed |= fails.test(message);
            }
            return failed ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        });
    }

    static String text(MessageExt message) {
        byte[] body = message.getBody();
        if (body == null) {
            return "null";
        }
        return body.length <= 100
            ? new String(body, StandardCharsets.UTF_8)
            : body.length + " bytes, CRC " + UtilAll.crc32(body);
    }

    static String describe(MessageExt message) {
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        properties.replaceAll((name, value) -> CHANGING.contains(name) ? "*" : value);
        return String.join(
            " ",
            text(message),
            message.getTopic() + ":" + message.getQueueId() + ":" + message.getQueueOffset(),
            "flag=" + message.getFlag(),
            "sysFlag=" + message.getSysFlag(),
            "reconsumeTimes=" + message.getReconsumeTimes(),
            "prepared=" + (message.getPreparedTransactionOffset() > 0),
            "born=" + ((InetSocketAddress) message.getBornHost()).getHostString(),
            "store=" + ((InetSocketAddress) message.getStoreHost()).getHostString(),
            "crc=" + message.getBodyCRC(),
            "msgId=" + Session.shape(message.getMsgId()),
            properties.toString());
    }
}
