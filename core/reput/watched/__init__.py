"""What an operator watches: a store or brokers, read again and again, and the rates between two readings.

`reput top` shows it in a terminal, `reput console` in a browser.
"""
