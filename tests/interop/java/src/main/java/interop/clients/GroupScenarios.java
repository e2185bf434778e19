package interop.clients;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BiConsumer;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers of one group that come and go. */
final class GroupScenarios {
    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("rebalance", session -> rebalance(session, Received::concurrently));
        scenarios.put("rebalance-by-broker", session -> rebalance(session, GroupScenarios::sharedByBroker));
        scenarios.put("rebalance-by-broker-later", GroupScenarios::sharedLater);
        scenarios.put("rebalance-orderly", session -> rebalance(session, GroupScenarios::orderly));
    }

    private static Set<Integer> queues(Session session, DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(session.topic()))
            .map(MessageQueue::getQueueId)
            .collect(Collectors.toCollection(TreeSet::new));
    }

    private static void orderly(Received received, DefaultMQPushConsumer consumer) {
        received.orderly(consumer, message -> false);
    }

    private static void sharedByBroker(Received received, DefaultMQPushConsumer consumer) {
        SharedByBroker.set(consumer);
        received.concurrently(consumer);
    }

    /** A consumer that is there before its topic asks before it has a route, and again when it has one. */
    private static void sharedLater(Session session) throws Exception {
        Received received = new Received();
        join(session, received, GroupScenarios::sharedByBroker);
        DefaultMQProducer producer = session.producer(2);
        List<MessageQueue> queues = session.create(producer, session.topic());
        for (int i = 0; i < 8; i++) {
            producer.send(Session.message(session.topic(), "body" + i), queues.get(i % 2));
        }
        received.await(8);
        session.sayAll("consumed", received.sortedBodies());
    }

    private static DefaultMQPushConsumer join(
        Session session, Received received, BiConsumer<Received, DefaultMQPushConsumer> prepare) throws Exception {
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "*");
        prepare.accept(received, consumer);
        consumer.start();
        return consumer;
    }

    private static void awaitQueues(Session session, String what, List<DefaultMQPushConsumer> consumers, int each) throws Exception {
        Session.await(() -> {
            Set<Integer> all = new TreeSet<>();
            for (DefaultMQPushConsumer consumer : consumers) {
                Set<Integer> own = queues(session, consumer);
                if (own.size() != each || !java.util.Collections.disjoint(all, own)) {
                    return false;
                }
                all.addAll(own);
            }
            return true;
        });
        List<Integer> shares = consumers.stream().map(consumer -> queues(session, consumer).size()).collect(Collectors.toList());
        session.say(what, shares);
    }

    private static void rebalance(Session session, BiConsumer<Received, DefaultMQPushConsumer> prepare) throws Exception {
        DefaultMQProducer producer = session.producer(8);
        List<MessageQueue> queues = session.create(producer, session.topic());
        AtomicBoolean stop = new AtomicBoolean();
        int[] sent = {0};
        Thread sender = new Thread(() -> {
            try {
                while (!stop.get()) {
                    producer.send(Session.message(session.topic(), String.valueOf(sent[0])), queues.get(sent[0] % 8));
                    sent[0]++;
                    Thread.sleep(5);
                }
            } catch (Exception failure) {
                session.say("failed", failure);
            }
        });
        Received received = new Received();
        DefaultMQPushConsumer first = join(session, received, prepare);
        sender.start();
        awaitQueues(session, "one", List.of(first), 8);
        DefaultMQPushConsumer second = join(session, received, prepare);
        // In order a queue changes hands once the former consumer has released it, and the new one looks again.
        awaitQueues(session, "two", List.of(first, second), 4);
        DefaultMQPushConsumer third = join(session, received, prepare);
        Session.await(() -> queues(session, first).size() + queues(session, second).size() + queues(session, third).size() == 8
            && !queues(session, third).isEmpty());
        third.shutdown();
        awaitQueues(session, "two again", List.of(first, second), 4);
        first.shutdown();
        awaitQueues(session, "one again", List.of(second), 8);
        stop.set(true);
        sender.join();
        Session.await(() -> new TreeSet<>(received.bodies()).size() == sent[0]);
        session.say("all consumed", new TreeSet<>(received.bodies()).size() == sent[0]);
    }

    private GroupScenarios() {
    }
}
