"""What the parts of a channel's arbitration answer one another, as plain numbers."""

# Whether a number's packet was seen with these bytes (`fingerprint`).
UNKNOWN, SAME, DIFFERENT, OTHER_SPAN = range(4)

# What speaks for a packet beyond the window (`quarantine`).
NO_EVIDENCE, REPEATED, CONFIRMED = range(3)

# What became of a packet that is not next (`sequencer.Sequencer.keep`).
NO_ROOM, KEPT, SAME_AGAIN, OTHER_AGAIN, TOO_LONG = range(5)

# What a packet says of a sequence reset that is pending (`epochs.Epochs.judge`).
NOTHING, BELIEVED, FORGED = range(3)
