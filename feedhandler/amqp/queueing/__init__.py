"""What waits for a slow link or broker: bounded queues, policies, and what conflation keeps."""
