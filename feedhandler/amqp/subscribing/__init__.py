"""The subscriber's side, `feedhandler.subscribe`: attaching, resuming, joining several sources."""
