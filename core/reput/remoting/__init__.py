"""RocketMQ's remoting protocol: frames, headers and codes, connections of both sides, TLS.

    codes ◀── command ◀── connection ◀── server, client

It knows nothing of stores: brokers, name servers and clients are made of it.
"""
