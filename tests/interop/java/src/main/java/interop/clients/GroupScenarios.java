package interop.clients;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers of one group that come and go. */
final class GroupScenarios {
    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("rebalance", session -> rebalance(session, false));
        scenarios.put("rebalance-orderly", session -> rebalance(session, true));
    }

    private static Set<Integer> queues(Session session, DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(session.topic()))
            .map(MessageQueue::getQueueId)
            .collect(Collectors.toCollection(TreeSet::new));
    }

    private static DefaultMQPushConsumer join(Session session, Received received, boolean orderly) throws Exception {
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "*");
        if (orderly) {
            received.orderly(consumer, message -> false);
        } else {
            received.concurrently(consumer);
        }
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

    private static void rebalance(Session session, boolean orderly) throws Exception {
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
        DefaultMQPushConsumer first = join(session, received, orderly);
        sender.start();
        awaitQueues(session, "one", List.of(first), 8);
        DefaultMQPushConsumer second = join(session, received, orderly);
        // In order a queue changes hands once the former consumer has released it, and the new one looks again.
        awaitQueues(session, "two", List.of(first, second), 4);
        DefaultMQPushConsumer third = join(session, received, orderly);
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
