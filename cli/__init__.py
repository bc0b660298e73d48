"""What the command line programs share: how they are called, what they print, how they end."""
