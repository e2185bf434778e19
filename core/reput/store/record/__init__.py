"""Records and messages: the fields' layout, encoding and decoding, properties, delay levels."""
