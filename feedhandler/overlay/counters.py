"""Counters of a member: a name and a meaning each, as `feedhandler.counters` has them."""

from feedhandler.counters import Counter


class OverlayCounter(Counter):
    """One member of one tree."""

    ACCEPTED = 0, "first copies of messages, taken"
    DUPLICATES = 1, "later copies, dropped"
    VIOLATIONS = 2, "messages so far behind that nobody can tell whether they are copies; dropped"
    OLD_EPOCH = 3, "messages and heartbeats of a sender that has restarted since; dropped"
    NEW_EPOCHS = 4, "restarts of the sender that were followed"
    MALFORMED = 5, "refused: no datagram of the overlay"
    OTHER_TREE = 6, "refused: of another tree"
    STRANGERS = 7, "refused: from an address that has no business to send this"
    FORGED = 8, "refused: the seal is not the one of its key"
    REPLAYED = 9, "refused: a control datagram or heartbeat that is no newer than the last one"
    WRONG_PAYLOAD = 10, "refused: a control payload that is not what its kind wants"
    SENT = 11, "datagrams of messages sent or forwarded, one for each child"
    UNSERVED = 12, "datagrams that were not sent as the child has been silent for too long"
    REPORTS = 13, "reports taken from children"
    CLAMPED = 14, "reports with a delay above the bound, cut to it"
    OUTLIERS = 15, "reports set apart as they differ too much from the others'"
    DELIVERED = 16, "messages delivered"
    LATE = 17, "messages that came after their deadline; delivered at once"
    UNDATED = 18, "messages without a deadline"
    AFTER_GAP = 19, "messages that came after their gap had been announced; dropped"
    LOST = 20, "messages announced as lost"
    OVERFLOW = 21, "messages refused as too many were held; announced as lost in their turn"
    OVERHELD = 22, "messages delivered before their deadline as the hold reached its bound"
    CLOCK_STEPS = 23, "steps of a clock that were noticed"


class Counts:
    """The counters of one member."""

    def __init__(self) -> None:
        self.values = [0] * len(OverlayCounter)

    def add(self, counter: OverlayCounter, by: int = 1) -> None:
        """Count."""
        self.values[counter] += by

    def __getitem__(self, counter: OverlayCounter) -> int:
        return self.values[counter]
