"""`reput demo`: the whole product once, on the store in `rocketmq_store.tar.gz` and on a scratch store."""
