"""The name server: which brokers there are, which topics they have, and answers for clients that ask.

    brokers ── register ──▶ RouteInfoManager ◀── route, cluster, topics ── NameServer ◀── clients

It knows no store. A broker has one of its own; any number of brokers may share one.
"""
