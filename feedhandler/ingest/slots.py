"""Words of a slot in which a packet waits (`hold.PacketPool`), as plain numbers."""

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
#: Upper limit on one line's packets kept as evidence against an announced loss (`lost.Runs`).
RUN_MAX = 8
#: Upper limit on ranges published behind such a loss that are remembered (`lost.Islands`).
ISLANDS_MAX = 64
