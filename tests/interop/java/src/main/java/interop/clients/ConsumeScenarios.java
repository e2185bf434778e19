package interop.clients;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Push consumers. */
final class ConsumeScenarios {
    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("consume-concurrently", ConsumeScenarios::concurrently);
        scenarios.put("consume-orderly", ConsumeScenarios::orderly);
        scenarios.put("consume-broadcasting", ConsumeScenarios::broadcasting);
        scenarios.put("consume-tags", ConsumeScenarios::tags);
        scenarios.put("consume-sql", ConsumeScenarios::sql);
        scenarios.put("consume-sql-refused", ConsumeScenarios::sqlRefused);
        scenarios.put("consume-from-where", ConsumeScenarios::fromWhere);
        scenarios.put("consume-offset-reset", ConsumeScenarios::offsetReset);
        scenarios.put("consume-offset-reset-by-tools", ConsumeScenarios::offsetResetByTools);
        scenarios.put("consume-as-it-comes", ConsumeScenarios::asItComes);
    }

    private static void concurrently(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(4);
        List<MessageQueue> queues = session.create(producer, session.topic());
        for (int i = 0; i < 100; i++) {
            producer.send(Session.message(session.topic(), "t" + i % 3, "k" + i, "body" + i), queues.get(i % 4));
        }
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "*");
        consumer.setConsumeMessageBatchMaxSize(5);
        received.concurrently(consumer);
        consumer.start();
        received.await(100);
        session.sayAll("consumed", received.described());
        consumer.shutdown();
        session.sayAll("committed", Offsets.committed(session, session.group(), queues));
        // Another consumer of the group goes on from there.
        Received further = new Received();
        DefaultMQPushConsumer next = session.consumer(session.group());
        next.subscribe(session.topic(), "*");
        further.concurrently(next);
        next.start();
        session.send(producer, session.topic(), "further");
        further.await(1);
        session.sayAll("afterwards", further.bodies());
    }

    private static void orderly(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(4);
        List<MessageQueue> queues = session.create(producer, session.topic());
        for (int i = 0; i < 80; i++) {
            producer.send(Session.message(session.topic(), i % 4 + "." + i / 4), queues.get(i % 4));
        }
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "*");
        received.orderly(consumer, message -> false);
        consumer.start();
        received.await(80);
        Map<Integer, List<String>> byQueue = new TreeMap<>();
        for (MessageExt message : received.all()) {
            byQueue.computeIfAbsent(message.getQueueId(), id -> new ArrayList<>()).add(Received.text(message));
        }
        byQueue.forEach((id, bodies) -> session.say("queue", id, bodies));
        consumer.shutdown();
        session.sayAll("committed", Offsets.committed(session, session.group(), queues));
        // The locks of the first one are free at once.
        Received further = new Received();
        DefaultMQPushConsumer next = session.consumer(session.group());
        next.subscribe(session.topic(), "*");
        further.orderly(next, message -> false);
        next.start();
        session.send(producer, session.topic(), "further");
        further.await(1);
        session.sayAll("afterwards", further.bodies());
    }

    private static void broadcasting(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(4);
        List<MessageQueue> queues = session.create(producer, session.topic());
        List<Received> both = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = session.consumer(session.group());
            Broadcasting.set(consumer);
            consumer.subscribe(session.topic(), "*");
            Received received = new Received();
            received.concurrently(consumer);
            consumer.start();
            both.add(received);
        }
        for (int i = 0; i < 20; i++) {
            producer.send(Session.message(session.topic(), String.format("body%02d", i)), queues.get(i % 4));
        }
        for (Received received : both) {
            received.await(20);
            session.sayAll("consumed", received.sortedBodies());
        }
    }

    private static void tags(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(2);
        List<MessageQueue> queues = session.create(producer, session.topic());
        // "Aa" and "BB" have one hash code.
        String[] tags = {"Aa", "BB", "C", "D", "标签", null};
        for (int i = 0; i < 60; i++) {
            producer.send(Session.message(session.topic(), tags[i % 6], "", String.format("%02d", i)), queues.get(i % 2));
        }
        for (String expression : new String[] {"Aa", "Aa || C", "BB||D|| ", "标签", "none", "*"}) {
            String group = session.group() + "-" + UtilAll.crc32(expression.getBytes(java.nio.charset.StandardCharsets.UTF_8));
            Received received = new Received();
            DefaultMQPushConsumer consumer = session.consumer(group);
            consumer.subscribe(session.topic(), expression);
            received.concurrently(consumer);
            consumer.start();
            received.await(expression.equals("none") ? 0 : expression.equals("*") ? 60 : expression.contains("|") ? 20 : 10);
            consumer.shutdown();
            session.say(expression, received.sortedBodies());
        }
    }

    private static void sql(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(2);
        List<MessageQueue> queues = session.create(producer, session.topic());
        for (int i = 0; i < 40; i++) {
            Message message = Session.message(session.topic(), "t" + i % 4, "k" + i, String.format("%02d", i));
            message.putUserProperty("price", String.valueOf(i));
            message.putUserProperty("colour", i % 2 == 0 ? "red" : "blue");
            if (i % 5 == 0) {
                message.putUserProperty("five", "true");
            }
            producer.send(message, queues.get(i % 2));
        }
        String[] expressions = {
            "price > 10 AND price <= 30",
            "colour = 'red' AND price BETWEEN 5 AND 9",
            "five IS NOT NULL OR TAGS IN ('t1')",
            "five = TRUE",
            "colour CONTAINS 'lu'",
        };
        int[] counts = {20, 2, 16, 8, 20};
        for (int i = 0; i < expressions.length; i++) {
            Received received = new Received();
            DefaultMQPushConsumer consumer = session.consumer(session.group() + i);
            consumer.subscribe(session.topic(), MessageSelector.bySql(expressions[i]));
            received.concurrently(consumer);
            consumer.start();
            received.await(counts[i]);
            consumer.shutdown();
            session.say(expressions[i], received.sortedBodies());
        }
    }

    private static void sqlRefused(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        session.create(producer, session.topic());
        String[] expressions = {"price >", "1 = 1 AND", "price ~ 5", "TRUE", ""};
        for (int i = 0; i < expressions.length; i++) {
            DefaultMQPushConsumer consumer = session.consumer(session.group() + i);
            String expression = expressions[i];
            new Received().concurrently(consumer);
            session.sayOutcome("'" + expression + "'", () -> {
                consumer.subscribe(session.topic(), MessageSelector.bySql(expression));
                consumer.start();
                return "taken";
            });
        }
    }

    private static void fromWhere(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        session.create(producer, session.topic());
        session.send(producer, session.topic(), "1", "2", "3");
        Thread.sleep(1500);
        long between = System.currentTimeMillis() - 500;
        session.send(producer, session.topic(), "4", "5");
        for (ConsumeFromWhere where : List.of(
            ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            ConsumeFromWhere.CONSUME_FROM_TIMESTAMP)) {
            Received received = new Received();
            DefaultMQPushConsumer consumer = session.consumer(session.group() + where.ordinal());
            consumer.setConsumeFromWhere(where);
            consumer.setConsumeTimestamp(UtilAll.timeMillisToHumanString3(between));
            consumer.subscribe(session.topic(), "*");
            received.concurrently(consumer);
            consumer.start();
            received.await(5);
            consumer.shutdown();
            session.say(where, received.sortedBodies());
        }
    }

    private static void offsetReset(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        List<MessageQueue> queues = session.create(producer, session.topic());
        session.send(producer, session.topic(), "1", "2", "3", "4", "5");
        for (long offset : new long[] {0, 3, 1, 5}) {
            if (offset > 0) {
                Offsets.commit(session, producer, session.group(), queues.get(0), offset);
            }
            Received received = new Received();
            DefaultMQPushConsumer consumer = session.consumer(session.group());
            consumer.subscribe(session.topic(), "*");
            received.concurrently(consumer);
            consumer.start();
            received.await(offset == 0 ? 5 : (int) (6 - offset));
            consumer.shutdown();
            session.say("from", offset, received.sortedBodies(), Offsets.committed(session, session.group(), queues));
        }
    }

    /** The administrator's tools set a group back while it consumes, through the broker. */
    private static void offsetResetByTools(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(2);
        List<MessageQueue> queues = session.create(producer, session.topic());
        for (int i = 0; i < 10; i++) {
            producer.send(Session.message(session.topic(), "body" + i), queues.get(i % 2));
        }
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "*");
        received.concurrently(consumer);
        consumer.start();
        received.await(10);
        // Version 4.9 says of a group that has committed nothing that it does not exist.
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        Session.await(() -> Offsets.hasCommitted(consumer, queues));
        DefaultMQAdminExt tools = new DefaultMQAdminExt();
        tools.setNamesrvAddr(session.nameServer);
        tools.setInstanceName(Session.instance());
        tools.start();
        try {
            session.say("reset", new TreeMap<>(tools.resetOffsetByTimestamp(session.topic(), session.group(), 0, true)));
            received.await(20);
        } finally {
            tools.shutdown();
        }
        session.say("consumed", received.sortedBodies());
        consumer.shutdown();
        session.sayAll("committed", Offsets.committed(session, session.group(), queues));
    }

    /** A consumer that waits gets each message as soon as it is there. */
    private static void asItComes(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(2);
        List<MessageQueue> queues = session.create(producer, session.topic());
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "a || b");
        received.concurrently(consumer);
        consumer.start();
        Session.await(() -> Offsets.consumed(consumer, queues.get(0)));
        int late = 0;
        for (int i = 0; i < 20; i++) {
            producer.send(Session.message(session.topic(), i % 2 == 0 ? "a" : "other", "", "body" + i), queues.get(i % 4 / 2));
            if (i % 2 == 0) {
                long begin = System.currentTimeMillis();
                int expected = i / 2 + 1;
                Session.await(() -> received.count() == expected);
                // Without a wake-up it would be as long as the hold, 15 s.
                late += System.currentTimeMillis() - begin > 3000 ? 1 : 0;
            }
        }
        session.say("late", late, received.sortedBodies());
    }

    private ConsumeScenarios() {
    }
}
