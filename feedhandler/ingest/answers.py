"""Return values between the parts of a channel's arbitration, as plain numbers."""

# Comparison of a packet with the first copy of its number (`fingerprint`).
UNKNOWN, SAME, DIFFERENT, OTHER_SPAN = range(4)

# Evidence for a packet beyond the window (`quarantine`).
NO_EVIDENCE, REPEATED, CONFIRMED = range(3)

# Outcome for a packet that is not next (`sequencer.Sequencer.keep`).
NO_ROOM, KEPT, SAME_AGAIN, OTHER_AGAIN, TOO_LONG = range(5)

# Evidence of a packet about a pending sequence reset (`epochs.Epochs.judge`).
NOTHING, BELIEVED, FORGED = range(3)
