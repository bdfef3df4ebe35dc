"""Retransmission of FIX messages by number: Resend Requests, both ends, without I/O."""
