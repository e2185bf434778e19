"""The logs of a group: one pipe per dispatcher, one merged log, and the text of an exception."""
