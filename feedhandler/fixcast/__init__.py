"""FIX over multicast: the publisher's and the receiver's session, packing, pacing and channels."""
