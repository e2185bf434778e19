package interop.clients;

import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Messages by key and id, and offsets by time. */
final class QueryScenarios {
    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("query", QueryScenarios::query);
        scenarios.put("offsets", QueryScenarios::offsets);
    }

    private static String found(QueryResult result) {
        return result.getMessageList().stream().map(Received::text).sorted().collect(Collectors.joining(", "));
    }

    private static void query(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(1);
        List<MessageQueue> queues = session.create(producer, session.topic());
        SendResult last = null;
        long begin = System.currentTimeMillis();
        for (int i = 0; i < 40; i++) {
            last = producer.send(Session.message(session.topic(), "tag", "one" + i + " shared", "body" + i), queues.get(0));
        }
        SendResult sent = last;
        // The index comes a moment after the message.
        Session.await(() -> {
            try {
                return producer.queryMessage(session.topic(), "one39", 5, 0, Long.MAX_VALUE).getMessageList().size() == 1;
            } catch (Exception notYet) {
                return false;
            }
        });
        session.sayOutcome("one key", () -> found(producer.queryMessage(session.topic(), "one7", 5, 0, Long.MAX_VALUE)));
        session.sayOutcome("shared key", () -> found(producer.queryMessage(session.topic(), "shared", 5, 0, Long.MAX_VALUE)));
        session.sayOutcome("all of it", () -> found(producer.queryMessage(session.topic(), "shared", 64, 0, Long.MAX_VALUE)));
        session.sayOutcome("no such key", () -> found(producer.queryMessage(session.topic(), "none", 5, 0, Long.MAX_VALUE)));
        session.sayOutcome("before", () -> found(producer.queryMessage(session.topic(), "shared", 5, 0, begin - 60_000)));
        session.sayOutcome("other topic", () -> found(producer.queryMessage("T-none", "shared", 5, 0, Long.MAX_VALUE)));
        session.sayOutcome("unique key", () -> describe(producer.viewMessage(session.topic(), sent.getMsgId())));
        session.sayOutcome("offset id", () -> describe(producer.viewMessage(session.topic(), sent.getOffsetMsgId())));
        String broken = sent.getOffsetMsgId().substring(0, 24) + "00000000FFFFFFFF".substring(8);
        session.sayOutcome("id of nothing", () -> describe(producer.viewMessage(session.topic(), broken)));
        session.sayOutcome("unknown unique key", () -> describe(producer.viewMessage(session.topic(), "7F00000100000000000000000000FFFF")));
    }

    private static String describe(MessageExt message) {
        return message == null ? "null" : Received.describe(message);
    }

    private static void offsets(Session session) throws Exception {
        DefaultMQProducer producer = session.producer(2);
        List<MessageQueue> queues = session.create(producer, session.topic());
        MessageQueue queue = queues.get(0);
        MessageQueue empty = queues.get(1);
        session.send(producer, session.topic(), "1", "2");
        Thread.sleep(500);
        session.send(producer, session.topic(), "3", "4");
        Session.await(() -> producer.maxOffset(queue) == 5);
        List<MessageExt> messages = Stored.messages(session, List.of(queue));
        for (MessageQueue one : List.of(queue, empty, new MessageQueue("T-none", queue.getBrokerName(), 0), new MessageQueue(session.topic(), queue.getBrokerName(), 9))) {
            String name = one.getTopic() + ":" + one.getQueueId();
            session.sayOutcome(name + " max", () -> producer.maxOffset(one));
            session.sayOutcome(name + " min", () -> producer.minOffset(one));
            session.sayOutcome(name + " by time 0", () -> producer.searchOffset(one, 0));
            session.sayOutcome(name + " by time, far ahead", () -> producer.searchOffset(one, System.currentTimeMillis() + 1_000_000));
            session.sayOutcome(name + " earliest", () -> {
                long time = producer.earliestMsgStoreTime(one);
                return time == messages.get(0).getStoreTimestamp() ? "the first's" : String.valueOf(time);
            });
        }
        for (int i = 0; i < messages.size(); i++) {
            long time = messages.get(i).getStoreTimestamp();
            int first = i;
            while (first > 0 && messages.get(first - 1).getStoreTimestamp() == time) {
                first--;
            }
            session.say("by the time of a message", producer.searchOffset(queue, time) - first);
        }
        session.say("between", producer.searchOffset(queue, messages.get(3).getStoreTimestamp() - 200));
    }

    private QueryScenarios() {
    }
}
