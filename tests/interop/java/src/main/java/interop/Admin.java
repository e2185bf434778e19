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
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs commands of mqadmin, and the clients that they are about, in one process.
 *
 * <p>The argument is the address of a name server. One JSON object a line on standard input is a question, one on
 * standard output its answer: {"do":"admin","arguments":[...]}, {"do":"send",...}, {"do":"consume",...}.
 */
public final class Admin {
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();
    private final String nameServer;
    private final Map<String, DefaultMQPushConsumer> consumers = new HashMap<>();
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
        SendResult result = producer.send(message);
        JsonObject answer = new JsonObject();
        answer.addProperty("msgId", result.getMsgId());
        answer.addProperty("offsetMsgId", result.getOffsetMsgId());
        answer.addProperty("queueId", result.getMessageQueue().getQueueId());
        answer.addProperty("queueOffset", result.getQueueOffset());
        return answer;
    }

    /** Begins to consume a topic; all messages are taken. */
    private JsonObject consume(JsonObject question) throws Exception {
        String group = question.get("group").getAsString();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("consumer");
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.subscribe(question.get("topic").getAsString(), "*");
        consumer.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
        consumers.put(group, consumer);
        JsonObject answer = new JsonObject();
        answer.addProperty("clientId", consumer.buildMQClientId());
        return answer;
    }
}
