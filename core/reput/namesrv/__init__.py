"""The name server: knows the brokers and their topics, and answers clients' questions about them.

    brokers ── register ──▶ RouteInfoManager ◀── route, cluster, topics ── NameServer ◀── clients

The name server uses no store. A broker may run its own, and any number of brokers may share one.
"""
