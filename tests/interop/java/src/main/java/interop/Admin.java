package interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs commands of mqadmin, and the clients that they are about, in one process.
 *
 * <p>The argument is the address of a name server. One JSON object a line on standard input is a question, one on
 * standard output its answer:
 *
 * <pre>
 * {"do":"admin","arguments":["topicRoute","-t","T"]}           what the command printed
 * {"do":"send","group":g,"topic":T,"queueId":0,"key":k,"body":b}
 * {"do":"consume","group":g,"topic":T}                         a consumer that takes all, until {"do":"leave","group":g}
 * {"do":"received","group":g}                                  how many messages it has got
 * </pre>
 */
public final class Admin {
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();
    private final String nameServer;
    private final Map<String, DefaultMQPushConsumer> consumers = new HashMap<>();
    private final Map<String, AtomicInteger> received = new HashMap<>();
    private DefaultMQProducer producer;

    private Admin(String nameServer) {
        this.nameServer = nameServer;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        // Libraries may print; only answers reach the real standard output.
        System.setOut(System.err);
        Admin admin = new Admin(arguments[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        out.println("{}");
        String line;
        while ((line = in.readLine()) != null) {
            JsonObject answer;
            try {
                answer = admin.answer(GSON.fromJson(line, JsonObject.class));
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer = new JsonObject();
                answer.addProperty("error", failure.toString());
            }
            out.println(GSON.toJson(answer));
        }
        Runtime.getRuntime().halt(0);
    }

    private JsonObject answer(JsonObject question) throws Exception {
        switch (question.get("do").getAsString()) {
            case "admin":
                return run(question);
            case "send":
                return send(question);
            case "consume":
                return consume(question);
            case "received":
                JsonObject count = new JsonObject();
                count.addProperty("count", received.get(question.get("group").getAsString()).get());
                return count;
            case "leave":
                consumers.remove(question.get("group").getAsString()).shutdown();
                return new JsonObject();
            default:
                throw new IllegalArgumentException(question.toString());
        }
    }

    /** Runs one command, and returns what it printed. */
    private JsonObject run(JsonObject question) {
        List<String> arguments = new ArrayList<>();
        for (JsonElement argument : question.getAsJsonArray("arguments")) {
            arguments.add(argument.getAsString());
        }
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream catching = new PrintStream(printed, true, StandardCharsets.UTF_8);
        PrintStream formerErr = System.err;
        System.setProperty("rocketmq.namesrv.addr", nameServer);
        System.setOut(catching);
        System.setErr(catching);
        try {
            MQAdminStartup.main0(arguments.toArray(new String[0]), null);
        } finally {
            System.setOut(formerErr);
            System.setErr(formerErr);
        }
        JsonObject answer = new JsonObject();
        answer.addProperty("output", printed.toString(StandardCharsets.UTF_8));
        return answer;
    }

    /** Sends one message by a producer that stays. */
    private JsonObject send(JsonObject question) throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer(question.get("group").getAsString());
            producer.setNamesrvAddr(nameServer);
            producer.setInstanceName("producer");
            producer.start();
        }
        Message message = new Message(
            question.get("topic").getAsString(),
            "tag",
            question.get("key").getAsString(),
            question.get("body").getAsString().getBytes(StandardCharsets.UTF_8));
        String broker = producer.fetchPublishMessageQueues(message.getTopic()).get(0).getBrokerName();
        MessageQueue queue = new MessageQueue(message.getTopic(), broker, question.get("queueId").getAsInt());
        SendResult result = producer.send(message, queue);
        JsonObject answer = new JsonObject();
        answer.addProperty("msgId", result.getMsgId());
        answer.addProperty("offsetMsgId", result.getOffsetMsgId());
        return answer;
    }

    /** Begins to consume a topic; all messages are taken. */
    private JsonObject consume(JsonObject question) throws Exception {
        String group = question.get("group").getAsString();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("consumer");
        consumer.setPersistConsumerOffsetInterval(500);
        // The first heartbeat makes the retry topic, so the consumer finds it only when it looks again: otherwise 30 s later.
        consumer.setPollNameServerInterval(1000);
        consumer.subscribe(question.get("topic").getAsString(), "*");
        AtomicInteger count = new AtomicInteger();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            count.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        received.put(group, count);
        consumers.put(group, consumer);
        JsonObject answer = new JsonObject();
        answer.addProperty("clientId", consumer.buildMQClientId());
        return answer;
    }
}
