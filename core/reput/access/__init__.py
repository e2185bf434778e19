"""Access to a broker: signatures, accounts of RocketMQ 4, users and policies of RocketMQ 5.

    request ──▶ AccessControl ──┬─ the request's needs: topics, groups, administration
                                └─ accounts: white addresses, signature, permissions ──▶ passes, or RequestRefused

A broker without accounts does not use this package.
"""
