package interop;

import java.io.IOException;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.SystemClock;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * RocketMQ's own store, but for the clock that gives records their store time, and without delivering delayed messages.
 *
 * <p>Version 5's store delivers none either: its broker does. What version 4 dispatches while it recovers it has due at
 * once, for it reads the levels of delay only after that; so after a kill it would put messages that nobody asked for.
 */
final class ClockedStore extends DefaultMessageStore {
    private final SystemClock clock;

    ClockedStore(MessageStoreConfig config, SystemClock clock) throws IOException {
        super(config, new BrokerStatsManager("interop", false),
            (topic, queueId, offset, tagsCode, time, bitMap, properties) -> { }, new BrokerConfig());
        this.clock = clock;
    }

    @Override
    public SystemClock getSystemClock() {
        return clock;
    }

    @Override
    public void handleScheduleMessageService(BrokerRole role) {
    }
}
