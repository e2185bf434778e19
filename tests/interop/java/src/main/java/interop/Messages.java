package interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;

/** Messages out of JSON, as a broker would hand them to its store. */
final class Messages {
    // Of one message in a batch: sizes of itself, magic, CRC, flag, body, and the short size of its properties.
    private static final int BATCH_ITEM_OVERHEAD = 4 + 4 + 4 + 4 + 4 + 2;

    static StoredMessage one(JsonObject json) throws UnknownHostException {
        StoredMessage message = new StoredMessage();
        fillIn(message, json);
        message.setBody(body(json));
        String properties = json.get("properties").getAsString();
        message.setPropertiesString(properties);
        MessageAccessor.setProperties(message, MessageDecoder.string2messageProperties(properties));
        return message;
    }

    /** The messages of a batch share everything but body, flag and properties. */
    static MessageExtBatch batch(JsonObject json) throws UnknownHostException {
        MessageExtBatch batch = new MessageExtBatch();
        fillIn(batch, json);
        JsonArray items = json.getAsJsonArray("messages");
        int size = 0;
        for (JsonElement item : items) {
            size += BATCH_ITEM_OVERHEAD + body(item).length + properties(item).length;
        }
        ByteBuffer buffer = ByteBuffer.allocate(size);
        for (JsonElement item : items) {
            byte[] body = body(item);
            byte[] properties = properties(item);
            buffer.putInt(BATCH_ITEM_OVERHEAD + body.length + properties.length);
            buffer.putInt(0);
            buffer.putInt(0);
            buffer.putInt(item.getAsJsonObject().get("flag").getAsInt());
            buffer.putInt(body.length);
            buffer.put(body);
            buffer.putShort((short) properties.length);
            buffer.put(properties);
        }
        batch.setBody(buffer.array());
        return batch;
    }

    private static void fillIn(MessageExt message, JsonObject json) throws UnknownHostException {
        message.setTopic(json.get("topic").getAsString());
        message.setQueueId(json.get("queueId").getAsInt());
        message.setFlag(json.get("flag").getAsInt());
        message.setSysFlag(json.get("sysFlag").getAsInt());
        message.setBornTimestamp(json.get("bornTimestamp").getAsLong());
        message.setBornHost(Json.host(json.get("bornHost").getAsString()));
        message.setStoreHost(Json.host(json.get("storeHost").getAsString()));
        message.setReconsumeTimes(json.get("reconsumeTimes").getAsInt());
        message.setPreparedTransactionOffset(json.get("preparedTransactionOffset").getAsLong());
    }

    private static byte[] body(JsonElement json) {
        return Base64.getDecoder().decode(json.getAsJsonObject().get("body").getAsString());
    }

    private static byte[] properties(JsonElement json) {
        return json.getAsJsonObject().get("properties").getAsString().getBytes(StandardCharsets.UTF_8);
    }

    private Messages() {
    }
}
