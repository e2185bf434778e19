"""The client: what `reput.connect` returns. It speaks RocketMQ's remoting protocol with reput's and RocketMQ's brokers.

    Client ──┬─▶ Session, one per event loop: connections, routes ──▶ Sender: the puts of one turn are sent together
             └─▶ RemoteConsumer ──▶ GroupSession: heartbeats, rebalancing, pulls ──▶ RemoteQueue

Blocking methods use an event loop in a thread of the client; coroutines use the event loop in which they are awaited.
"""
