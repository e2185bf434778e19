"""The parts of the writer: opening and recovering, checking messages, appending, durability, publishing, statistics."""
