"""The words of a stored packet's entry (`store.PacketStore`), as plain numbers."""

SEQUENCE, NEXT, RUN, OFFSET, SIZE, STAMP, SKIP, COUNT = range(8)
ENTRY_WORDS = 8
