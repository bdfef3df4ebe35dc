"""Bounded queues for slow links and brokers, their policies, and what conflation keeps."""
