package interop.clients;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that pull. */
final class PullScenarios {
    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("pull", PullScenarios::pull);
        scenarios.put("pull-waits", PullScenarios::pullWaits);
        scenarios.put("lite-pull", PullScenarios::litePull);
        scenarios.put("lite-pull-assigned", PullScenarios::litePullAssigned);
    }

    private static String describe(PullResult result) {
        List<MessageExt> found = result.getMsgFoundList();
        List<String> bodies = found == null ? List.of() : found.stream().map(Received::text).collect(Collectors.toList());
        return String.join(
            " ",
            result.getPullStatus().name(),
            "next=" + result.getNextBeginOffset(),
            "min=" + result.getMinOffset(),
            "max=" + result.getMaxOffset(),
            bodies.toString());
    }

    @SuppressWarnings("deprecation")
    private static void pull(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(2);
        List<MessageQueue> queues = session.create(producer, session.topic());
        for (int i = 0; i < 50; i++) {
            Message message = Session.message(session.topic(), "t" + i % 5, "", "m" + i);
            message.putUserProperty("n", String.valueOf(i));
            producer.send(message, queues.get(0));
        }
        Stored.await(producer, queues, 51);
        DefaultMQPullConsumer consumer = session.pullConsumer(session.group());
        MessageQueue queue = queues.get(0);
        // A client sends expressions to brokers whose version it knows.
        Session.await(() -> {
            consumer.pull(queue, "*", 0, 1);
            try {
                consumer.pull(queue, MessageSelector.bySql("n > 40"), 0, 1);
                return true;
            } catch (MQClientException notYet) {
                return false;
            }
        });
        for (long offset : new long[] {0, 10, 50, 51, 52, 1000, -1}) {
            session.sayOutcome("* from " + offset, () -> describe(consumer.pull(queue, "*", offset, 7)));
        }
        session.sayOutcome("all", () -> describe(consumer.pull(queue, "*", 0, 100)));
        session.sayOutcome("t1 || t3", () -> describe(consumer.pull(queue, "t1 || t3", 0, 100)));
        session.sayOutcome("none", () -> describe(consumer.pull(queue, "none", 0, 100)));
        session.sayOutcome("sql", () -> describe(consumer.pull(queue, MessageSelector.bySql("n > 40"), 0, 100)));
        session.sayOutcome("sql, none", () -> describe(consumer.pull(queue, MessageSelector.bySql("n > 400"), 0, 100)));
        session.sayOutcome("empty queue", () -> describe(consumer.pull(queues.get(1), "*", 0, 100)));
        session.sayOutcome("empty queue from 5", () -> describe(consumer.pull(queues.get(1), "*", 5, 100)));
        session.say("committed", consumer.fetchConsumeOffset(queue, true), consumer.fetchConsumeOffset(queues.get(1), true));
        consumer.updateConsumeOffset(queue, 17);
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
        session.say("committed", Offsets.committed(session, session.group(), queues.subList(0, 1)));
    }

    @SuppressWarnings("deprecation")
    private static void pullWaits(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        List<MessageQueue> queues = session.create(producer, session.topic());
        DefaultMQPullConsumer consumer = session.pullConsumer(session.group());
        consumer.setBrokerSuspendMaxTimeMillis(1000);
        session.say("nothing comes", describe(consumer.pullBlockIfNotFound(queues.get(0), "*", 1, 10)));
        consumer.setBrokerSuspendMaxTimeMillis(20_000);
        Thread sender = new Thread(() -> {
            try {
                Thread.sleep(500);
                session.send(producer, session.topic(), "late");
            } catch (Exception failure) {
                session.say("failed", failure);
            }
        });
        long begin = System.currentTimeMillis();
        sender.start();
        session.say("one comes", describe(consumer.pullBlockIfNotFound(queues.get(0), "*", 1, 10)));
        session.say("at once", System.currentTimeMillis() - begin < 4000);
        sender.join();
    }

    private static void litePull(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(4);
        List<MessageQueue> queues = session.create(producer, session.topic());
        for (int i = 0; i < 40; i++) {
            producer.send(Session.message(session.topic(), "t" + i % 2, "", String.format("%02d", i)), queues.get(i % 4));
        }
        DefaultLitePullConsumer consumer = session.litePullConsumer(session.group());
        consumer.subscribe(session.topic(), "t0");
        consumer.start();
        session.say("t0", poll(consumer, 20));
        // A commit leaves out a queue that the client takes anew at that moment.
        Session.await(() -> {
            consumer.commitSync();
            return consumer.committed(queues.get(0)) > 0 && consumer.committed(queues.get(2)) > 0;
        });
        consumer.shutdown();
        session.sayAll("committed", Offsets.committed(session, session.group(), queues));
        DefaultLitePullConsumer bySql = session.litePullConsumer(session.group() + "-sql");
        bySql.subscribe(session.topic(), MessageSelector.bySql("TAGS = 't1'"));
        bySql.start();
        session.say("by SQL", poll(bySql, 20));
    }

    private static void litePullAssigned(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(2);
        List<MessageQueue> queues = session.create(producer, session.topic());
        for (int i = 0; i < 20; i++) {
            producer.send(Session.message(session.topic(), String.format("%02d", i)), queues.get(i % 2));
        }
        DefaultLitePullConsumer consumer = session.litePullConsumer(session.group());
        consumer.start();
        Collection<MessageQueue> found = consumer.fetchMessageQueues(session.topic());
        session.say("queues", new TreeSet<>(found));
        consumer.assign(found);
        session.say("from the begin", poll(consumer, 20));
        consumer.commitSync();
        MessageQueue queue = queues.get(1);
        Session.await(() -> consumer.committed(queue) == 10);
        session.say("committed", consumer.committed(queues.get(0)), consumer.committed(queue));
        consumer.seek(queue, 7);
        session.say("from 7", poll(consumer, 3));
        consumer.seekToBegin(queue);
        session.say("from the begin", poll(consumer, 10));
        consumer.seekToEnd(queue);
        producer.send(Session.message(session.topic(), "last"), queue);
        session.say("from the end", poll(consumer, 1));
        session.sayOutcome("by time", () -> consumer.offsetForTimestamp(queue, 0L));
    }

    private static List<String> poll(DefaultLitePullConsumer consumer, int count) throws Exception {
        List<String> bodies = new ArrayList<>();
        Session.await(() -> {
            for (MessageExt message : consumer.poll(200)) {
                if (!Session.FIRST.equals(Received.text(message))) {
                    bodies.add(Received.text(message));
                }
            }
            return bodies.size() >= count;
        });
        bodies.sort(null);
        return bodies;
    }

    private PullScenarios() {
    }
}
