package interop.clients;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;

/** The broker shares a group's queues; clients of version 4 always do it themselves. */
final class SharedByBroker {
    static void set(DefaultMQPushConsumer consumer) {
    }

    private SharedByBroker() {
    }
}
