"""What every verb takes from a terminal and gives to it."""
