"""FIX messages as bytes: `tag=value` fields, each ended by SOH."""
