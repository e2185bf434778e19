"""The broker: one store on the network, for RocketMQ's own clients.

    connections ──▶ RemotingServer ──▶ processor of the request's code ──▶ store and consuming services
                                          │
                    state: the client of each connection, and its groups

Everything here runs in the thread of one event loop, except requests that may wait for the disk: those run in threads.
"""
