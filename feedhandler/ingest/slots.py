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
) = range(12)
SLOT_WORDS = 12
