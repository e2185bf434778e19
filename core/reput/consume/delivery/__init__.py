"""Messages that come later, again, or only when their sender says so: delays, retries, transactions."""
