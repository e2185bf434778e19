package interop.clients;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.common.message.MessageQueue;

/** How far groups are. */
final class Offsets {
    @SuppressWarnings("deprecation")
    static List<String> committed(Session session, String group, Collection<MessageQueue> queues) throws Exception {
        DefaultMQPullConsumer consumer = session.pullConsumer(group);
        try {
            List<String> offsets = new ArrayList<>();
            for (MessageQueue queue : queues) {
                offsets.add(queue.getQueueId() + ": " + consumer.fetchConsumeOffset(queue, true));
            }
            return offsets;
        } finally {
            consumer.shutdown();
        }
    }

    @SuppressWarnings("deprecation")
    static void commit(Session session, String group, MessageQueue queue, long offset) throws Exception {
        DefaultMQPullConsumer consumer = session.pullConsumer(group);
        try {
            // A pull makes the group known.
            consumer.pull(queue, "*", 0, 1);
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, offset, false);
        } finally {
            consumer.shutdown();
        }
    }

    /** Whether a push consumer has passed all that a queue holds. */
    static boolean consumed(DefaultMQPushConsumer consumer, MessageQueue queue) throws Exception {
        return consumer.getDefaultMQPushConsumerImpl().getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_MEMORY)
            >= consumer.maxOffset(queue);
    }

    private Offsets() {
    }
}
