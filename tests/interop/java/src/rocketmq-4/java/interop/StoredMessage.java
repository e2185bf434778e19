package interop;

/** A message as a broker hands it to its store. */
final class StoredMessage extends org.apache.rocketmq.store.MessageExtBrokerInner {
}
