package interop;

import org.apache.rocketmq.broker.BrokerController;

/** Delivers delayed messages: in version 4 the store starts and stops it by itself. */
final class ScheduleService {
    static void start(BrokerController controller) {
    }

    static void stop(BrokerController controller) {
    }

    private ScheduleService() {
    }
}
