package interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.util.HashSet;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.StoreCheckpoint;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** RocketMQ's store on one directory, and what can be asked of it. */
class OpenStore {
    private static final int BLANK_MAGIC_CODE = -875286124;
    private static final long DISPATCH_TIMEOUT_NANOS = 60_000_000_000L;

    private final SettableClock clock;
    private final MessageStoreConfig config;
    private final DefaultMessageStore store;

    /** Loads, starts, and waits until everything in the log is dispatched. */
    static OpenStore open(String directory, Properties settings) throws Exception {
        MessageStoreConfig config = config(directory, settings);
        SettableClock clock = new SettableClock();
        ClockedStore store = new ClockedStore(config, clock);
        if (!store.load()) {
            throw new IllegalStateException("the store did not load");
        }
        return new OpenStore(store, config, clock);
    }

    /** Starts a store that was loaded, and waits until everything in its log is dispatched. */
    OpenStore(DefaultMessageStore store, MessageStoreConfig config, SettableClock clock) throws Exception {
        this.store = store;
        this.config = config;
        this.clock = clock;
        store.start();
        awaitDispatched();
    }

    /** What a store in a directory is configured with. */
    static MessageStoreConfig config(String directory, Properties settings) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory);
        config.setStorePathCommitLog(directory + "/commitlog");
        // Any free port: nobody replicates from this store.
        config.setHaListenPort(0);
        MixAll.properties2Object(settings, config);
        return config;
    }

    JsonObject answer(JsonObject question) throws Exception {
        String what = question.get("do").getAsString();
        switch (what) {
            case "state":
                return state();
            case "records":
                return records();
            case "queues":
                return queues();
            case "get":
                return get(question);
            case "query":
                return query(question);
            case "offset_by_time":
                return offsetByTime(question);
            case "look":
                return look(question);
            case "clock":
                clock.standAt(question.get("ms").getAsLong());
                return new JsonObject();
            case "put":
                return put(store.putMessage(Messages.one(question)));
            case "put_batch":
                return put(store.putMessages(Messages.batch(question)));
            case "delete_topic":
                Set<String> kept = new HashSet<>(store.getConsumeQueueTable().keySet());
                kept.remove(question.get("topic").getAsString());
                store.cleanUnusedTopic(kept);
                return new JsonObject();
            case "shutdown":
                store.shutdown();
                return new JsonObject();
            default:
                throw new IllegalArgumentException("unknown question: do=" + what);
        }
    }

    private void awaitDispatched() {
        long giveUp = System.nanoTime() + DISPATCH_TIMEOUT_NANOS;
        while (store.dispatchBehindBytes() > 0) {
            if (System.nanoTime() > giveUp) {
                throw new IllegalStateException("not dispatched in time: behind=" + store.dispatchBehindBytes());
            }
            LockSupport.parkNanos(200_000);
        }
    }

    private JsonObject state() {
        JsonObject json = new JsonObject();
        json.addProperty("minPhyOffset", store.getMinPhyOffset());
        json.addProperty("maxPhyOffset", store.getMaxPhyOffset());
        json.addProperty("writeable", store.getRunningFlags().isWriteable());
        StoreCheckpoint checkpoint = store.getStoreCheckpoint();
        json.addProperty("physicMsgTimestamp", checkpoint.getPhysicMsgTimestamp());
        json.addProperty("logicsMsgTimestamp", checkpoint.getLogicsMsgTimestamp());
        json.addProperty("indexMsgTimestamp", checkpoint.getIndexMsgTimestamp());
        return json;
    }

    /** The log from its first record to its last, blanks passed over. */
    private JsonObject records() {
        JsonArray records = new JsonArray();
        long offset = store.getMinPhyOffset();
        long end = store.getMaxPhyOffset();
        while (offset >= 0 && offset < end) {
            SelectMappedBufferResult selected = store.getCommitLogData(offset);
            if (selected == null) {
                throw new IllegalStateException("no bytes: physicalOffset=" + offset + " maxPhyOffset=" + end);
            }
            try {
                offset = decodeAll(selected.getByteBuffer(), offset, records);
            } finally {
                selected.release();
            }
        }
        JsonObject json = new JsonObject();
        json.add("records", records);
        return json;
    }

    /** Decodes one file's bytes from physical offset at on, and returns where to go on. */
    private long decodeAll(ByteBuffer buffer, long at, JsonArray records) {
        long fileSize = config.getMappedFileSizeCommitLog();
        while (buffer.remaining() >= 8) {
            int size = buffer.getInt(buffer.position());
            if (buffer.getInt(buffer.position() + 4) == BLANK_MAGIC_CODE) {
                return at + fileSize - at % fileSize;
            }
            int next = buffer.position() + size;
            MessageExt message = Json.decode(buffer);
            if (message == null) {
                throw new IllegalStateException("no record: physicalOffset=" + at);
            }
            records.add(Json.record(message));
            buffer.position(next);
            at += size;
        }
        return at;
    }

    private JsonObject queues() throws Exception {
        awaitDispatched();
        JsonArray queues = new JsonArray();
        for (Map.Entry<String, ? extends Map<Integer, ?>> topic : store.getConsumeQueueTable().entrySet()) {
            for (int queueId : topic.getValue().keySet()) {
                JsonObject queue = new JsonObject();
                queue.addProperty("topic", topic.getKey());
                queue.addProperty("queueId", queueId);
                queue.addProperty("min", store.getMinOffsetInQueue(topic.getKey(), queueId));
                queue.addProperty("max", store.getMaxOffsetInQueue(topic.getKey(), queueId));
                queues.add(queue);
            }
        }
        JsonObject json = new JsonObject();
        json.add("queues", queues);
        return json;
    }

    private JsonObject get(JsonObject question) {
        awaitDispatched();
        GetMessageResult result = store.getMessage("interop", question.get("topic").getAsString(),
            question.get("queueId").getAsInt(), question.get("queueOffset").getAsLong(),
            question.get("count").getAsInt(), null);
        try {
            JsonObject json = new JsonObject();
            json.addProperty("status", result.getStatus().name());
            json.addProperty("nextBeginOffset", result.getNextBeginOffset());
            json.addProperty("minOffset", result.getMinOffset());
            json.addProperty("maxOffset", result.getMaxOffset());
            json.add("records", Json.records(result.getMessageBufferList()));
            return json;
        } finally {
            result.release();
        }
    }

    private JsonObject query(JsonObject question) {
        awaitDispatched();
        QueryMessageResult result = store.queryMessage(question.get("topic").getAsString(),
            question.get("key").getAsString(), question.get("count").getAsInt(), question.get("begin").getAsLong(),
            question.get("end").getAsLong());
        try {
            JsonObject json = new JsonObject();
            json.add("records", Json.records(result.getMessageBufferList()));
            return json;
        } finally {
            result.release();
        }
    }

    private JsonObject offsetByTime(JsonObject question) {
        awaitDispatched();
        JsonObject json = new JsonObject();
        json.addProperty("queueOffset", store.getOffsetInQueueByTime(question.get("topic").getAsString(),
            question.get("queueId").getAsInt(), question.get("timestamp").getAsLong()));
        return json;
    }

    private JsonObject look(JsonObject question) {
        MessageExt found = store.lookMessageByOffset(question.get("physicalOffset").getAsLong());
        JsonObject json = new JsonObject();
        json.add("record", found == null ? null : Json.record(found));
        return json;
    }

    static JsonObject put(PutMessageResult result) {
        JsonObject json = new JsonObject();
        json.addProperty("status", result.getPutMessageStatus().name());
        if (result.getAppendMessageResult() != null) {
            json.addProperty("physicalOffset", result.getAppendMessageResult().getWroteOffset());
            json.addProperty("size", result.getAppendMessageResult().getWroteBytes());
            json.addProperty("queueOffset", result.getAppendMessageResult().getLogicsOffset());
            json.addProperty("storeTimestamp", result.getAppendMessageResult().getStoreTimestamp());
            json.addProperty("msgId", result.getAppendMessageResult().getMsgId());
        }
        return json;
    }
}
