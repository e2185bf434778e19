package interop;

import java.io.IOException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.SystemClock;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** RocketMQ's own store, but for the clock that gives records their store time. */
final class ClockedStore extends DefaultMessageStore {
    /** A topic with batch consume queues. */
    private static final String BATCHES = "batches";

    private final SystemClock clock;

    ClockedStore(MessageStoreConfig config, SystemClock clock) throws IOException {
        super(config, new BrokerStatsManager(new BrokerConfig()),
            (topic, queueId, offset, tagsCode, time, bitMap, properties) -> { }, new BrokerConfig(),
            new ConcurrentHashMap<>(Map.of(BATCHES, batchTopic())));
        this.clock = clock;
    }

    private static TopicConfig batchTopic() {
        TopicConfig topic = new TopicConfig(BATCHES);
        topic.getAttributes().put("queue.type", "BatchCQ");
        return topic;
    }

    @Override
    public SystemClock getSystemClock() {
        return clock;
    }
}
