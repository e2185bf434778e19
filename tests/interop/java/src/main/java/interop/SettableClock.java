package interop;

import org.apache.rocketmq.common.SystemClock;

/** The machine's clock, until it is told a time; then it stands there. */
final class SettableClock extends SystemClock {
    private volatile Long standsAt;

    void standAt(Long ms) {
        standsAt = ms;
    }

    @Override
    public long now() {
        Long ms = standsAt;
        return ms == null ? System.currentTimeMillis() : ms;
    }
}
