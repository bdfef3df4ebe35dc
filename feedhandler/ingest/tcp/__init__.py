"""Lines that come by TCP: SoupBinTCP sessions, and packets with a length in front of each."""
