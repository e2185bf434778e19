"""Workers: a function or coroutine function that is called with each message of some topics."""
