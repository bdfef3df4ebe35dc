"""The embedded node: connections, log-in and users, links, catch-up, groups, resumption."""
