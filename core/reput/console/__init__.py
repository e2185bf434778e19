"""`reput console`: a store or brokers, watched and acted on in a browser.

    browser ──▶ Guard: host, session, CSRF, headers ──▶ pages ──▶ ConsoleStore or ConsoleBrokers ──▶ files, brokers
                                                    └──▶ LiveFeed: one reading a second for all open pages

It runs in a process of its own, reads the store's files, and acts through the store's control socket and its broker.
The pages are plain HTML; a script of its own moves the numbers and draws the charts. Nothing is loaded from elsewhere.
"""
