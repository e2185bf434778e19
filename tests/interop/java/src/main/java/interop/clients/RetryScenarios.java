package interop.clients;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Messages that come again, come late, or are given up. */
final class RetryScenarios {
    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("retry", RetryScenarios::retry);
        scenarios.put("retry-orderly", RetryScenarios::retryOrderly);
        scenarios.put("dead-letters-at-once", RetryScenarios::deadLettersAtOnce);
        scenarios.put("retry-levels", RetryScenarios::retryLevels);
        scenarios.put("delay", RetryScenarios::delay);
    }

    /** A consumer's first start makes its group's retry topic; the next one then finds it at once. */
    private static void introduce(Session session) throws Exception {
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "*");
        new Received().concurrently(consumer);
        consumer.start();
        Session.await(() -> {
            consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().updateTopicRouteInfoFromNameServer("%RETRY%" + session.group());
            return consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getTopicRouteTable().containsKey("%RETRY%" + session.group());
        });
        consumer.shutdown();
    }

    private static List<String> dead(Session session, int count) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        List<MessageQueue> queues = session.awaitQueues(producer, "%DLQ%" + session.group(), 1);
        List<String> dead = new ArrayList<>();
        Session.await(() -> {
            dead.clear();
            dead.addAll(Stored.described(session, queues));
            return dead.size() >= count;
        });
        return unplaced(dead);
    }

    private static void retry(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        List<MessageQueue> queues = session.create(producer, session.topic());
        introduce(session);
        for (int i = 0; i < 6; i++) {
            Message message = Session.message(session.topic(), "tag", "key" + i, "body" + i);
            message.putUserProperty("number", "n" + i);
            producer.send(message, queues.get(0));
        }
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "tag");
        consumer.setMaxReconsumeTimes(2);
        // One fails once, two fail always.
        received.concurrently(consumer, message -> {
            String body = Received.text(message);
            return body.equals("body1") && message.getReconsumeTimes() == 0 || body.equals("body3") || body.equals("body5");
        });
        consumer.start();
        received.await(6 + 1 + 2 * 2);
        session.sayAll("consumed", unplaced(received.described()));
        session.sayAll("dead letters", dead(session, 2));
    }

    /** A broker places retries in the order of their delivery. */
    private static List<String> unplaced(List<String> described) {
        List<String> lines = new ArrayList<>(described);
        lines.replaceAll(line -> line.replaceFirst("(:\\d+):\\d+ flag", "$1 flag"));
        Collections.sort(lines);
        return lines;
    }

    private static void retryOrderly(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        session.create(producer, session.topic());
        introduce(session);
        session.send(producer, session.topic(), "1", "2", "3");
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "*");
        consumer.setMaxReconsumeTimes(1);
        consumer.setSuspendCurrentQueueTimeMillis(200);
        received.orderly(consumer, message -> Received.text(message).equals("2"));
        consumer.start();
        received.await(4);
        session.say("consumed", received.bodies());
        session.sayAll("dead letters", dead(session, 1));
    }

    private static void deadLettersAtOnce(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        session.create(producer, session.topic());
        session.send(producer, session.topic(), "1", "2");
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            context.setDelayLevelWhenNextConsume(-1);
            return Received.text(batch.get(0)).equals("2")
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        session.sayAll("dead letters", dead(session, 1));
    }

    private static void retryLevels(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        session.create(producer, session.topic());
        introduce(session);
        session.send(producer, session.topic(), "1");
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            received.add(batch.get(0));
            context.setDelayLevelWhenNextConsume(2);
            return Received.text(batch.get(0)).equals("1") && batch.get(0).getReconsumeTimes() < 2
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        received.await(3);
        session.sayAll("consumed", unplaced(received.described()));
        long begin = received.all().get(0).getStoreTimestamp();
        long end = received.all().get(2).getStoreTimestamp();
        session.say("after 4 s", end - begin >= 4000, end - begin < 20_000);
    }

    private static void delay(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(2);
        List<MessageQueue> queues = session.create(producer, session.topic());
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "tag");
        received.concurrently(consumer);
        consumer.start();
        for (int level : new int[] {0, 1, 2, 99}) {
            Message message = Session.message(session.topic(), "tag", "key", "level " + level);
            message.setDelayTimeLevel(level);
            String described = Session.describe(producer.send(message, queues.get(1)));
            // Where it waits depends on what else waits there.
            session.say(level, described.replaceFirst("offset=\\d+", "offset=*"));
        }
        received.await(4);
        session.sayAll("consumed", unplaced(received.described()));
        received.all().forEach(message -> {
            long waited = message.getStoreTimestamp() - message.getBornTimestamp();
            String level = message.getProperty("DELAY");
            long least = level == null || level.equals("0") ? 0 : level.equals("2") ? 2000 : 1000;
            if (waited < least || waited > least + 10_000) {
                session.say("waited", waited, "instead of", least);
            }
        });
    }

    private RetryScenarios() {
    }
}
