package interop;

import org.apache.rocketmq.broker.BrokerController;

/** Delivers delayed messages: in version 5 it is the broker's. */
final class ScheduleService {
    static void start(BrokerController controller) {
        controller.getScheduleMessageService().start();
    }

    static void stop(BrokerController controller) {
        controller.getScheduleMessageService().stop();
    }

    private ScheduleService() {
    }
}
