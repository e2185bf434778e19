"""The client: what `reput.connect` returns. It speaks RocketMQ's remoting protocol to any broker of that kind.

    Client ──┬─▶ Session, one per event loop: connections, routes ──▶ Sender: what one turn puts is sent together
             └─▶ RemoteConsumer ──▶ GroupSession: heartbeats, rebalancing, pulls ──▶ RemoteQueue

Blocking methods work through an event loop in a thread of the client's own, coroutines in the loop that awaits them.
"""
