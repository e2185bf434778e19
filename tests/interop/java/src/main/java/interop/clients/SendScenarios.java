package interop.clients;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageQueue;

/** All ways to send. */
final class SendScenarios {
    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("send-sync", SendScenarios::sync);
        scenarios.put("send-async", SendScenarios::async);
        scenarios.put("send-oneway", SendScenarios::oneway);
        scenarios.put("send-batch", SendScenarios::batch);
        scenarios.put("send-selector", SendScenarios::selector);
        scenarios.put("send-compressed", SendScenarios::compressed);
        scenarios.put("send-properties", SendScenarios::properties);
        scenarios.put("send-refused", SendScenarios::refused);
        scenarios.put("topic-created", SendScenarios::topicCreated);
        scenarios.put("trace", SendScenarios::trace);
    }

    private static void sync(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(4);
        List<MessageQueue> queues = session.create(producer, session.topic());
        for (int i = 0; i < 8; i++) {
            Message message = Session.message(session.topic(), "tag" + i % 2, "key" + i + " other", "body" + i);
            message.setFlag(i - 4);
            session.say(Session.describe(producer.send(message, queues.get(i % 4))));
        }
        Stored.await(producer, queues, 9);
        session.sayAll("stored", Stored.described(session, queues));
    }

    private static void async(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(2);
        List<MessageQueue> queues = session.create(producer, session.topic());
        Map<String, String> results = new ConcurrentHashMap<>();
        for (int i = 0; i < 50; i++) {
            String body = "body" + i;
            producer.send(Session.message(session.topic(), body), queues.get(i % 2), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results.put(body, result.getSendStatus() + " queue=" + result.getMessageQueue().getQueueId());
                }

                @Override
                public void onException(Throwable failure) {
                    results.put(body, Session.code(failure));
                }
            });
        }
        Session.await(() -> results.size() == 50);
        session.say(new TreeMap<>(results));
        Stored.await(producer, queues, 51);
        session.sayAll("stored", Stored.sortedBodies(session, queues));
    }

    private static void oneway(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        List<MessageQueue> queues = session.create(producer, session.topic());
        for (int i = 0; i < 20; i++) {
            producer.sendOneway(Session.message(session.topic(), "body" + i), queues.get(0));
        }
        Stored.await(producer, queues, 21);
        session.sayAll("stored", Stored.sortedBodies(session, queues));
    }

    private static void batch(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(2);
        List<MessageQueue> queues = session.create(producer, session.topic());
        for (int size : new int[] {1, 3, 40}) {
            List<Message> messages = new ArrayList<>();
            for (int i = 0; i < size; i++) {
                Message message = Session.message(session.topic(), "tag" + i % 3, "key" + i, size + "." + i);
                message.putUserProperty("number", "n" + i);
                message.setFlag(i);
                messages.add(message);
            }
            session.say(Session.describe(producer.send(messages, queues.get(1))));
        }
        Stored.await(producer, queues, 45);
        session.sayAll("stored", Stored.described(session, queues));
    }

    private static void selector(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(4);
        List<MessageQueue> queues = session.create(producer, session.topic());
        for (int i = 0; i < 24; i++) {
            int order = i % 6;
            SendResult result = producer.send(
                Session.message(session.topic(), "order" + order + "." + i / 6),
                (choices, message, argument) -> choices.stream()
                    .filter(queue -> queue.getQueueId() == (Integer) argument % 4)
                    .findFirst()
                    .orElseThrow(),
                order);
            session.say(result.getSendStatus(), result.getMessageQueue().getQueueId(), result.getQueueOffset());
        }
        Stored.await(producer, queues, 25);
        for (MessageQueue queue : queues) {
            session.sayAll("queue " + queue.getQueueId(), Stored.bodies(session, queue));
        }
    }

    private static void compressed(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        List<MessageQueue> queues = session.create(producer, session.topic());
        char[] text = new char[50_000];
        Arrays.fill(text, 'x');
        byte[] mixed = new byte[300_000];
        for (int i = 0; i < mixed.length; i++) {
            mixed[i] = (byte) (i * 31 + i / 7);
        }
        session.say(Session.describe(producer.send(Session.message(session.topic(), new String(text)), queues.get(0))));
        session.say(Session.describe(producer.send(new Message(session.topic(), mixed), queues.get(0))));
        Stored.await(producer, queues, 3);
        session.sayAll("stored", Stored.described(session, queues));
    }

    private static void properties(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        List<MessageQueue> queues = session.create(producer, session.topic());
        Message message = Session.message(session.topic(), "标签", "键 清单", "内容");
        message.putUserProperty("名", "值 \uD83D\uDE00");
        message.putUserProperty("equals", "a=b;c");
        message.setBuyerId("buyer");
        message.setWaitStoreMsgOK(false);
        session.say(Session.describe(producer.send(message, queues.get(0))));
        Message long1 = Session.message(session.topic(), "long");
        long1.putUserProperty("long", "v".repeat(20_000));
        session.sayOutcome("20,000 characters", () -> Session.describe(producer.send(long1, queues.get(0))));
        Message long2 = Session.message(session.topic(), "too long");
        long2.putUserProperty("long", "v".repeat(40_000));
        session.sayOutcome("40,000 characters", () -> Session.describe(producer.send(long2, queues.get(0))));
        Stored.await(producer, queues, 3);
        session.say("stored", Stored.bodies(session, queues.get(0)));
        session.say(Stored.described(session, queues).get(1).length() > 20_000);
        session.say(Stored.described(session, queues).get(2));
    }

    private static void refused(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        producer.setMaxMessageSize(8 << 20);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setRetryTimesWhenSendFailed(0);
        List<MessageQueue> queues = session.create(producer, session.topic());
        MessageQueue queue = queues.get(0);
        session.sayOutcome("4 MiB", () -> producer.send(new Message(session.topic(), new byte[4 << 20]), queue).getSendStatus());
        session.sayOutcome("4 MiB + 1", () -> producer.send(new Message(session.topic(), new byte[(4 << 20) + 1]), queue).getSendStatus());
        MessageQueue beyond = new MessageQueue(session.topic(), queue.getBrokerName(), 7);
        session.sayOutcome("queue 7 of 1", () -> producer.send(Session.message(session.topic(), "x"), beyond));
        Message delayed = Session.message(session.topic(), "x");
        delayed.putUserProperty("other", "y");
        MessageAccessor.putProperty(delayed, "DELAY", "soon");
        session.sayOutcome("delay soon", () -> producer.send(delayed, queue));
        DefaultMQProducer other = session.start(new DefaultMQProducer("P-other-" + session.name), 4);
        other.setCreateTopicKey("T-no-such-template");
        other.setRetryTimesWhenSendFailed(0);
        // It would learn the broker's address in the background otherwise, before or after what follows.
        other.send(Session.message(session.topic(), "x"), queue);
        MessageQueue unknown = new MessageQueue(session.topic("-unknown"), queue.getBrokerName(), 0);
        session.sayOutcome("unknown topic", () -> other.send(Session.message(session.topic("-unknown"), "x"), unknown));
        session.sayOutcome("pull unknown topic", () -> {
            return session.pullConsumer(session.group()).pull(unknown, "*", 0, 1).getPullStatus();
        });
        session.sayOutcome("pull queue 7 of 1", () -> {
            return session.pullConsumer(session.group() + "2").pull(beyond, "*", 0, 1).getPullStatus();
        });
        List<Message> retries = List.of(Session.message("%RETRY%" + session.group(), "x"));
        session.sayOutcome("batch of retries", () -> producer.send(retries, new MessageQueue("%RETRY%" + session.group(), queue.getBrokerName(), 0)));
        Stored.await(producer, queues, 2);
        session.say("stored", Stored.bodies(session, queue));
    }

    private static void topicCreated(Session session) throws Exception {
        for (int queues : new int[] {1, 4, 20}) {
            DefaultMQProducer producer = session.producer(queues);
            String topic = session.topic("-" + queues);
            SendResult sent = producer.send(Session.message(topic, "body"));
            List<MessageQueue> found = session.awaitQueues(producer, topic, Math.min(queues, 8));
            session.say(topic, found.size(), sent.getSendStatus(), sent.getQueueOffset());
            session.say("to be read", producer.getDefaultMQProducerImpl().getmQClientFactory().getMQClientAPIImpl()
                .getTopicRouteInfoFromNameServer(topic, 3000).getQueueDatas());
        }
    }

    /** The messages that say what a client sent and received. */
    private static void trace(Session session) throws Exception {
        DefaultMQProducer producer = session.start(new DefaultMQProducer("P-" + session.name, true, session.topic("-of")), 1);
        session.create(producer, session.topic());
        session.send(producer, session.topic(), "body");
        Received received = new Received();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(session.group(), true, session.topic("-of"));
        consumer.setNamesrvAddr(session.nameServer);
        consumer.setInstanceName(Session.instance());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(session.topic(), "*");
        received.concurrently(consumer);
        consumer.start();
        DefaultMQProducer asking = session.producer(1);
        List<MessageQueue> queues = new ArrayList<>();
        Session.await(() -> {
            queues.clear();
            try {
                queues.addAll(asking.fetchPublishMessageQueues(session.topic("-of")));
            } catch (MQClientException notYet) {
                return false;
            }
            // The message that made the topic was consumed, too.
            return String.join("", Stored.bodies(session, queues)).split("SubAfter").length == 3;
        });
        consumer.shutdown();
        List<String> traces = new ArrayList<>();
        for (String body : Stored.bodies(session, queues)) {
            for (String one : body.split("\u0002")) {
                String[] fields = one.split("\u0001");
                traces.add(fields[0] + " fields=" + fields.length);
            }
        }
        traces.sort(null);
        session.sayAll("traces", traces);
    }

    private SendScenarios() {
    }
}
