import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/** Sends a message to a topic that is allowed and to one that is not, finds it by its id, and consumes it. */
public final class ProtectedClient {
    public static void main(String[] arguments) {
        try {
            run(arguments);
            System.exit(0);
        } catch (Exception error) {
            // Threads of the clients would keep the program alive.
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] arguments) throws Exception {
        String nameServer = arguments[0];
        RPCHook hook = arguments.length > 1
            ? new AclClientRPCHook(new SessionCredentials(arguments[1], arguments[2])) : null;
        DefaultMQProducer producer = new DefaultMQProducer("producers", hook);
        producer.setNamesrvAddr(nameServer);
        producer.setRetryTimesWhenSendFailed(0);
        // On a busy machine its first request, with the handshake of TLS, can take longer than the 3 s of the client.
        producer.setSendMsgTimeout(60_000);
        producer.start();
        SendResult sent = producer.send(new Message("orders", "created", "k", bytes("body")));
        System.out.println("sent " + sent.getSendStatus());
        List<Message> batch = List.of(new Message("orders", bytes("one")), new Message("orders", bytes("two")));
        System.out.println("batch " + producer.send(batch).getSendStatus());
        MessageExt found = producer.viewMessage("orders", sent.getMsgId());
        System.out.println("found " + new String(found.getBody(), StandardCharsets.UTF_8));
        try {
            producer.send(new Message("forbidden", bytes("body")));
            System.out.println("forbidden sent");
        } catch (MQBrokerException error) {
            System.out.println("forbidden " + error.getResponseCode());
        } catch (MQClientException error) {
            // After the last attempt; RocketMQ 4 makes one however few are wished.
            System.out.println("forbidden " + error.getResponseCode());
        }
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("billing", hook);
        consumer.setNamesrvAddr(nameServer);
        consumer.subscribe("orders", "*");
        consumer.start();
        int count = 0;
        long end = System.nanoTime() + 60_000_000_000L;
        while (count < 3 && System.nanoTime() < end) {
            count += consumer.poll(1000).size();
        }
        System.out.println("consumed " + count);
        consumer.shutdown();
        producer.shutdown();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
