package interop.clients;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/** Requests, and the replies that the broker pushes to the clients that wait for them. */
final class ReplyScenarios {
    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("request-reply", ReplyScenarios::requestReply);
        scenarios.put("reply-to-nobody", ReplyScenarios::replyToNobody);
    }

    private static void requestReply(Session session) throws Exception {
        DefaultMQProducer replier = session.producer(1);
        session.create(replier, session.topic());
        List<String> replies = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = session.consumer(session.group());
        consumer.subscribe(session.topic(), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                if (Session.FIRST.equals(Received.text(message))) {
                    continue;
                }
                try {
                    Message reply = MessageUtil.createReplyMessage(message, ("reply to " + Received.text(message)).getBytes());
                    replies.add(replier.send(reply, 5000).getSendStatus().name());
                } catch (Exception failure) {
                    replies.add(Session.code(failure));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer asking = session.start(new DefaultMQProducer("P-asking-" + session.name), 1);
        // Replies reach a producer that the broker knows by a heartbeat.
        session.send(asking, session.topic(), Session.FIRST);
        asking.getDefaultMQProducerImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
        for (int i = 0; i < 3; i++) {
            CompletableFuture<String> answer = new CompletableFuture<>();
            asking.request(Session.message(session.topic(), "question " + i), new RequestCallback() {
                @Override
                public void onSuccess(Message message) {
                    answer.complete(new String(message.getBody()) + " "
                        + (message instanceof MessageExt ? Received.describe((MessageExt) message) : message.getTopic()));
                }

                @Override
                public void onException(Throwable failure) {
                    answer.complete(failure.toString());
                }
            }, 10_000);
            session.say(answer.get(20, TimeUnit.SECONDS));
        }
        Session.await(() -> replies.size() == 3);
        session.say("replied", replies);
    }

    private static void replyToNobody(Session session) throws Exception {
        DefaultMQProducer replier = session.producer(1);
        session.create(replier, session.topic());
        MessageExt question = new MessageExt();
        question.setTopic(session.topic());
        question.putUserProperty("x", "y");
        MessageAccessor.putProperty(question, "CLUSTER", "DefaultCluster");
        MessageAccessor.putProperty(question, "CORRELATION_ID", "c");
        MessageAccessor.putProperty(question, "REPLY_TO_CLIENT", "nobody");
        MessageAccessor.putProperty(question, "TTL", "3000");
        Message reply = MessageUtil.createReplyMessage(question, "reply".getBytes());
        replier.setRetryTimesWhenSendFailed(0);
        session.sayOutcome("reply", () -> replier.send(reply, 5000).getSendStatus());
    }

    private ReplyScenarios() {
    }
}
