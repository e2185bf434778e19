package interop.clients;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.Function;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Transactions, settled at once, when the broker asks, or by another producer of the group. */
final class TransactionScenarios {
    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("transaction", TransactionScenarios::settled);
        scenarios.put("transaction-checked", TransactionScenarios::checked);
        scenarios.put("transaction-restarted", TransactionScenarios::restarted);
    }

    /** Says what becomes of a message, at first and each time the broker asks. */
    private static final class Listener implements TransactionListener {
        private final Function<String, LocalTransactionState> first;
        private final Function<MessageExt, LocalTransactionState> asked;
        final ConcurrentLinkedQueue<String> questions = new ConcurrentLinkedQueue<>();

        Listener(Function<String, LocalTransactionState> first, Function<MessageExt, LocalTransactionState> asked) {
            this.first = first;
            this.asked = asked;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return first.apply(new String(message.getBody()));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            questions.add(Received.describe(message).replaceFirst(":\\d+ flag", ":* flag"));
            return asked.apply(message);
        }
    }

    private static LocalTransactionState named(String body) {
        return body.startsWith("commit")
            ? LocalTransactionState.COMMIT_MESSAGE
            : body.startsWith("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
    }

    private static TransactionMQProducer producer(Session session, Listener listener) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("P-" + session.name);
        producer.setTransactionListener(listener);
        return session.start(producer, 2);
    }

    private static Received consumer(Session session) throws Exception {
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "*");
        received.concurrently(consumer);
        consumer.start();
        return received;
    }

    private static void send(Session session, TransactionMQProducer producer, String body) throws Exception {
        TransactionSendResult result =
            producer.sendMessageInTransaction(Session.message(session.topic(), "tag", "key-" + body, body), null);
        session.say(
            body,
            result.getSendStatus(),
            result.getLocalTransactionState(),
            Session.shape(result.getMsgId()),
            Session.shape(result.getTransactionId()),
            result.getMsgId().equals(result.getTransactionId()));
    }

    /** Queues are picked in turn, beginning anywhere. */
    private static List<String> unplaced(Received received) {
        List<String> lines = received.described();
        lines.replaceAll(line -> line.replaceFirst(":\\d+:\\d+ flag", ":*:* flag").replaceAll("REAL_QID=\\d", "REAL_QID=*"));
        lines.sort(null);
        return lines;
    }

    private static void settled(Session session) throws Exception {
        Listener listener = new Listener(TransactionScenarios::named, message -> LocalTransactionState.UNKNOW);
        TransactionMQProducer producer = producer(session, listener);
        session.create(producer, session.topic());
        Received received = consumer(session);
        for (String body : List.of("commit 1", "rollback 2", "commit 3", "rollback 4", "commit 5")) {
            send(session, producer, body);
        }
        received.await(3);
        session.sayAll("consumed", unplaced(received));
        session.say("asked", listener.questions.size());
    }

    private static void checked(Session session) throws Exception {
        Map<String, Integer> times = new ConcurrentHashMap<>();
        Listener listener = new Listener(TransactionScenarios::named, message -> {
            String body = Received.text(message);
            int time = times.merge(body, 1, Integer::sum);
            // "twice" stays open until it is asked a second time.
            boolean waits = body.endsWith("twice") && time == 1;
            return waits ? LocalTransactionState.UNKNOW
                : body.contains("committed") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        });
        TransactionMQProducer producer = producer(session, listener);
        session.create(producer, session.topic());
        Received received = consumer(session);
        send(session, producer, "later committed");
        send(session, producer, "later rolled back");
        send(session, producer, "later committed, asked twice");
        received.await(2);
        Session.await(() -> listener.questions.size() >= 4);
        session.sayAll("consumed", unplaced(received));
        listener.questions.stream()
            .map(line -> line.replaceFirst(":\\d+:\\* flag", ":*:* flag").replaceAll("REAL_QID=\\d", "REAL_QID=*"))
            .sorted()
            .forEach(line -> session.say("asked", line));
        session.say(new TreeMap<>(times));
    }

    private static void restarted(Session session) throws Exception {
        Listener silent = new Listener(body -> LocalTransactionState.UNKNOW, message -> LocalTransactionState.UNKNOW);
        TransactionMQProducer producer = producer(session, silent);
        session.create(producer, session.topic());
        send(session, producer, "committed by another");
        producer.shutdown();
        Received received = consumer(session);
        Listener other = new Listener(TransactionScenarios::named, message -> LocalTransactionState.COMMIT_MESSAGE);
        // A producer of version 5 connects with its first message.
        session.send(producer(session, other), session.topic(), Session.FIRST);
        received.await(1);
        List<String> lines = unplaced(received);
        // The first one may have been asked before it went.
        lines.replaceAll(line -> line.replaceAll("TRANSACTION_CHECK_TIMES=\\d+", "TRANSACTION_CHECK_TIMES=*"));
        session.sayAll("consumed", lines);
        session.say("asked", other.questions.size() > 0);
    }

    private TransactionScenarios() {
    }
}
