"""Problems that a `Market` counts instead of raising, by name."""

#: What `Market.problems` counts.
PROBLEMS: dict[str, str] = {
    "bad_packet": "packets that the scanner rejects, or whose compressed body cannot be inflated",
    "bad_message": "single messages that do not end where their size says, odd quality messages",
    "unknown_type": "messages of a type that the feed's description does not have; not kept",
    "short_message": "messages shorter than their layout; not kept",
    "unknown_order": "orders changed or deleted that are not in the book; a change adds them",
    "known_order": "orders added that are in the book already; they are replaced",
    "changed_side": "orders that changed from one side to the other; they are replaced",
    "no_volume": "orders with volume 0; not kept",
    "odd_side": "orders that are neither bought nor sold; not kept",
    "odd_action": "order messages with an unknown ActionType; not kept",
    "odd_delimiter": "delimiters of retransmitted orders that are unknown or out of order",
    "end_without_start": "ends of reference data that had not begun",
    "full": "orders and messages that found `entries_max` reached; not kept",
}
