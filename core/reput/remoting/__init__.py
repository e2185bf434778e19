"""RocketMQ's remoting protocol: frames, headers and codes, client and server connections, TLS.

    codes ◀── command ◀── connection ◀── server, client

It knows nothing of stores: brokers, name servers and clients are built on it.
"""
