package interop.clients;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** How far groups are. */
final class Offsets {
    /** A consumer commits by messages that nothing answers: the ends of the queues, if it got there, come in a moment. */
    @SuppressWarnings("deprecation")
    static List<String> committed(Session session, String group, Collection<MessageQueue> queues) throws Exception {
        DefaultMQPullConsumer consumer = session.pullConsumer(group);
        try {
            for (int i = 0; i < 50; i++) {
                boolean atEnd = true;
                for (MessageQueue queue : queues) {
                    atEnd &= consumer.fetchConsumeOffset(queue, true) == consumer.maxOffset(queue);
                }
                if (atEnd) {
                    break;
                }
                Thread.sleep(50);
            }
            List<String> offsets = new ArrayList<>();
            for (MessageQueue queue : queues) {
                offsets.add(queue.getQueueId() + ": " + consumer.fetchConsumeOffset(queue, true));
            }
            return offsets;
        } finally {
            consumer.shutdown();
        }
    }

    /** Sets a known group back or ahead. */
    static void commit(Session session, DefaultMQProducer producer, String group, MessageQueue queue, long offset) throws Exception {
        DefaultMQAdminExt tools = new DefaultMQAdminExt();
        tools.setNamesrvAddr(session.nameServer);
        tools.setInstanceName(Session.instance());
        tools.start();
        try {
            String address = producer.getDefaultMQProducerImpl().getmQClientFactory().findBrokerAddressInPublish(queue.getBrokerName());
            tools.updateConsumeOffset(address, group, queue, offset);
        } finally {
            tools.shutdown();
        }
    }

    /** Whether a push consumer has passed all that a queue holds. */
    static boolean consumed(DefaultMQPushConsumer consumer, MessageQueue queue) throws Exception {
        return consumer.getDefaultMQPushConsumerImpl().getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_MEMORY)
            >= consumer.maxOffset(queue);
    }

    /** Whether the broker knows how far a push consumer is in each of these queues. */
    static boolean hasCommitted(DefaultMQPushConsumer consumer, Collection<MessageQueue> queues) throws Exception {
        for (MessageQueue queue : queues) {
            long offset = consumer.getDefaultMQPushConsumerImpl().getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_STORE);
            if (offset <= 0) {
                return false;
            }
        }
        return true;
    }

    private Offsets() {
    }
}
