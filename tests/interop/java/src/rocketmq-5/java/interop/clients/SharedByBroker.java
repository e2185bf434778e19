package interop.clients;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;

/** The broker shares a group's queues. */
final class SharedByBroker {
    static void set(DefaultMQPushConsumer consumer) {
        consumer.setClientRebalance(false);
    }

    private SharedByBroker() {
    }
}
