package interop.clients;

import com.google.gson.JsonObject;
import java.io.IOException;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Clients that a test tells what to do, by arguments that colons separate.
 *
 * <p>Those without a count go on until standard input ends, and report on standard output how many messages they have.
 */
final class StreamScenarios {
    private static final int REPORT_EVERY_MS = 20;
    private static final int QUIET_MS = 3000;
    private static final CountDownLatch END = new CountDownLatch(1);

    static void addTo(Map<String, Scenario> scenarios, PrintStream out) {
        scenarios.put("send", StreamScenarios::send);
        scenarios.put("take", StreamScenarios::take);
        scenarios.put("produce", session -> produce(session, out));
        scenarios.put("produce-anywhere", session -> produceAnywhere(session, out));
        scenarios.put("consume", session -> consume(session, out, QUIET_MS));
        scenarios.put("member", session -> consume(session, out, 0));
    }

    private static synchronized void readToEnd() {
        Thread reader = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    // What it says does not matter.
                }
            } catch (IOException gone) {
                // So is the test.
            }
            END.countDown();
        });
        reader.setDaemon(true);
        reader.start();
    }

    private static void report(PrintStream out, Session session, int count) {
        JsonObject json = new JsonObject();
        json.addProperty("progress", session.name);
        json.addProperty("count", count);
        out.println(json);
    }

    private static String placed(SendResult result, String body) {
        return result.getMessageQueue().getBrokerName() + " " + result.getMessageQueue().getQueueId() + " " + result.getQueueOffset() + " " + body;
    }

    private static String placed(MessageExt message) {
        return message.getBrokerName() + " " + message.getQueueId() + " " + message.getQueueOffset() + " " + Received.text(message);
    }

    /** topic:count:prefix: says where each message lies. */
    private static void send(Session session) throws Exception {
        String[] arguments = session.argument.split(":");
        DefaultMQProducer producer = session.producer(4);
        for (int i = 0; i < Integer.parseInt(arguments[1]); i++) {
            String body = arguments[2] + i;
            session.say(placed(producer.send(Session.message(arguments[0], "tag", body, body)), body));
        }
    }

    /** topic:group:count: says what the group is given, until it has so many. */
    private static void take(Session session) throws Exception {
        String[] arguments = session.argument.split(":");
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.consumer(arguments[1]);
        consumer.subscribe(arguments[0], "*");
        received.concurrently(consumer);
        consumer.start();
        received.await(Integer.parseInt(arguments[2]));
        consumer.shutdown();
        received.all().forEach(message -> session.say(placed(message)));
    }

    /** topic: sends to all queues that the route has in turn, and says where each acknowledged message lies. */
    private static void produce(Session session, PrintStream out) throws Exception {
        readToEnd();
        DefaultMQProducer producer = session.producer(4);
        producer.setSendMsgTimeout(3000);
        String topic = session.argument;
        List<String> acknowledged = new ArrayList<>();
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 0; END.getCount() > 0; i++) {
            String body = session.name + i;
            try {
                if (i % 100 == 0 || queues.isEmpty()) {
                    queues = producer.fetchPublishMessageQueues(topic);
                }
                SendResult result = producer.send(Session.message(topic, "tag", body, body), queues.get(i % queues.size()));
                acknowledged.add(placed(result, body));
            } catch (Exception refused) {
                // The broker is away.
                Thread.sleep(REPORT_EVERY_MS);
            }
            if (i % 10 == 0) {
                report(out, session, acknowledged.size());
            }
        }
        report(out, session, acknowledged.size());
        acknowledged.forEach(session::say);
    }

    /** topic: sends where the client likes, as applications do, and says where each message lies; a refusal ends it. */
    private static void produceAnywhere(Session session, PrintStream out) throws Exception {
        readToEnd();
        DefaultMQProducer producer = session.producer(4);
        List<String> acknowledged = new ArrayList<>();
        try {
            for (int i = 0; END.getCount() > 0; i++) {
                String body = session.name + i;
                acknowledged.add(placed(producer.send(Session.message(session.argument, "tag", body, body)), body));
                if (i % 10 == 0) {
                    report(out, session, acknowledged.size());
                }
            }
        } finally {
            report(out, session, acknowledged.size());
            acknowledged.forEach(session::say);
        }
    }

    /** topic:group: says what it is given, at the end until nothing has come for so long; a member leaves at once. */
    private static void consume(Session session, PrintStream out, int quietMsMin) throws Exception {
        readToEnd();
        String[] arguments = session.argument.split(":");
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.consumer(arguments[1]);
        consumer.subscribe(arguments[0], "*");
        received.concurrently(consumer);
        consumer.start();
        int reported = -1;
        int quietMs = 0;
        // What was sent last comes after the end.
        while (END.getCount() > 0 || quietMs < quietMsMin) {
            quietMs += REPORT_EVERY_MS;
            if (received.count() != reported) {
                reported = received.count();
                report(out, session, reported);
                quietMs = 0;
            }
            Thread.sleep(REPORT_EVERY_MS);
        }
        consumer.shutdown();
        received.all().forEach(message -> session.say(placed(message)));
    }

    private StreamScenarios() {
    }
}
