"""The words of a slot in which a packet waits (`hold.PacketPool`), as plain numbers."""

(
    SEQUENCE,
    NEXT,
    RECEIVED,
    SESSION,
    SEND_TIME,
    LENGTH,
    BODY,
    LINE,
    COUNT,
    KIND,
    NOTICED,
    FINGERPRINT,
    ORDER,
    SPEAKER,
) = range(14)
SLOT_WORDS = 14
#: Packets of one line that are kept as evidence that an announced loss was none (`lost.Runs`).
RUN_MAX = 8
#: Stretches published behind such a range that are remembered (`lost.Islands`).
ISLANDS_MAX = 64
