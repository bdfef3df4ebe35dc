"""The indices of the words in a stored packet's table entry (`store.PacketStore`)."""

SEQUENCE, NEXT, RUN, OFFSET, SIZE, STAMP, SKIP, COUNT = range(8)
ENTRY_WORDS = 8
