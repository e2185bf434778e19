package interop.clients;

/** Clients of one broker at work; what they see is said to the session. */
@FunctionalInterface
interface Scenario {
    void run(Session session) throws Exception;
}
