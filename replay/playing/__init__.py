"""Playing recordings: selection of datagrams, send schedules, injected faults, senders."""
