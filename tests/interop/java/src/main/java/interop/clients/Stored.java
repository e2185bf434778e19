package interop.clients;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What queues hold, pulled from their begin to their end. Messages show a moment after they are acknowledged. */
final class Stored {
    /** Waits until the queues show so many messages. */
    static void await(DefaultMQProducer producer, Collection<MessageQueue> queues, int count) throws Exception {
        Session.await(() -> {
            long shown = 0;
            for (MessageQueue queue : queues) {
                shown += producer.maxOffset(queue);
            }
            return shown >= count;
        });
    }

    @SuppressWarnings("deprecation")
    static List<MessageExt> messages(Session session, Collection<MessageQueue> queues) throws Exception {
        List<MessageExt> messages = new ArrayList<>();
        DefaultMQPullConsumer consumer = session.pullConsumer("G-stored-" + session.name);
        try {
            for (MessageQueue queue : queues) {
                long offset = consumer.minOffset(queue);
                while (offset >= 0 && offset < consumer.maxOffset(queue)) {
                    PullResult result = consumer.pull(queue, "*", offset, 32);
                    if (result.getPullStatus() != PullStatus.FOUND) {
                        throw new IllegalStateException(queue + " " + offset + " " + result);
                    }
                    messages.addAll(result.getMsgFoundList());
                    offset = result.getNextBeginOffset();
                }
            }
        } finally {
            consumer.shutdown();
        }
        return messages;
    }

    static List<String> described(Session session, Collection<MessageQueue> queues) throws Exception {
        return messages(session, queues).stream().map(Received::describe).collect(Collectors.toList());
    }

    static List<String> bodies(Session session, Collection<MessageQueue> queues) throws Exception {
        return messages(session, queues).stream()
            .map(message -> new String(message.getBody(), java.nio.charset.StandardCharsets.UTF_8))
            .collect(Collectors.toList());
    }

    static List<String> bodies(Session session, MessageQueue queue) throws Exception {
        return messages(session, List.of(queue)).stream().map(Received::text).collect(Collectors.toList());
    }

    static List<String> sortedBodies(Session session, Collection<MessageQueue> queues) throws Exception {
        return bodies(session, queues).stream().sorted().collect(Collectors.toList());
    }

    private Stored() {
    }
}
