"""What a broker knows: who is connected, which queues are locked, which topics there are, and what was counted."""
