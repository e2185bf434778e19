package interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.List;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** Records and hosts as JSON: field names of RocketMQ, bodies in base64. */
final class Json {
    /** Every field of a record, as RocketMQ's own decoder reads it. */
    static JsonObject record(MessageExt message) {
        JsonObject json = new JsonObject();
        json.addProperty("physicalOffset", message.getCommitLogOffset());
        json.addProperty("size", message.getStoreSize());
        json.addProperty("topic", message.getTopic());
        json.addProperty("queueId", message.getQueueId());
        json.addProperty("queueOffset", message.getQueueOffset());
        json.addProperty("flag", message.getFlag());
        json.addProperty("sysFlag", message.getSysFlag());
        json.addProperty("bornTimestamp", message.getBornTimestamp());
        json.addProperty("bornHost", host(message.getBornHost()));
        json.addProperty("storeTimestamp", message.getStoreTimestamp());
        json.addProperty("storeHost", host(message.getStoreHost()));
        json.addProperty("reconsumeTimes", message.getReconsumeTimes());
        json.addProperty("preparedTransactionOffset", message.getPreparedTransactionOffset());
        json.addProperty("bodyCRC", message.getBodyCRC());
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        json.addProperty("body", Base64.getEncoder().encodeToString(body));
        JsonObject properties = new JsonObject();
        // Null where the record has no properties.
        if (message.getProperties() != null) {
            message.getProperties().forEach(properties::addProperty);
        }
        json.add("properties", properties);
        json.addProperty("msgId", message.getMsgId());
        return json;
    }

    static JsonArray records(List<ByteBuffer> buffers) {
        JsonArray records = new JsonArray();
        for (ByteBuffer buffer : buffers) {
            records.add(record(decode(buffer)));
        }
        return records;
    }

    /** The body stays as it is stored. */
    static MessageExt decode(ByteBuffer buffer) {
        return MessageDecoder.decode(buffer, true, false);
    }

    /** "127.0.0.1:10911", "[::1]:10911". */
    static InetSocketAddress host(String text) throws UnknownHostException {
        int colon = text.lastIndexOf(':');
        InetAddress address = InetAddress.getByName(text.substring(0, colon));
        return new InetSocketAddress(address, Integer.parseInt(text.substring(colon + 1)));
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        String text = host.getAddress().getHostAddress();
        return (text.contains(":") ? "[" + text + "]" : text) + ":" + host.getPort();
    }

    private Json() {
    }
}
