package interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.embedded.EmbeddedChannel;
import java.util.HashMap;
import java.util.Properties;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.processor.EndTransactionProcessor;
import org.apache.rocketmq.broker.transaction.AbstractTransactionalMessageCheckListener;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * A broker's store with the services that deliver delayed messages and settle transactions: RocketMQ's own, but without
 * its network, which takes longer to start than all the rest.
 */
final class OpenBroker extends OpenStore {
    private static final int END_TRANSACTION = 37;

    private final BrokerController controller;

    static OpenBroker open(String directory, Properties settings) throws Exception {
        MessageStoreConfig config = config(directory, settings);
        BrokerController controller =
            new BrokerController(new BrokerConfig(), new NettyServerConfig(), new NettyClientConfig(), config);
        if (!controller.initialize()) {
            throw new IllegalStateException("the broker did not initialize");
        }
        return new OpenBroker(controller, config);
    }

    private OpenBroker(BrokerController controller, MessageStoreConfig config) throws Exception {
        super((DefaultMessageStore) controller.getMessageStore(), config, new SettableClock());
        this.controller = controller;
        ScheduleService.start(controller);
    }

    @Override
    JsonObject answer(JsonObject question) throws Exception {
        switch (question.get("do").getAsString()) {
            case "half":
                return put(controller.getTransactionalMessageService().prepareMessage(Messages.one(question)));
            case "end":
                return end(question);
            case "check":
                return check(question);
            case "shutdown":
                return shutdown(question);
            default:
                return super.answer(question);
        }
    }

    /** What a producer's END_TRANSACTION does. */
    private JsonObject end(JsonObject question) throws Exception {
        HashMap<String, String> fields = new HashMap<>();
        for (String name : new String[] {"producerGroup", "tranStateTableOffset", "commitLogOffset",
            "commitOrRollback", "fromTransactionCheck", "msgId", "transactionId"}) {
            fields.put(name, question.get(name).getAsString());
        }
        RemotingCommand request = RemotingCommand.createRequestCommand(END_TRANSACTION, null);
        request.setExtFields(fields);
        EmbeddedChannel channel = new EmbeddedChannel(new ChannelInboundHandlerAdapter());
        RemotingCommand response =
            new EndTransactionProcessor(controller).processRequest(channel.pipeline().firstContext(), request);
        JsonObject json = new JsonObject();
        json.addProperty("code", response.getCode());
        json.addProperty("remark", response.getRemark());
        return json;
    }

    /** Looks for half messages that nobody has settled, once, and tells about which their senders would be asked. */
    private JsonObject check(JsonObject question) {
        JsonArray asked = new JsonArray();
        controller.getTransactionalMessageService().check(question.get("timeout").getAsLong(),
            question.get("max").getAsInt(), new AbstractTransactionalMessageCheckListener() {
                @Override
                public void resolveHalfMsg(MessageExt half) {
                    asked.add(Json.record(half));
                }

                @Override
                public void resolveDiscardMsg(MessageExt half) {
                    throw new IllegalStateException("discarded: queueOffset=" + half.getQueueOffset());
                }
            });
        JsonObject json = new JsonObject();
        json.add("records", asked);
        return json;
    }

    private JsonObject shutdown(JsonObject question) throws Exception {
        ScheduleService.stop(controller);
        controller.getTransactionalMessageService().close();
        JsonObject json = super.answer(question);
        controller.getConsumerOffsetManager().persist();
        return json;
    }
}
